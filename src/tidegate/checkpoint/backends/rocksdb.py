"""The backend on RocksDB, without a write-ahead log.

The version is one of the entries, and each write is one write batch. RocksDB flushes its memtables in order,
so after a kill the folder has the entries after some earlier batch, with the version of that batch. A batch
that is not published yet removes the version in the same write: wherever some of it is, no version is.

A full disk: a write that finds too little room is refused with StorageFull and changes nothing. Should
the disk be full while RocksDB flushes a memtable, the next write raises StorageFull.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any, Self

from rocksdict import Checkpoint, DbClosedError, Rdict, ReadOptions, WriteBatch, WriteOptions

from tidegate.checkpoint.backend import Sizes, StateChanges, Version
from tidegate.checkpoint.backends.rocksdb_options import KIB, MIB, RocksSettings, options_of
from tidegate.checkpoint.backends.rocksdb_snapshot import TABLE_SUFFIX, pack_snapshot, unpack_snapshot
from tidegate.checkpoint.keys.layout import META_GROUP
from tidegate.errors import InvariantBroken, StorageCorrupt
from tidegate.storage.files import disk_error, disk_free_bytes, require_room
from tidegate.storage.rocksdb.errors import open_fault, read_fault, write_fault

VERSION_KEY = META_GROUP + b"version"
VERSION_FORMAT = 1
_VERSION = struct.Struct(">BIq")

# RocksDB has a write batch whole in one memtable: beyond this size changes are written in several, without a
# version until the last one, so that memory stays bounded.
PIECE_BYTES_MAX = 32 * MIB
PIECE_CHECK_KEYS = 8 * KIB

# The entries of a smaller range are deleted one by one: RocksDB reads slowly through many deleted ranges.
RANGE_KEYS_MAX = 64

# Keys in one lookup. RocksDB makes a record of 200 bytes for each before it looks up the first; those of more
# keys do not stay in the processor's cache, and each key costs a third more.
READ_KEYS = 128

# RocksDB needs room to flush memtables and to compact.
FREE_BYTES_MIN = 16 * MIB

# A scan that stops early reads few entries in vain; a long one seeks seldom.
PAGE_ENTRIES_MIN = 16
PAGE_ENTRIES_MAX = 512

_MEMTABLES = ("active-mem-table", "imm-mem-tables")

# Deleted keys that an iterator over many ranges skips: reading a range alone costs about as much.
SKIPPED_KEYS_MAX = 128

_Pair = tuple[bytes, bytes]

log = logging.getLogger(__name__)


class RocksBackend:
    """One partition's entries in RocksDB; one process has a folder open at a time."""

    def __init__(
        self,
        folder: Path,
        settings: RocksSettings | None = None,
        *,
        free_bytes: Callable[[Path], int] = disk_free_bytes,
    ) -> None:
        self.folder = folder
        self.settings = settings or RocksSettings()
        self._free_bytes = free_bytes
        self._unlogged: Any = WriteOptions()
        self._unlogged.disable_wal = True
        self._unlogged.memtable_insert_hint_per_batch = True  # keys come sorted
        self._filters_whole = True
        self._written_entries = self._written_bytes = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            unpack_snapshot(folder)
        except OSError as problem:
            raise disk_error(folder, problem) from problem
        self._db: Any = self._open()

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as fault:
            raise read_fault(fault, self.folder) from fault
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = []
        read = self._db.get
        try:
            for first in range(0, len(keys), READ_KEYS):
                values += read(list(keys[first : first + READ_KEYS]))
        except Exception as fault:
            raise read_fault(fault, self.folder) from fault
        return values

    def scan(self, start: bytes, stop: bytes) -> Iterator[_Pair]:
        stop = min(stop, META_GROUP)
        page = self._page(start, stop, PAGE_ENTRIES_MIN)
        if len(page) < PAGE_ENTRIES_MIN:
            return iter(page)
        return self._pages(page, stop)

    def pages(self, ranges: Sequence[_Pair], count_max: int) -> list[list[_Pair]]:
        """Return the first entries of each range, read by one iterator, which costs less than one for each.

        Its bound is that of the last range. It would read all of many deleted keys in or after a range, so
        after a few of them that range is read alone, within its own bound.
        """
        if len(ranges) <= 1 or count_max < 1:
            return [self._page(start, min(stop, META_GROUP), count_max) for start, stop in ranges]
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(min(max(stop for _, stop in ranges), META_GROUP))
        bounds.set_max_skippable_internal_keys(SKIPPED_KEYS_MAX)
        try:
            iterator = self._db.iter(bounds)
        except Exception as fault:
            raise read_fault(fault, self.folder) from fault
        found: list[list[_Pair]] = []
        for start, stop in ranges:
            page = _page_at(iterator, start, stop, count_max)
            found.append(self._page(start, min(stop, META_GROUP), count_max) if page is None else page)
        return found

    def version(self) -> Version | None:
        stored = self.get(VERSION_KEY)
        return None if stored is None else _version_of(stored, self.folder)

    def apply(self, changes: StateChanges, version: Version) -> None:
        stored = _VERSION.pack(VERSION_FORMAT, version.epoch, version.batch) + version.commit_id.encode()
        self._write(changes, stored)

    def write_partly(self, changes: StateChanges) -> None:
        self._write(changes, None)

    def snapshot(self, folder: Path) -> list[Path]:
        if folder.exists():
            raise InvariantBroken(reason=f"a snapshot needs a folder that is not there yet: {folder}")
        self._check_room(0)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            # Never in a variable: a Checkpoint object references the database and its lock.
            Checkpoint(self._db).create_checkpoint(str(folder))
        except Exception as fault:
            rmtree(folder, ignore_errors=True)
            rmtree(folder.with_name(folder.name + ".tmp"), ignore_errors=True)
            raise write_fault(fault, folder, self._free_bytes(self.folder)) from fault
        try:
            return pack_snapshot(folder)
        except OSError as problem:
            rmtree(folder, ignore_errors=True)
            raise disk_error(folder, problem) from problem

    def sizes(self) -> Sizes:
        named = self._db.property_int_value
        try:
            stored_bytes = named("rocksdb.live-sst-files-size") or 0
            waiting = sum(named(f"rocksdb.num-entries-{table}") or 0 for table in _MEMTABLES)
            count = named("rocksdb.estimate-num-keys") or 0
            count -= self._db.get(VERSION_KEY) is not None
        except Exception as fault:
            raise read_fault(fault, self.folder) from fault
        # Not the size of the memtables, which is megabytes before the first entry.
        memory_bytes = waiting * self._written_bytes // max(1, self._written_entries)
        return Sizes(size_bytes=stored_bytes + memory_bytes, entry_count=max(0, count))

    def close(self) -> None:
        try:
            self._db.close()
        except DbClosedError:
            return
        except Exception as fault:  # noqa: BLE001 - rocksdict has no narrower type
            # It is closed. What could not be flushed is missing together with its version.
            log.warning("database not closed cleanly folder=%s error=%s", self.folder, fault)

    def compact(self) -> None:
        """Compact all files, so that what was deleted takes no room; this takes long for a large store."""
        self._flush()
        try:
            self._db.compact_range(b"", META_GROUP + META_GROUP)
        except Exception as fault:
            raise write_fault(fault, self.folder, self._free_bytes(self.folder)) from fault

    def _open(self) -> Any:
        stored_bytes = sum(table.stat().st_size for table in self.folder.glob(f"*{TABLE_SUFFIX}"))
        self._filters_whole = stored_bytes <= self.settings.whole_filter_bytes_max
        options = options_of(self.settings, filters_whole=self._filters_whole)
        try:
            # Named column families keep rocksdict from reading the options of an existing database from its
            # folder.
            return Rdict(str(self.folder), options, column_families={"default": options})
        except Exception as fault:
            raise open_fault(fault, self.folder, self._free_bytes(self.folder)) from fault

    def _write(self, changes: StateChanges, version: bytes | None) -> None:
        entries = changes.entries
        keys = sorted(entries)
        if keys and keys[-1] >= META_GROUP:
            raise InvariantBroken(reason=f"no entry lies at {keys[-1]!r}, which the store keeps for itself")
        batch: Any = WriteBatch(raw_mode=True)
        for start, stop in sorted(changes.ranges):
            self._add_range(batch, start, min(stop, META_GROUP))
        for first in range(0, len(keys), PIECE_CHECK_KEYS):
            if first and batch.size_in_bytes() > PIECE_BYTES_MAX:
                batch.delete(VERSION_KEY)
                self._write_batch(batch)
                batch = WriteBatch(raw_mode=True)
            put, delete = batch.put, batch.delete
            for key in keys[first : first + PIECE_CHECK_KEYS]:
                value = entries[key]
                if value is None:
                    delete(key)
                else:
                    put(key, value)
        if version is None:
            batch.delete(VERSION_KEY)
        else:
            batch.put(VERSION_KEY, version)
        self._write_batch(batch)
        self._follow_growth()

    def _follow_growth(self) -> None:
        """Open the database again, once, when it has outgrown unpartitioned filters."""
        if not self._filters_whole:
            return
        stored_bytes = self._db.property_int_value("rocksdb.live-sst-files-size") or 0
        if stored_bytes > self.settings.whole_filter_bytes_max:
            # Flushed first: closing only warns of what it could not flush, and this database is used on.
            self._flush()
            self.close()
            self._db = self._open()

    def _flush(self) -> None:
        try:
            self._db.flush(True)
        except Exception as fault:
            raise write_fault(fault, self.folder, self._free_bytes(self.folder)) from fault

    def _write_batch(self, batch: Any) -> None:
        size_bytes = batch.size_in_bytes()
        self._check_room(size_bytes)
        self._written_entries += batch.len()
        self._written_bytes += size_bytes
        try:
            self._db.write(batch, self._unlogged)
        except Exception as fault:
            raise write_fault(fault, self.folder, self._free_bytes(self.folder)) from fault

    def _add_range(self, batch: Any, start: bytes, stop: bytes) -> None:
        stored = self._page(start, stop, RANGE_KEYS_MAX)
        if len(stored) == RANGE_KEYS_MAX:
            batch.delete_range(start, stop)
            return
        for key, _ in stored:
            batch.delete(key)

    def _check_room(self, size_bytes: int) -> None:
        require_room(self.folder, size_bytes, bytes_min=FREE_BYTES_MIN, free_bytes_of=self._free_bytes)

    def _pages(self, page: list[_Pair], stop: bytes) -> Iterator[_Pair]:
        size = PAGE_ENTRIES_MIN
        while True:
            yield from page
            if len(page) < size:
                return
            size = min(size * 2, PAGE_ENTRIES_MAX)
            page = self._page(page[-1][0] + b"\x00", stop, size)

    def _page(self, start: bytes, stop: bytes, count_max: int) -> list[_Pair]:
        """Return up to `count_max` first entries of a range.

        The iterator is bounded, else all of many deleted keys after a short range would be read. RocksDB does
        not copy the bound, which therefore lives as long as the iterator: this call.
        """
        pairs: list[_Pair] = []
        if stop <= start:
            return pairs
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(stop)
        try:
            iterator = self._db.iter(bounds)
            key_here, value_here, step = iterator.key, iterator.value, iterator.next
            iterator.seek(start)
            for _ in range(count_max):
                key = key_here()
                if key is None:
                    iterator.status()  # the end, or a block that could not be read
                    break
                pairs.append((key, value_here()))
                step()
        except Exception as fault:
            raise read_fault(fault, self.folder) from fault
        return pairs


