"""Settings of a segmented store, the rule that divides event time into segments, and defaults.

All times are microseconds since 1970; earlier ones are negative. A segment is an interval of event time; its
number is `floor(time / interval)`, and its folder is named by its start in milliseconds: `orders.4320000000`.
All code uses `SegmentRule`, so that time is divided in one way.
"""

from __future__ import annotations

import numbers
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tidegate.checkpoint.backends.rocksdb_options import GIB, MIB, RocksSettings
from tidegate.errors import StateInvalid
from tidegate.model.durations import US_MAX, Duration, format_duration
from tidegate.model.epoch import SECOND_US

# With fewer bits a filter sends too many new keys to RocksDB; more bits gain nothing.
FILTER_BITS_MIN = 4
FILTER_BITS_MAX = 32
# Below this no page of a filter fits in memory, and every probe reads from the disk.
FILTER_MEMORY_BYTES_MIN = MIB

TIME_BYTES = 8
OFFSET_BYTES = 8

_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,127}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSettings:
    """Settings of one segmented store; times are microseconds.

    `store` names the folders. `exact_keys` stores the keys themselves in place of digests. `with_offsets`
    stores the source's offset with each time. `expected_keys` is the number of keys that a whole segment of
    one partition will hold, if the caller knows it. `filter_memory_bytes_max` bounds the filters of all
    stores of a worker.
    """

    store: str
    retention_us: int
    interval_us: int
    exact_keys: bool = False
    with_offsets: bool = False
    expected_keys: int | None = None
    filter_bits: int = 12
    filter_memory_bytes_max: int = 256 * MIB

    def __post_init__(self) -> None:
        for reason in _faults(self):
            raise StateInvalid(operator=self.store, reason=reason)
        SegmentRule(self.retention_us, self.interval_us)

    @property
    def rule(self) -> SegmentRule:
        """Return the rule that divides time by these settings."""
        return SegmentRule(self.retention_us, self.interval_us)

    @property
    def time_bytes(self) -> int:
        """Return the width of one stored time, with its offset if offsets are stored."""
        return TIME_BYTES + OFFSET_BYTES if self.with_offsets else TIME_BYTES


def _faults(settings: SegmentSettings) -> list[str]:
    """Return the faults of settings, each with what to do."""
    found = []
    if not _NAME.match(settings.store):
        found.append("its name must be letters, digits, _ and -, 128 at most: folders are named by it")
    if settings.expected_keys is not None and settings.expected_keys < 1:
        found.append(f"expected_keys is {settings.expected_keys}; give 1 or more, or leave it out")
    if not FILTER_BITS_MIN <= settings.filter_bits <= FILTER_BITS_MAX:
        found.append(f"filter_bits must lie between {FILTER_BITS_MIN} and {FILTER_BITS_MAX}")
    if settings.filter_memory_bytes_max < FILTER_MEMORY_BYTES_MIN:
        found.append(f"filter_memory_bytes_max must be {FILTER_MEMORY_BYTES_MIN} or more")
    return found


US_PER_MS = 1_000
# Shorter segments would be opened and removed too often.
INTERVAL_US_MIN = 60_000_000
# Each live segment is an open store, and the lookup of a row may read all of them.
SEGMENTS_MAX = 512
# Times are 64-bit numbers, and twice a retention is added to one.
RETENTION_US_MAX = 1 << 60
# Keys a second. No disk stores more; filters are sized for as many as are expected.
EXPECTED_RATE_MAX = 100_000_000

TimesUs = np.ndarray[Any, np.dtype[np.int64]]

_GUIDE = "docs/guide/dedup.md explains retention and interval."
_FOLDER = re.compile(r"^(?P<store>.+)\.(?P<start>0|-?[1-9]\d*)$")


