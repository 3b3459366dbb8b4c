"""Tests of cli/commands/topic."""
