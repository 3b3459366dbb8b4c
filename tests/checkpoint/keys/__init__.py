"""Tests of checkpoint/keys."""
