"""UUIDs of version 7 (RFC 9562): 48 bits of milliseconds, then 74 random bits; they sort by time.

    milliseconds 48 | version 4 | random 12 | variant 2 | random 62

A source gives each one greater than the one before, also when the clock stands still or goes back: within a
millisecond it adds to the random part, and borrows the next one when that is used up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidegate.errors import InvariantBroken
from tidegate.model.clock import Clock

RANDOM_BITS = 74
MILLISECOND_MAX = (1 << 48) - 1  # in the year 10889
# A new millisecond begins in the lower half, so that steps have room.
_START_MASK = (1 << (RANDOM_BITS - 1)) - 1
_STEP_BYTES = 4  # the next one of a millisecond cannot be guessed from the one before


def uuid_v7(now_us: int, random_bytes: Callable[[int], bytes]) -> str:
    """Give one UUID of a moment, in small letters."""
    return _written(now_us // 1_000, _random(random_bytes, 10) & ((1 << RANDOM_BITS) - 1))


class UuidSource:
    """Gives UUIDs, each greater than the one before; safe from any thread."""

    def __init__(self, clock: Clock, random_bytes: Callable[[int], bytes]) -> None:
        self._clock = clock
        self._random_bytes = random_bytes
        self._lock = threading.Lock()
        self._last_ms = -1
        self._last_random = 0

    def take(self) -> str:
        """Give the next one."""
        now_ms = self._clock.now_us() // 1_000
        with self._lock:
            if now_ms > self._last_ms:
                self._begin(now_ms)
            else:
                self._last_random += 1 + _random(self._random_bytes, _STEP_BYTES)
                if self._last_random >> RANDOM_BITS:
                    self._begin(self._last_ms + 1)
            return _written(self._last_ms, self._last_random)

    def take_many(self, count: int) -> list[str]:
        """Give the next ones, in ascending order."""
        return [self.take() for _ in range(count)]

    def _begin(self, moment_ms: int) -> None:
        self._last_ms = moment_ms
        self._last_random = _random(self._random_bytes, 10) & _START_MASK


def _random(random_bytes: Callable[[int], bytes], count: int) -> int:
    found = random_bytes(count)
    if len(found) != count:
        raise InvariantBroken(reason=f"the random source gave {len(found)} bytes")
    return int.from_bytes(found, "big")


def _written(moment_ms: int, random: int) -> str:
    if not 0 <= moment_ms <= MILLISECOND_MAX:
        raise InvariantBroken(
            reason="the clock is outside the moments that a UUID can hold",
            hint="Set the clock of this machine right, then start again.",
        )
    high, low = random >> 62, random & ((1 << 62) - 1)
    text = f"{moment_ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
