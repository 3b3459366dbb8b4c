"""The clock: the one place where time enters Tidegate. Doors build a `SystemClock` and pass it down."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time; may be called from any thread."""

    def now_us(self) -> int:
        """Return microseconds since 1970-01-01 UTC; may jump, also backwards, when it is set."""
        ...

    def monotonic_seconds(self) -> float:
        """Return seconds since some fixed moment; never goes back. For waits and timeouts."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_seconds(self) -> float:
        return time.monotonic()
