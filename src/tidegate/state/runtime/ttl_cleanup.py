"""Cleanup: takes the states that have a TTL, removes what is expired, at the end of a batch.

`RocksdbCompaction` goes by the index: a bucket that is over names all entries that may be expired, so that
cost follows what expires and not what is kept. `FullSnapshot` does the same without a limit, when a snapshot
is due. `IncrementalCleanup` has no index: it looks at some entries for each access, all round the state.
What is removed frees its disk when RocksDB compacts.

Entries that were written under `IncrementalCleanup` are in no index: a state that leaves it has them cleaned
once they are written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from tidegate.errors import StorageCorrupt
from tidegate.state.cells import INDEX_VALUE, KEY_AT, Cells
from tidegate.state.layout import after, entry_prefix, expiry_prefix
from tidegate.state.list_state import ELEMENT_BYTES
from tidegate.state.states import State
from tidegate.state.ttl import TtlRule
from tidegate.state.values import time_of

if TYPE_CHECKING:
    from tidegate.state.stage import Stage

# What one batch removes by the index at least, if so much is expired: about a tenth of a second's work. Where
# a batch writes more, twice as many as it wrote, so that cleaning never falls behind.
CLEANED_PER_BATCH = 20_000
# What one batch looks at with IncrementalCleanup at most: as much work again.
SWEPT_PER_BATCH_MAX = 50_000
# Key groups that one batch visits: each costs a seek. With more of them, batches take turns.
GROUPS_PER_BATCH = 256
# Entries that are read at once.
CHUNK_ENTRIES = 10_000
# From so many index entries of a bucket on, one range delete is cheaper than single ones.
RANGE_FROM_ENTRIES = 64

_SIGN = 1 << 63
# Behind the key group, the space and the number of the state stands the bucket.
_BUCKET_END = 13


@dataclass(frozen=True, slots=True)
class Moments:
    """What cleaning goes by: the batch's number and time, the watermark, and whether a snapshot is due."""

    number: int
    batch_ms: int
    watermark_ms: int | None
    is_snapshot_due: bool = False


@dataclass(slots=True)
class Cleaned:
    """How many entries were looked at, and how many of them were expired and removed."""

    looked_count: int = 0
    removed_count: int = 0


