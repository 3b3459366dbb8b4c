"""Tests of checkpoint/local."""
