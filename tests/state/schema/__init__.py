"""Tests of state/schema."""
