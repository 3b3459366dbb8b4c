"""The model: what deduplication must give, in plain Python over a dictionary, as the case says it.

Nothing of the code under test is used here: no columns, no segments, no digests. A key is any hashable value.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One row: its key, event time, offset in the source (None: not known), and what breaks ties."""

    key: Hashable
    time_us: int
    offset: int | None = None
    tie: int = 0


@dataclass(frozen=True)
class Judged:
    """What became of a row; `first_us` of a duplicate is the earliest time that it was in conflict with."""

    outcome: str
    first_us: int | None = None


class Model:
    """Remembers every time that was stored, for ever, and counts only those that the rule lets count."""

    def __init__(self, retention_us: int) -> None:
        self.retention_us = retention_us
        self.stream_us: int | None = None
        self._stored: dict[Hashable, list[tuple[int, int | None]]] = {}

    def batch(self, rows: list[Row], *, redelivered: bool = False) -> list[Judged]:
        """Judge the rows of one batch, whatever order they lie in, and remember what was accepted."""
        judged: dict[int, Judged] = {}
        before = {key: list(stamps) for key, stamps in self._stored.items()}
        told_again: set[tuple[Hashable, int, int | None]] = set()
        turn = sorted(range(len(rows)), key=lambda at: (rows[at].time_us, rows[at].offset or 0, rows[at].tie))
        for at in turn:
            row = rows[at]
            own = (row.key, row.time_us, row.offset)
            if self._is_too_old(row.time_us):
                judged[at] = Judged("late")
                continue
            if redelivered and own not in told_again and (own[1], own[2]) in before.get(row.key, []):
                told_again.add(own)
                judged[at] = Judged("unique")
                continue
            conflicts = [t for t in self.counted(row.key) if abs(t - row.time_us) < self.retention_us]
            if conflicts:
                judged[at] = Judged("duplicate", min(conflicts))
            else:
                judged[at] = Judged("unique")
                self._stored.setdefault(row.key, []).append((row.time_us, row.offset))
        for row in rows:
            if self.stream_us is None or row.time_us > self.stream_us:
                self.stream_us = row.time_us
        return [judged[at] for at in range(len(rows))]

    def counted(self, key: Hashable) -> list[int]:
        """Return the times of a key that still count, oldest first."""
        return sorted(t for t, _ in self._stored.get(key, []) if not self._is_too_old(t))

    def known(self) -> list[Hashable]:
        """Return all keys that were ever stored."""
        return list(self._stored)

    def _is_too_old(self, time_us: int) -> bool:
        return self.stream_us is not None and time_us < self.stream_us - self.retention_us
