"""Tests of storage/rocksdb."""
