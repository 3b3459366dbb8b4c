"""The RocksDB of one segment: its keys and values, without a write-ahead log.

Each write includes the segment's record (manifest.py) and is atomic. A few keys go through the memtable; many
are written as a table file and ingested, which costs half as much. What a kill leaves:

    while the file is written     `incoming.part`, which the next open removes
    while it is ingested          a file that RocksDB's manifest does not name, which RocksDB removes
    after                         the file. The record in it overlaps the memtable, so RocksDB had to flush
                                  the memtable first

So after a kill the segment has a prefix of its writes, with the record of the last of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from shutil import rmtree
from typing import Any

from rocksdict import (
    Checkpoint,
    DbClosedError,
    IngestExternalFileOptions,
    Rdict,
    ReadOptions,
    SstFileWriter,
    WriteBatch,
    WriteOptions,
)

from tidegate.checkpoint.backends.rocksdb import FREE_BYTES_MIN, PAGE_ENTRIES_MAX, RANGE_KEYS_MAX, READ_KEYS
from tidegate.checkpoint.backends.rocksdb_options import RocksSettings, options_of
from tidegate.checkpoint.backends.rocksdb_snapshot import TABLE_SUFFIX, pack_snapshot, unpack_snapshot
from tidegate.checkpoint.keys.layout import META_GROUP
from tidegate.dedup.store.manifest import RECORD_KEY, SegmentRecord, decode_record
from tidegate.errors import InvariantBroken, StorageCorrupt
from tidegate.storage.files import disk_error, require_room
from tidegate.storage.rocksdb.errors import open_fault, read_fault, write_fault

# From so many keys on, ingesting a file costs less than the memtable.
FILE_KEYS_MIN = 8_192
INCOMING_NAME = "incoming.part"
# RocksDB's error for a missing file that its manifest or CURRENT names: the segment is restored.
MISSING_FILE = "IO error: No such file or directory"
# The keys of a chunk when all are read, and when many are written.
KEYS_CHUNK = 65_536
# The entries of a chunk when they move to another store: a file each, and some 40 MB of memory.
ENTRIES_CHUNK = 262_144

Pair = tuple[bytes, bytes]

log = logging.getLogger(__name__)


class KeyTable:
    """The RocksDB of one segment, open until `close`."""

    def __init__(self, folder: Path, settings: RocksSettings, free_bytes: Callable[[Path], int]) -> None:
        self.folder = folder
        self._free_bytes = free_bytes
        self._unlogged: Any = WriteOptions()
        self._unlogged.disable_wal = True
        self._unlogged.memtable_insert_hint_per_batch = True
        self.is_flushed = True
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / INCOMING_NAME).unlink(missing_ok=True)
            unpack_snapshot(folder)
            stored_bytes = sum(table.stat().st_size for table in folder.glob(f"*{TABLE_SUFFIX}"))
        except OSError as problem:
            raise disk_error(folder, problem) from problem
        is_small = stored_bytes <= settings.whole_filter_bytes_max
        self._options: Any = options_of(settings, filters_whole=is_small)
        # The segment has a Bloom filter of its own.
        self._options.set_memtable_prefix_bloom_ratio(0.0)
        try:
            self._db: Any = Rdict(str(folder), self._options, column_families={"default": self._options})
        except Exception as fault:
            if str(fault).startswith(MISSING_FILE):
                raise StorageCorrupt(place=str(folder), reason=str(fault)) from fault
            raise open_fault(fault, folder, free_bytes(folder)) from fault

    def record(self) -> SegmentRecord | None:
        """Return the segment's record; None if nothing was ever written to it."""
        (stored,) = self.get([RECORD_KEY])
        return None if stored is None else decode_record(stored, self.folder)

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of keys, in their order; sorted keys are faster."""
        values: list[bytes | None] = []
        read = self._db.get
        try:
            for first in range(0, len(keys), READ_KEYS):
                values += read(keys[first : first + READ_KEYS])
        except Exception as fault:
            raise read_fault(fault, self.folder) from fault
        return values

    def page(self, start: bytes, stop: bytes, count_max: int) -> list[Pair]:
        """Return up to `count_max` entries from the beginning of a range."""
        pairs: list[Pair] = []
        stop = min(stop, META_GROUP)
        if stop <= start:
            return pairs
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(stop)  # not copied: it lives as long as the iterator, this call
        try:
            iterator = self._db.iter(bounds)
            iterator.seek(start)
            while len(pairs) < count_max:
                key = iterator.key()
                if key is None:
                    iterator.status()  # the end, or a block that could not be read
                    break
                pairs.append((key, iterator.value()))
                iterator.next()
        except Exception as fault:
            raise read_fault(fault, self.folder) from fault
        return pairs

    def all_keys(self) -> Iterator[list[bytes]]:
        """Yield all keys in order, in chunks; nothing may be written meanwhile."""
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(META_GROUP)
        last = b""
        for found in self._chunks(lambda: self._db.keys(read_opt=bounds), KEYS_CHUNK):
            yield found
            last = found[-1] + b"\x00"
        self._check_end(last, bounds)

    def entries(self, start: bytes, stop: bytes) -> Iterator[list[Pair]]:
        """Yield the entries of a range in order, in chunks; nothing may be written meanwhile."""
        stop = min(stop, META_GROUP)
        if stop <= start:
            return
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(stop)
        last = start
        for found in self._chunks(lambda: self._db.items(from_key=start, read_opt=bounds), ENTRIES_CHUNK):
            yield found
            last = found[-1][0] + b"\x00"
        self._check_end(last, bounds)

    def _chunks(self, begin: Callable[[], Iterator[Any]], size: int) -> Iterator[list[Any]]:
        try:
            found = begin()
            while chunk := list(islice(found, size)):
                yield chunk
        except Exception as fault:
            raise read_fault(fault, self.folder) from fault

    def _check_end(self, last: bytes, bounds: Any) -> None:
        """Raise StorageCorrupt if a bulk read ended early: it takes a damaged block for the end."""
        iterator: Any = None
        try:
            iterator = self._db.iter(bounds)
            iterator.seek(last)
            is_end = iterator.key() is None
            iterator.status()
        except Exception as fault:
            raise read_fault(fault, self.folder) from fault
        finally:
            # The error that sets the segment aside refers to this frame; an iterator that is referenced
            # keeps the database and its lock open.
            del iterator
        if not is_end:
            raise StorageCorrupt(place=str(self.folder), reason="not all of its keys could be read")

    def write(
        self, ranges: Iterable[Pair], deleted: Iterable[bytes], puts: Iterable[Pair], record: SegmentRecord
    ) -> bool:
        """Delete ranges and keys, then put entries, in one write; True if a large range was deleted."""
        batch: Any = WriteBatch(raw_mode=True)
        is_large = False
        for start, stop in ranges:
            stored = self.page(start, stop, RANGE_KEYS_MAX)
            if len(stored) == RANGE_KEYS_MAX:
                batch.delete_range(start, min(stop, META_GROUP))
                is_large = True
            for key, _ in stored if len(stored) < RANGE_KEYS_MAX else ():
                batch.delete(key)
        for key in deleted:
            batch.delete(key)
        put = batch.put
        for key, value in puts:
            put(key, value)
        put(RECORD_KEY, record.encoded())
        self.check_room(batch.size_in_bytes())
        try:
            self._db.write(batch, self._unlogged)
        except Exception as fault:
            raise write_fault(fault, self.folder, self._free_bytes(self.folder)) from fault
        self.is_flushed = False
        return is_large

    def write_file(self, puts: Iterable[Pair], record: SegmentRecord) -> None:
        """Write entries in key order as one table file and ingest it; durable on return."""
        place = self.folder / INCOMING_NAME
        writer: Any = SstFileWriter(self._options)
        options: Any = IngestExternalFileOptions()
        options.set_move_files(True)
        try:
            writer.open(str(place))
            put = writer.__setitem__
            for key, value in puts:
                put(key, value)
            put(RECORD_KEY, record.encoded())
            writer.finish()
            self._db.ingest_external_file([str(place)], options)
        except Exception as fault:
            place.unlink(missing_ok=True)
            if "strict ascending order" in str(fault):
                raise InvariantBroken(reason=f"keys for {self.folder} are not in order") from fault
            raise write_fault(fault, self.folder, self._free_bytes(self.folder)) from fault
        self.is_flushed = True

    def check_room(self, size_bytes: int) -> None:
        """Raise StorageFull if there is no room for a write."""
        require_room(self.folder, size_bytes, bytes_min=FREE_BYTES_MIN, free_bytes_of=self._free_bytes)

    def flush(self) -> None:
        """Flush the memtable."""
        if self.is_flushed:
            return
        try:
            self._db.flush(True)
        except Exception as fault:
            raise write_fault(fault, self.folder, self._free_bytes(self.folder)) from fault
        self.is_flushed = True

    def compact(self) -> None:
        """Compact all files, so that deleted entries take no room."""
        self.flush()
        try:
            self._db.compact_range(b"", META_GROUP + META_GROUP)
        except Exception as fault:
            raise write_fault(fault, self.folder, self._free_bytes(self.folder)) from fault

    def link_into(self, folder: Path) -> list[Path]:
        """Link the files into a new folder, under names that follow from their content; return the paths."""
        self.check_room(0)
        try:
            # Never in a variable: a Checkpoint that is referenced keeps the database and its lock open.
            Checkpoint(self._db).create_checkpoint(str(folder))
        except Exception as fault:
            rmtree(folder.with_name(folder.name + ".tmp"), ignore_errors=True)
            raise write_fault(fault, folder, self._free_bytes(self.folder)) from fault
        try:
            return pack_snapshot(folder)
        except OSError as problem:
            raise disk_error(folder, problem) from problem

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its entries, on the disk and in the memtable."""
        named = self._db.property_int_value
        try:
            stored_bytes = named("rocksdb.live-sst-files-size") or 0
            if self.is_flushed:
                return int(stored_bytes)
            return int(stored_bytes + (named("rocksdb.cur-size-all-mem-tables") or 0))
        except Exception as fault:
            raise read_fault(fault, self.folder) from fault

    def close(self) -> None:
        """Release memory and locks; what was not flushed may be missing, together with its record."""
        try:
            self._db.close()
        except DbClosedError:
            return
        except Exception as fault:  # noqa: BLE001 - rocksdict has no narrower type
            log.warning("segment not closed cleanly folder=%s problem=%s", self.folder, fault)


def pages(table: Callable[[], KeyTable], start: bytes, stop: bytes) -> Iterator[Pair]:
    """Yield the entries of a range page by page; `table` is called for each page."""
    while True:
        page = table().page(start, stop, PAGE_ENTRIES_MAX)
        yield from page
        if len(page) < PAGE_ENTRIES_MAX:
            return
        start = page[-1][0] + b"\x00"
