"""Tests of sql/parser."""
