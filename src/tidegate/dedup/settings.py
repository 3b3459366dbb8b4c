"""The rule of segments: takes event times, gives the segment of each and which segments still live.

All times are microseconds since 1970; those before are negative. A segment is a stretch of event time, its
number is `floor(time / interval)`, and its folder is named by its start in milliseconds: `orders.4320000000`.
Every part of the code asks this rule, so that there is one way to cut time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.errors import StateInvalid
from tidegate.model.durations import US_MAX, Duration, format_duration

US_PER_MS = 1_000
# Shorter segments would be opened and removed more often than they are of use.
INTERVAL_US_MIN = 60_000_000
# Each live segment has files of its own, and a far row is looked for in all of them.
SEGMENTS_MAX = 512
# Times are kept as 64-bit numbers, and twice a retention is added to one.
RETENTION_US_MAX = 1 << 60

TimesUs = np.ndarray[Any, np.dtype[np.int64]]

_FOLDER = re.compile(r"^(?P<store>.+)\.(?P<start>0|-?[1-9]\d*)$")


@dataclass(frozen=True, slots=True)
class SegmentRule:
    """How long a key is remembered, and how event time is cut into segments."""

    retention_us: int
    interval_us: int

    def __post_init__(self) -> None:
        for reason in _faults(self.retention_us, self.interval_us):
            raise StateInvalid(operator="with this retention", reason=reason)

    @classmethod
    def of(cls, retention_us: int, interval_us: int | None = None) -> SegmentRule:
        """Give the rule for a retention; the interval is half of it, 60 s at least, unless it is given."""
        if interval_us is None:
            half_us = -(-retention_us // (2 * US_PER_MS)) * US_PER_MS
            interval_us = max(half_us, INTERVAL_US_MIN)
        return cls(retention_us, interval_us)

    @property
    def holds_several(self) -> bool:
        """Say whether two times of one key that both count may lie in one segment."""
        return self.interval_us > self.retention_us

    def segment_of(self, time_us: int) -> int:
        """Give the segment in which a time lies."""
        return time_us // self.interval_us

    def segments_of(self, times_us: TimesUs) -> TimesUs:
        """Give the segments in which times lie."""
        return np.floor_divide(times_us, np.int64(self.interval_us))

    def start_us(self, segment: int) -> int:
        """Give the first time of a segment; it ends where the next one starts."""
        return segment * self.interval_us

    def start_ms(self, segment: int) -> int:
        """Give the same in milliseconds, as it stands in the folder's name."""
        return self.start_us(segment) // US_PER_MS

    def counts_from_us(self, stream_us: int | None) -> int | None:
        """Give the first time that still counts; older rows are late. None: nothing is too old yet."""
        return None if stream_us is None else stream_us - self.retention_us

    def first_live(self, stream_us: int | None) -> int | None:
        """Give the first segment that lives; those before are expired. None: all live."""
        from_us = self.counts_from_us(stream_us)
        return None if from_us is None else self.segment_of(from_us)

    def folder_name(self, store: str, segment: int) -> str:
        """Give the name of a segment's folder."""
        return f"{store}.{self.start_ms(segment)}"

    def segment_of_folder(self, store: str, name: str) -> int | None:
        """Give the segment whose folder has this name; None when it is no segment of this store."""
        match = _FOLDER.match(name)
        if match is None or match["store"] != store:
            return None
        segment, rest = divmod(int(match["start"]) * US_PER_MS, self.interval_us)
        return None if rest else segment


def _faults(retention_us: int, interval_us: int) -> list[str]:
    """Say what is wrong with a retention and an interval, each with what to do."""
    if not 0 < retention_us <= RETENTION_US_MAX:
        return [f"the retention is {_said(retention_us)}; it must lie between 1 µs and 36,000 years"]
    if interval_us <= 0 or interval_us % US_PER_MS:
        return [f"the interval is {_said(interval_us)}; it must be a whole number of milliseconds, 1 or more"]
    if retention_us // interval_us + 2 > SEGMENTS_MAX:
        shortest_ms = -(-retention_us // ((SEGMENTS_MAX - 2) * US_PER_MS))
        return [
            f"a retention of {_said(retention_us)} in segments of {_said(interval_us)} would keep more than "
            f"{SEGMENTS_MAX} segments; give an interval of {_said(shortest_ms * US_PER_MS)} or more"
        ]
    return []


def _said(us: int) -> str:
    """Write a length of time in words; one that cannot be as the number that it is."""
    return format_duration(Duration(us)) if 0 <= us <= US_MAX else f"{us} µs"
