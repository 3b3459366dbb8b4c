"""The cleanup of expired entries at the end of a batch.

`RocksdbCompaction` reads the index: the buckets that have ended name all entries that may be expired, so the
cost follows what expires and not what is stored. `FullSnapshot` does the same without a limit, when a
snapshot is due. `IncrementalCleanup` has no index: it checks some entries for each access, round and round
the state. The disk space is freed when RocksDB compacts.

Entries that were written under `IncrementalCleanup` are in no index: when the strategy of their state
changes, they are cleaned up only after they are written again.
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
    from tidegate.state.write_batch import WriteBatch

# Index entries that one batch cleans up, if so many are due: about a tenth of a second. A batch that adds
# more to the index cleans up twice as many as it adds, so that cleanup never falls behind.
CLEANED_PER_BATCH = 20_000
# Entries that one batch checks with IncrementalCleanup at most: about as much work.
SWEPT_PER_BATCH_MAX = 50_000
# Key groups that one batch visits: each costs a seek. With more of them, batches take turns.
GROUPS_PER_BATCH = 256
# Entries of one key group that are read at once: few at first, as mostly little is expired.
FIRST_ENTRIES = 16
CHUNK_ENTRIES = 4_096
# Key groups that a sweep reads side by side at first, and how their number grows and shrinks.
SWEPT_GROUPS_MIN = 4
SWEPT_GROUPS_STEP = 4
# From so many index entries of a bucket on, one range delete is cheaper than single ones.
RANGE_FROM_ENTRIES = 64

_SIGN = 1 << 63
# Where the bucket ends in an index entry: behind the key group, the space and the number of the state.
_BUCKET_END = 13


@dataclass(frozen=True, slots=True)
class CleanupTimes:
    """The batch's number and time, the watermark, and whether a snapshot is due."""

    number: int
    batch_ms: int
    watermark_ms: int | None
    is_snapshot_due: bool = False


@dataclass(slots=True)
class CleanupStats:
    """How many entries were checked, and how many of them were expired and removed."""

    checked_count: int = 0
    removed_count: int = 0


