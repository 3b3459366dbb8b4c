"""Tests of storage/lake."""
