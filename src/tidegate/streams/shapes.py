"""What the store answers with: frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.model.tables import Row


@dataclass(frozen=True, slots=True)
class Appended:
    """How many rows were added, their numbers, and the bytes of their frame."""

    count: int
    seqs: Sequence[int]
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StreamRows:
    """Whole rows: own columns, `_seq`, `_time`. A warning names a damaged frame that was left out."""

    rows: list[Row]
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Evicted:
    """How many windows went out of sight, and how many open logs were closed for that."""

    windows: int
    writers: int


@dataclass(frozen=True, slots=True)
class WindowShape:
    """A window of a table on the disk."""

    name: str
    start_ms: int
    duration_ms: int
    files: int
    size_bytes: int
    writers: int
