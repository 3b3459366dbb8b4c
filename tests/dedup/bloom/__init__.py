"""Tests of dedup/bloom."""
