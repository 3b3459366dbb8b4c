"""The TTL of a state: how long entries live, what refreshes them, who sees expired ones, when they go.

An entry is expired when more than the TTL has passed since its time: at exactly the TTL it is still there.
Its time is that of its last write, or of its last read too with `OnReadAndWrite`. The current time is the
batch's with `clock="processing"`, so that a repeated batch gives the same; with `clock="event"` it is the
row's, and for cleanup the watermark. Elements of a list and entries of a map expire one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

from tidegate.errors import ValueInvalid
from tidegate.model.durations import Duration, format_duration, parse_duration

Update = Literal["OnCreateAndWrite", "OnReadAndWrite"]
Visibility = Literal["NeverReturnExpired", "ReturnExpiredIfNotCleanedUp"]
Cleanup = Literal["FullSnapshot", "IncrementalCleanup", "RocksdbCompaction"]
TtlClock = Literal["processing", "event"]

# Entries that an access checks with IncrementalCleanup; Flink has the same default.
ENTRIES_PER_ACCESS = 5
ENTRIES_PER_ACCESS_MAX = 10_000

# The index of expiry times is coarse: an entry stays at most a sixteenth of the TTL longer, and one that is
# written all the time costs an index entry only that often.
BUCKETS_PER_TTL = 16
BUCKET_MS_MIN = 1_000


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long entries of a state live: `Ttl("24 h")`; the options have Flink's names.

    `duration` is text such as "24 h", a timedelta or a Duration; whole milliseconds, at least one.
    `entries_per_access` is for `IncrementalCleanup` only.
    """

    duration: str | timedelta | Duration
    update: Update = "OnCreateAndWrite"
    visibility: Visibility = "NeverReturnExpired"
    cleanup: Cleanup = "RocksdbCompaction"
    clock: TtlClock = "processing"
    entries_per_access: int = ENTRIES_PER_ACCESS

    def __post_init__(self) -> None:
        duration = _as_duration(self.duration)
        if duration.us % 1_000 or duration.us == 0:
            raise ValueInvalid(
                place="Ttl duration", reason=f"'{duration}' is not one or more whole milliseconds"
            )
        object.__setattr__(self, "duration", format_duration(duration))
        for name, kind in (
            ("update", Update),
            ("visibility", Visibility),
            ("cleanup", Cleanup),
            ("clock", TtlClock),
        ):
            if getattr(self, name) not in get_args(kind):
                words = ", ".join(get_args(kind))
                raise ValueInvalid(place=f"Ttl {name}", reason=f"'{getattr(self, name)}' is none of {words}")
        count: object = self.entries_per_access
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= ENTRIES_PER_ACCESS_MAX:
            reason = f"{count!r} is no whole number between 1 and {ENTRIES_PER_ACCESS_MAX}"
            raise ValueInvalid(place="Ttl entries_per_access", reason=reason)

    @property
    def duration_ms(self) -> int:
        return _as_duration(self.duration).us // 1_000

    def to_json(self) -> dict[str, Any]:
        """Return the options as JSON values."""
        return {
            "duration": str(self.duration),
            "update": self.update,
            "visibility": self.visibility,
            "cleanup": self.cleanup,
            "clock": self.clock,
            "entries_per_access": self.entries_per_access,
        }

    @staticmethod
    def from_json(stored: dict[str, Any]) -> Ttl:
        """Return the TTL of what `to_json` returned."""
        return Ttl(**stored)


class TtlRule:
    """A TTL as states apply it: in milliseconds, with the decisions that follow from it."""

    __slots__ = ("bucket_ms", "is_event", "is_indexed", "per_access", "refreshes", "shows_expired", "ttl_ms")

    def __init__(self, ttl: Ttl) -> None:
        self.ttl_ms = ttl.duration_ms
        self.bucket_ms = max(self.ttl_ms // BUCKETS_PER_TTL, BUCKET_MS_MIN)
        self.refreshes = ttl.update == "OnReadAndWrite"
        self.shows_expired = ttl.visibility == "ReturnExpiredIfNotCleanedUp"
        self.is_event = ttl.clock == "event"
        self.is_indexed = ttl.cleanup != "IncrementalCleanup"
        self.per_access = ttl.entries_per_access

    def is_expired(self, time_ms: int, now_ms: int) -> bool:
        """Return whether an entry with this time is expired; at exactly the TTL it is not."""
        return now_ms - time_ms > self.ttl_ms

    def bucket_of(self, time_ms: int) -> int:
        """Return the start of the bucket of the index in which an entry with this time expires."""
        expires_ms = time_ms + self.ttl_ms
        return expires_ms - expires_ms % self.bucket_ms

    def due_stop(self, now_ms: int) -> int:
        """Return the first bucket that has not ended; entries of those before are expired or refreshed."""
        return now_ms - self.bucket_ms + 1


def _as_duration(length: str | timedelta | Duration) -> Duration:
    if isinstance(length, Duration):
        return length
    if isinstance(length, timedelta):
        us = length // timedelta(microseconds=1)
        if us < 0:
            raise ValueInvalid(place="Ttl duration", reason=f"{length} is negative")
        return Duration(us)
    other: object = length
    if not isinstance(other, str):
        reason = f"{other!r} is no duration; write it as '24 h' or 'PT5S', or give a timedelta"
        raise ValueInvalid(place="Ttl duration", reason=reason)
    return parse_duration(other)
