"""Tests of checkpoint/backends."""
