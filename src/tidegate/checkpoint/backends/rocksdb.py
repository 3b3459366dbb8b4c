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
from typing import Any, Self

from rocksdict import ReadOptions, WriteBatch

from tidegate.checkpoint.backend import Sizes, StateChanges, Version
from tidegate.checkpoint.backends.rocksdb_options import KIB, MIB, RocksSettings
from tidegate.checkpoint.backends.rocksdb_unlogged import Pair, UnloggedRocksDB
from tidegate.checkpoint.keys.layout import META_GROUP
from tidegate.errors import InvariantBroken, StorageCorrupt
from tidegate.storage.files import disk_free_bytes
from tidegate.storage.rocksdb.errors import read_fault

VERSION_KEY = META_GROUP + b"version"
VERSION_FORMAT = 1
_VERSION = struct.Struct(">BIq")

# RocksDB has a write batch whole in one memtable: beyond this size changes are written in several, without a
# version until the last one, so that memory stays bounded.
PIECE_BYTES_MAX = 32 * MIB
PIECE_CHECK_KEYS = 8 * KIB

# A scan that stops early reads few entries in vain; a long one seeks seldom.
PAGE_ENTRIES_MIN = 16
PAGE_ENTRIES_MAX = 512

_MEMTABLES = ("active-mem-table", "imm-mem-tables")

# Deleted keys that an iterator over many ranges skips: reading a range alone costs about as much.
SKIPPED_KEYS_MAX = 128

log = logging.getLogger(__name__)


class RocksBackend(UnloggedRocksDB):
    """One partition's entries in RocksDB; one process has a folder open at a time."""

    def __init__(
        self,
        folder: Path,
        settings: RocksSettings | None = None,
        *,
        free_bytes: Callable[[Path], int] = disk_free_bytes,
    ) -> None:
        self._written_entries = self._written_bytes = 0
        super().__init__(folder, settings or RocksSettings(), free_bytes)

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as fault:
            raise read_fault(fault, self.folder) from fault
        return value

    def scan(self, start: bytes, stop: bytes) -> Iterator[Pair]:
        page = self.page(start, stop, PAGE_ENTRIES_MIN)
        if len(page) < PAGE_ENTRIES_MIN:
            return iter(page)
        return self._pages(page, stop)

    def pages(self, ranges: Sequence[Pair], count_max: int) -> list[list[Pair]]:
        """Return the first entries of each range, read by one iterator, which costs less than one for each.

        Its bound is that of the last range. It would read all of many deleted keys in or after a range, so
        after a few of them that range is read alone, within its own bound.
        """
        if len(ranges) <= 1 or count_max < 1:
            return [self.page(start, stop, count_max) for start, stop in ranges]
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(min(max(stop for _, stop in ranges), META_GROUP))
        bounds.set_max_skippable_internal_keys(SKIPPED_KEYS_MAX)
        try:
            iterator = self._db.iter(bounds)
        except Exception as fault:
            raise read_fault(fault, self.folder) from fault
        found: list[list[Pair]] = []
        for start, stop in ranges:
            page = _page_at(iterator, start, stop, count_max)
            found.append(self.page(start, stop, count_max) if page is None else page)
        return found

    def version(self) -> Version | None:
        stored = self.get(VERSION_KEY)
        return None if stored is None else _version_of(stored, self.folder)

    def apply(self, changes: StateChanges, version: Version) -> None:
        stored = _VERSION.pack(VERSION_FORMAT, version.epoch, version.batch) + version.commit_id.encode()
        self._write(changes, stored)

    def write_partly(self, changes: StateChanges) -> None:
        self._write(changes, None)

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

    def _write(self, changes: StateChanges, version: bytes | None) -> None:
        entries = changes.entries
        keys = sorted(entries)
        if keys and keys[-1] >= META_GROUP:
            raise InvariantBroken(reason=f"no entry lies at {keys[-1]!r}, which the store keeps for itself")
        batch: Any = WriteBatch(raw_mode=True)
        self._delete_ranges(batch, sorted(changes.ranges))
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
            self.flush()
            self.close()
            self._open()

    def _write_batch(self, batch: Any) -> None:
        entry_count, size_bytes = batch.len(), batch.size_in_bytes()
        super()._write_batch(batch)
        self._written_entries += entry_count
        self._written_bytes += size_bytes

    def _pages(self, page: list[Pair], stop: bytes) -> Iterator[Pair]:
        size = PAGE_ENTRIES_MIN
        while True:
            yield from page
            if len(page) < size:
                return
            size = min(size * 2, PAGE_ENTRIES_MAX)
            page = self.page(page[-1][0] + b"\x00", stop, size)


def _page_at(iterator: Any, start: bytes, stop: bytes, count_max: int) -> list[Pair] | None:
    """Return up to `count_max` first entries of a range; None when the iterator gave up."""
    pairs: list[Pair] = []
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
        log.debug("batched read failed, ranges read one by one error=%s", fault)
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
