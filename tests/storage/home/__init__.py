"""Tests of storage/home."""
