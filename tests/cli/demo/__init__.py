"""Tests of cli/demo."""
