"""Tests of pipeline/topic."""
