"""A clock that a test moves by hand."""

from __future__ import annotations

from tidegate.errors import InvariantBroken

START_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z: a round time, easy to read in failures


class ManualClock:
    """A `Clock` moved by hand: `advance` lets time pass, `set_us` resets the wall clock alone."""

    def __init__(self, now_us: int = START_US) -> None:
        self._now_us = now_us
        self._passed_us = 0

    def now_us(self) -> int:
        return self._now_us

    def monotonic_seconds(self) -> float:
        return self._passed_us / 1_000_000

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks, rounded to the microsecond."""
        if seconds < 0:
            raise InvariantBroken(reason=f"time cannot pass by {seconds} s; set_us moves the wall clock back")
        step_us = round(seconds * 1_000_000)
        self._now_us += step_us
        self._passed_us += step_us

    def set_us(self, now_us: int) -> None:
        """Set the wall clock, forwards or backwards, as an operator or NTP would; no time passes."""
        self._now_us = now_us
