"""The Spark source and sink of topics: takes options, returns or publishes rows over HTTP."""
