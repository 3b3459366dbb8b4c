"""The engine on RocksDB: one folder, one process, through rocksdict in raw mode.

Order: batches become visible in the order of their writes. Durability: `write` hands a batch to the
operating system, `sync` puts it on the disk. Threads: any thread may call any method; `sync`, `get_many` and
`compact` do not hold Python's lock while they work, the others do. Damage: logs are checked before they are
replayed (`wal`), blocks when they are read.

A full disk: a write that finds less than `free_bytes_min` free is refused with StorageFull before RocksDB
gets it, and works again as soon as there is room. If RocksDB still runs into a full disk, the write raises
StorageFull, reads continue, and RocksDB takes writes again some seconds after room was freed, or at once
after `reopen`. In both cases nothing of the refused batch is applied.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

from rocksdict import Checkpoint, DbClosedError, Rdict, WriteBatch

from tidegate.errors import InvariantBroken, StorageFailed, StorageFull, TidegateError
from tidegate.storage.engine import EngineBatch, KeyRange
from tidegate.storage.files import disk_free_bytes
from tidegate.storage.rocksdb.errors import READ_HINT, open_fault, read_fault, sync_fault, write_fault
from tidegate.storage.rocksdb.options import MIB, EngineOptions, options_of
from tidegate.storage.rocksdb.reads import RocksSnapshot, RocksView, pairs_of
from tidegate.storage.rocksdb.wal import check_logs, cut_unwritten_tail

# The free room is read again after this much: what can be written between two reads is far below the reserve,
# and a read costs about a microsecond.
ROOM_CHECK_BYTES = MIB
ROOM_CHECK_WRITES = 16

# Raised by calls on a database that is closed, or that another thread is closing right now.
_SHUT = (DbClosedError, RuntimeError)

log = logging.getLogger(__name__)


class RocksBatch:
    """Changes that become visible together; written once.

    `put` and `delete` are RocksDB's own methods, without a Python call between. A range that ends before it
    starts is refused here: RocksDB would apply half of the batch and then take no write at all.
    """

    __slots__ = ("_count", "_raw", "delete", "put")

    def __init__(self) -> None:
        self._raw: Any = WriteBatch(raw_mode=True)
        self._count = 0
        self.put: Callable[[bytes, bytes], None] = self._raw.put
        self.delete: Callable[[bytes], None] = self._raw.delete

    def delete_range(self, start: bytes, stop: bytes, /) -> None:
        if stop < start:
            raise InvariantBroken(reason=f"range delete ends before it starts: {start!r} to {stop!r}")
        if self._raw is None:
            _refuse_spent()
        self._raw.delete_range(start, stop)

    def __len__(self) -> int:
        return self._count if self._raw is None else len(self._raw)

    def spend(self) -> Any:
        """Return RocksDB's batch; after this, nothing can be added or written."""
        raw = self._raw
        if raw is None:
            _refuse_spent()
        self._count = len(raw)
        self._raw = None
        self.put = self.delete = _refuse_spent
        return raw


def _refuse_spent(*_change: bytes) -> None:
    raise InvariantBroken(reason="a batch was used again after it was written")


