"""Tests of checkpoint/savepoints."""
