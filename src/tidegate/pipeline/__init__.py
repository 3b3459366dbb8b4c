"""Streaming on Spark: takes messages from topics over HTTP, gives Delta tables, keeps nothing of its own."""
