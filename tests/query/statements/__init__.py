"""Tests of query/statements."""
