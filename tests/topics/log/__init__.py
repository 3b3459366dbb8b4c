"""Tests of topics/log."""
