"""Tests of sql/expressions."""
