"""Tests of dedup/store."""
