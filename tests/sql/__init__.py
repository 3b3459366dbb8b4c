"""Tests of the sql package."""
