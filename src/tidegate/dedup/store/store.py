"""The segmented store: takes keys with event times, gives the times stored for keys, keeps them by segment.

A copy's folder holds a folder for each segment (`orders.4320000000`) and `copy.mark`, which says at which
batch the copy stands. What is on the disk after each step, and what a kill right after it leaves:

    apply: the filter        bits in memory-mapped files: a filter that says "maybe" too often
    apply: RocksDB           each segment takes its keys and its record in one write. The mark is older. Some
                             segments may be on the disk with this batch, others not: those are ahead. The
                             next open stands at the mark, and is caught up with the change files since: a
                             segment that is ahead takes no batch again that it has, and is looked into only
                             once the copy has come as far as it, under the same heads
    flush, filter synced     as before, with all segments ahead
    mark written             the copy stands at this batch
    expire: mark written     without the segments that go: their folders are removed by the next open
    expire: folder renamed   `….gone.…`, removed by the next open
    write_partly             takes the mark away first: a copy without a mark stands nowhere, and is made anew
    lay_part                 the part's folder says that it is not whole until `end_part`: missing again

So after a kill at any moment the copy stands at the mark, at nothing, or lacks a part, never between. The
mark is written by `close` and by `snapshot`. A segment that cannot be read is set aside (shelf.py); the
others stay.

A full disk: a write that finds too little room is refused with StorageFull before anything is changed.
Should the disk be full in the middle, the copy stands where it stood, and takes the same batch again.

Looking keys up in one segment: the filter first, then RocksDB for those that it lets through.
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

from tidegate.checkpoint.backend import Backend, Changes, Sizes, Version
from tidegate.checkpoint.backends.rocksdb import FREE_BYTES_MIN
from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.dedup.bloom.memory import estimated_keys
from tidegate.dedup.columns import Found, KeyColumn, Longs, decode_times
from tidegate.dedup.settings import SEGMENTS_MAX, SegmentSettings
from tidegate.dedup.store.keys import PartChanges, bound_inside, inside, outside, split
from tidegate.dedup.store.manifest import (
    NO_VERSION,
    Mark,
    Record,
    read_mark,
    remove_mark,
    snapshot_mark,
    write_mark,
)
from tidegate.dedup.store.segment import Segment, SegmentFacts, Tallies, Workshop, worker_budget
from tidegate.dedup.store.segments import Shelf, Slot
from tidegate.dedup.store.table import pages
from tidegate.errors import InvariantBroken, StateInvalid, StorageCorrupt, StorageFull, TidegateError
from tidegate.storage.files import disk_error, disk_free_bytes

log = logging.getLogger(__name__)


def standing_still() -> int:
    """Return a time that never moves: for a store of which nobody asks how long lookups took."""
    return 0


class SegmentStore(Backend):
    """One partition's keys by segments of event time: a Backend and a Parted, with lookups by columns.

    One thread at a time. Segments are opened when they are first used.
    """

    def __init__(
        self,
        folder: Path,
        settings: SegmentSettings,
        rocks: RocksSettings | None = None,
        *,
        free_bytes: Callable[[Path], int] = disk_free_bytes,
        ticks_ns: Callable[[], int] = standing_still,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.rule = settings.rule
        self._free_bytes = free_bytes
        self._ticks_ns = ticks_ns
        self._tallies = Tallies()
        self._is_closed = False
        budget = worker_budget.of(settings.filter_memory_bytes_max)
        workshop = Workshop(settings, rocks or RocksSettings.deduplication(), free_bytes, budget)
        self._shelf = Shelf(folder, workshop)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise disk_error(folder, problem) from problem
        self._mark = read_mark(folder, settings)
        self._version = self._mark.version if self._mark else None
        self._first_live = self._mark.first_writable(settings.retention_us) if self._mark else None
        self._shelf.fill(self._mark)

    # --- by columns -------------------------------------------------------------------------------------

    def expire(self, stream_us: int | None) -> list[int]:
        """Remove the segments that are expired at this stream time; give their numbers.

        Stream time never goes back: what was expired once is never written again.
        """
        first_live = self.rule.first_live(stream_us)
        if first_live is None or (self._first_live is not None and first_live <= self._first_live):
            return []
        self._first_live = first_live
        gone = [number for number in self._shelf.numbers() if number < first_live]
        if not gone:
            return []
        is_written = self._unlist(gone)
        for number in gone:
            self._shelf.drop(number)
        if not is_written:  # the disk was full; now there is room
            self._unlist(gone)
        return gone

    def lookup(self, keys: KeyColumn, from_us: Longs, to_us: Longs) -> Found:
        """Return every stored time of the keys with from_us <= time <= to_us, by row.

        Only segments that a row's span overlaps are looked into. A segment that turns out damaged is set
        aside: StorageCorrupt, and never an answer without it.
        """
        began_ns = self._ticks_ns()
        first, last = self.rule.segments_of(from_us), self.rule.segments_of(to_us)
        found: list[Times] = []
        for number in self._shelf.numbers():
            rows = np.flatnonzero((first <= number) & (last >= number))
            if not len(rows):
                continue
            asked = keys if len(rows) == len(keys) else keys.take(rows)
            with self._shelf.reading(number):
                times = look(self._shelf.use(number, self._version), asked, self.settings, self._tallies)
            if times is not None:
                found.append((rows[times[0]], *times[1:]))
        answer = within(found, from_us, to_us, with_offsets=self.settings.with_offsets)
        self._tallies.lookup_ns += self._ticks_ns() - began_ns
        return answer

    def check_segments(self, numbers: Iterable[int]) -> None:
        """Refuse a batch that would make more segments than a store may have: StateInvalid."""
        count = len({*self._shelf.slots, *numbers})
        if count > SEGMENTS_MAX:
            reason = (
                f"with the event times of this batch it would have {count} segments, and {SEGMENTS_MAX} are "
                "the most; look for event times that are far off, or give a longer interval"
            )
            raise StateInvalid(operator=self.settings.store, reason=reason)

    def segments(self) -> list[SegmentFacts]:
        """Return what is known of the live segments, oldest first; none is opened for it."""
        return [self._shelf.facts(number) for number in self._shelf.numbers()]

    def tallies(self) -> Tallies:
        """Return what lookups did since the store was opened; a copy."""
        return replace(self._tallies)

    # --- as a backend -----------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = [None] * len(keys)
        asked: dict[int, list[tuple[bytes, int]]] = {}
        for row, key in enumerate(keys):
            number, inner = inside(key)
            if number in self._shelf.slots:
                asked.setdefault(number, []).append((inner, row))
        for number, pairs in asked.items():
            pairs.sort()
            with self._shelf.reading(number):
                values = self._shelf.use(number, self._version).get([inner for inner, _ in pairs])
            for (_, row), value in zip(pairs, values, strict=True):
                found[row] = value
        return found

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return heapq.merge(*(self._scan(number, start, stop) for number in self._shelf.numbers()))

    def version(self) -> Version | None:
        return self._version

    def apply(self, changes: Changes, version: Version) -> None:
        self._take(changes, version, is_last=True)
        for slot in list(self._shelf.slots.values()):
            is_passed = slot.opened is not None and slot.opened.record.version.batch <= version.batch
            if slot.is_ahead and not slot.is_taking and slot.opened and is_passed:
                problem = _other_run(self._shelf.place(slot.number), slot.opened.record)
                self._shelf.set_aside(slot.number, problem)
                raise problem
        self._version = version
        self._shelf.settle()

    def apply_early(self, changes: Changes, version: Version) -> None:
        self._take(changes, version, is_last=False)

    def write_partly(self, changes: Changes) -> None:
        parts = self._split(changes)
        self._unmark()
        for number, part in parts.items():
            slot = self._shelf.slot_for_writing(number, None)
            slot.is_ahead = slot.is_taking = False
            self._write(slot, part, Record(NO_VERSION))
        self._shelf.settle()

    def absorb(self, source: Backend, start: bytes, stop: bytes) -> None:
        """Take the entries of another store in a range of which nothing is here: many of a segment at a time.

        As `write_partly`, it leaves a copy that stands nowhere.
        """
        if not isinstance(source, SegmentStore):
            raise InvariantBroken(reason=f"{type(source).__name__} has no segments to take")
        self._unmark()
        for number in source._shelf.numbers():
            if self._first_live is None or number >= self._first_live:
                bounds = bound_inside(start, number), bound_inside(stop, number)
                with source._shelf.reading(number):
                    other = source._shelf.use(number, source.version())
                    self._shelf.absorb(number, other.table().entries(*bounds))
        self._shelf.settle()

    def compact(self) -> None:
        """Merge the files of every segment, so that what was deleted takes no room; large ones take long."""
        for number in self._shelf.numbers():
            with self._shelf.reading(number):
                self._shelf.use(number, self._version).compact()

    def snapshot(self, folder: Path) -> list[Path]:
        if folder.exists():
            raise InvariantBroken(reason=f"a snapshot needs a folder that is not there yet: {folder}")
        self._check_room(0)
        try:
            self._write_mark()
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
            self._write_mark()
        except TidegateError as problem:
            # The older mark stands; what was applied since is applied again.
            log.warning("closing %s: %s", self.folder, problem)
        self._shelf.close()

    # --- as a copy of parts -----------------------------------------------------------------------------

    def missing_parts(self) -> list[str]:
        slots = self._shelf.slots
        return [self._shelf.name(number) for number in self._shelf.numbers() if slots[number].is_missing]

    def lay_part(self, part: str, files: Path) -> None:
        self._shelf.lay(self._number(part), files)

    def apply_to_part(self, part: str, changes: Changes, version: Version) -> None:
        number = self._number(part)
        mine = split(changes, [number], None).get(number)
        if mine:
            segment = self._shelf.mending(number)
            segment.write(mine, Record(version), self._expected(number, segment.record))

    def end_part(self, part: str) -> None:
        self._shelf.end(self._number(part))

    # --- below ------------------------------------------------------------------------------------------

    def _take(self, changes: Changes, version: Version, *, is_last: bool) -> None:
        """Write what a batch does to each segment; those that are ahead and have it are left alone."""
        parts = self._split(changes)
        slots = {number: self._shelf.slot_for_writing(number, self._version) for number in parts}
        for slot in slots.values():
            if slot.is_ahead:
                self._check_run(slot, version)
        for number, slot in slots.items():
            if slot.is_ahead and slot.opened and slot.opened.record.has(version):
                with self._shelf.reading(number):
                    slot.opened.add_to_filter(parts[number])
                slot.is_taking = slot.opened.record.version.batch == version.batch
                continue
            slot.is_ahead = slot.is_taking = True  # until the whole batch is in
            self._write(slot, parts[number], Record(version, is_whole=is_last))

    def _unmark(self) -> None:
        """Take the mark away: the copy stands nowhere until it is written anew."""
        remove_mark(self.folder)
        self._mark, self._version = None, None
        self._shelf.unmark()

    def _split(self, changes: Changes) -> dict[int, PartChanges]:
        """Return what changes do to each segment, after a look whether there is room for it."""
        parts = split(changes, self._shelf.numbers(), self._first_live)
        self._check_room(sum(part.size_bytes for part in parts.values()))
        return parts

    def _check_run(self, slot: Slot, version: Version) -> None:
        """Refuse a segment that is ahead by another head than the one that is applied now."""
        opened = slot.opened
        here = opened.record.version if opened else version
        is_other = here.epoch != version.epoch or here.batch < version.batch
        if opened and (is_other or (here.batch == version.batch and here != version)):
            problem = _other_run(self._shelf.place(slot.number), opened.record)
            self._shelf.set_aside(slot.number, problem)
            raise problem

    def _write(self, slot: Slot, part: PartChanges, record: Record) -> None:
        if slot.opened is None:
            raise InvariantBroken(reason=f"segment {slot.number} is not open")
        with self._shelf.reading(slot.number):
            slot.opened.write(part, record, self._expected(slot.number, slot.opened.record))

    def _expected(self, number: int, record: Record) -> int | None:
        """Return how many keys a segment will have in the end, as far as one can tell."""
        if self.settings.expected_keys is not None:
            return self.settings.expected_keys
        if record.newest_us is None:
            return None
        passed = (record.newest_us - self.rule.start_us(number) + 1) / self.rule.interval_us
        before = self._shelf.slots.get(number - 1)
        previous = before.listed.record.keys if before and before.listed else None
        return estimated_keys(record.keys, passed, previous)

    def _scan(self, number: int, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        bounds = bound_inside(start, number), bound_inside(stop, number)
        with self._shelf.reading(number):
            for key, value in pages(lambda: self._shelf.use(number, self._version).table(), *bounds):
                yield outside(number, key), value

    def _write_mark(self) -> None:
        """Put everything on the disk, then the mark that says so; a copy that stands nowhere has none."""
        self._shelf.flush()
        if self._version is not None:
            mark = Mark(self._version, self._first_live, self._shelf.list_all(self._version))
            write_mark(self.folder, mark, self.settings)
            self._mark = mark

    def _unlist(self, gone: list[int]) -> bool:
        """Take expired segments off the mark that is on the disk; say whether there was room for that."""
        if self._mark is None:
            return True
        left = {number: one for number, one in self._mark.segments.items() if number not in gone}
        mark = replace(self._mark, first_live=self._first_live, segments=left)
        try:
            write_mark(self.folder, mark, self.settings)
        except StorageFull:
            return False
        self._mark = mark
        return True

    def _linked(self, folder: Path) -> list[Path]:
        files = []
        for number in self._shelf.numbers():
            with self._shelf.reading(number):
                segment = self._shelf.use(number, self._version)
            files += segment.link_into(folder / self._shelf.name(number))
        if self._mark is not None:
            files.append(snapshot_mark(folder, self._mark, self.settings))
        return sorted(files)

    def _check_room(self, size_bytes: int) -> None:
        try:
            free_bytes = self._free_bytes(self.folder)
        except OSError as problem:  # the folder was taken away under us
            raise disk_error(self.folder, problem) from problem
        if free_bytes - size_bytes < FREE_BYTES_MIN:
            raise StorageFull(path=str(self.folder), free_bytes=free_bytes)

    def _number(self, part: str) -> int:
        number = self.rule.segment_of_folder(self.settings.store, part)
        if number is None or number not in self._shelf.slots:
            raise InvariantBroken(reason=f"{part} is no part of the copy in {self.folder}")
        return number


def _other_run(place: Path, record: Record) -> StorageCorrupt:
    reason = f"it stands at batch {record.version.batch} by another head than its copy"
    return StorageCorrupt(place=str(place), reason=reason)


Times = tuple[Longs, Longs, Longs | None]


def look(segment: Segment, keys: KeyColumn, settings: SegmentSettings, tallies: Tallies) -> Times | None:
    """Return all times that a segment has for keys, as (row, time, offset), rows rising.

    None: none at all.
    """
    maybe = segment.contains(keys.hashes)
    rows = np.flatnonzero(maybe)
    tallies.filter_probes += len(keys)
    tallies.filter_maybe += len(rows)
    if not len(rows):
        return None
    asked = keys.take(rows)
    order = _order(asked)
    named = asked.take(order).to_list()
    values = segment.get(named)
    tallies.reads += len(named)
    hits = [number for number, value in enumerate(values) if value is not None]
    segment.filter_false += len(named) - len(hits)
    tallies.filter_false += len(named) - len(hits)
    if not hits:
        return None
    found = [value for value in values if value is not None]
    return _times(rows[order[hits]], found, segment, settings)


def within(found: list[Times], from_us: Longs, to_us: Longs, *, with_offsets: bool) -> Found:
    """Join what the segments gave, by row, and leave out times that nobody asked for."""
    nothing = np.empty(0, np.int64)
    if not found:
        return Found(nothing, nothing, nothing if with_offsets else None)
    rows = np.concatenate([one[0] for one in found])
    times_us = np.concatenate([one[1] for one in found])
    kept = np.flatnonzero((times_us >= from_us[rows]) & (times_us <= to_us[rows]))
    kept = kept[np.argsort(rows[kept], kind="stable")]
    if not with_offsets:
        return Found(rows[kept], times_us[kept])
    offsets = np.concatenate([nothing if one[2] is None else one[2] for one in found])
    return Found(rows[kept], times_us[kept], offsets[kept])


def _order(keys: KeyColumn) -> Longs:
    """Return the order in which keys are asked for: about that in which they lie, which is quicker."""
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
    """Keys of a deduplication in segments by event time."""

    settings: SegmentSettings
    options: RocksSettings | None = None

    kind = "segments"
    # A lookup by columns does not go over a socket: another process gets the store closed.
    is_served = False

    def with_slots(self, slots: int) -> Self:
        """Return the same for a process with one of so many shares of the memory."""
        return replace(self, options=replace(self.options or RocksSettings(), slots=slots))

    def open(self, folder: Path, ticks_ns: Callable[[], int]) -> SegmentStore:
        """Open the store in a folder."""
        return SegmentStore(folder, self.settings, self.options, ticks_ns=ticks_ns)
