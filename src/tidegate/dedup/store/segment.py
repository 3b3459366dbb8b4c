"""One segment: takes keys with times, gives the times of keys, keeps them in RocksDB behind a filter.

The filter knows at least every key that RocksDB has: a key is added to it before it is written. It is on the
disk when the copy's mark is written; keys that came after that mark are added again when the copy is caught
up. One that holds fewer keys than the mark says, or is damaged, is built again from the keys.

What is known of a segmented store: facts of its segments, and tallies of its lookups.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.dedup.bloom.filter import FilterFiles
from tidegate.dedup.bloom.memory import FilterBudget, FilterSettings
from tidegate.dedup.columns import KEY_BYTES, Bytes, Hashes, decode_times, hashes_of, to_list
from tidegate.dedup.settings import TIME_BYTES, SegmentSettings
from tidegate.dedup.store.keys import PartChanges
from tidegate.dedup.store.manifest import NO_VERSION, Record
from tidegate.dedup.store.table import FILE_KEYS_MIN, KEYS_CHUNK, KeyTable, Pair
from tidegate.errors import InvariantBroken, StorageCorrupt

log = logging.getLogger(__name__)

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Workshop:
    """What every segment of a store is opened with."""

    settings: SegmentSettings
    rocks: RocksSettings
    free_bytes: Callable[[Path], int]
    budget: FilterBudget


@dataclass(slots=True)
class _Puts:
    """Entries to be put, keys rising, one by one or as rows of bytes, and what is known of them."""

    keys: list[bytes] | Bytes
    values: list[bytes] | Bytes
    hashes: Hashes
    oldest_us: int | None
    newest_us: int | None

    def __len__(self) -> int:
        return len(self.hashes)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries in order; rows are taken apart some at a time, so that memory is bounded."""
        for at in range(0, len(self), KEYS_CHUNK):
            sides = [side[at : at + KEYS_CHUNK] for side in (self.keys, self.values)]
            keys, values = (side if isinstance(side, list) else to_list(side) for side in sides)
            yield from zip(keys, values, strict=True)