@dataclass(frozen=True, slots=True)
class SegmentRule:
    """The retention of keys, and the interval by which event time is divided into segments."""

    retention_us: int
    interval_us: int

    def __post_init__(self) -> None:
        for reason in _window_faults(self.retention_us, self.interval_us):
            raise StateInvalid(operator="deduplicate", reason=reason, hint=_GUIDE)

    @classmethod
    def of(cls, retention_us: int, interval_us: int | None = None) -> SegmentRule:
        """Return the rule for a retention; the interval is half of it, 60 s at least, unless it is given."""
        return cls(retention_us, default_interval_us(retention_us) if interval_us is None else interval_us)

    @property
    def holds_several(self) -> bool:
        """True if one segment may hold two counted times of one key."""
        return self.interval_us > self.retention_us

    def segment_of(self, time_us: int) -> int:
        """Return the segment of a time."""
        return time_us // self.interval_us

    def segments_of(self, times_us: TimesUs) -> TimesUs:
        """Return the segment of each time."""
        return np.floor_divide(times_us, np.int64(self.interval_us))

    def start_us(self, segment: int) -> int:
        """Return the first time of a segment; it ends at the start of the next one."""
        return segment * self.interval_us

    def start_ms(self, segment: int) -> int:
        """Return the start of a segment in milliseconds, as in the name of its folder."""
        return self.start_us(segment) // US_PER_MS

    def counts_from_us(self, stream_us: int | None) -> int | None:
        """Return the first time that still counts; older rows are late. None: nothing is too old yet."""
        return None if stream_us is None else stream_us - self.retention_us

    def first_live(self, stream_us: int | None) -> int | None:
        """Return the first live segment; earlier ones are expired. None: all are live."""
        from_us = self.counts_from_us(stream_us)
        return None if from_us is None else self.segment_of(from_us)

    def keys_at(self, rate: float, partitions: int = 1) -> int:
        """Return the keys of a whole segment of one of the partitions, at a rate in keys a second."""
        return max(1, round(rate * self.interval_us / SECOND_US / partitions))

    def folder_name(self, store: str, segment: int) -> str:
        """Return the name of a segment's folder."""
        return f"{store}.{self.start_ms(segment)}"

    def segment_of_folder(self, store: str, name: str) -> int | None:
        """Return the segment whose folder has this name; None if it is no segment of this store."""
        match = _FOLDER.match(name)
        if match is None or match["store"] != store:
            return None
        segment, rest = divmod(int(match["start"]) * US_PER_MS, self.interval_us)
        return None if rest else segment


def is_rate(value: object) -> bool:
    """True if a value is a rate in keys a second that can be expected."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and 0 < value <= EXPECTED_RATE_MAX  # type: ignore[operator]


def default_interval_us(retention_us: int) -> int:
    """Return the interval of a retention: half of it in whole milliseconds, 60 s at least."""
    return max(-(-retention_us // (2 * US_PER_MS)) * US_PER_MS, INTERVAL_US_MIN)


def _window_faults(retention_us: int, interval_us: int) -> list[str]:
    """Return the faults of a retention and an interval, each with what to do."""
    if not 0 < retention_us <= RETENTION_US_MAX:
        return [f"the retention is {_duration_text(retention_us)}; it must lie between 1 µs and 36,000 years"]
    if interval_us <= 0 or interval_us % US_PER_MS:
        length = _duration_text(interval_us)
        return [f"the interval is {length}; it must be a whole number of milliseconds, 1 or more"]
    if retention_us // interval_us + 2 > SEGMENTS_MAX:
        shortest_ms = -(-retention_us // ((SEGMENTS_MAX - 2) * US_PER_MS))
        retention, interval = _duration_text(retention_us), _duration_text(interval_us)
        return [
            f"a retention of {retention} in segments of {interval} would keep more than {SEGMENTS_MAX} "
            f"segments; give an interval of {_duration_text(shortest_ms * US_PER_MS)} or more"
        ]
    return []


def _duration_text(us: int) -> str:
    """Return a duration as text; the number of microseconds if it is out of range."""
    return format_duration(Duration(us)) if 0 <= us <= US_MAX else f"{us} µs"


# A snapshot flushes each segment that was written to, into a small file that compactions merge repeatedly:
# with a snapshot after every tenth batch a key was written about fifty times in the life of its segment.
# After a kill the batches since the last snapshot are applied again, a million keys per second.
SNAPSHOT_EVERY_BATCHES = 100
SNAPSHOT_CHANGES_BYTES_MAX = 128 * MIB

# With a trigger of four files, universal compaction merges so often that its writes grow with the number of
# snapshots; with twelve a key is written about five times. The filters make up for the longer search.
COMPACTION_TRIGGER_FILES = 12


def default_rocks(memory_bytes_max: int = GIB) -> RocksSettings:
    """Return the RocksDB settings of segments: the preset with fewer compactions."""
    preset = RocksSettings.deduplication(memory_bytes_max=memory_bytes_max)
    return replace(preset, level0_compaction_trigger=COMPACTION_TRIGGER_FILES)
