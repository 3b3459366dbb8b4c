"""Savepoints: takes a complete batch, keeps a named copy of the state after it, which is never pruned."""
