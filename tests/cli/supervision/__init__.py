"""Tests of cli/supervision."""