class RocksEngine:
    """An ordered map of bytes in a folder."""

    def __init__(
        self,
        path: Path,
        settings: EngineOptions | None = None,
        *,
        free_bytes: Callable[[Path], int] = disk_free_bytes,
    ) -> None:
        self.path = path
        self.settings = settings or EngineOptions()
        self._free_bytes = free_bytes
        self._turn = threading.Condition(threading.Lock())
        self._inside = 0  # calls that release Python's lock while RocksDB works; closing waits for them
        self._views: weakref.WeakSet[RocksView] = weakref.WeakSet()
        self._write_lock = threading.Lock()
        self._room_bytes_left = 0
        self._room_writes_left = 0
        self._unusable: TidegateError | None = None
        self._reopen_needed = False
        self._closed = False
        self._db = self._open()

    def batch(self) -> RocksBatch:
        return RocksBatch()

    def write(self, batch: EngineBatch, *, sync: bool = False, frees: bool = False) -> None:
        if not isinstance(batch, RocksBatch):
            raise InvariantBroken(reason=f"a RocksEngine cannot write a {type(batch).__name__}")
        raw = batch.spend()
        while not self._wrote(raw, frees):
            self._wait_until_open()
        if sync:
            self.sync()

    def sync(self) -> None:
        db = self._enter()
        try:
            db.flush_wal(True)
        except Exception as fault:
            self._reopen_needed = True
            raise sync_fault(fault, self.path) from fault
        finally:
            self._leave()

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except _SHUT:
            self._wait_until_open()
            return self.get(key)
        except Exception as fault:
            raise read_fault(fault, self.path) from fault
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        key_list = keys if isinstance(keys, list) else list(keys)
        db = self._enter()
        try:
            values: list[bytes | None] = db.get(key_list)
        except Exception as fault:
            raise read_fault(fault, self.path) from fault
        finally:
            self._leave()
        return values

    def scan(self, span: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        view = self._view(stop=span.stop)
        return pairs_of(view, span, reverse=reverse)

    def snapshot(self) -> RocksSnapshot:
        with self._write_lock:  # the view's two halves must see the same writes
            return RocksSnapshot(self._view(snapshot=True))

    def checkpoint(self, target: Path) -> None:
        if target.exists():
            raise StorageFailed(path=str(target), reason="a checkpoint needs a folder that is not there yet")
        db = self._enter()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            # Written out first, without Python's lock; the checkpoint would do it and hold up every thread.
            db.flush(True)
            # Never kept in a variable: a Checkpoint that lives holds the database and its lock.
            Checkpoint(db).create_checkpoint(str(target))
        except Exception as fault:
            rmtree(target, ignore_errors=True)
            rmtree(target.with_name(target.name + ".tmp"), ignore_errors=True)
            raise write_fault(fault, target, self._free_bytes(self.path)) from fault
        finally:
            self._leave()

    def compact(self, span: KeyRange) -> None:
        db = self._enter()
        try:
            db.compact_range(span.start, span.stop)
        except Exception as fault:
            raise write_fault(fault, self.path, self._free_bytes(self.path)) from fault
        finally:
            self._leave()

    @property
    def reopen_needed(self) -> bool:
        return self._reopen_needed or self._unusable is not None

    def reopen(self) -> None:
        with self._turn:
            if self._closed:
                raise InvariantBroken(reason="the engine is closed")
            # Opening writes files. Without room it would fail and reads would stop, so the store stays open.
            free_bytes = self._free_bytes(self.path)
            if free_bytes < self.settings.free_bytes_min:
                raise StorageFull(path=str(self.path), free_bytes=free_bytes)
            reason = "the store was opened again while this was read"
            self._shut(StorageFailed(path=str(self.path), reason=reason, hint=READ_HINT))
            try:
                self._db = self._open()
            except TidegateError as fault:
                self._unusable = fault
                raise
            self._unusable = None
            self._reopen_needed = False

    def close(self) -> None:
        with self._turn:
            if self._closed:
                return
            self._closed = True
            self._shut(InvariantBroken(reason="the engine is closed"))

    def _open(self) -> Any:
        options = options_of(self.settings)
        try:
            cut = cut_unwritten_tail(self.path)
            if cut is not None:
                log.warning("log truncated, its last write never reached the disk file=%s byte=%d", *cut)
            check_logs(self.path)
            # Named column families keep rocksdict from taking the options of an existing store from its
            # folder.
            return Rdict(str(self.path), options, column_families={"default": options})
        except TidegateError:
            raise
        except Exception as fault:
            raise open_fault(fault, self.path, self._free_bytes(self.path)) from fault

    def _shut(self, reason: TidegateError) -> None:
        """Close RocksDB; the caller holds the turn."""
        while self._inside:
            self._turn.wait()
        for view in list(self._views):
            view.release(reason)
        try:
            self._db.close()
        except DbClosedError:
            return  # a reopen that failed left it closed
        except Exception as fault:  # noqa: BLE001 - rocksdict has no narrower type
            # It is closed. What its flush could not write is in the write-ahead log and is replayed.
            log.warning("store closed with an error path=%s error=%s", self.path, fault)

    def _view(self, *, stop: bytes | None = None, snapshot: bool = False) -> RocksView:
        with self._turn:
            self._check_open()
            view = RocksView(self._db, self.path, stop=stop, snapshot=snapshot)
            self._views.add(view)
        return view

    def _enter(self) -> Any:
        with self._turn:
            self._check_open()
            self._inside += 1
            return self._db

    def _leave(self) -> None:
        with self._turn:
            self._inside -= 1
            if not self._inside:
                self._turn.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise InvariantBroken(reason="the engine is closed")
        if self._unusable is not None:
            raise StorageFailed(
                path=str(self.path),
                reason=f"it did not open again: {self._unusable}",
                hint=self._unusable.hint,
            )

    def _wait_until_open(self) -> None:
        """Return once a reopen on another thread has finished; raise when the engine is not open."""
        with self._turn:
            self._check_open()

    def _wrote(self, raw: Any, frees: bool) -> bool:
        """Write a batch; return False, with the batch untouched, while the store is being reopened."""
        try:
            with self._write_lock:
                if not frees:
                    self._check_room(raw.size_in_bytes())
                self._db.write(raw)
        except _SHUT:
            return False
        except TidegateError:
            raise
        except Exception as fault:
            raise self._write_failed(fault) from fault
        return True

    def _write_failed(self, fault: Exception) -> TidegateError:
        error = write_fault(fault, self.path, self._free_bytes(self.path))
        # RocksDB recovers by itself from a full disk, and nothing of the batch is visible: no need to reopen.
        if not isinstance(error, StorageFull):
            self._reopen_needed = True
        return error

    def _check_room(self, size_bytes: int) -> None:
        """Refuse a write that would eat into the reserve; the caller holds the write lock."""
        self._room_bytes_left -= size_bytes
        self._room_writes_left -= 1
        if self._room_bytes_left >= 0 and self._room_writes_left >= 0:
            return
        free_bytes = self._free_bytes(self.path)
        if free_bytes - size_bytes < self.settings.free_bytes_min:
            self._room_bytes_left = 0
            self._check_open()  # a store that did not open again says so, whatever room there is
            raise StorageFull(path=str(self.path), free_bytes=free_bytes)
        self._room_bytes_left = ROOM_CHECK_BYTES
        self._room_writes_left = ROOM_CHECK_WRITES
