"""The backend in memory: a dict of entries that is written to one file when it is closed.

A kill loses the changes since the store was opened: the file then has its older version. Keys are sorted
only when they are scanned.

The file:

    magic "TGHEAP" | format u8 | header length u32 | header JSON | Arrow stream of (key, value) | BLAKE2b-128

The digest is of all before it. The header has the version, or null. Entries are in key order.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shutil import rmtree
from typing import Any, BinaryIO, Self

import pyarrow as pa

from tidegate.checkpoint.backend import Backend, Sizes, StateChanges, Version
from tidegate.checkpoint.backends.sorted_keys import SortedKeys
from tidegate.checkpoint.keys.layout import META_GROUP
from tidegate.errors import InvariantBroken, StorageCorrupt
from tidegate.storage.files import disk_error

MAGIC = b"TGHEAP"
FORMAT = 1
FILE_SUFFIX = ".heap"
DIGEST_BYTES = 16

# Entries in one Arrow batch: enough that the batch's own cost does not count, small beside the heap.
BATCH_ENTRIES = 65_536

_HEAD = struct.Struct(">6sBI")
_SCHEMA = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])


class _Digested:
    """A file that digests what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.closed = False

    def write(self, content: Any) -> int:
        """Write an object that has a buffer of bytes."""
        view = memoryview(content)
        self.digest.update(view)
        self._file.write(view)
        return view.nbytes

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        """The file is closed by the function that opened it."""


def write_entries(path: Path, version: Version | None, entries: Iterable[tuple[bytes, bytes]]) -> str:
    """Write all entries and their version into a new file, and return its digest."""
    stored = None if version is None else [version.epoch, version.batch, version.commit_id]
    header = json.dumps({"version": stored}).encode()
    with path.open("wb") as file:
        sink = _Digested(file)
        sink.write(_HEAD.pack(MAGIC, FORMAT, len(header)) + header)
        with pa.ipc.new_stream(pa.PythonFile(sink, "w"), _SCHEMA) as stream:
            for pairs in _in_batches(entries):
                stream.write_batch(_batch_of(pairs))
        file.write(sink.digest.digest())
    return sink.digest.hexdigest()


def read_entries(path: Path) -> tuple[Version | None, dict[bytes, bytes]]:
    """Return the version and the entries of a file; StorageCorrupt when it is damaged."""
    content = path.read_bytes()
    body = memoryview(content)[:-DIGEST_BYTES]
    digest = hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()
    if len(body) < _HEAD.size or digest != content[-DIGEST_BYTES:]:
        raise StorageCorrupt(place=str(path), reason="its checksum is wrong")
    magic, format_here, header_bytes = _HEAD.unpack_from(body)
    if magic != MAGIC or format_here != FORMAT:
        raise StorageCorrupt(place=str(path), reason=f"format {format_here} is not one that we know")
    stop = _HEAD.size + header_bytes
    stored = json.loads(bytes(body[_HEAD.size : stop]))["version"]
    entries: dict[bytes, bytes] = {}
    with pa.ipc.open_stream(pa.py_buffer(body[stop:])) as stream:
        for batch in stream:
            entries.update(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
    return (None if stored is None else Version(*stored)), entries


def _in_batches(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    rest = iter(entries)
    while pairs := list(islice(rest, BATCH_ENTRIES)):
        yield pairs


def _batch_of(pairs: list[tuple[bytes, bytes]]) -> pa.RecordBatch:
    keys, values = zip(*pairs, strict=True)
    columns = [pa.array(keys, pa.large_binary()), pa.array(values, pa.large_binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


LOCAL_NAME = "local" + FILE_SUFFIX

# Python's own cost of an entry: two bytes objects and a slot in a dict.
ENTRY_OVERHEAD_BYTES = 160


class HeapBackend(Backend):
    """One partition's entries in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._version: Version | None = None
        self._entries: dict[bytes, bytes] = {}
        self._changed = False
        self._closed = False
        self._load()
        self._order = SortedKeys(self._entries)
        self._size_bytes = sum(map(len, self._entries)) + sum(map(len, self._entries.values()))

    def get(self, key: bytes) -> bytes | None:
        return self._entries.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._entries.get, keys))

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        entries = self._entries
        return ((key, entries[key]) for key in self._order.between(start, stop))

    def version(self) -> Version | None:
        return self._version

    def apply(self, changes: StateChanges, version: Version) -> None:
        self.write_partly(changes)
        self._version = version

    def write_partly(self, changes: StateChanges) -> None:
        if changes.entries and max(changes.entries) >= META_GROUP:
            raise InvariantBroken(reason="no entry lies where the store keeps what it knows of itself")
        # First: a failure halfway leaves entries without a version, also once they are closed.
        self._version = None
        self._take(changes)

    def snapshot(self, folder: Path) -> list[Path]:
        if folder.exists():
            raise InvariantBroken(reason=f"a snapshot needs a folder that is not there yet: {folder}")
        try:
            folder.mkdir(parents=True)
            spare = folder / LOCAL_NAME
            digest = write_entries(spare, self._version, self._in_order())
            return [spare.rename(folder / f"{digest}{FILE_SUFFIX}")]
        except OSError as problem:
            rmtree(folder, ignore_errors=True)
            raise disk_error(folder, problem) from problem

    def sizes(self) -> Sizes:
        count = len(self._entries)
        return Sizes(size_bytes=self._size_bytes + count * ENTRY_OVERHEAD_BYTES, entry_count=count)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._changed:
            return
        target = self.folder / LOCAL_NAME
        spare = target.with_name(f"{target.name}.new")
        try:
            write_entries(spare, self._version, self._in_order())
            spare.replace(target)
        except OSError as problem:
            spare.unlink(missing_ok=True)
            raise disk_error(self.folder, problem) from problem

    def _load(self) -> None:
        """Read the file of the last close, else the one snapshot in the folder."""
        local = self.folder / LOCAL_NAME
        found = [local] if local.exists() else sorted(self.folder.glob(f"*{FILE_SUFFIX}"))
        if len(found) > 1:
            reason = f"it holds {len(found)} snapshots, one was expected"
            raise StorageCorrupt(place=str(self.folder), reason=reason)
        for file in found:
            self._version, self._entries = read_entries(file)

    def _in_order(self) -> Iterator[tuple[bytes, bytes]]:
        return self.scan(b"", META_GROUP)

    def _take(self, changes: StateChanges) -> None:
        self._changed = True
        for start, stop in changes.ranges:
            for key in list(self._order.between(start, stop)):
                self._drop(key)
        entries, order = self._entries, self._order
        for key, value in changes.entries.items():
            if value is None:
                self._drop(key)
                continue
            before = entries.get(key)
            self._size_bytes += len(value) + (len(key) if before is None else -len(before))
            entries[key] = value
            if before is None:
                order.add(key)

    def _drop(self, key: bytes) -> None:
        if key in self._entries:
            self._order.remove(key)
            self._size_bytes -= len(key) + len(self._entries.pop(key))


@dataclass(frozen=True, slots=True)
class HeapFactory:
    """State in memory: for small states and for tests."""

    kind = "heap"
    is_served = True

    def with_slots(self, slots: int) -> Self:  # noqa: ARG002 - its memory is not shared out
        """Return the same: the heap has no options."""
        return self

    def open(self, folder: Path, ticks_ns: Callable[[], int]) -> HeapBackend:  # noqa: ARG002
        """Open the backend in a folder."""
        return HeapBackend(folder)
