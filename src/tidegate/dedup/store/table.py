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

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from rocksdict import IngestExternalFileOptions, Options, ReadOptions, SstFileWriter, WriteBatch

from tidegate.checkpoint.backends.rocksdb import PAGE_ENTRIES_MAX
from tidegate.checkpoint.backends.rocksdb_unlogged import Pair, UnloggedRocksDB
from tidegate.checkpoint.keys.layout import META_GROUP
from tidegate.dedup.store.manifest import RECORD_KEY, SegmentRecord, decode_record
from tidegate.errors import InvariantBroken, StorageCorrupt, TidegateError
from tidegate.storage.rocksdb.errors import read_fault

# From so many keys on, ingesting a file costs less than the memtable.
FILE_KEYS_MIN = 8_192
INCOMING_NAME = "incoming.part"
# RocksDB's error for a missing file that its manifest or CURRENT names: the segment is restored.
MISSING_FILE = "IO error: No such file or directory"
# The keys of a chunk when all are read, and when many are written.
KEYS_CHUNK = 65_536
# The entries of a chunk when they move to another store: a file each, and some 40 MB of memory.
ENTRIES_CHUNK = 262_144


class KeyTable(UnloggedRocksDB):
    """The RocksDB of one segment, open until `close`."""

    leftover_names = (INCOMING_NAME,)

    def record(self) -> SegmentRecord | None:
        """Return the segment's record; None if nothing was ever written to it."""
        (stored,) = self.get_many([RECORD_KEY])
        return None if stored is None else decode_record(stored, self.folder)

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
        is_large = self._delete_ranges(batch, ranges)
        for key in deleted:
            batch.delete(key)
        put = batch.put
        for key, value in puts:
            put(key, value)
        put(RECORD_KEY, record.encoded())
        self._write_batch(batch)
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
            raise self._write_fault(fault) from fault
        self.is_flushed = True

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

    def _open_options(self) -> Options:
        options = super()._open_options()
        options.set_memtable_prefix_bloom_ratio(0.0)  # the segment has a Bloom filter of its own
        return options

    def _open_fault(self, fault: Exception) -> TidegateError:
        if str(fault).startswith(MISSING_FILE):
            return StorageCorrupt(place=str(self.folder), reason=str(fault))
        return super()._open_fault(fault)


def pages(table: Callable[[], KeyTable], start: bytes, stop: bytes) -> Iterator[Pair]:
    """Yield the entries of a range page by page; `table` is called for each page."""
    while True:
        page = table().page(start, stop, PAGE_ENTRIES_MAX)
        yield from page
        if len(page) < PAGE_ENTRIES_MAX:
            return
        start = page[-1][0] + b"\x00"
