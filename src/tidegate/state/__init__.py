"""Keyed state: takes the rows of a partition and an operator, gives its output, keeps the operator's states.

A partition's state is a local store (RocksDB, or memory) that may be lost at any moment, and a checkpoint
from which it is restored. Nothing here knows Spark.
"""
