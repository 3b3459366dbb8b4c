"""How a filter grows: takes what is there and what is expected, gives for how many keys room is made."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.state.segments import bloom

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
    """Give how many keys a segment will hold: what the one before it held, else by the rate so far.

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
        """Give for how many keys there is to be room when so many are there."""
        room = int(need * GROWTH)
        if self.expected_keys > need:
            likely = int(max(self.expected_keys * EXPECTED_SLACK, need * GROWTH_MIN))
            room = self.expected_keys if self.is_sure else min(likely, room)
        return max(room, self._settings.page_keys_min)

    @property
    def page_keys_max(self) -> int:
        """Give the most keys that one page is made for."""
        most = min(self._settings.page_keys_max, bloom.keys_max(self._settings.bits_per_key))
        return min(most, self._step, SURE_KEYS_MAX) if self.is_sure else most

    @property
    def _step(self) -> int:
        """Give how many keys a page is made for where a larger number is sure.

        Hashes are added all over the newest page: it has half of the memory at most, if three will do then.
        """
        return max(self._memory_keys, -(-self.expected_keys // PAGES_MAX), self._settings.page_keys_min)
