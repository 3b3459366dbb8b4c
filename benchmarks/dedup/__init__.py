"""Deduplication beside its peers: `python -m benchmarks.dedup`."""
