"""Tests of query/duckdb."""
