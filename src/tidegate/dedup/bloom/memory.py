"""The filters' memory: takes a bound for a worker, gives back to the system what was not used for longest.

A page of a filter is a mapped file: what is given back is on the disk or on its way there, and is read again
when it is probed. The system may keep it cached as long as nobody else wants the memory.

While all pages together fit, nothing is counted and nothing given back. Beyond that each page is used in
parts, and what is in memory is counted by them: giving back costs a call, and reading again a fault for each
place, so as little as possible is given back, and only when the bound is reached.

How a filter grows: takes what is there and what is expected, gives for how many keys room is made.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from tidegate.dedup.bloom import blocked

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
        """Return whether all pages together are more than may be in memory: uses must be noted then."""
        return self._owned_bytes > self.bytes_max

    def part_bytes(self, page_bytes: int) -> int:
        """Return how much of a page of that size is used at a time: all of it, or some whole system pages."""
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


# Room is made for at most so many times the keys that there are, and at least, where fewer are expected.
GROWTH = 1.6
GROWTH_MIN = 1.25
# What is expected may be a little too low, and a page more for the last few keys is dear.
EXPECTED_SLACK = 1.05
# One more, and all are made into one: three full ones answer falsely for 1.6 % of all new keys.
PAGES_MAX = 3
# What is sure may be a slip of the finger: no page is made for more at once, 400 MB at 12 bits.
SURE_KEYS_MAX = 1 << 28
# An estimate from the rate so far is believed up to so many times what is there: it begins with one batch.
GROWTH_MAX = 8


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """How a filter is laid out: bits a key when a page is full, and how many keys a page is made for."""

    bits_per_key: int = 12
    page_keys_min: int = 1 << 16
    page_keys_max: int = 1 << 29  # 800 MB at 12 bits
    stem_bytes_min: int = 8 << 20  # a smaller page is copied with every snapshot (filter_snapshot.py)


def estimated_keys(count: int, passed: float, previous: int | None = None) -> int:
    """Return how many keys a segment will hold: what the one before it held, else by the rate so far.

    `passed` is the part of the segment's interval that is over, from 0 to 1.
    """
    if previous is not None and previous > count:
        return previous
    if passed <= 0:
        return count
    return min(int(count / min(passed, 1.0)), count * GROWTH_MAX)


class Room:
    """The room that one filter makes; `is_sure` says that the caller knows, and is taken at their word."""

    def __init__(self, settings: FilterSettings, memory_bytes_max: int) -> None:
        self.expected_keys = 0
        self.is_sure = False
        self._settings = settings
        self._memory_keys = memory_bytes_max * 8 // (2 * settings.bits_per_key)

    def keys(self, need: int) -> int:
        """Return for how many keys there is to be room when so many are there."""
        room = int(need * GROWTH)
        if self.expected_keys > need:
            likely = int(max(self.expected_keys * EXPECTED_SLACK, need * GROWTH_MIN))
            room = self.expected_keys if self.is_sure else min(likely, room)
        return max(room, self._settings.page_keys_min)

    @property
    def page_keys_max(self) -> int:
        """Return the most keys that one page is made for."""
        most = min(self._settings.page_keys_max, blocked.keys_max(self._settings.bits_per_key))
        return min(most, self._step, SURE_KEYS_MAX) if self.is_sure else most

    @property
    def _step(self) -> int:
        """Return how many keys a page is made for where a larger number is sure.

        Hashes are added all over the newest page: it has half of the memory at most, if three will do then.
        """
        return max(self._memory_keys, -(-self.expected_keys // PAGES_MAX), self._settings.page_keys_min)
