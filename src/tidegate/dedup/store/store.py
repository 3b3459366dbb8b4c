"""The segmented store: the stored times of keys, in segments by event time.

A store's folder has a folder for each segment (`orders.4320000000`) and the manifest `copy.mark`, which names
the batch of the store. What is on the disk after each step, and what a kill right after it leaves:

    apply: the filter        bits in memory-mapped files: a filter with more false positives
    apply: RocksDB           each segment writes its keys and its record atomically. The manifest is older.
                             Some segments may have this batch on the disk, others not: those are ahead. The
                             next open is at the manifest's batch and applies the changelog files since: a
                             segment that is ahead skips batches that it has, and is only read once the store
                             has reached its batch, by the same commit records
    flush, filter synced     as before, with all segments ahead
    manifest written         the store is at this batch
    expire: manifest         without the expired segments: their folders are removed by the next open
    expire: folder renamed   `….gone.…`, removed by the next open
    write_partly             removes the manifest first: a store without one has no version and is restored
    replace_part             a file in the part's folder marks it as incomplete until `finish_part`: missing

So after a kill at any moment the store is at the manifest's batch, has no version, or lacks a part. The
manifest is written by `close` and by `snapshot`. A segment that cannot be read is set aside (segments.py);
the others stay.

A full disk: a write that finds too little room is refused with StorageFull before anything is changed. If the
disk becomes full during the write, the store stays at its batch, and takes the same batch again.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Self

import numpy as np

from tidegate.checkpoint.backend import Backend, Sizes, StateChanges, Version
from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.checkpoint.backends.rocksdb_unlogged import FREE_BYTES_MIN
from tidegate.dedup.bloom.memory import estimated_keys
from tidegate.dedup.columns import Longs, SegmentKeys, StoredTimes, decode_times
from tidegate.dedup.settings import SEGMENTS_MAX, SegmentSettings
from tidegate.dedup.store.keys import SegmentChanges, bound_inside, inside, outside, split
from tidegate.dedup.store.manifest import (
    NO_VERSION,
    SegmentRecord,
    StoreManifest,
    read_manifest,
    remove_manifest,
    snapshot_manifest,
    write_manifest,
)
from tidegate.dedup.store.segment import LookupCounters, Segment, SegmentContext, SegmentFacts, worker_budget
from tidegate.dedup.store.segments import CacheEntry, SegmentCache
from tidegate.dedup.store.table import pages
from tidegate.errors import InvariantBroken, StateInvalid, StorageCorrupt, StorageFull, TidegateError
from tidegate.storage.files import disk_error, disk_errors, disk_free_bytes, require_room

log = logging.getLogger(__name__)


def no_ticks() -> int:
    """Return 0: the clock of a store whose lookups are not timed."""
    return 0


class SegmentStore(Backend):
    """The keys of one partition by segments of event time: a backend of parts, with lookups by columns.

    One thread at a time. Segments are opened when they are first used.
    """

    def __init__(
        self,
        folder: Path,
        settings: SegmentSettings,
        rocks: RocksSettings | None = None,
        *,
        free_bytes: Callable[[Path], int] = disk_free_bytes,
        ticks_ns: Callable[[], int] = no_ticks,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.rule = settings.rule
        self._free_bytes = free_bytes
        self._ticks_ns = ticks_ns
        self._counters = LookupCounters()
        self._is_closed = False
        budget = worker_budget.of(settings.filter_memory_bytes_max)
        context = SegmentContext(settings, rocks or RocksSettings.deduplication(), free_bytes, budget)
        self._cache = SegmentCache(folder, context)
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._manifest = read_manifest(folder, settings)
        self._version = self._manifest.version if self._manifest else None
        self._first_live = self._manifest.first_writable(settings.retention_us) if self._manifest else None
        self._cache.fill(self._manifest)

    # --- by columns -------------------------------------------------------------------------------------

    def expire(self, stream_us: int | None) -> list[int]:
        """Remove the segments that are expired at this stream time; return their numbers.

        Stream time never goes back: an expired segment is never written again.
        """
        first_live = self.rule.first_live(stream_us)
        if first_live is None or (self._first_live is not None and first_live <= self._first_live):
            return []
        self._first_live = first_live
        expired = [number for number in self._cache.numbers() if number < first_live]
        if not expired:
            return []
        is_written = self._unlist(expired)
        for number in expired:
            self._cache.drop(number)
        if not is_written:  # the disk was full; the removed segments made room
            self._unlist(expired)
        return expired

    def lookup(self, keys: SegmentKeys, from_us: Longs, to_us: Longs) -> StoredTimes:
        """Return every stored time of the keys with from_us <= time <= to_us, by row.

        Only segments that overlap with the span of a row are read. A segment that is found damaged is set
        aside: StorageCorrupt, and never a result without it.
        """
        began_ns = self._ticks_ns()
        first, last = self.rule.segments_of(from_us), self.rule.segments_of(to_us)
        found: list[Times] = []
        for number in self._cache.numbers():
            rows = np.flatnonzero((first <= number) & (last >= number))
            if not len(rows):
                continue
            own = keys if len(rows) == len(keys) else keys.take(rows)
            with self._cache.reading(number):
                times = lookup_segment(
                    self._cache.use(number, self._version), own, self.settings, self._counters
                )
            if times is not None:
                found.append((rows[times[0]], *times[1:]))
        answer = merge_times(found, from_us, to_us, with_offsets=self.settings.with_offsets)
        self._counters.lookup_ns += self._ticks_ns() - began_ns
        return answer

    def check_segments(self, numbers: Iterable[int]) -> None:
        """Raise StateInvalid if a batch would create more segments than a store may have."""
        count = len({*self._cache.entries, *numbers})
        if count > SEGMENTS_MAX:
            reason = (
                f"with the event times of this batch it would have {count} segments, and {SEGMENTS_MAX} are "
                "the most; look for event times that are far off, or give a longer interval"
            )
            raise StateInvalid(operator=self.settings.store, reason=reason)

    def segments(self) -> list[SegmentFacts]:
        """Return the facts of the live segments, oldest first, without opening any."""
        return [self._cache.facts(number) for number in self._cache.numbers()]

    def lookup_counters(self) -> LookupCounters:
        """Return a copy of the counters of lookups since the store was opened."""
        return replace(self._counters)

    # --- as a backend -----------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = [None] * len(keys)
        by_segment: dict[int, list[tuple[bytes, int]]] = {}
        for row, key in enumerate(keys):
            number, inner = inside(key)
            if number in self._cache.entries:
                by_segment.setdefault(number, []).append((inner, row))
        for number, pairs in by_segment.items():
            pairs.sort()
            with self._cache.reading(number):
                values = self._cache.use(number, self._version).get([inner for inner, _ in pairs])
            for (_, row), value in zip(pairs, values, strict=True):
                found[row] = value
        return found

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return heapq.merge(*(self._scan(number, start, stop) for number in self._cache.numbers()))

    def version(self) -> Version | None:
        return self._version

    def apply(self, changes: StateChanges, version: Version) -> None:
        self._apply(changes, version, is_last=True)
        for entry in list(self._cache.entries.values()):
            is_passed = entry.segment is not None and entry.segment.record.version.batch <= version.batch
            if entry.is_ahead and not entry.is_partial and entry.segment and is_passed:
                problem = _other_run(self._cache.folder_of(entry.number), entry.segment.record)
                self._cache.set_aside(entry.number, problem)
                raise problem
        self._version = version
        self._cache.settle()

    def apply_early(self, changes: StateChanges, version: Version) -> None:
        self._apply(changes, version, is_last=False)

    def write_partly(self, changes: StateChanges) -> None:
        parts = self._split(changes)
        self._invalidate()
        for number, part in parts.items():
            entry = self._cache.entry_for_writing(number, None)
            entry.is_ahead = entry.is_partial = False
            self._write(entry, part, SegmentRecord(NO_VERSION))
        self._cache.settle()

    def copy_range(self, source: Backend, start: bytes, stop: bytes) -> None:
        """Add the entries of another store in a range, of which nothing is here, in chunks.

        As after `write_partly`, the store then has no version.
        """
        if not isinstance(source, SegmentStore):
            raise InvariantBroken(reason=f"{type(source).__name__} has no segments to take")
        self._invalidate()
        for number in source._cache.numbers():
            if self._first_live is None or number >= self._first_live:
                bounds = bound_inside(start, number), bound_inside(stop, number)
                with source._cache.reading(number):
                    other = source._cache.use(number, source.version())
                    self._cache.copy_range(number, other.table().entries(*bounds))
        self._cache.settle()

    def compact(self) -> None:
        """Compact the files of every segment, so that deleted entries take no room; slow for large ones."""
        for number in self._cache.numbers():
            with self._cache.reading(number):
                self._cache.use(number, self._version).compact()

    def snapshot(self, folder: Path) -> list[Path]:
        if folder.exists():
            raise InvariantBroken(reason=f"a snapshot needs a folder that is not there yet: {folder}")
        self._require_room(0)
        try:
            self._write_manifest()
            folder.mkdir(parents=True)
            return self._linked(folder)
        except OSError as problem:
            rmtree(folder, ignore_errors=True)
            raise disk_error(folder, problem) from problem
        except TidegateError:
            rmtree(folder, ignore_errors=True)
            raise

    def sizes(self) -> Sizes:
        facts = self.segments()
        size_bytes = sum(one.size_bytes + one.filter_bytes for one in facts)
        return Sizes(size_bytes=size_bytes, entry_count=sum(one.keys for one in facts))

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._write_manifest()
        except TidegateError as problem:
            # The older manifest stays valid; batches since are applied again.
            log.warning("store closed without a new manifest folder=%s error=%s", self.folder, problem)
        self._cache.close()

    # --- as a backend of parts --------------------------------------------------------------------------

    def missing_parts(self) -> list[str]:
        entries = self._cache.entries
        return [self._cache.name(number) for number in self._cache.numbers() if entries[number].is_missing]

    def replace_part(self, part: str, files: Path) -> None:
        self._cache.begin_repair(self._number(part), files)

    def apply_to_part(self, part: str, changes: StateChanges, version: Version) -> None:
        number = self._number(part)
        mine = split(changes, [number], None).get(number)
        if mine:
            segment = self._cache.part_in_repair(number)
            segment.write(mine, SegmentRecord(version), self._expected(number, segment.record))

    def finish_part(self, part: str) -> None:
        self._cache.finish_repair(self._number(part))

    # --- below ------------------------------------------------------------------------------------------

    def _apply(self, changes: StateChanges, version: Version, *, is_last: bool) -> None:
        """Write the changes of a batch to each segment; those that are ahead and have them are skipped."""
        parts = self._split(changes)
        entries = {number: self._cache.entry_for_writing(number, self._version) for number in parts}
        for entry in entries.values():
            if entry.is_ahead:
                self._check_run(entry, version)
        for number, entry in entries.items():
            if entry.is_ahead and entry.segment and entry.segment.record.has(version):
                with self._cache.reading(number):
                    entry.segment.add_to_filter(parts[number])
                entry.is_partial = entry.segment.record.version.batch == version.batch
                continue
            entry.is_ahead = entry.is_partial = True  # until the whole batch is in
            self._write(entry, parts[number], SegmentRecord(version, is_whole=is_last))

    def _invalidate(self) -> None:
        """Remove the manifest: the store has no version until it is written again."""
        remove_manifest(self.folder)
        self._manifest, self._version = None, None
        self._cache.forget_manifest()

    def _split(self, changes: StateChanges) -> dict[int, SegmentChanges]:
        """Return the changes of each segment, after a check that there is room for them."""
        parts = split(changes, self._cache.numbers(), self._first_live)
        self._require_room(sum(part.size_bytes for part in parts.values()))
        return parts

    def _check_run(self, entry: CacheEntry, version: Version) -> None:
        """Raise StorageCorrupt for a segment that is ahead by another commit record than the one applied."""
        segment = entry.segment
        own = segment.record.version if segment else version
        is_other = own.epoch != version.epoch or own.batch < version.batch
        if segment and (is_other or (own.batch == version.batch and own != version)):
            problem = _other_run(self._cache.folder_of(entry.number), segment.record)
            self._cache.set_aside(entry.number, problem)
            raise problem

    def _write(self, entry: CacheEntry, part: SegmentChanges, record: SegmentRecord) -> None:
        if entry.segment is None:
            raise InvariantBroken(reason=f"segment {entry.number} is not open")
        with self._cache.reading(entry.number):
            entry.segment.write(part, record, self._expected(entry.number, entry.segment.record))

    def _expected(self, number: int, record: SegmentRecord) -> int | None:
        """Return the expected number of keys of a whole segment; None if it is not known."""
        if self.settings.expected_keys is not None:
            return self.settings.expected_keys
        if record.newest_us is None:
            return None
        passed = (record.newest_us - self.rule.start_us(number) + 1) / self.rule.interval_us
        before = self._cache.entries.get(number - 1)
        previous = before.listed.record.keys if before and before.listed else None
        return estimated_keys(record.keys, passed, previous)

    def _scan(self, number: int, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        bounds = bound_inside(start, number), bound_inside(stop, number)
        with self._cache.reading(number):
            for key, value in pages(lambda: self._cache.use(number, self._version).table(), *bounds):
                yield outside(number, key), value

    def _require_room(self, size_bytes: int) -> None:
        require_room(self.folder, size_bytes, bytes_min=FREE_BYTES_MIN, free_bytes_of=self._free_bytes)

    def _write_manifest(self) -> None:
        """Flush all segments, then write the manifest; none for a store without a version."""
        self._cache.flush()
        if self._version is not None:
            manifest = StoreManifest(self._version, self._first_live, self._cache.list_all(self._version))
            write_manifest(self.folder, manifest, self.settings)
            self._manifest = manifest

    def _unlist(self, expired: list[int]) -> bool:
        """Remove expired segments from the manifest on the disk; False if there was no room for that."""
        if self._manifest is None:
            return True
        left = {number: one for number, one in self._manifest.segments.items() if number not in expired}
        manifest = replace(self._manifest, first_live=self._first_live, segments=left)
        try:
            write_manifest(self.folder, manifest, self.settings)
        except StorageFull:
            return False
        self._manifest = manifest
        return True

    def _linked(self, folder: Path) -> list[Path]:
        files = []
        for number in self._cache.numbers():
            with self._cache.reading(number):
                segment = self._cache.use(number, self._version)
            files += segment.link_into(folder / self._cache.name(number))
        if self._manifest is not None:
            files.append(snapshot_manifest(folder, self._manifest, self.settings))
        return sorted(files)

    def _number(self, part: str) -> int:
        number = self.rule.segment_of_folder(self.settings.store, part)
        if number is None or number not in self._cache.entries:
            raise InvariantBroken(reason=f"{part} is not a part of the local store in {self.folder}")
        return number


def _other_run(place: Path, record: SegmentRecord) -> StorageCorrupt:
    reason = f"it is at batch {record.version.batch} with another commit id than the manifest"
    return StorageCorrupt(place=str(place), reason=reason)


Times = tuple[Longs, Longs, Longs | None]


def lookup_segment(
    segment: Segment, keys: SegmentKeys, settings: SegmentSettings, counters: LookupCounters
) -> Times | None:
    """Return all times that a segment has for keys, as (row, time, offset) in row order; None without any.

    The filter is probed first; only keys that it does not exclude are read from RocksDB.
    """
    maybe = segment.contains(keys.hashes)
    rows = np.flatnonzero(maybe)
    counters.filter_probes += len(keys)
    counters.filter_maybe += len(rows)
    if not len(rows):
        return None
    possible = keys.take(rows)
    order = _order(possible)
    read = possible.take(order).to_list()
    values = segment.get(read)
    counters.reads += len(read)
    hits = [number for number, value in enumerate(values) if value is not None]
    segment.filter_false += len(read) - len(hits)
    counters.filter_false += len(read) - len(hits)
    if not hits:
        return None
    found = [value for value in values if value is not None]
    return _times(rows[order[hits]], found, segment, settings)


def merge_times(found: list[Times], from_us: Longs, to_us: Longs, *, with_offsets: bool) -> StoredTimes:
    """Return the times of all segments by row, without those outside of the rows' spans."""
    nothing = np.empty(0, np.int64)
    if not found:
        return StoredTimes(nothing, nothing, nothing if with_offsets else None)
    rows = np.concatenate([one[0] for one in found])
    times_us = np.concatenate([one[1] for one in found])
    matching = np.flatnonzero((times_us >= from_us[rows]) & (times_us <= to_us[rows]))
    matching = matching[np.argsort(rows[matching], kind="stable")]
    if not with_offsets:
        return StoredTimes(rows[matching], times_us[matching])
    offsets = np.concatenate([nothing if one[2] is None else one[2] for one in found])
    return StoredTimes(rows[matching], times_us[matching], offsets[matching])