class Segment:
    """One open segment; RocksDB may rest while the filter stays."""

    def __init__(
        self,
        folder: Path,
        workshop: Workshop,
        make_room: Callable[[], None],
        listed: Record | None = None,
        *,
        is_new: bool = False,
    ) -> None:
        """Open it; `listed` is what the mark says of it, and how many keys its filter must know.

        A segment that the mark does not list, though there is one, `is_new`: its filter is filled again by
        the batches since. `make_room` is called before RocksDB is opened, so that others may rest.
        """
        self.folder = folder
        self._workshop = workshop
        self._make_room = make_room
        self._table: KeyTable | None = None
        self._filter: FilterFiles | None = None
        self._size_bytes = 0
        self.filter_probes = self.filter_maybe = self.filter_false = 0
        table = self.table()
        try:
            self.record = table.record() or Record(NO_VERSION)
            if listed is not None and listed.version == self.record.version:
                self.record = listed  # its count may be the better one
            known = listed or self.record
            self._filter = self._open_filter(0 if is_new else known.keys)
        except BaseException:
            table.close()
            raise

    def contains(self, hashes: Hashes) -> Flags:
        """Return of each key whether it may be here; False is certain."""
        found: Flags = self._filters.contains(hashes)
        self.filter_probes += len(hashes)
        self.filter_maybe += int(np.count_nonzero(found))
        return found

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of keys, in their order."""
        return self.table().get(keys)

    def table(self) -> KeyTable:
        """Return the RocksDB, opened again if it rested."""
        if self._table is None:
            self._make_room()
            self._table = KeyTable(self.folder, self._workshop.rocks, self._workshop.free_bytes)
        return self._table

    @property
    def is_resting(self) -> bool:
        """Return whether its RocksDB is closed for now."""
        return self._table is None

    def write(self, part: PartChanges, record: Record, expected_keys: int | None) -> None:
        """Write changes, the last of them with the record; earlier ones say that it is not whole yet.

        The record's counts and times are filled in here. StorageFull: nothing of this call is there, or a
        part of it under a record that is not whole.
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

    def absorb(self, pairs: list[Pair]) -> None:
        """Take entries of another segment of the same time, their keys rising and none of them here."""
        keys, values = [key for key, _ in pairs], [value for _, value in pairs]
        puts = _Puts(keys, values, self._hashes(keys), *self._span_of(values))
        self.table().check_room(sum(map(len, keys)) + sum(map(len, values)))
        self._add_to_filter([puts], None)
        self._put(puts, replace(self.record, version=NO_VERSION))

    def compact(self) -> None:
        """Merge all files, so that what was deleted takes no room."""
        self.table().compact()

    def add_to_filter(self, part: PartChanges) -> None:
        """Add the keys of changes that the segment has already, since the filter may have lost them."""
        self._add_to_filter(self._puts(part, merge=False), None)

    def flush(self) -> None:
        """Put everything on the disk, the filter too."""
        if self._table is not None:
            self._table.flush()
        self._filters.sync()

    def link_into(self, folder: Path) -> list[Path]:
        """Return the files of the segment a second name in a new folder."""
        return [*self.table().link_into(folder), *self._filters.snapshot_into(folder)]

    def rest(self) -> None:
        """Close RocksDB, to give back its files and memory; the filter stays."""
        if self._table is not None:
            self._table.flush()
            self._size_bytes = self._table.size_bytes
            self._table.close()
            self._table = None

    def close(self) -> None:
        """Let go of everything; what was not flushed is noticed as missing."""
        if self._table is not None:
            self._table.close()
        self._filters.close()

    def abandon(self) -> None:
        """Let go of everything without a look at the disk: the folder is about to go."""
        if self._table is not None:
            self._table.close()
        self._filters.abandon()

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the keys, without the filter."""
        return self._size_bytes if self._table is None else self._table.size_bytes

    @property
    def filter_bytes(self) -> int:
        """Return the bytes of the filter."""
        return self._filters.size_bytes

    def _put(self, puts: _Puts, record: Record) -> None:
        """Put entries with the record of what was before, which counts them."""
        counted = replace(record, keys=record.keys + len(puts)).seen(puts.oldest_us, puts.newest_us)
        if len(puts) < FILE_KEYS_MIN:
            self.table().write((), (), puts.pairs(), counted)
        else:
            self.table().write_file(puts.pairs(), counted)
        self.record = counted

    def _add_to_filter(self, puts: list[_Puts], expected_keys: int | None) -> None:
        """Add all hashes of a write in one call: a filter that makes itself anew reads all others here."""
        if expected_keys is not None:
            is_sure = self._workshop.settings.expected_keys is not None
            self._filters.expect(expected_keys, is_sure=is_sure)
        if puts:
            self._filters.add(np.concatenate([one.hashes for one in puts]) if puts[1:] else puts[0].hashes)

    @property
    def _filters(self) -> FilterFiles:
        if self._filter is None:
            raise InvariantBroken(reason=f"the segment in {self.folder} is not open")
        return self._filter

    def _open_filter(self, keys_min: int) -> FilterFiles:
        settings, budget = self._filter_settings, self._workshop.budget
        try:
            found = FilterFiles(self.folder, settings, budget, stored=self._stored_hashes)
            if found.count >= keys_min and (found.was_clean or not found.count):
                return found
            # Left open by a worker that was killed, nothing says that its bytes are right, and a bit that is
            # gone would let a duplicate through.
            reason = "lacks keys" if found.count < keys_min else "was not closed"
            found.abandon()
            log.warning("the filter of %s %s; it is made again", self.folder, reason)
        except StorageCorrupt as problem:
            log.warning("a filter is made again from its keys: %s", problem)
        return self._rebuilt()

    @property
    def _filter_settings(self) -> FilterSettings:
        return FilterSettings(bits_per_key=self._workshop.settings.filter_bits)

    def _rebuild(self) -> None:
        """Make the filter anew, after much was removed; the keys are counted on the way."""
        self._filters.abandon()
        self._filter = self._rebuilt()

    def _rebuilt(self) -> FilterFiles:
        return FilterFiles.rebuild(
            self.folder,
            self._stored_hashes,
            expected_keys=max(1, self.record.keys),
            settings=self._filter_settings,
            budget=self._workshop.budget,
        )

    def _stored_hashes(self) -> Iterator[Hashes]:
        """Yield the hashes of all keys that are stored; they are counted on the way."""
        count = 0
        for keys in self.table().all_keys():
            count += len(keys)
            yield self._hashes(keys)
        self.record = replace(self.record, keys=count)

    def _hashes(self, keys: list[bytes]) -> Hashes:
        if self._workshop.settings.exact_keys:
            return hashes_of(keys)
        joined = b"".join(keys)
        if len(joined) != len(keys) * KEY_BYTES:
            raise InvariantBroken(reason=f"a key in {self.folder} is not {KEY_BYTES} bytes wide")
        return hashes_of(np.frombuffer(joined, np.uint8).reshape(-1, KEY_BYTES))

    def _puts(self, part: PartChanges, *, merge: bool = True) -> list[_Puts]:
        """Return what is to be put, in order: the entries, then the columns."""
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
        if merge and self._workshop.settings.rule.holds_several:
            return [self._merged(one) for one in puts]
        return puts

    def _merged(self, puts: _Puts) -> _Puts:
        """Join the times of keys that come twice, or are stored already, with those that are there."""
        width = self._workshop.settings.time_bytes
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
        width = self._workshop.settings.time_bytes
        if values.shape[1] == 0 or values.shape[1] % width:
            raise InvariantBroken(reason=f"values of {values.shape[1]} bytes are no times of {width} bytes")

    def _span_of(self, values: list[bytes]) -> tuple[int | None, int | None]:
        width = self._workshop.settings.time_bytes
        joined = b"".join(value for value in values if len(value) % width == 0)
        return self._span(np.frombuffer(joined, np.uint8)) if joined else (None, None)

    def _span(self, values: Bytes) -> tuple[int, int]:
        with_offsets = self._workshop.settings.with_offsets
        rows = values.reshape(-1, self._workshop.settings.time_bytes)
        times_us, _ = decode_times(rows, with_offsets=with_offsets)
        return int(times_us.min()), int(times_us.max())


def union(old: bytes, new: bytes, width: int) -> bytes:
    """Return the times of two values in order, each once; of one that both have, the first's stays."""
    times: dict[bytes, bytes] = {}
    for value in (old, new):
        for at in range(0, len(value), width):
            times.setdefault(value[at : at + TIME_BYTES], value[at : at + width])
    return b"".join(times[time] for time in sorted(times))


class _Budgets:
    """The one budget for filters of a worker; made anew after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process_id = 0
        self._budget: FilterBudget | None = None

    def of(self, bytes_max: int) -> FilterBudget:
        """Return the budget; the largest that any store of the worker asks for."""
        with self._lock:
            if self._budget is None or self._process_id != os.getpid():
                self._process_id = os.getpid()
                self._budget = FilterBudget(bytes_max)
            self._budget.bytes_max = max(self._budget.bytes_max, bytes_max)
            return self._budget


worker_budget = _Budgets()


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
