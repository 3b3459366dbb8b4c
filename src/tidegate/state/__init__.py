"""Keyed state: takes the rows of a partition and an operator, gives its output, keeps what it remembers.

A partition's state is a local copy (RocksDB, or memory) that may be lost at any moment, and a checkpoint from
which it is made again. Nothing here knows Spark.
"""