def _order(keys: SegmentKeys) -> Longs:
    """Return an order of keys close to that of the store, in which reads are faster."""
    if isinstance(keys.bytes_, list):
        return np.array(sorted(range(len(keys)), key=keys.bytes_.__getitem__), np.int64)
    heads = np.ascontiguousarray(keys.bytes_[:, :8]).view(">u8").reshape(-1)
    return np.argsort(heads.astype(np.uint64)).astype(np.int64)


def _times(rows: Longs, values: list[bytes], segment: Segment, settings: SegmentSettings) -> Times:
    width = settings.time_bytes
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    if (lengths % width).any() or not lengths.all():
        raise StorageCorrupt(place=str(segment.folder), reason=f"a value is no times of {width} bytes")
    rows = np.repeat(rows, lengths // width)
    stored = np.frombuffer(b"".join(values), np.uint8).reshape(-1, width)
    times_us, offsets = decode_times(stored, with_offsets=settings.with_offsets)
    order = np.argsort(rows, kind="stable")
    return rows[order], times_us[order], None if offsets is None else offsets[order]


@dataclass(frozen=True, slots=True)
class SegmentStoreFactory:
    """The factory of segmented stores."""

    settings: SegmentSettings
    options: RocksSettings | None = None

    kind = "segments"
    # Lookups by columns are not served over a socket: the store is closed for another process.
    is_served = False

    def with_slots(self, slots: int) -> Self:
        """Return a factory for a process that has one of `slots` shares of the memory."""
        return replace(self, options=replace(self.options or RocksSettings(), slots=slots))

    def open(self, folder: Path, ticks_ns: Callable[[], int]) -> SegmentStore:
        """Open the store in a folder."""
        return SegmentStore(folder, self.settings, self.options, ticks_ns=ticks_ns)