class TtlCleaner:
    """Removes expired entries of an instance's bound states."""

    def __init__(
        self,
        write_batch: WriteBatch,
        groups: range,
        states: Sequence[State],
        key_end: Callable[[bytes, int], int],
    ) -> None:
        """`key_end` returns where the encoded key ends that begins at a byte of an entry."""
        self._write_batch = write_batch
        self._groups = groups
        self._states = [(state, state.cells) for state in states if state.cells.rule]
        self._key_end = key_end

    def clean(self, times: CleanupTimes) -> CleanupStats:
        """Remove expired entries, as many as the strategy of each state allows for one batch."""
        stats = CleanupStats()
        for state, cells in self._states:
            rule, ttl = cells.rule, state.ttl
            now_ms = times.watermark_ms if rule and rule.is_event else times.batch_ms
            if rule is None or ttl is None or now_ms is None:
                continue
            if ttl.cleanup == "IncrementalCleanup":
                self._sweep(_StateCleanup(state, cells, rule, now_ms, stats))
            elif ttl.cleanup == "RocksdbCompaction":
                budget = max(CLEANED_PER_BATCH, 2 * cells.indexed_count)
                self._walk(
                    _StateCleanup(state, cells, rule, now_ms, stats), self._in_turn(times.number), budget
                )
            elif times.is_snapshot_due:
                self._walk(_StateCleanup(state, cells, rule, now_ms, stats), list(self._groups), None)
            cells.accesses = cells.indexed_count = 0
        return stats

    def _in_turn(self, number: int) -> list[int]:
        """Return the key groups that this batch visits, beginning with another one each time."""
        count = len(self._groups)
        width = min(count, GROUPS_PER_BATCH)
        start = number * (width if count > width else 1)
        return [self._groups[(start + step) % count] for step in range(width)]

    def _walk(self, work: _StateCleanup, groups: Sequence[int], budget: int | None) -> None:
        """Clean up the buckets that have ended, until the budget is used up.

        All key groups are read together: the number of calls follows what is expired, not the key groups.
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
            for (_, stop), page in zip(ranges, self._write_batch.backend.pages(ranges, size), strict=True):
                keys = [key for key, _ in page[: None if budget is None else budget - len(found)]]
                found += keys
                if keys and (len(page) == size or len(keys) < len(page)):
                    cut.add(keys[-1][:_BUCKET_END])
                    further.append((keys[-1] + b"\x00", stop))
            self._clean_indexed(work, found, cut)
            budget = None if budget is None else budget - len(found)
            ranges, size_max = further, CHUNK_ENTRIES

    def _clean_indexed(self, work: _StateCleanup, index: list[bytes], cut: set[bytes]) -> None:
        """Remove the expired entries that index entries name, and the index entries.

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
        # An entry that was refreshed since is in its new bucket, unless the TTL was another one then.
        named = self._write_batch.get_many([key for _, key in moved]) if moved else []
        for (prefix, key), one in zip(moved, named, strict=True):
            if one is None:
                self._write_batch.put_sub(prefix, key, INDEX_VALUE)
        for prefix, keys in groupby(index, key=lambda key: key[:_BUCKET_END]):
            gone = list(keys)
            # A late row may have added an entry to a bucket that has ended; the next batch finds it there.
            is_touched = prefix in work.cells.indexed
            if len(gone) >= RANGE_FROM_ENTRIES and not is_touched and prefix not in cut:
                self._write_batch.clear_sub(prefix)
            else:
                for key in gone:
                    self._write_batch.delete_sub(prefix, key)

    def _sweep(self, work: _StateCleanup) -> None:
        """Check the next entries of the state, from where the last batch stopped.

        The order is that of the keys, so of key groups that are read together those after a long one are read
        in vain: fewer are read at once where they are long, more where they are short.
        """
        budget = min(work.cells.accesses * work.rule.per_access, SWEPT_PER_BATCH_MAX)
        # In a bucket of the index that never ends, so that a rescale moves it with its key group.
        sweep_key = expiry_prefix(self._groups.start, work.cells.number, _SIGN - 1) + b"sweep"
        position = self._write_batch.get(sweep_key) or b""
        groups, width = self._groups_from(position), SWEPT_GROUPS_MIN
        while budget > 0 and groups:
            ranges = [self._swept(group, work, position) for group in groups[: min(width, budget)]]
            size = page_size(len(ranges), max(FIRST_ENTRIES, budget // len(ranges)))
            found: list[bytes] = []
            is_cut = False
            for page in self._write_batch.backend.pages(ranges, size):
                keys = [key for key, _ in page[:budget]]
                found += keys
                budget -= max(len(keys), 1)
                is_cut = bool(keys) and (len(page) == size or len(keys) < len(page))
                if is_cut:
                    position = keys[-1] + b"\x00"
                    break
                # Empty ones count, too: a batch must not visit all of a great many.
                position = entry_prefix(groups.pop(0) + 1, work.cells.number)
                if budget <= 0:
                    break
            for _ in self._remove_expired(work, found):
                pass
            width = (
                max(1, width // SWEPT_GROUPS_STEP)
                if is_cut
                else min(width * SWEPT_GROUPS_STEP, GROUPS_PER_BATCH)
            )
        if position:
            self._write_batch.put(sweep_key, position)

    def _swept(self, group: int, work: _StateCleanup, position: bytes) -> tuple[bytes, bytes]:
        """Return the range of a key group's entries to check: those from the position on, else all."""
        prefix = entry_prefix(group, work.cells.number)
        return max(position, prefix) if position.startswith(prefix) else prefix, after(prefix)

    def _groups_from(self, position: bytes) -> list[int]:
        """Return all key groups, beginning where a sweep stopped."""
        at = int.from_bytes(position[:2], "big") if position else self._groups.start
        if at not in self._groups:
            at = self._groups.start
        return [*range(at, self._groups.stop), *range(self._groups.start, at)]

    def _remove_expired(self, work: _StateCleanup, entries: list[bytes]) -> Iterator[tuple[bytes, int]]:
        """Remove those of the entries that are expired; yield those that stay, with their time."""
        if not entries:
            return
        work.stats.checked_count += len(entries)
        for entry, stored in zip(entries, self._write_batch.get_many(entries), strict=True):
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
            work.stats.removed_count += 1
            if work.state.kind == "list":
                self._write_batch.delete_sub(entry[:-ELEMENT_BYTES], entry)
            elif work.state.kind == "map":
                self._write_batch.delete_sub(entry[: self._key_end(entry, KEY_AT)], entry)
            else:
                self._write_batch.delete(entry)


@dataclass(frozen=True, slots=True)
class _StateCleanup:
    """The cleanup of one state in one batch."""

    state: State
    cells: Cells[Any]
    rule: TtlRule
    now_ms: int
    stats: CleanupStats
