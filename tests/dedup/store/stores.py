"""Segmented stores for tests: keys, times and batches that a seed gives, and what a store should answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from tidegate.checkpoint.backend import PackedEntries, StateChanges, Version
from tidegate.dedup.columns import Bytes, Longs, SegmentKeys, encode_times
from tidegate.dedup.settings import SegmentRule, SegmentSettings
from tidegate.dedup.store.store import SegmentStore

DAY = 86_400_000_000
SETTINGS = SegmentSettings(store="orders", retention_us=100 * DAY, interval_us=50 * DAY)
ALL_TIME = 1 << 60

Entry = tuple[bytes, int]


def version(batch: int) -> Version:
    return Version(0, batch, f"head-{batch}")


def some_keys(numbers: Iterable[int]) -> Bytes:
    """Return keys of 18 bytes by their numbers: 32 key groups, then a digest."""
    rows = []
    for number in numbers:
        digest = np.random.default_rng(number).bytes(16)
        rows.append(bytes([0, digest[0] & 31]) + digest[:15] + (b"\x00" if number % 3 else digest[15:]))
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 18)


def random_keys(rng: np.random.Generator, count: int) -> Bytes:
    keys = rng.integers(0, 256, (count, 18), dtype=np.uint8)
    keys[:, 0], keys[:, 1] = 0, keys[:, 1] & 31
    return keys


def packed(rule: SegmentRule, keys: Bytes, times_us: Longs, offsets: Longs | None = None) -> StateChanges:
    """Return the changes that store one time for each key, by segment, sorted."""
    changes = StateChanges()
    values = encode_times(times_us, offsets)
    segments = rule.segments_of(times_us)
    rows = keys.view("V18").reshape(-1).tolist()
    for segment in np.unique(segments).tolist():
        chosen = sorted(np.flatnonzero(segments == segment).tolist(), key=rows.__getitem__)
        changes.packed.append(PackedEntries(segment, keys[chosen], values[chosen]))
    return changes


@dataclass
class Remembered:
    """What a store should know: the times of each key."""

    times: dict[bytes, set[int]] = field(default_factory=lambda: defaultdict(set))

    def add(self, keys: Bytes, times_us: Longs) -> None:
        for key, time in zip(keys.view("V18").reshape(-1).tolist(), times_us.tolist(), strict=True):
            self.times[key].add(time)

    def expire(self, before_us: int) -> None:
        for key in list(self.times):
            self.times[key] = {time for time in self.times[key] if time >= before_us}

    def entries(self) -> set[Entry]:
        return {(key, time) for key, times in self.times.items() for time in times}


def everything(
    store: SegmentStore, keys: Iterable[bytes], from_us: int = -ALL_TIME, to_us: int = ALL_TIME
) -> set[Entry]:
    """Look all keys up, over all time unless less of it is asked for."""
    named = list(keys)
    column = SegmentKeys.of_digests(np.frombuffer(b"".join(named), np.uint8).reshape(-1, 18))
    found = store.lookup(column, np.full(len(named), from_us, np.int64), np.full(len(named), to_us, np.int64))
    return {
        (named[row], time) for row, time in zip(found.rows.tolist(), found.times_us.tolist(), strict=True)
    }
