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
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tidegate.checkpoint.backend import page_size
from tidegate.checkpoint.keys.layout import after, entry_prefix, expiry_prefix
from tidegate.errors import StorageCorrupt
from tidegate.state.kinds.declaration import State
from tidegate.state.kinds.entry import INDEX_VALUE, KEY_AT, Cells
from tidegate.state.kinds.entry_format import time_of
from tidegate.state.kinds.list import ELEMENT_BYTES
from tidegate.state.ttl import TtlRule

if TYPE_CHECKING:
    from tidegate.state.runtime.write_batch import Stage

# What one batch removes by the index at least, if so much is expired: about a tenth of a second's work. Where
# a batch writes more, twice as many as it wrote, so that cleaning never falls behind.
CLEANED_PER_BATCH = 20_000
# What one batch looks at with IncrementalCleanup at most: as much work again.
SWEPT_PER_BATCH_MAX = 50_000
# Key groups that one batch visits: each costs a seek. With more of them, batches take turns.
GROUPS_PER_BATCH = 256
# Entries of one key group that are read at once: few at first, since mostly little is expired.
FIRST_ENTRIES = 16
CHUNK_ENTRIES = 4_096
# Key groups that a sweep reads side by side at first, and how their number grows and shrinks.
SWEPT_GROUPS_MIN = 4
SWEPT_GROUPS_STEP = 4
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
        """Return the key groups of this batch, another one first each time."""
        count = len(self._groups)
        width = min(count, GROUPS_PER_BATCH)
        start = number * (width if count > width else 1)
        return [self._groups[(start + step) % count] for step in range(width)]

    def _walk(self, work: _Work, groups: Sequence[int], budget: int | None) -> None:
        """Go through the buckets that are over; stops when the budget is used up.

        All key groups are read side by side, so that calls follow what is expired and not the key groups.
        """
        number, due_stop = work.cells.number, work.rule.due_stop(work.now_ms)
        ranges = [
            (expiry_prefix(group, number, -_SIGN), expiry_prefix(group, number, due_stop)) for group in groups
        ]
        size_max = FIRST_ENTRIES
        while ranges and (budget is None or budget > 0):
            size = page_size(len(ranges), size_max)
            found: list[bytes] = []
            cut: set[bytes] = set()
            further: list[tuple[bytes, bytes]] = []
            for (_, stop), page in zip(ranges, self._stage.backend.pages(ranges, size), strict=True):
                keys = [key for key, _ in page[: None if budget is None else budget - len(found)]]
                found += keys
                if keys and (len(page) == size or len(keys) < len(page)):
                    cut.add(keys[-1][:_BUCKET_END])
                    further.append((keys[-1] + b"\x00", stop))
            self._clean_indexed(work, found, cut)
            budget = None if budget is None else budget - len(found)
            ranges, size_max = further, CHUNK_ENTRIES

    def _clean_indexed(self, work: _Work, index: list[bytes], cut: set[bytes]) -> None:
        """Remove the expired entries that index entries name, then the index entries.

        `cut` are the buckets that may have more index entries than these.
        """
        if not index:
            return
        middle = work.cells.middle
        entries = [key[:2] + middle + key[_BUCKET_END:] for key in index]
        moved: list[tuple[bytes, bytes]] = []
        for entry, time_ms in self._remove_expired(work, entries):
            prefix = expiry_prefix(
                int.from_bytes(entry[:2], "big"), work.cells.number, work.rule.bucket_of(time_ms)
            )
            moved.append((prefix, prefix + entry[KEY_AT:]))
        # An entry that was touched since is named by its new bucket, unless the TTL was another one then.
        named = self._stage.get_many([key for _, key in moved]) if moved else []
        for (prefix, key), one in zip(moved, named, strict=True):
            if one is None:
                self._stage.put_sub(prefix, key, INDEX_VALUE)
        for prefix, keys in groupby(index, key=lambda key: key[:_BUCKET_END]):
            gone = list(keys)
            # A late row may have put an entry into a bucket that is over; the next batch finds it there.
            is_touched = prefix in work.cells.indexed
            if len(gone) >= RANGE_FROM_ENTRIES and not is_touched and prefix not in cut:
                self._stage.clear_sub(prefix)
            else:
                for key in gone:
                    self._stage.delete_sub(prefix, key)

    def _sweep(self, work: _Work) -> None:
        """Look at the next entries of the state, behind where the last batch stopped.

        It goes on in order, so of key groups that are read side by side those behind a long one are read in
        vain: fewer are read at once where they are long, more where they are short.
        """
        wanted = min(work.cells.accesses * work.rule.per_access, SWEPT_PER_BATCH_MAX)
        # In a bucket of the index that is never over, so that it stays with the key groups.
        place = expiry_prefix(self._groups.start, work.cells.number, _SIGN - 1) + b"sweep"
        position = self._stage.get(place) or b""
        groups, width = self._groups_from(position), SWEPT_GROUPS_MIN
        while wanted > 0 and groups:
            ranges = [self._swept(group, work, position) for group in groups[: min(width, wanted)]]
            size = page_size(len(ranges), max(FIRST_ENTRIES, wanted // len(ranges)))
            found: list[bytes] = []
            is_cut = False
            for page in self._stage.backend.pages(ranges, size):
                keys = [key for key, _ in page[:wanted]]
                found += keys
                wanted -= max(len(keys), 1)
                is_cut = bool(keys) and (len(page) == size or len(keys) < len(page))
                if is_cut:
                    position = keys[-1] + b"\x00"
                    break
                # An empty one counts, too, so that no batch visits all of very many.
                position = entry_prefix(groups.pop(0) + 1, work.cells.number)
                if wanted <= 0:
                    break
            for _ in self._remove_expired(work, found):
                pass
            width = (
                max(1, width // SWEPT_GROUPS_STEP)
                if is_cut
                else min(width * SWEPT_GROUPS_STEP, GROUPS_PER_BATCH)
            )
        if position:
            self._stage.put(place, position)

    def _swept(self, group: int, work: _Work, position: bytes) -> tuple[bytes, bytes]:
        """Return the entries of a key group that are to be looked at: those behind the position, else all."""
        prefix = entry_prefix(group, work.cells.number)
        return max(position, prefix) if position.startswith(prefix) else prefix, after(prefix)

    def _groups_from(self, position: bytes) -> list[int]:
        """Return the key groups once round, beginning where a sweep stopped."""
        at = int.from_bytes(position[:2], "big") if position else self._groups.start
        if at not in self._groups:
            at = self._groups.start
        return [*range(at, self._groups.stop), *range(self._groups.start, at)]

    def _remove_expired(self, work: _Work, entries: list[bytes]) -> Iterator[tuple[bytes, int]]:
        """Remove those of the entries that are expired; give those that stay, with their time."""
        if not entries:
            return
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
