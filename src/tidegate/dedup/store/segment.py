"""One segment of the store: the times of its keys in a RocksDB, behind a Bloom filter.

The filter has at least every key that RocksDB has: a key is added to it before it is written. It is synced
before the store's manifest is written; keys that came after that manifest are added again during recovery. A
filter that has fewer keys than the manifest says, or is damaged, is rebuilt from the keys.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.checkpoint.backends.rocksdb_unlogged import Pair
from tidegate.dedup.bloom.filter import BloomFilter
from tidegate.dedup.bloom.memory import FilterBudget, FilterSettings
from tidegate.dedup.columns import KEY_BYTES, Bytes, Hashes, decode_times, hashes_of, to_list
from tidegate.dedup.settings import TIME_BYTES, SegmentSettings
from tidegate.dedup.store.keys import SegmentChanges
from tidegate.dedup.store.manifest import NO_VERSION, SegmentRecord
from tidegate.dedup.store.table import FILE_KEYS_MIN, KEYS_CHUNK, KeyTable
from tidegate.errors import InvariantBroken, StorageCorrupt

log = logging.getLogger(__name__)

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class SegmentContext:
    """The settings and resources that all segments of a store share."""

    settings: SegmentSettings
    rocks: RocksSettings
    free_bytes: Callable[[Path], int]
    budget: FilterBudget


@dataclass(slots=True)
class _Puts:
    """Entries to be put, in key order, as lists or as rows of bytes, with their hashes and times."""

    keys: list[bytes] | Bytes
    values: list[bytes] | Bytes
    hashes: Hashes
    oldest_us: int | None
    newest_us: int | None

    def __len__(self) -> int:
        return len(self.hashes)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries in order; rows are converted in chunks, so that memory is bounded."""
        for at in range(0, len(self), KEYS_CHUNK):
            sides = [side[at : at + KEYS_CHUNK] for side in (self.keys, self.values)]
            keys, values = (side if isinstance(side, list) else to_list(side) for side in sides)
            yield from zip(keys, values, strict=True)


