"""Keyed state beside its peers: `python -m benchmarks.state`."""
