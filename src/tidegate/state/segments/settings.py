"""How a segmented store keeps keys: takes what the caller wants, gives checked settings, keeps nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.errors import StateInvalid
from tidegate.state.segments.rule import SegmentRule

MIB = 1 << 20

# A filter with fewer lets too many new keys through to RocksDB; with more it pays for nothing.
FILTER_BITS_MIN = 4
FILTER_BITS_MAX = 32
# Below this not one page of a filter fits, and every probe reads from the disk.
FILTER_MEMORY_BYTES_MIN = MIB

TIME_BYTES = 8
OFFSET_BYTES = 8

_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,127}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSettings:
    """How one segmented store keeps its keys; times are microseconds.

    `store` names the folders. `exact_keys` keeps the keys themselves in place of digests. `with_offsets`
    keeps the source's offset beside each time. `expected_keys` is how many keys a whole segment of one
    partition will hold, where the caller knows. `filter_memory_bytes_max` bounds the filters of all stores
    of a worker.
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
        """Give how these settings cut time."""
        return SegmentRule(self.retention_us, self.interval_us)

    @property
    def time_bytes(self) -> int:
        """Give the width of one stored time, with its offset where one is kept."""
        return TIME_BYTES + OFFSET_BYTES if self.with_offsets else TIME_BYTES


def _faults(settings: SegmentSettings) -> list[str]:
    """Say what is wrong with settings, each with what to do."""
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
