"""Tests of the nouns, one file for each module."""