def _page_at(iterator: Any, start: bytes, stop: bytes, count_max: int) -> list[_Pair] | None:
    """Return up to `count_max` first entries of a range; None when the iterator gave up."""
    pairs: list[_Pair] = []
    try:
        iterator.seek(start)
        while True:
            key = iterator.key()
            if key is None:
                iterator.status()  # the end, a block that could not be read, or too many deleted keys
                return pairs
            if key >= stop:
                return pairs
            pairs.append((key, iterator.value()))
            if len(pairs) == count_max:
                return pairs
            iterator.next()
    except Exception as fault:  # noqa: BLE001 - rocksdict has no narrower type
        # The range is read again, alone, which raises what is wrong, if anything is.
        log.debug("range read alone error=%s", fault)
        return None


def _version_of(stored: bytes, folder: Path) -> Version:
    if len(stored) < _VERSION.size or stored[0] != VERSION_FORMAT:
        raise StorageCorrupt(place=str(folder), reason=f"its version is not one that we know: {stored!r}")
    _, epoch, batch = _VERSION.unpack_from(stored)
    return Version(epoch, batch, stored[_VERSION.size :].decode())


@dataclass(frozen=True, slots=True)
class RocksFactory:
    """State in RocksDB, with the options of one operator; None: the default ones."""

    options: RocksSettings | None = None

    kind = "rocksdb"
    is_served = True

    def with_slots(self, slots: int) -> Self:
        """Return the same for a process with one of `slots` shares of the memory."""
        return replace(self, options=replace(self.options or RocksSettings(), slots=slots))

    def open(self, folder: Path, ticks_ns: Callable[[], int]) -> RocksBackend:  # noqa: ARG002
        """Open the backend in a folder."""
        return RocksBackend(folder, self.options)
