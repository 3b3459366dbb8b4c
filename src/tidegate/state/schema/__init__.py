"""Schemas of state: takes what an operator declares, compares it with the checkpoint, migrates entries."""
