"""Savepoints: takes a complete batch, keeps a copy of the state after it that pruning leaves alone."""
