"""Tests of cli/commands/sql."""
