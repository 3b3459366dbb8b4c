"""A store in a dictionary, for decisions without RocksDB: takes changes, answers lookups as a store does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tests.dedup.model import Row
from tidegate.checkpoint.backend import StateChanges
from tidegate.checkpoint.keys.layout import SEGMENT_PREFIX_BYTES, segment_of_entry
from tidegate.checkpoint.keys.spark_hash import groups_of_hashes
from tidegate.dedup.columns import Longs, SegmentKeys, StoredTimes
from tidegate.dedup.decision import BatchColumns
from tidegate.dedup.identity import digest_bytes, digest_columns
from tidegate.dedup.settings import SegmentRule

GROUPS = 128


class DictStore:
    """Entries by segment and key; the value is what a change put there."""

    def __init__(self, rule: SegmentRule, *, with_offsets: bool) -> None:
        self._rule = rule
        self._with_offsets = with_offsets
        self._entries: dict[tuple[int, bytes], bytes] = {}

    def apply(self, changes: StateChanges) -> None:
        for entry, value in changes.entries.items():
            assert value is not None
            self._entries[segment_of_entry(entry), entry[:2] + entry[SEGMENT_PREFIX_BYTES:]] = value
        for packed in changes.packed:
            keys = [row.tobytes() for row in packed.keys]
            assert keys == sorted(keys)
            for key, value in zip(keys, packed.values, strict=True):
                self._entries[packed.segment, key] = value.tobytes()

    def expire(self, stream_us: int | None) -> None:
        first = self._rule.first_live(stream_us)
        for segment, key in list(self._entries):
            if first is not None and segment < first:
                del self._entries[segment, key]

    def lookup(self, keys: SegmentKeys, from_us: Longs, to_us: Longs) -> StoredTimes:
        found = []
        for row, (key, low, high) in enumerate(
            zip(keys.to_list(), from_us.tolist(), to_us.tolist(), strict=True)
        ):
            for segment in range(self._rule.segment_of(low), self._rule.segment_of(high) + 1):
                for time_us, offset in self.stamps(segment, key):
                    if low <= time_us <= high:
                        found.append((row, time_us, offset))
        columns = [np.array([one[place] for one in found], np.int64) for place in range(3)]
        return StoredTimes(columns[0], columns[1], columns[2] if self._with_offsets else None)

    def stamps(self, segment: int, key: bytes) -> list[tuple[int, int]]:
        value = self._entries.get((segment, key), b"")
        step = 16 if self._with_offsets else 8
        assert len(value) % step == 0
        pieces = [value[at : at + step] for at in range(0, len(value), step)]
        return [
            (
                int.from_bytes(piece[:8], "big") - 2**63,
                int.from_bytes(piece[8:], "big") - 2**63 if self._with_offsets else 0,
            )
            for piece in pieces
        ]

    def times(self, key: bytes) -> list[int]:
        """Return all stored times of a key."""
        return sorted(
            {
                time_us
                for segment, one in self._entries
                if one == key
                for time_us, _ in self.stamps(segment, key)
            }
        )


def key_column(keys: Sequence[tuple[str | None, int | None]], *, exact: bool = False) -> SegmentKeys:
    """Return the column of keys of a text and a number."""
    texts = pa.array([text for text, _ in keys], pa.string())
    numbers = pa.array([number for _, number in keys], pa.int64())
    first, second = digest_columns([texts, numbers])
    groups = groups_of_hashes(first, GROUPS)
    if exact:
        return SegmentKeys.of_exact(
            [
                int(group).to_bytes(2, "big") + repr(key).encode()
                for group, key in zip(groups, keys, strict=True)
            ]
        )
    return SegmentKeys.of_digests(digest_bytes(groups, first, second))


def columns_of(rows: Sequence[Row], *, with_offsets: bool, exact: bool = False) -> BatchColumns:
    """Return rows of a stream as the decision takes them."""
    ties = np.array([row.tie for row in rows], np.uint64)
    offsets = np.array([row.offset or 0 for row in rows], np.int64) if with_offsets else None
    keys = key_column([row.key for row in rows], exact=exact)  # type: ignore[misc]
    return BatchColumns(keys, np.array([row.time_us for row in rows], np.int64), offsets, lambda at: ties[at])
