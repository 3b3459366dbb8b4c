"""Tests of pipeline/worker."""