class Segment:
    """One open segment; its RocksDB may be closed while the filter stays open."""

    def __init__(
        self,
        folder: Path,
        context: SegmentContext,
        make_room: Callable[[], None],
        listed: SegmentRecord | None = None,
        *,
        is_new: bool = False,
    ) -> None:
        """Open the segment; `listed` is its record in the manifest, with the number of keys in its filter.

        `is_new` if there is a manifest that does not list it: its filter is filled again by the batches
        since. `make_room` is called before RocksDB is opened, so that others may be closed.
        """
        self.folder = folder
        self._context = context
        self._make_room = make_room
        self._table: KeyTable | None = None
        self._filter: BloomFilter | None = None
        self._size_bytes = 0
        self.filter_probes = self.filter_maybe = self.filter_false = 0
        table = self.table()
        try:
            self.record = table.record() or SegmentRecord(NO_VERSION)
            if listed is not None and listed.version == self.record.version:
                self.record = listed  # its count may be more exact
            known = listed or self.record
            self._filter = self._open_filter(0 if is_new else known.keys)
        except BaseException:
            table.close()
            raise

    def contains(self, hashes: Hashes) -> Flags:
        """Return for each key whether it may be in the segment; False is certain."""
        found: Flags = self._filters.contains(hashes)
        self.filter_probes += len(hashes)
        self.filter_maybe += int(np.count_nonzero(found))
        return found

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of keys, in their order."""
        return self.table().get_many(keys)

    def table(self) -> KeyTable:
        """Return the RocksDB, opened again if it was closed."""
        if self._table is None:
            self._make_room()
            self._table = KeyTable(self.folder, self._context.rocks, self._context.free_bytes)
        return self._table

    @property
    def is_table_closed(self) -> bool:
        """True if its RocksDB is closed."""
        return self._table is None

    def write(self, part: SegmentChanges, record: SegmentRecord, expected_keys: int | None) -> None:
        """Write changes, the last of them with the record; until then the record is not whole.

        The record's counts and times are set here. After StorageFull nothing of this call is written, or a
        part of it with a record that is not whole.
        """
        puts = self._puts(part)
        table = self.table()
        table.check_room(part.size_bytes)
        self._add_to_filter(puts, expected_keys)
        here = replace(record, keys=self.record.keys, oldest_us=self.record.oldest_us)
        here = replace(here, newest_us=self.record.newest_us)
        deleted = [key for key, value in part.entries.items() if value is None]
        is_large = False
        if part.ranges or deleted or not puts:
            here = replace(here, keys=max(0, here.keys - len(deleted)), is_whole=record.is_whole and not puts)
            is_large = table.write(part.ranges, deleted, (), here)
            self.record = here
        for number, one in enumerate(puts, start=1):
            self._put(one, replace(here, is_whole=record.is_whole and number == len(puts)))
            here = self.record
        if is_large:
            self._rebuild()

    def copy_range(self, pairs: list[Pair]) -> None:
        """Add entries of another segment of the same time, in key order; none of the keys is here."""
        keys, values = [key for key, _ in pairs], [value for _, value in pairs]
        puts = _Puts(keys, values, self._hashes(keys), *self._span_of(values))
        self.table().check_room(sum(map(len, keys)) + sum(map(len, values)))
        self._add_to_filter([puts], None)
        self._put(puts, replace(self.record, version=NO_VERSION))

    def compact(self) -> None:
        """Compact all files, so that deleted entries take no room."""
        self.table().compact()

    def add_to_filter(self, part: SegmentChanges) -> None:
        """Add the keys of changes that the segment already has: the filter may lack them after a crash."""
        self._add_to_filter(self._puts(part, merge=False), None)

    def flush(self) -> None:
        """Flush RocksDB and sync the filter."""
        if self._table is not None:
            self._table.flush()
        self._filters.sync()

    def link_into(self, folder: Path) -> list[Path]:
        """Link the files of the segment into a new folder; return their paths."""
        return [*self.table().snapshot(folder), *self._filters.snapshot_into(folder)]

    def close_table(self) -> None:
        """Close RocksDB to release its files and memory; the filter stays open."""
        if self._table is not None:
            self._table.flush()
            self._size_bytes = self._table.size_bytes
            self._table.close()
            self._table = None

    def close(self) -> None:
        """Close the segment; the next open detects if something was not flushed."""
        if self._table is not None:
            self._table.close()
        self._filters.close()

    def abandon(self) -> None:
        """Close the segment without a flush or sync: the folder is about to be removed."""
        if self._table is not None:
            self._table.close()
        self._filters.abandon()

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the entries, without the filter."""
        return self._size_bytes if self._table is None else self._table.size_bytes

    @property
    def filter_bytes(self) -> int:
        """Return the bytes of the filter."""
        return self._filters.size_bytes

    def _put(self, puts: _Puts, record: SegmentRecord) -> None:
        """Write entries together with the record, which counts them."""
        counted = replace(record, keys=record.keys + len(puts)).seen(puts.oldest_us, puts.newest_us)
        if len(puts) < FILE_KEYS_MIN:
            self.table().write((), (), puts.pairs(), counted)
        else:
            self.table().write_file(puts.pairs(), counted)
        self.record = counted

    def _add_to_filter(self, puts: list[_Puts], expected_keys: int | None) -> None:
        """Add all hashes of a write in one call: a merge of filter pages reads only the stored ones here."""
        if expected_keys is not None:
            is_sure = self._context.settings.expected_keys is not None
            self._filters.expect(expected_keys, is_sure=is_sure)
        if puts:
            self._filters.add(np.concatenate([one.hashes for one in puts]) if puts[1:] else puts[0].hashes)

    @property
    def _filters(self) -> BloomFilter:
        if self._filter is None:
            raise InvariantBroken(reason=f"the segment in {self.folder} is not open")
        return self._filter

    def _open_filter(self, keys_min: int) -> BloomFilter:
        settings, budget = self._filter_settings, self._context.budget
        try:
            found = BloomFilter(self.folder, settings, budget, stored=self._stored_hashes)
            if found.count >= keys_min and (found.was_clean or not found.count):
                return found
            # A filter left open by a killed worker has no checksum of its bytes, and a lost bit would turn a
            # duplicate into a unique row.
            reason = "it lacks keys" if found.count < keys_min else "it was not closed"
            found.abandon()
            log.warning("filter rebuilt from keys folder=%s reason=%s", self.folder, reason)
        except StorageCorrupt as problem:
            log.warning("filter rebuilt from keys folder=%s error=%s", self.folder, problem)
        return self._rebuilt()

    @property
    def _filter_settings(self) -> FilterSettings:
        return FilterSettings(bits_per_key=self._context.settings.filter_bits)

    def _rebuild(self) -> None:
        """Rebuild the filter after a large delete; the keys are counted meanwhile."""
        self._filters.abandon()
        self._filter = self._rebuilt()

    def _rebuilt(self) -> BloomFilter:
        return BloomFilter.rebuild(
            self.folder,
            self._stored_hashes,
            expected_keys=max(1, self.record.keys),
            settings=self._filter_settings,
            budget=self._context.budget,
        )

    def _stored_hashes(self) -> Iterator[Hashes]:
        """Yield the hashes of all stored keys; the record's count is set at the end."""
        count = 0
        for keys in self.table().all_keys():
            count += len(keys)
            yield self._hashes(keys)
        self.record = replace(self.record, keys=count)

    def _hashes(self, keys: list[bytes]) -> Hashes:
        if self._context.settings.exact_keys:
            return hashes_of(keys)
        joined = b"".join(keys)
        if len(joined) != len(keys) * KEY_BYTES:
            raise InvariantBroken(reason=f"a key in {self.folder} is not {KEY_BYTES} bytes wide")
        return hashes_of(np.frombuffer(joined, np.uint8).reshape(-1, KEY_BYTES))

    def _puts(self, part: SegmentChanges, *, merge: bool = True) -> list[_Puts]:
        """Return the entries to be put, in order: single entries, then columns."""
        puts = []
        keys = sorted(key for key, value in part.entries.items() if value is not None)
        if keys:
            values = [part.entries[key] or b"" for key in keys]
            puts.append(_Puts(keys, values, self._hashes(keys), *self._span_of(values)))
        for packed in part.packed:
            self._check_width(packed.values)
            hashes = hashes_of(packed.keys)
            span = self._span(np.ascontiguousarray(packed.values))
            puts.append(_Puts(packed.keys, packed.values, hashes, *span))
        if merge and self._context.settings.rule.holds_several:
            return [self._merged(one) for one in puts]
        return puts

    def _merged(self, puts: _Puts) -> _Puts:
        """Return entries whose values include the times of repeated keys and of keys already stored."""
        width = self._context.settings.time_bytes
        joined: dict[bytes, bytes] = {}
        for key, value in puts.pairs():
            joined[key] = union(joined[key], value, width) if key in joined else value
        keys = list(joined)
        hashes = puts.hashes if len(keys) == len(puts) else self._hashes(keys)
        maybe = [keys[row] for row in np.flatnonzero(self._filters.contains(hashes)).tolist()]
        for key, stored in zip(maybe, self.get(maybe) if maybe else (), strict=True):
            if stored is not None:
                joined[key] = union(stored, joined[key], width)
        return replace(puts, keys=keys, values=list(joined.values()), hashes=hashes)

    def _check_width(self, values: Bytes) -> None:
        width = self._context.settings.time_bytes
        if values.shape[1] == 0 or values.shape[1] % width:
            raise InvariantBroken(reason=f"values of {values.shape[1]} bytes are no times of {width} bytes")

    def _span_of(self, values: list[bytes]) -> tuple[int | None, int | None]:
        width = self._context.settings.time_bytes
        joined = b"".join(value for value in values if len(value) % width == 0)
        return self._span(np.frombuffer(joined, np.uint8)) if joined else (None, None)

    def _span(self, values: Bytes) -> tuple[int, int]:
        with_offsets = self._context.settings.with_offsets
        rows = values.reshape(-1, self._context.settings.time_bytes)
        times_us, _ = decode_times(rows, with_offsets=with_offsets)
        return int(times_us.min()), int(times_us.max())


