"""The memory budget of the filters of a worker, an LRU over parts of pages, and the growth of a filter.

A page of a filter is a mapped file: memory that is released is on the disk or on its way there, and is read
again when it is probed. The system may keep it in the page cache while no other process needs the memory.

While all pages together fit, nothing is counted and nothing is released. Beyond that each page is used in
parts, and memory is counted by part: a release costs a system call, and reading again a page fault for each
position, so as little as possible is released, and only when the bound is reached.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from tidegate.dedup.bloom import blocked

FILTER_MEMORY_BYTES_MAX = 256 << 20  # 170 million keys at 12 bits each; more are read from the disk as needed
# A part is at most this share of the bound: the one in use always stays, and a page larger than the bound is
# used part by part.
PARTS_MIN = 8
PARTS_MAX = 1 << 14  # of one page: their numbers have 16 bits
# Smaller parts cost more in system calls than they save.
PART_BYTES_MIN = 64 << 10


class Releasable(Protocol):
    """Mapped memory that can be released, and is read again when it is used."""

    def release(self, part: int | None) -> None:
        """Release the memory of a part, or of all, to the system; nothing is lost."""
        ...


class FilterBudget:
    """The bound of filter memory of a worker; the least recently used parts are released first.

    Shared by all filters of a worker and by its threads. The part in use stays, whatever the bound.
    """

    def __init__(self, bytes_max: int = FILTER_MEMORY_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.released = 0
        self._owners: dict[int, tuple[Releasable, int]] = {}
        self._owned_bytes = 0
        self._parts: OrderedDict[tuple[int, int], tuple[Releasable, int]] = OrderedDict()
        self._used_bytes = 0
        self._lock = threading.Lock()

    @property
    def is_tight(self) -> bool:
        """True if all pages together exceed the bound: then every use is recorded."""
        return self._owned_bytes > self.bytes_max

    def part_bytes(self, page_bytes: int) -> int:
        """Return the part size of a page of a size: the page itself, or a multiple of `PART_BYTES_MIN`."""
        part = max(PART_BYTES_MIN, self.bytes_max // PARTS_MIN, page_bytes // PARTS_MAX)
        return min(page_bytes, part - part % PART_BYTES_MIN)

    def own(self, owner: Releasable, size_bytes: int) -> None:
        """Add a page that was mapped; when the bound is first exceeded, all pages are released once."""
        with self._lock:
            had_room = not self.is_tight
            self._owners[id(owner)] = (owner, size_bytes)
            self._owned_bytes += size_bytes
            if had_room and self.is_tight:
                self._parts.clear()
                self._used_bytes = 0
                for other, _ in self._owners.values():
                    other.release(None)

    def use(self, owner: Releasable, part: int, size_bytes: int) -> None:
        """Record that a part is about to be read and what it then takes; release others for it."""
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

    def forget(self, owner: Releasable) -> None:
        """Remove an owner and its parts; its mapping is being closed."""
        with self._lock:
            _, size_bytes = self._owners.pop(id(owner), (owner, 0))
            self._owned_bytes -= size_bytes
            for key in [key for key, (other, _) in self._parts.items() if other is owner]:
                self._used_bytes -= self._parts.pop(key)[1]


# Room is made for at most so many times the present keys, and for at least so many if fewer are expected.
GROWTH = 1.6
GROWTH_MIN = 1.25
# The expected number may be a little too low, and another page for the last few keys is expensive.
EXPECTED_SLACK = 1.05
# Beyond these all pages are merged into one: three full ones have 1.6 % false positives.
PAGES_MAX = 3
# A number given as sure may be a typing error: no page is made for more at once, 400 MB at 12 bits.
SURE_KEYS_MAX = 1 << 28
# An estimate from the rate so far counts up to so many times the present keys: it begins with one batch.
GROWTH_MAX = 8


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """The layout of a filter: bits per key of a full page, and the limits of a page."""

    bits_per_key: int = 12
    page_keys_min: int = 1 << 16
    page_keys_max: int = 1 << 29  # 800 MB at 12 bits
    base_bytes_min: int = 8 << 20  # a smaller page is copied with every snapshot (snapshot.py)


def estimated_keys(count: int, passed: float, previous: int | None = None) -> int:
    """Return the keys that a segment will hold: as many as the one before it, else by the rate so far.

    `passed` is the share of the segment's interval that has passed, from 0 to 1.
    """
    if previous is not None and previous > count:
        return previous
    if passed <= 0:
        return count
    return min(int(count / min(passed, 1.0)), count * GROWTH_MAX)


class FilterGrowth:
    """The capacity that one filter makes; `is_sure` if the expected number is given by the user."""

    def __init__(self, settings: FilterSettings, memory_bytes_max: int) -> None:
        self.expected_keys = 0
        self.is_sure = False
        self._settings = settings
        self._memory_keys = memory_bytes_max * 8 // (2 * settings.bits_per_key)

    def keys(self, need: int) -> int:
        """Return the capacity, in keys, to have when `need` keys are present."""
        room = int(need * GROWTH)
        if self.expected_keys > need:
            likely = int(max(self.expected_keys * EXPECTED_SLACK, need * GROWTH_MIN))
            room = self.expected_keys if self.is_sure else min(likely, room)
        return max(room, self._settings.page_keys_min)

    @property
    def page_keys_max(self) -> int:
        """Return the largest capacity of one page."""
        most = min(self._settings.page_keys_max, blocked.keys_max(self._settings.bits_per_key))
        return min(most, self._step, SURE_KEYS_MAX) if self.is_sure else most

    @property
    def _step(self) -> int:
        """Return the capacity of a page when a larger number of keys is sure.

        Hashes are added everywhere in the newest page: it takes half of the memory at most, if three pages
        of that size suffice.
        """
        return max(self._memory_keys, -(-self.expected_keys // PAGES_MAX), self._settings.page_keys_min)
