"""Tests of pipeline/stateful."""
