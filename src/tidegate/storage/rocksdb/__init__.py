"""The engine on RocksDB: takes write batches, returns values and snapshots, keeps one database.

It also has the check of RocksDB's logs before they are replayed, and workarounds for faults of rocksdict.
"""
