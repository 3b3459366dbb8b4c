"""The segmented store: takes keys with event times, returns the stored times of keys, keeps them by time.

Each segment is one RocksDB and its filter; an expired one is removed as a folder. The store is a backend of
the checkpoint (checkpoint/backend.py).
"""
