"""The engine's in-memory twin, for tests: the same guarantees, and failures on command.

All pairs are in a dictionary, with a sorted list of its keys. What was not synced is recorded as an undo log,
so that `crash` can drop exactly that.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from tidegate.errors import InvariantBroken, StorageFailed, TidegateError
from tidegate.storage.engine import EngineBatch, KeyRange

CHECKPOINT_FILE = "pairs.bin"
_LENGTHS = struct.Struct(">II")  # of key and value, before each pair of a checkpoint

_Change = tuple[bytes, bytes | None]
_RangeDelete = tuple[bytes, bytes, None]


class MemoryBatch:
    """Changes that become visible together; written once."""

    __slots__ = ("changes", "spent")

    def __init__(self) -> None:
        self.changes: list[_Change | _RangeDelete] = []
        self.spent = False

    def put(self, key: bytes, value: bytes, /) -> None:
        _check_bytes(key, value)
        self._add((key, value))

    def delete(self, key: bytes, /) -> None:
        _check_bytes(key)
        self._add((key, None))

    def delete_range(self, start: bytes, stop: bytes, /) -> None:
        if stop < start:
            raise InvariantBroken(reason=f"range delete ends before it starts: {start!r} to {stop!r}")
        self._add((start, stop, None))

    def __len__(self) -> int:
        return len(self.changes)

    def _add(self, change: _Change | _RangeDelete) -> None:
        if self.spent:
            raise InvariantBroken(reason="a batch was used again after it was written")
        self.changes.append(change)


def _check_bytes(*parts: bytes) -> None:
    for part in parts:
        if not isinstance(part, bytes):
            raise InvariantBroken(
                reason=f"keys and values of the engine are bytes, not {type(part).__name__}"
            )


class _Store:
    """A dictionary and its keys in order."""

    __slots__ = ("order", "values")

    def __init__(self, order: list[bytes], values: dict[bytes, bytes]) -> None:
        self.order = order
        self.values = values

    def copy(self) -> _Store:
        return _Store(self.order.copy(), self.values.copy())

    def slice(self, span: KeyRange) -> list[bytes]:
        return self.order[bisect_left(self.order, span.start) : bisect_left(self.order, span.stop)]

    def pairs(self, span: KeyRange, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        keys = self.slice(span)
        found = [(key, self.values[key]) for key in (reversed(keys) if reverse else keys)]
        return iter(found)

    def apply(self, changes: list[_Change | _RangeDelete]) -> list[_Change]:
        """Apply changes; return the undo log, whose last step is undone first."""
        undo_log: list[_Change] = []
        for change in changes:
            if len(change) == 3:
                keys = self.slice(KeyRange(change[0], change[1]))
                undo_log.extend((key, self.values[key]) for key in keys)
                self._set_all([(key, None) for key in keys])
            else:
                undo_log.append((change[0], self.values.get(change[0])))
                self._set_all([change])
        return undo_log

    def undo(self, undo_log: list[_Change]) -> None:
        for step in reversed(undo_log):
            self._set_all([step])

    def _set_all(self, changes: list[_Change]) -> None:
        for key, value in changes:
            known = key in self.values
            if value is not None:
                self.values[key] = value
                if not known:
                    self._insert(key)
            elif known:
                del self.values[key]
                del self.order[bisect_left(self.order, key)]

    def _insert(self, key: bytes) -> None:
        if not self.order or key > self.order[-1]:
            self.order.append(key)
        else:
            insort(self.order, key)


class MemoryEngine:
    """An ordered map of bytes that lives as long as the object."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._store = _Store([], {})
        self._shared = False  # a snapshot looks at the store: the next write copies it first
        self._unsynced: list[_Change] = []
        self._write_error: BaseException | None = None
        self._sync_error: BaseException | None = None
        self._sync_failed = False
        self._survives = False
        self._life = 0  # snapshots of an earlier life, before a crash or a reopen, no longer answer
        self._closed = False

    def batch(self) -> MemoryBatch:
        return MemoryBatch()

    def write(self, batch: EngineBatch, *, sync: bool = False, frees: bool = False) -> None:  # noqa: ARG002
        if not isinstance(batch, MemoryBatch):
            raise InvariantBroken(reason=f"a MemoryEngine cannot write a {type(batch).__name__}")
        with self._lock:
            self._check_open()
            if batch.spent:
                raise InvariantBroken(reason="a batch was used again after it was written")
            batch.spent = True
            self._check_no_failed_sync()
            if self._write_error is not None:
                error, self._write_error = self._write_error, None
                raise error
            if self._shared:
                self._store, self._shared = self._store.copy(), False
            self._unsynced.extend(self._store.apply(batch.changes))
        if sync:
            self.sync()

    def sync(self) -> None:
        with self._lock:
            self._check_open()
            self._check_no_failed_sync()
            if self._sync_error is not None:
                error, self._sync_error = self._sync_error, None
                self._sync_failed = True
                raise error
            self._unsynced.clear()

    def get(self, key: bytes) -> bytes | None:
        with self._lock:
            self._check_open()
            _check_bytes(key)
            return self._store.values.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            self._check_open()
            _check_bytes(*keys)
            return [self._store.values.get(key) for key in keys]

    def scan(self, span: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        with self._lock:
            self._check_open()
            return self._store.pairs(span, reverse=reverse)

    def snapshot(self) -> MemorySnapshot:
        with self._lock:
            self._check_open()
            self._shared = True
            return MemorySnapshot(self, self._store, self._life)

    def checkpoint(self, target: Path) -> None:
        with self._lock:
            self._check_open()
            if target.exists():
                raise StorageFailed(
                    path=str(target), reason="a checkpoint needs a folder that is not there yet"
                )
            target.mkdir(parents=True)
            with (target / CHECKPOINT_FILE).open("wb") as file:
                for key in self._store.order:
                    value = self._store.values[key]
                    file.write(_LENGTHS.pack(len(key), len(value)) + key + value)

    def compact(self, span: KeyRange) -> None:  # noqa: ARG002 - memory is given back at once
        with self._lock:
            self._check_open()

    @classmethod
    def from_checkpoint(cls, folder: Path) -> MemoryEngine:
        """Return an engine that holds what a checkpoint holds, all of it synced."""
        engine, batch = cls(), MemoryBatch()
        text, at = (folder / CHECKPOINT_FILE).read_bytes(), 0
        while at < len(text):
            key_bytes, value_bytes = _LENGTHS.unpack_from(text, at)
            key_at, at = at + _LENGTHS.size, at + _LENGTHS.size + key_bytes + value_bytes
            batch.put(text[key_at : key_at + key_bytes], text[key_at + key_bytes : at])
        engine.write(batch, sync=True)
        return engine

    @property
    def reopen_needed(self) -> bool:
        return self._sync_failed

    def reopen(self) -> None:
        """Open again; after a failed sync what was not synced is there or not, as the test chose."""
        with self._lock:
            self._check_open()
            if self._sync_failed and self._survives:
                self._unsynced.clear()
                self._sync_failed = False
            elif self._sync_failed:
                self.crash()
            self._life += 1

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._life += 1

    def crash(self) -> None:
        """Simulate a power cut: drop what was not synced, and open again."""
        with self._lock:
            if self._shared:
                self._store, self._shared = self._store.copy(), False
            self._store.undo(self._unsynced)
            self._unsynced.clear()
            self._sync_failed = False
            self._closed = False
            self._life += 1

    def fail_next_write(self, error: BaseException) -> None:
        """Make the next write raise; nothing of its batch is applied."""
        self._write_error = error

    def fail_next_sync(self, error: BaseException, *, survives: bool = False) -> None:
        """Make the next sync raise; like RocksDB, the engine then takes no write until it is reopened.

        What was not synced is gone then, or still there where it `survives`: a disk may do either.
        """
        self._sync_error = error
        self._survives = survives

    def check_life(self, life: int) -> None:
        """Raise when a snapshot is older than the last reopen, crash or close."""
        with self._lock:
            self._check_open()
            if life != self._life:
                raise StorageFailed(path="memory", reason="the store was opened again while this was read")

    def _check_open(self) -> None:
        if self._closed:
            raise InvariantBroken(reason="the engine is closed")

    def _check_no_failed_sync(self) -> None:
        if self._sync_failed:
            raise StorageFailed(path="memory", reason="a sync failed; the store takes writes after a reopen")


class MemorySnapshot:
    """The engine at one moment."""

    def __init__(self, engine: MemoryEngine, store: _Store, life: int) -> None:
        self._engine = engine
        self._store = store
        self._life = life
        self._gone: TidegateError | None = None

    def get(self, key: bytes) -> bytes | None:
        return self._alive().values.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = self._alive().values
        return [values.get(key) for key in keys]

    def scan(self, span: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self._alive().pairs(span, reverse=reverse)

    def close(self) -> None:
        self._gone = InvariantBroken(reason="the snapshot is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _alive(self) -> _Store:
        if self._gone is not None:
            raise self._gone
        self._engine.check_life(self._life)
        return self._store
