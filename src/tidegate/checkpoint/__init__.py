"""What survives a batch: takes the changes and output of one partition, commits them once, restores them.

A partition's state is a local store (RocksDB, memory, or segments) that may be lost at any moment, and a
checkpoint from which it is restored: commit records, changelog files, snapshots. Nothing here knows Spark,
nor what the entries mean. `batch.py` has the order of the steps and what a kill after each leaves.
"""
