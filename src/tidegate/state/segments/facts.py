"""What is known of a segmented store: facts of its segments, and tallies of its lookups."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What is known of one live segment; what its filter did is since the store was opened.

    `filter_maybe` are probes that were let through to RocksDB, `filter_false` those that found nothing there.
    """

    number: int
    start_ms: int
    keys: int
    size_bytes: int
    filter_bytes: int
    oldest_us: int | None
    newest_us: int | None
    filter_probes: int
    filter_maybe: int
    filter_false: int


@dataclass(slots=True)
class Tallies:
    """What lookups did since the store was opened; `reads` are keys asked of RocksDB."""

    filter_probes: int = 0
    filter_maybe: int = 0
    filter_false: int = 0
    reads: int = 0
    lookup_ns: int = 0
