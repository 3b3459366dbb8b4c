"""Benchmarks: each prints our figure beside a peer's, same data, same run, as a ratio."""
