"""The estimated number of entries of a partition, updated with each batch.

RocksDB has no such number: it counts a key again with every write until it has merged them. So each commit
record has the count, and the next batch adds to it. A batch looks up some of its keys before it changes them:
all where they are few, else an even sample. That is exact where all keys are new, or none is, and is off by a
fiftieth of a large batch at most in between, to either side.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import TypeVar

from tidegate.checkpoint.backend import Backend, StateChanges

# Looked up in about a millisecond; most were read by the batch already, and are in the cache.
SAMPLE_KEYS = 1_024

# Ranges are deleted where a list or a map is cleared. Each is a read of its own.
SAMPLE_RANGES = 32

# A range with more entries is rare, and counting them would delay the batch.
RANGE_ENTRIES_MAX = 100_000

_T = TypeVar("_T")
_Range = tuple[bytes, bytes]


def count_change(backend: Backend, changes: StateChanges) -> int:
    """Return about how many entries more a backend has after these changes."""
    ranges = _merge_ranges(changes.ranges)
    return _entries_change(backend, changes, ranges) - _ranges_removed(backend, ranges)


def _entries_change(backend: Backend, changes: StateChanges, ranges: Sequence[_Range]) -> int:
    count = len(changes.entries)
    chosen = sorted(_sample(list(changes.entries), SAMPLE_KEYS))
    starts = [start for start, _ in ranges]
    moved = 0
    for key, stored in zip(chosen, backend.get_many(chosen), strict=True):
        place = bisect_right(starts, key) - 1
        is_cleared = place >= 0 and key < ranges[place][1]
        is_there = stored is not None and not is_cleared
        moved += (changes.entries[key] is not None) - is_there
    return _extrapolate(moved, len(chosen), count)


def _ranges_removed(backend: Backend, ranges: Sequence[_Range]) -> int:
    chosen = _sample(ranges, SAMPLE_RANGES)
    removed = sum(
        sum(1 for _ in islice(backend.scan(start, stop), RANGE_ENTRIES_MAX)) for start, stop in chosen
    )
    return _extrapolate(removed, len(chosen), len(ranges))


def _merge_ranges(ranges: Sequence[_Range]) -> list[_Range]:
    """Return the ranges in order, overlapping ones merged."""
    joined: list[_Range] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    return joined


def _sample(all_of_them: Sequence[_T], count_max: int) -> list[_T]:
    """Return an even sample: entries written together are represented in proportion."""
    if len(all_of_them) <= count_max:
        return list(all_of_them)
    step = len(all_of_them) / count_max
    return [all_of_them[int(place * step)] for place in range(count_max)]


def _extrapolate(found: int, sampled: int, count: int) -> int:
    return round(found * count / sampled) if sampled else 0
