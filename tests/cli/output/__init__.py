"""Tests of cli/output."""
