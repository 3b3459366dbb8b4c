"""Tests of sdk/_async."""
