"""The Spark source and sink of topics: takes options and rows, gives rows and messages, keeps nothing."""