class Cleaner:
    """Removes expired entries of an instance's bound states."""

    def __init__(
        self, stage: Stage, groups: range, states: Sequence[State], key_end: Callable[[bytes, int], int]
    ) -> None:
        """`key_end` gives where the encoded key ends that begins at a place of an entry."""
        self._stage = stage
        self._groups = groups
        self._states = [(state, cells) for state in states if (cells := _cells_of(state)) and cells.rule]
        self._key_end = key_end

    def clean(self, moments: Moments) -> Cleaned:
        """Remove what is expired, as much as the strategy of each state says for one batch."""
        cleaned = Cleaned()
        for state, cells in self._states:
            rule, ttl = cells.rule, state.ttl
            now_ms = moments.watermark_ms if rule and rule.is_event else moments.batch_ms
            if rule is None or ttl is None or now_ms is None:
                continue
            if ttl.cleanup == "IncrementalCleanup":
                self._sweep(_Work(state, cells, rule, now_ms, cleaned))
            elif ttl.cleanup == "RocksdbCompaction":
                budget = max(CLEANED_PER_BATCH, 2 * cells.indexed_count)
                self._walk(_Work(state, cells, rule, now_ms, cleaned), self._in_turn(moments.number), budget)
            elif moments.is_snapshot_due:
                self._walk(_Work(state, cells, rule, now_ms, cleaned), list(self._groups), None)
            cells.accesses = cells.indexed_count = 0
        return cleaned

    def _in_turn(self, number: int) -> list[int]:
        """Give the key groups of this batch, another one first each time."""
        count = len(self._groups)
        width = min(count, GROUPS_PER_BATCH)
        start = number * (width if count > width else 1)
        return [self._groups[(start + step) % count] for step in range(width)]

    def _walk(self, work: _Work, groups: Sequence[int], budget: int | None) -> None:
        """Go through the buckets that are over; stops when the budget is used up."""
        for group in groups:
            start = expiry_prefix(group, work.cells.number, -_SIGN)
            stop = expiry_prefix(group, work.cells.number, work.rule.due_stop(work.now_ms))
            while start < stop:
                wanted = CHUNK_ENTRIES if budget is None else min(CHUNK_ENTRIES, budget)
                if wanted <= 0:
                    return
                found = [key for key, _ in islice(self._stage.backend.scan(start, stop), wanted)]
                self._clean_indexed(work, found, is_whole=len(found) < wanted)
                budget = None if budget is None else budget - len(found)
                if len(found) < wanted:
                    break
                start = found[-1] + b"\x00"

    def _clean_indexed(self, work: _Work, index: list[bytes], *, is_whole: bool) -> None:
        """Remove the expired entries that index entries name, then the index entries."""
        middle = work.cells.middle
        entries = [key[:2] + middle + key[_BUCKET_END:] for key in index]
        moved: list[tuple[bytes, bytes]] = []
        for entry, time_ms in self._remove_expired(work, entries):
            prefix = expiry_prefix(
                int.from_bytes(entry[:2], "big"), work.cells.number, work.rule.bucket_of(time_ms)
            )
            moved.append((prefix, prefix + entry[KEY_AT:]))
        # An entry that was touched since is named by its new bucket, unless the TTL was another one then.
        named = self._stage.get_many([key for _, key in moved])
        for (prefix, key), one in zip(moved, named, strict=True):
            if one is None:
                self._stage.put_sub(prefix, key, INDEX_VALUE)
        last = index[-1][:_BUCKET_END] if index else b""
        for prefix, keys in groupby(index, key=lambda key: key[:_BUCKET_END]):
            gone = list(keys)
            # A late row may have put an entry into a bucket that is over; the next batch finds it there.
            is_touched = prefix in work.cells.indexed
            if len(gone) >= RANGE_FROM_ENTRIES and not is_touched and (is_whole or prefix != last):
                self._stage.clear_sub(prefix)
            else:
                for key in gone:
                    self._stage.delete_sub(prefix, key)

    def _sweep(self, work: _Work) -> None:
        """Look at the next entries of the state, behind where the last batch stopped."""
        wanted = min(work.cells.accesses * work.rule.per_access, SWEPT_PER_BATCH_MAX)
        # In a bucket of the index that is never over, so that it stays with the key groups.
        place = expiry_prefix(self._groups.start, work.cells.number, _SIGN - 1) + b"sweep"
        position = self._stage.get(place) or b""
        first, groups = position, self._groups_from(position)
        while wanted > 0 and groups:
            group = groups.pop(0)
            prefix = entry_prefix(group, work.cells.number)
            start = max(first, prefix) if first.startswith(prefix) else prefix
            first = b""
            size = min(wanted, CHUNK_ENTRIES)
            found = [key for key, _ in islice(self._stage.backend.scan(start, after(prefix)), size)]
            for _ in self._remove_expired(work, found):
                pass
            wanted -= max(len(found), 1)
            position = found[-1] + b"\x00" if len(found) == size else after(prefix)
            if len(found) == size:
                first = position
                groups.insert(0, group)
        if position:
            self._stage.put(place, position)

    def _groups_from(self, position: bytes) -> list[int]:
        """Give the key groups once round, beginning where a sweep stopped; the first again at the end."""
        at = int.from_bytes(position[:2], "big") if position else self._groups.start
        if at not in self._groups:
            at = self._groups.start
        return [*range(at, self._groups.stop), *range(self._groups.start, at)]

    def _remove_expired(self, work: _Work, entries: list[bytes]) -> Iterator[tuple[bytes, int]]:
        """Remove those of the entries that are expired; give those that stay, with their time."""
        work.cleaned.looked_count += len(entries)
        for entry, stored in zip(entries, self._stage.get_many(entries), strict=True):
            if stored is None:
                continue
            try:
                time_ms = time_of(stored)
            except StorageCorrupt as error:
                raise work.cells.corrupt(error, f"with the bytes {entry[KEY_AT:].hex()}") from error
            if time_ms is None:
                continue
            if not work.rule.is_expired(time_ms, work.now_ms):
                yield entry, time_ms
                continue
            work.cleaned.removed_count += 1
            if work.state.kind == "list":
                self._stage.delete_sub(entry[:-ELEMENT_BYTES], entry)
            elif work.state.kind == "map":
                self._stage.delete_sub(entry[: self._key_end(entry, KEY_AT)], entry)
            else:
                self._stage.delete(entry)


@dataclass(frozen=True, slots=True)
class _Work:
    """One state's cleaning in one batch."""

    state: State
    cells: Cells[Any]
    rule: TtlRule
    now_ms: int
    cleaned: Cleaned


def _cells_of(state: State) -> Cells[Any] | None:
    cells: Cells[Any] | None = getattr(state, "cells", None)
    return cells
