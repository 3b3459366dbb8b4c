"""Deduplication by key within a retention of event time.

Takes rows with keys and event times, returns the outcome of each (unique, duplicate or late), and keeps the
keys in a segmented store. That is a backend (checkpoint/backend.py) with one RocksDB and one Bloom filter for
each segment of event time, so that expired keys are removed at once, as a folder.
"""
