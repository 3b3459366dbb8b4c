"""The segmented store: takes keys with event times, keeps them by event time.

Each segment is one RocksDB and its filter; an expired one is removed as a folder. The store is a backend of
the checkpoint (checkpoint/backend.py).
"""
