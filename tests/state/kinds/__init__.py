"""Tests of state/kinds."""
