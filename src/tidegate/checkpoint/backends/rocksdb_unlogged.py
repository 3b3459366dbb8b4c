"""A RocksDB without a write-ahead log, in a folder of its own, open until it is closed.

RocksDB flushes its memtables in order, so after a kill the folder has the entries after some earlier write.
Errors of RocksDB are raised as those of Tidegate. Keys from META_GROUP on are none of the entries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any, ClassVar

from rocksdict import Checkpoint, DbClosedError, Options, Rdict, ReadOptions, WriteOptions

from tidegate.checkpoint.backends.rocksdb_options import MIB, RocksSettings, options_of
from tidegate.checkpoint.backends.rocksdb_snapshot import TABLE_SUFFIX, pack_snapshot, unpack_snapshot
from tidegate.checkpoint.keys.layout import META_GROUP
from tidegate.errors import InvariantBroken, TidegateError
from tidegate.storage.files import disk_error, disk_errors, require_room
from tidegate.storage.rocksdb.errors import open_fault, read_fault, write_fault

# The entries of a smaller range are deleted one by one: RocksDB reads slowly through many deleted ranges.
RANGE_KEYS_MAX = 64

# Keys in one lookup. RocksDB makes a record of 200 bytes for each before it looks up the first; those of more
# keys do not stay in the processor's cache, and each key costs a third more.
READ_KEYS = 128

# RocksDB needs room to flush memtables and to compact.
FREE_BYTES_MIN = 16 * MIB

Pair = tuple[bytes, bytes]

log = logging.getLogger(__name__)


class UnloggedRocksDB:
    """A RocksDB without a write-ahead log; one process has a folder open at a time."""

    # Files of writes that a kill cut short; the next open removes them.
    leftover_names: ClassVar[Sequence[str]] = ()

    def __init__(self, folder: Path, settings: RocksSettings, free_bytes: Callable[[Path], int]) -> None:
        self.folder = folder
        self.settings = settings
        self._free_bytes = free_bytes
        self._unlogged: Any = WriteOptions()
        self._unlogged.disable_wal = True
        self._unlogged.memtable_insert_hint_per_batch = True  # keys come sorted
        self.is_flushed = True
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for name in self.leftover_names:
                (folder / name).unlink(missing_ok=True)
            unpack_snapshot(folder)
            self._open()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, in their order; sorted keys are faster."""
        values: list[bytes | None] = []
        read = self._db.get
        try:
            for first in range(0, len(keys), READ_KEYS):
                values += read(list(keys[first : first + READ_KEYS]))
        except Exception as fault:
            raise read_fault(fault, self.folder) from fault
        return values

    def page(self, start: bytes, stop: bytes, count_max: int) -> list[Pair]:
        """Return up to `count_max` entries from the beginning of a range.

        The iterator is bounded, else all of many deleted keys after a short range would be read. RocksDB does
        not copy the bound, which therefore lives as long as the iterator: this call.
        """
        pairs: list[Pair] = []
        stop = min(stop, META_GROUP)
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
            raise self._write_fault(fault) from fault
        self.is_flushed = True

    def compact(self) -> None:
        """Compact all files, so that deleted entries take no room; this takes long for a large store."""
        self.flush()
        try:
            self._db.compact_range(b"", META_GROUP + META_GROUP)
        except Exception as fault:
            raise self._write_fault(fault) from fault

    def snapshot(self, folder: Path) -> list[Path]:
        """Link the files into a new folder, under names that follow from their content; return the paths.

        After a failure there is no folder.
        """
        if folder.exists():
            raise InvariantBroken(reason=f"a snapshot needs a folder that is not there yet: {folder}")
        self.check_room(0)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            # Never in a variable: a Checkpoint that is referenced keeps the database and its lock open.
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

    def close(self) -> None:
        """Release memory and locks; what could not be flushed is missing after the next open."""
        try:
            self._db.close()
        except DbClosedError:
            return
        except Exception as fault:  # noqa: BLE001 - rocksdict has no narrower type
            log.warning("database not closed cleanly folder=%s error=%s", self.folder, fault)

    def _open(self) -> None:
        stored_bytes = sum(table.stat().st_size for table in self.folder.glob(f"*{TABLE_SUFFIX}"))
        self._filters_whole = stored_bytes <= self.settings.whole_filter_bytes_max
        self._options: Any = self._open_options()
        try:
            # Named column families keep rocksdict from reading the options of an existing database from its
            # folder.
            families = {"default": self._options}
            self._db: Any = Rdict(str(self.folder), self._options, column_families=families)
        except Exception as fault:
            raise self._open_fault(fault) from fault

    def _open_options(self) -> Options:
        return options_of(self.settings, filters_whole=self._filters_whole)

    def _open_fault(self, fault: Exception) -> TidegateError:
        return open_fault(fault, self.folder, self._free_bytes(self.folder))

    def _write_fault(self, fault: Exception) -> TidegateError:
        return write_fault(fault, self.folder, self._free_bytes(self.folder))

    def _write_batch(self, batch: Any) -> None:
        """Write a batch, all or nothing; StorageFull without a change if there is too little room."""
        self.check_room(batch.size_in_bytes())
        try:
            self._db.write(batch, self._unlogged)
        except Exception as fault:
            raise self._write_fault(fault) from fault
        self.is_flushed = False

    def _delete_ranges(self, batch: Any, ranges: Iterable[Pair]) -> bool:
        """Add the deletion of ranges to a batch; True if one of them is large."""
        is_large = False
        for start, stop in ranges:
            stored = self.page(start, stop, RANGE_KEYS_MAX)
            if len(stored) == RANGE_KEYS_MAX:
                batch.delete_range(start, min(stop, META_GROUP))
                is_large = True
                continue
            for key, _ in stored:
                batch.delete(key)
        return is_large
