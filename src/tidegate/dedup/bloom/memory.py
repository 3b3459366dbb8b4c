"""The filters' memory: takes a bound for a worker, gives back to the system what was not used for longest.

A page of a filter is a mapped file: what is given back is on the disk or on its way there, and is read again
when it is probed. The system may keep it cached as long as nobody else wants the memory.

While all pages together fit, nothing is counted and nothing given back. Beyond that each page is used in
parts, and what is in memory is counted by them: giving back costs a call, and reading again a fault for each
place, so as little as possible is given back, and only when the bound is reached.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol

FILTER_MEMORY_BYTES_MAX = 256 << 20  # 170 million keys at 12 bits each; more are read from the disk as needed
# Parts are of this share of the bound: the one in use always stays, and a page larger than all of the bound
# is worked through part by part.
PARTS_MIN = 8
PARTS_MAX = 1 << 14  # of one page: their numbers have 16 bits
# Parts smaller than this cost more in calls than they spare.
PART_BYTES_MIN = 64 << 10


class Released(Protocol):
    """Something in memory that can be let go and comes back by itself when it is used."""

    def release(self, part: int | None) -> None:
        """Give the memory of a part, or of all, back to the system; nothing is lost."""
        ...


class FilterBudget:
    """At most `bytes_max` of filters stay in the worker's memory; the least recently used parts go first.

    Shared by all filters of a worker and by its threads. The part in use stays, whatever the bound.
    """

    def __init__(self, bytes_max: int = FILTER_MEMORY_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.released = 0
        self._owners: dict[int, tuple[Released, int]] = {}
        self._owned_bytes = 0
        self._parts: OrderedDict[tuple[int, int], tuple[Released, int]] = OrderedDict()
        self._used_bytes = 0
        self._lock = threading.Lock()

    @property
    def is_tight(self) -> bool:
        """Say whether all pages together are more than may be in memory: uses must be noted then."""
        return self._owned_bytes > self.bytes_max

    def part_bytes(self, page_bytes: int) -> int:
        """Give how much of a page of that size is used at a time: all of it, or some whole system pages."""
        part = max(PART_BYTES_MIN, self.bytes_max // PARTS_MIN, page_bytes // PARTS_MAX)
        return min(page_bytes, part - part % PART_BYTES_MIN)

    def own(self, owner: Released, size_bytes: int) -> None:
        """Note a page that was mapped; when it is the one too many, all that is in memory goes once."""
        with self._lock:
            had_room = not self.is_tight
            self._owners[id(owner)] = (owner, size_bytes)
            self._owned_bytes += size_bytes
            if had_room and self.is_tight:
                self._parts.clear()
                self._used_bytes = 0
                for other, _ in self._owners.values():
                    other.release(None)

    def use(self, owner: Released, part: int, size_bytes: int) -> None:
        """Note that a part is about to be read, and has so much in memory then; others go for it."""
        key = (id(owner), part)
        with self._lock:
            _, known_bytes = self._parts.pop(key, (owner, 0))
            self._parts[key] = (owner, size_bytes)
            self._used_bytes += size_bytes - known_bytes
            while self._used_bytes > self.bytes_max and len(self._parts) > 1:
                (_, oldest), (other, other_bytes) = self._parts.popitem(last=False)
                self._used_bytes -= other_bytes
                self.released += 1
                # Under the lock, so that no mapping is closed meanwhile.
                other.release(oldest)

    def forget(self, owner: Released) -> None:
        """Take everything of an owner off the list; its mapping is being closed."""
        with self._lock:
            _, size_bytes = self._owners.pop(id(owner), (owner, 0))
            self._owned_bytes -= size_bytes
            for key in [key for key, (other, _) in self._parts.items() if other is owner]:
                self._used_bytes -= self._parts.pop(key)[1]
