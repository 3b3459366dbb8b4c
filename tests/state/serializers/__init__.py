"""Tests of state/serializers."""
