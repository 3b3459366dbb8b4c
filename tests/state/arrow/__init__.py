"""Tests of state/arrow."""
