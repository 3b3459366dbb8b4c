"""How many entries a partition holds: takes what a batch changes, gives by how much the count moves.

RocksDB cannot say: it counts a key anew with every write until it has merged them. So each head carries the
count on. A batch looks some of its keys up in the copy that it is about to change: all of them where they are
few, else evenly chosen ones, which speak for the rest. That is exact where all keys are new, or none is, and
is off by a fiftieth of a large batch at most in between, to either side.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import TypeVar

from tidegate.checkpoint.backend import Backend, Changes

# Looked up in about a millisecond; most were read by the batch before, and lie in the cache.
SAMPLE_KEYS = 1_024

# Ranges go where a list or a map is cleared. Each is a read of its own.
SAMPLE_RANGES = 32

# A range with more entries is rare, and counting them would hold the batch up.
RANGE_ENTRIES_MAX = 100_000

_T = TypeVar("_T")
_Range = tuple[bytes, bytes]


def moved_by(backend: Backend, changes: Changes) -> int:
    """Return how many entries more a copy will hold, about, once it has taken these changes."""
    ranges = _joined(changes.ranges)
    return _entries_moved(backend, changes, ranges) - _ranges_gone(backend, ranges)


def _entries_moved(backend: Backend, changes: Changes, ranges: Sequence[_Range]) -> int:
    count = len(changes.entries)
    chosen = sorted(_spread(list(changes.entries), SAMPLE_KEYS))
    starts = [start for start, _ in ranges]
    moved = 0
    for key, stored in zip(chosen, backend.get_many(chosen), strict=True):
        place = bisect_right(starts, key) - 1
        is_cleared = place >= 0 and key < ranges[place][1]
        is_there = stored is not None and not is_cleared
        moved += (changes.entries[key] is not None) - is_there
    return _for_all(moved, len(chosen), count)


def _ranges_gone(backend: Backend, ranges: Sequence[_Range]) -> int:
    chosen = _spread(ranges, SAMPLE_RANGES)
    gone = sum(sum(1 for _ in islice(backend.scan(start, stop), RANGE_ENTRIES_MAX)) for start, stop in chosen)
    return _for_all(gone, len(chosen), len(ranges))


def _joined(ranges: Sequence[_Range]) -> list[_Range]:
    """Put ranges in order, those that overlap as one."""
    joined: list[_Range] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    return joined


def _spread(all_of_them: Sequence[_T], count_max: int) -> list[_T]:
    """Choose evenly: what was written together is represented by as much as it has."""
    if len(all_of_them) <= count_max:
        return list(all_of_them)
    step = len(all_of_them) / count_max
    return [all_of_them[int(place * step)] for place in range(count_max)]


def _for_all(found: int, looked_at: int, count: int) -> int:
    return round(found * count / looked_at) if looked_at else 0
