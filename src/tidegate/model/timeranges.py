"""Half-open time ranges, in microseconds since 1970-01-01 UTC: the one type for all of them.

A range is never empty: its start is in, its stop is not, and the stop comes after the start. So two ranges
that touch share no moment, and an intersection is a range or None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidegate.errors import InvariantBroken, TimeRangeInvalid
from tidegate.model.durations import Duration
from tidegate.model.times import TIME_US_MAX, TIME_US_MIN, format_time


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
