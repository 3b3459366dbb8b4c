"""Quoted names and texts for DuckDB's SQL."""

from __future__ import annotations


def quote_text(text: str) -> str:
    """Return a SQL text literal."""
    return "'" + text.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    """Return a SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def escape_glob(path: str) -> str:
    """Return the pattern that matches exactly this path."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)
