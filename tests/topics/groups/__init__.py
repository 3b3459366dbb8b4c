"""Tests of topics/groups."""
