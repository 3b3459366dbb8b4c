"""Backends: takes a folder, returns ordered entries with one version; RocksDB and an in-memory one."""
