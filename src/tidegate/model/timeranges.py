"""Times and half-open time ranges, in microseconds since 1970-01-01 UTC.

A range is never empty: its start is in, its stop is not, and the stop comes after the start. So two ranges
that touch share no moment, and an intersection is a range or None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate.errors import InvariantBroken, TimeRangeInvalid
from tidegate.model.durations import Duration
from tidegate.model.names import shorten

TIME_US_MIN = -62_135_596_800_000_000  # 0001-01-01T00:00:00Z, the first moment of ISO 8601 text
TIME_US_MAX = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999Z, the last one

_EPOCH = datetime(1970, 1, 1)  # without a zone: all arithmetic here is in UTC
_MICROSECOND = timedelta(microseconds=1)
_TIME_HINT = (
    "Write ISO 8601: '2026-01-31', '2026-01-31T12:00:00Z' or '2026-01-31T12:00:00+02:00'; no zone is UTC."
)
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,9}))?)?"
    r" ?(?:[Zz]|([+-])([0-9]{2})(?::?([0-9]{2}))?)?)?"
)


@dataclass(frozen=True, slots=True, order=True)
class TimeRange:
    """The moments from `start_us` (in) to `stop_us` (out); ordered by start, then by stop."""

    start_us: int
    stop_us: int

    def __post_init__(self) -> None:
        if not TIME_US_MIN <= self.start_us < self.stop_us <= TIME_US_MAX:
            start, stop = format_time(self.start_us), format_time(self.stop_us)
            raise TimeRangeInvalid(reason=f"its end {stop} is not after its start {start}")

    def __str__(self) -> str:
        return f"{format_time(self.start_us)} to {format_time(self.stop_us)}"

    @property
    def length(self) -> Duration:
        return Duration(self.stop_us - self.start_us)

    def contains(self, moment_us: int) -> bool:
        return self.start_us <= moment_us < self.stop_us

    def covers(self, other: TimeRange) -> bool:
        """Return whether every moment of the other range is in this one."""
        return self.start_us <= other.start_us and other.stop_us <= self.stop_us

    def overlaps(self, other: TimeRange) -> bool:
        """Return whether some moment is in both."""
        return self.start_us < other.stop_us and other.start_us < self.stop_us

    def intersect(self, other: TimeRange) -> TimeRange | None:
        """Return the moments that are in both, or None when there are none."""
        if not self.overlaps(other):
            return None
        return TimeRange(max(self.start_us, other.start_us), min(self.stop_us, other.stop_us))

    def union(self, other: TimeRange) -> TimeRange | None:
        """Return the moments of both when they overlap or touch, or None when there is a gap between them."""
        if self.start_us > other.stop_us or other.start_us > self.stop_us:
            return None
        return TimeRange(min(self.start_us, other.start_us), max(self.stop_us, other.stop_us))

    def split(self, step: Duration) -> Iterator[TimeRange]:
        """Return consecutive ranges of one step each, from the start on; the last may be shorter."""
        if step.us == 0:
            raise InvariantBroken(reason="a time range is split by a step of no length")
        starts = range(self.start_us, self.stop_us, step.us)
        return (TimeRange(start_us, min(start_us + step.us, self.stop_us)) for start_us in starts)


def merge_ranges(ranges: Iterable[TimeRange]) -> list[TimeRange]:
    """Return the fewest ranges with exactly the same moments, in order, no two of them touching."""
    merged: list[TimeRange] = []
    for span in sorted(ranges):
        joined = merged[-1].union(span) if merged else None
        if joined:
            merged[-1] = joined
        else:
            merged.append(span)
    return merged


def parse_time(text: str) -> int:
    """Return the moment of ISO 8601 text, in microseconds; without a zone it is UTC.

    Exact: a fraction finer than a microsecond is refused, not rounded.
    """
    matched = _TIME.fullmatch(text.strip())
    if not matched:
        raise _not_a_time(text, "is not an ISO 8601 time")
    *fields, fraction, sign, zone_hours, zone_minutes = matched.groups(default="0")
    if fraction[6:].strip("0"):
        raise _not_a_time(text, "is finer than a microsecond")
    year, month, day, hour, minute, second = map(int, fields)
    try:
        local = datetime(year, month, day, hour, minute, second, int(fraction[:6].ljust(6, "0")))
    except ValueError as error:
        raise _not_a_time(text, f"is not a time: {error}") from error
    if int(zone_hours) > 23 or int(zone_minutes) > 59:
        raise _not_a_time(text, "has a zone offset of a day or more")
    offset_us = (int(zone_hours) * 60 + int(zone_minutes)) * 60_000_000
    moment_us = (local - _EPOCH) // _MICROSECOND - (-offset_us if sign == "-" else offset_us)
    if not TIME_US_MIN <= moment_us <= TIME_US_MAX:
        raise _not_a_time(text, "is outside the years 1 to 9999 in UTC")
    return moment_us


def format_time(moment_us: int) -> str:
    """Return ISO 8601 text in UTC with 'Z' and 0, 3 or 6 digits of a second: as few as are exact."""
    if not TIME_US_MIN <= moment_us <= TIME_US_MAX:
        raise TimeRangeInvalid(reason=f"{moment_us} µs is outside the years 1 to 9999", hint=_TIME_HINT)
    whole_ms, whole_seconds = moment_us % 1_000 == 0, moment_us % 1_000_000 == 0
    digits = "seconds" if whole_seconds else "milliseconds" if whole_ms else "microseconds"
    return (_EPOCH + timedelta(microseconds=moment_us)).isoformat(timespec=digits) + "Z"


def _not_a_time(text: str, reason: str) -> TimeRangeInvalid:
    return TimeRangeInvalid(reason=f"'{shorten(text)}' {reason}", hint=_TIME_HINT)
