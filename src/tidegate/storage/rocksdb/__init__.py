"""The engine on RocksDB: takes write batches, returns values and snapshots, keeps one database.

Also the check of RocksDB's log before it is opened, and what works around faults of rocksdict.
"""
