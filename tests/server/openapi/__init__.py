"""Tests of server/openapi."""
