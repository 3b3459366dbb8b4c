"""The filters' memory: takes a bound for a worker, gives back to the system what was not used for longest.

A page of a filter is a mapped file: what is given back is on the disk or on its way there, and is read again
when it is probed. The system may keep it cached as long as nobody else wants the memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol

FILTER_MEMORY_BYTES_MAX = 256 << 20  # 170 million keys at 12 bits each; more are read from the disk as needed
# A page that takes more than half of the bound is used in parts, of this share of the bound: one that is
# larger than all of it is worked through part by part.
PARTS_MIN = 8
PARTS_MAX = 1 << 14  # of one page: their numbers have 16 bits
# Parts smaller than this cost more in calls than they spare.
PART_BYTES_MIN = 64 << 10


class Released(Protocol):
    """Something in memory that can be let go and comes back by itself when it is used."""

    def release(self, part: int) -> None:
        """Give the memory of a part back to the system; nothing is lost."""
        ...


class FilterBudget:
    """At most `bytes_max` of filters stay in the worker's memory; the least recently used parts go first.

    Shared by all filters of a worker and by its threads. The part in use stays, whatever the bound.
    """

    def __init__(self, bytes_max: int = FILTER_MEMORY_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.released = 0
        self._parts: OrderedDict[tuple[int, int], tuple[Released, int]] = OrderedDict()
        self._used_bytes = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Give the bytes that are in memory at most."""
        return self._used_bytes

    def part_bytes(self, page_bytes: int) -> int:
        """Give how much of a page of that size is used at a time: all of it, or some whole system pages."""
        if page_bytes <= self.bytes_max // 2:
            return page_bytes
        part = max(PART_BYTES_MIN, self.bytes_max // PARTS_MIN, page_bytes // PARTS_MAX)
        return min(page_bytes, part - part % PART_BYTES_MIN)

    def use(self, owner: Released, part: int, size_bytes: int) -> None:
        """Note that a part is about to be read; others go when there is no room for it."""
        key = (id(owner), part)
        with self._lock:
            if key in self._parts:
                self._parts.move_to_end(key)
                return
            self._parts[key] = (owner, size_bytes)
            self._used_bytes += size_bytes
            while self._used_bytes > self.bytes_max and len(self._parts) > 1:
                (_, oldest), (other, other_bytes) = self._parts.popitem(last=False)
                self._used_bytes -= other_bytes
                self.released += 1
                # Under the lock, so that no mapping is closed meanwhile.
                other.release(oldest)

    def forget(self, owner: Released) -> None:
        """Take everything of an owner off the list; its mapping is being closed."""
        with self._lock:
            for key in [key for key, (other, _) in self._parts.items() if other is owner]:
                self._used_bytes -= self._parts.pop(key)[1]