def union(old: bytes, new: bytes, width: int) -> bytes:
    """Return the times of two values in order, each once; of equal times that of the first value stays."""
    times: dict[bytes, bytes] = {}
    for value in (old, new):
        for at in range(0, len(value), width):
            times.setdefault(value[at : at + TIME_BYTES], value[at : at + width])
    return b"".join(times[time] for time in sorted(times))


class _Budgets:
    """The memory budget that all filters of a worker share; a new one after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process_id = 0
        self._budget: FilterBudget | None = None

    def of(self, bytes_max: int) -> FilterBudget:
        """Return the budget; its bound is the largest that any store of the worker sets."""
        with self._lock:
            if self._budget is None or self._process_id != os.getpid():
                self._process_id = os.getpid()
                self._budget = FilterBudget(bytes_max)
            self._budget.bytes_max = max(self._budget.bytes_max, bytes_max)
            return self._budget


worker_budget = _Budgets()


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The facts of one live segment; the counters of its filter begin when the store is opened.

    `filter_maybe` are probes that led to a read of RocksDB, `filter_false` those that found nothing there.
    """

    number: int
    start_ms: int
    keys: int = 0
    size_bytes: int = 0
    filter_bytes: int = 0
    oldest_us: int | None = None
    newest_us: int | None = None
    filter_probes: int = 0
    filter_maybe: int = 0
    filter_false: int = 0


@dataclass(slots=True)
class LookupCounters:
    """The counters of lookups since the store was opened; `reads` are keys read from RocksDB."""

    filter_probes: int = 0
    filter_maybe: int = 0
    filter_false: int = 0
    reads: int = 0
    lookup_ns: int = 0

    def since(self, before: LookupCounters) -> dict[str, int]:
        """Return the lookups since an earlier moment, as commit records count them."""
        old = asdict(before)
        counts = {name: count - old[name] for name, count in asdict(self).items()}
        counts["lookup_us"] = counts.pop("lookup_ns") // 1_000
        return counts
