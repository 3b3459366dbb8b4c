"""The windows of a stream table: intervals of time whose rows expire together.

    time to live    up to 15 min  1 day  7 days  30 days             more
    window          minute        hour   day     week from Monday    month

All in UTC; a month has its true length. The name of a window's folder has its start and its duration, so that
no file is opened to know that it has expired.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS
# The longest time to live, in seconds, that still gets windows of that size.
MINUTE_TTL_SECONDS_MAX = 15 * 60
HOUR_TTL_SECONDS_MAX = 24 * 3600
DAY_TTL_SECONDS_MAX = 7 * 24 * 3600
WEEK_TTL_SECONDS_MAX = 30 * 24 * 3600

_FIRST_MONDAY_MS = 4 * DAY_MS  # 1970-01-05
_NAME = re.compile(r"w(-?[0-9]{1,17})-([1-9][0-9]{0,11})")
_FIXED = (
    (MINUTE_TTL_SECONDS_MAX, MINUTE_MS, 0),
    (HOUR_TTL_SECONDS_MAX, HOUR_MS, 0),
    (DAY_TTL_SECONDS_MAX, DAY_MS, 0),
    (WEEK_TTL_SECONDS_MAX, WEEK_MS, _FIRST_MONDAY_MS),
)


class Window(NamedTuple):
    """A half-open interval of time; windows sort by their start."""

    start_ms: int
    duration_ms: int

    @property
    def stop_ms(self) -> int:
        """The first millisecond after the window."""
        return self.start_ms + self.duration_ms

    @property
    def start_us(self) -> int:
        """Its start, in the unit of row times."""
        return self.start_ms * 1_000

    @property
    def stop_us(self) -> int:
        """Its end, in the unit of row times."""
        return (self.start_ms + self.duration_ms) * 1_000

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"w{self.start_ms}-{self.duration_ms}"


def window_at(time_us: int, ttl_seconds: int) -> Window:
    """Return the window of a row time in a table with a time to live."""
    time_ms = time_us // 1_000
    for ttl_seconds_max, size_ms, origin_ms in _FIXED:
        if ttl_seconds <= ttl_seconds_max:
            return Window((time_ms - origin_ms) // size_ms * size_ms + origin_ms, size_ms)
    return _month_at(time_ms)


def parse_window(name: str) -> Window | None:
    """Return the window of a folder's name; None for any other name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    window = Window(int(found[1]), int(found[2]))
    return window if window.name == name else None


def _month_at(time_ms: int) -> Window:
    moment = datetime.fromtimestamp(time_ms // 1_000, UTC)
    first = datetime(moment.year, moment.month, 1, tzinfo=UTC)
    later = moment.month == 12
    following = datetime(moment.year + later, 1 if later else moment.month + 1, 1, tzinfo=UTC)
    start_ms = int(first.timestamp()) * 1_000
    return Window(start_ms, int(following.timestamp()) * 1_000 - start_ms)
