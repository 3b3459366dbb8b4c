"""Pipelines on Spark: takes messages over HTTP, gives Delta tables and messages, keeps no state."""
