"""Upkeep: takes a home that is in use, keeps it safe: backups and their restores."""
