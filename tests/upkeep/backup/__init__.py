"""Tests of upkeep/backup."""
