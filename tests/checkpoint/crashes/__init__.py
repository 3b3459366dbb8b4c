"""Tests of batches that are killed, and of what is on the disk when."""
