"""Segments: takes keys with event times, gives the times under which a key is remembered, keeps them by time.

A segmented store is a backend (checkpoint/backend.py) that has a RocksDB and a filter for each stretch of
event time, so that what is too old goes as a folder, at once.
"""
