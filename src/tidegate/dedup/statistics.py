"""Statistics of a deduplication for the notes of a commit record.

A commit record is written before its batch is applied. What the batch puts into each segment is added to what
the store has there, so that the notes describe the segments after the batch. Bytes that are not written yet
are estimated: the size of the entries, and for a filter the usual bytes per key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from tidegate.checkpoint.backend import StateChanges
from tidegate.dedup.columns import Bytes, decode_times
from tidegate.dedup.describe import AFTER, KIND
from tidegate.dedup.settings import SegmentRule, SegmentSettings
from tidegate.dedup.sizing import FILTER_BYTES_A_KEY
from tidegate.dedup.store.keys import SegmentChanges, split
from tidegate.dedup.store.segment import SegmentFacts
from tidegate.dedup.store.store import SegmentStore


@dataclass(frozen=True, slots=True)
class Addition:
    """The entries that changes add to one segment: count, bytes and times; times are None without any."""

    keys: int = 0
    size_bytes: int = 0
    oldest_us: int | None = None
    newest_us: int | None = None

    def joined(self, other: Addition) -> Addition:
        """Return the sum of both."""
        return Addition(
            self.keys + other.keys,
            self.size_bytes + other.size_bytes,
            _edge(min, self.oldest_us, other.oldest_us),
            _edge(max, self.newest_us, other.newest_us),
        )


@dataclass(slots=True)
class Additions:
    """The entries that a batch adds to each segment, summed over the changes of its parts."""

    settings: SegmentSettings
    by_segment: dict[int, Addition] = field(default_factory=dict)

    def add(self, changes: StateChanges) -> None:
        """Add the changes of the batch, or of one part of it."""
        for number, part in split(changes, [], None).items():
            one = self._of(part)
            self.by_segment[number] = self.by_segment.get(number, Addition()).joined(one)

    def _of(self, part: SegmentChanges) -> Addition:
        values = [value for value in part.entries.values() if value is not None]
        columns = [one.values for one in part.packed]
        if values:
            columns.append(np.frombuffer(b"".join(values), np.uint8))
        spans = [self._span(one) for one in columns if one.size]
        return Addition(
            keys=len(values) + sum(len(one.keys) for one in part.packed),
            size_bytes=part.size_bytes,
            oldest_us=min((oldest for oldest, _ in spans), default=None),
            newest_us=max((newest for _, newest in spans), default=None),
        )

    def _span(self, values: Bytes) -> tuple[int, int]:
        rows = np.ascontiguousarray(values).reshape(-1, self.settings.time_bytes)
        times_us, _ = decode_times(rows, with_offsets=self.settings.with_offsets)
        return int(times_us.min()), int(times_us.max())


def notes_after(
    store: SegmentStore, rule: SegmentRule, stream_us: int | None, added: Additions
) -> dict[str, Any]:
    """Return the notes of a batch that began at `stream_us`, with the segments after it is applied."""
    return {
        "kind": KIND,
        "retention_us": rule.retention_us,
        "interval_us": rule.interval_us,
        "stream_us": stream_us,
        "exact_keys": store.settings.exact_keys,
        AFTER: True,
        "segments": [asdict(one) for one in facts_after(store.segments(), added.by_segment, rule)],
    }


def facts_after(
    found: list[SegmentFacts], added: Mapping[int, Addition], rule: SegmentRule
) -> list[SegmentFacts]:
    """Return the segments after the additions are applied, the oldest first."""
    facts = {one.number: one for one in found}
    for number, one in added.items():
        before = facts.get(number) or SegmentFacts(number, rule.start_ms(number))
        # An existing filter has room for more keys than were added; it takes these without growing.
        filter_bytes = before.filter_bytes or math.ceil(one.keys * FILTER_BYTES_A_KEY)
        facts[number] = replace(
            before,
            keys=before.keys + one.keys,
            size_bytes=before.size_bytes + one.size_bytes,
            filter_bytes=filter_bytes,
            oldest_us=_edge(min, before.oldest_us, one.oldest_us),
            newest_us=_edge(max, before.newest_us, one.newest_us),
        )
    return [facts[number] for number in sorted(facts)]


def _edge(choose: Callable[[Iterable[int]], int], one: int | None, other: int | None) -> int | None:
    known = [at_us for at_us in (one, other) if at_us is not None]
    return choose(known) if known else None
