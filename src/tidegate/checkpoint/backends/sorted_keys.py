"""A sorted set of keys in short sorted runs.

Nothing is sorted before the first range is read, and after that only what was added since.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import groupby

# A run is sorted again when keys are added to it: short enough for that, long enough to have few runs.
RUN_KEYS = 1024


class SortedKeys:
    """A set of keys with ranges in order; each key is added or removed once at a time."""

    __slots__ = ("_added", "_all", "_firsts", "_removed", "_runs")

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._all = keys  # sorted when a range is first read
        self._runs: list[list[bytes]] | None = None
        self._firsts: list[bytes] = []
        self._added: set[bytes] = set()
        self._removed: set[bytes] = set()

    def add(self, key: bytes) -> None:
        """Add a key that is not in the set."""
        if self._runs is not None:
            if key in self._removed:
                self._removed.discard(key)
            else:
                self._added.add(key)

    def remove(self, key: bytes) -> None:
        """Remove a key that is in the set."""
        if self._runs is not None:
            if key in self._added:
                self._added.discard(key)
            else:
                self._removed.add(key)

    def between(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Yield the keys of a half-open range in order; nothing may be added or removed meanwhile."""
        runs = self._in_runs()
        place = max(0, bisect_right(self._firsts, start) - 1)
        while place < len(runs):
            run = runs[place]
            if run[0] >= stop:
                return
            if start <= run[0] and run[-1] < stop:
                yield from run
            else:
                yield from run[bisect_left(run, start) : bisect_left(run, stop)]
            place += 1

    def _in_runs(self) -> list[list[bytes]]:
        if self._runs is None:
            ordered = sorted(self._all)
            self._runs = _cut(ordered)
        elif self._added or self._removed:
            self._settle(self._runs)
        else:
            return self._runs
        self._firsts = [run[0] for run in self._runs]
        return self._runs

    def _settle(self, runs: list[list[bytes]]) -> None:
        """Apply what was added and removed since to the runs."""
        removed = self._removed
        if not runs:
            runs.append([])
            self._firsts = [b""]

        def place_of(key: bytes) -> int:
            return max(0, bisect_right(self._firsts, key) - 1)

        fresh: dict[int, list[list[bytes]]] = {}
        changed = groupby(sorted(self._added | removed), key=place_of)
        for place, keys in changed:
            run = runs[place] + [key for key in keys if key not in removed]
            if removed:
                run = [key for key in run if key not in removed]
            run.sort()
            fresh[place] = _cut(run)
        for place in sorted(fresh, reverse=True):
            runs[place : place + 1] = fresh[place]
        self._added.clear()
        self._removed.clear()


def _cut(ordered: list[bytes]) -> list[list[bytes]]:
    return [ordered[first : first + RUN_KEYS] for first in range(0, len(ordered), RUN_KEYS)]
