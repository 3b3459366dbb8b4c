"""The backend on RocksDB: takes changes, gives entries, keeps them in a folder without a write-ahead log.

The version lies among the entries, and each write is one batch. RocksDB writes its memtables out in order, so
what is there after a kill is what the first so many batches left, with the version of the last of them.
A batch that is not over takes the version away in the same write: wherever some of it is, no version is.

A full disk: a write that finds too little room is refused with StorageFull and changes nothing. Should
RocksDB meet the end of the disk while it writes a memtable out, the next write raises StorageFull.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

from rocksdict import Checkpoint, DbClosedError, Rdict, ReadOptions, WriteBatch, WriteOptions

from tidegate.errors import InvariantBroken, StorageCorrupt, StorageFailed, StorageFull
from tidegate.state.backend import Changes, Sizes, Version
from tidegate.state.layout import META_GROUP
from tidegate.state.rocks_files import TABLE_SUFFIX, pack_snapshot, unpack_snapshot
from tidegate.state.rocks_settings import KIB, MIB, RocksSettings, options_of
from tidegate.storage.files import is_full
from tidegate.storage.rocks_faults import open_fault, read_fault, write_fault

VERSION_KEY = META_GROUP + b"version"
VERSION_FORMAT = 1
_VERSION = struct.Struct(">BIq")

# RocksDB keeps a batch whole in one memtable: beyond this a change is written in pieces, without a version
# until the last one, so that memory stays bounded.
PIECE_BYTES_MAX = 32 * MIB
PIECE_CHECK_KEYS = 8 * KIB

# A range with fewer entries is deleted one by one: RocksDB reads slowly through many deleted ranges.
RANGE_KEYS_MAX = 64

# Keys that are looked for in one call. RocksDB makes a record of 200 bytes for each before it looks for the
# first; those of more keys do not stay in the processor's cache, and each key costs a third more.
READ_KEYS = 128

# RocksDB needs room to write memtables out and to compact.
FREE_BYTES_MIN = 16 * MIB

# A scan that stops early pays for few entries that nobody reads; a long one seeks seldom.
PAGE_ENTRIES_MIN = 16
PAGE_ENTRIES_MAX = 512

_Pair = tuple[bytes, bytes]

log = logging.getLogger(__name__)


def disk_free_bytes(path: Path) -> int:
    """Give the room that is left for us on the disk that holds a path."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


class RocksBackend:
    """One partition's entries in RocksDB; one process holds a folder at a time."""

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
        try:
            folder.mkdir(parents=True, exist_ok=True)
            unpack_snapshot(folder)
        except OSError as problem:
            raise _refusal(folder, problem) from problem
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

    def version(self) -> Version | None:
        stored = self.get(VERSION_KEY)
        return None if stored is None else _version_of(stored, self.folder)

    def apply(self, changes: Changes, version: Version) -> None:
        head = version.head_id.encode()
        self._write(changes, _VERSION.pack(VERSION_FORMAT, version.epoch, version.batch) + head)

    def write_partly(self, changes: Changes) -> None:
        self._write(changes, None)

    def snapshot(self, folder: Path) -> list[Path]:
        if folder.exists():
            raise InvariantBroken(reason=f"a snapshot needs a folder that is not there yet: {folder}")
        self._check_room(0)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            # Never kept in a variable: a Checkpoint that lives holds the database and its lock.
            Checkpoint(self._db).create_checkpoint(str(folder))
        except Exception as fault:
            rmtree(folder, ignore_errors=True)
            rmtree(folder.with_name(folder.name + ".tmp"), ignore_errors=True)
            raise write_fault(fault, folder, self._free_bytes(self.folder)) from fault
        try:
            return pack_snapshot(folder)
        except OSError as problem:
            rmtree(folder, ignore_errors=True)
            raise _refusal(folder, problem) from problem

    def sizes(self) -> Sizes:
        named = self._db.property_int_value
        try:
            stored_bytes = named("rocksdb.live-sst-files-size") or 0
            memory_bytes = named("rocksdb.cur-size-all-mem-tables") or 0
            count = named("rocksdb.estimate-num-keys") or 0
        except Exception as fault:
            raise read_fault(fault, self.folder) from fault
        return Sizes(size_bytes=stored_bytes + memory_bytes, entry_count=count)

    def close(self) -> None:
        try:
            self._db.close()
        except DbClosedError:
            return
        except Exception as fault:  # noqa: BLE001 - rocksdict has no narrower type
            # Closed it is. What could not be written out is missing together with its version.
            log.warning("closing %s: %s", self.folder, fault)

    def compact(self) -> None:
        """Merge all files, so that what was deleted takes no room; a large copy takes long."""
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
            # Named column families keep rocksdict from taking the options of an existing copy from its
            # folder.
            return Rdict(str(self.folder), options, column_families={"default": options})
        except Exception as fault:
            raise open_fault(fault, self.folder, self._free_bytes(self.folder)) from fault

    def _write(self, changes: Changes, version: bytes | None) -> None:
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
        """Open the copy anew, once, when it has outgrown filters in one piece."""
        if not self._filters_whole:
            return
        stored_bytes = self._db.property_int_value("rocksdb.live-sst-files-size") or 0
        if stored_bytes > self.settings.whole_filter_bytes_max:
            # Written out first: closing only warns of what it could not write, and this copy goes on.
            self._flush()
            self.close()
            self._db = self._open()

    def _flush(self) -> None:
        try:
            self._db.flush(True)
        except Exception as fault:
            raise write_fault(fault, self.folder, self._free_bytes(self.folder)) from fault

    def _write_batch(self, batch: Any) -> None:
        self._check_room(batch.size_in_bytes())
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
        try:
            free_bytes = self._free_bytes(self.folder)
        except OSError as problem:  # the folder was taken away under us
            raise _refusal(self.folder, problem) from problem
        if free_bytes - size_bytes < FREE_BYTES_MIN:
            raise StorageFull(path=str(self.folder), free_bytes=free_bytes)

    def _pages(self, page: list[_Pair], stop: bytes) -> Iterator[_Pair]:
        size = PAGE_ENTRIES_MIN
        while True:
            yield from page
            if len(page) < size:
                return
            size = min(size * 2, PAGE_ENTRIES_MAX)
            page = self._page(page[-1][0] + b"\x00", stop, size)

    def _page(self, start: bytes, stop: bytes, count_max: int) -> list[_Pair]:
        """Give up to so many entries from the head of a range.

        The iterator is bounded, else a short range before many deleted keys would be read through all of
        them. RocksDB does not copy the bound, which therefore lives as long as the iterator: this call.
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


def _version_of(stored: bytes, folder: Path) -> Version:
    if len(stored) < _VERSION.size or stored[0] != VERSION_FORMAT:
        raise StorageCorrupt(place=str(folder), reason=f"its version is not one that we know: {stored!r}")
    _, epoch, batch = _VERSION.unpack_from(stored)
    return Version(epoch, batch, stored[_VERSION.size :].decode())


def _refusal(path: Path, problem: OSError) -> StorageFull | StorageFailed:
    if is_full(problem):
        return StorageFull(path=str(path), free_bytes=0)
    return StorageFailed(path=str(path), reason=problem.strerror or str(problem))
