"""Tests of cli/console."""
