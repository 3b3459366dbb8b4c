"""The high-water mark of times, so that ids and numbers rise over a restart.

A clock may be set back while the server is down. The stored time is at most `KEEP_SECONDS` old, and that much
is added when it is read, so that it is above every time that was used in between.

    key SYSTEM | "clock"      value: microseconds since 1970 as u64
"""

from __future__ import annotations

from tidegate.storage.engine import Reader
from tidegate.storage.group_commit import Staging
from tidegate.storage.keys import KeySpace, join, read_u64, u64

KEEP_SECONDS = 5.0
_MARGIN_US = 2 * int(KEEP_SECONDS * 1_000_000)
_KEY = join(KeySpace.SYSTEM, b"clock")


def read_high_water_us(reader: Reader, now_us: int) -> int:
    """Return a time that is later than every one that was used before, and not before now."""
    stored = reader.get(_KEY)
    return now_us if stored is None else max(now_us, read_u64(stored) + _MARGIN_US)


def stage_high_water(staging: Staging, now_us: int) -> None:
    """Store that times up to now were used; an earlier now changes nothing."""
    stored = staging.get(_KEY)
    if stored is None or read_u64(stored) < now_us:
        staging.put(_KEY, u64(now_us))
