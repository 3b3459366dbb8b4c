"""Tests of state/runtime."""
