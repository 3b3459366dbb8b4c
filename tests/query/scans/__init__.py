"""Tests of query/scans."""
