"""The changelog file of one batch of one partition: every put and delete, by columns.

The changelog files of a partition are together its log. `v<batch>.<id>.changes` is written whole and synced
before a commit record names it, and never changed. Format 1:

    "TGCHANGE" | format u16
    section*:    kind u8 = 1 | length u64 | Arrow IPC stream (zstd) of (key, value): null deletes the key
                 kind u8 = 2 | length u64 | Arrow IPC stream (zstd) of (start, stop): half-open, deleted
                 kind u8 = 3 | length u64 | Arrow IPC stream of (key, value), both of one width, as they are
                               in one segment, whose number is in the schema's metadata ("segment")
    end:         kind u8 = 0 | entries u64 | digest u64 (xxh3 of all bytes before)

Numbers are little-endian. Sections are applied in their order: a batch that spills adds some sections each
time, the ranges before the entries. Digests do not compress, so packed entries are written uncompressed. The
commit record has the digest and the size of the whole file; by the end a tool can check a file without its
commit record. All of a file is checked before any of it is applied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from tidegate.checkpoint.backend import PackedEntries, StateChanges
from tidegate.checkpoint.commit_record import StoredFile
from tidegate.checkpoint.store import CheckpointStore, StoreWriter, checkpoint_error
from tidegate.errors import StorageCorrupt, TidegateError

MAGIC = b"TGCHANGE"
CHANGES_FORMAT = 1
# Entries in one section: bounds what is in memory beside the entries themselves while writing and reading.
SECTION_ENTRIES_MAX = 1 << 20

_HEADER = struct.Struct("<8sH")
_SECTION = struct.Struct("<BQ")
_END = struct.Struct("<BQQ")
_KIND_END = 0
_KIND_ENTRIES = 1
_KIND_RANGES = 2
_KIND_PACKED = 3
_SEGMENT = b"segment"
_ENTRIES = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])
_RANGES = pa.schema([("start", pa.large_binary()), ("stop", pa.large_binary())])
_OPTIONS = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
_AS_IT_IS = pa.ipc.IpcWriteOptions()

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class ChangelogWriter:
    """Writes one changelog file: `add` as often as the batch spills, then `close`, which syncs it."""

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer
        self._check = xxhash.xxh3_64()
        self._entries = 0
        try:
            self._write(_HEADER.pack(MAGIC, CHANGES_FORMAT))
        except TidegateError:
            writer.discard()
            raise

    def add(self, changes: StateChanges) -> None:
        """Write one part of the batch's changes, after those before it."""
        if changes.ranges:
            starts, stops = zip(*changes.ranges, strict=True)
            self._add_section(_KIND_RANGES, _RANGES, starts, stops)
        keys, values = list(changes.entries), list(changes.entries.values())
        for at in range(0, len(keys), SECTION_ENTRIES_MAX):
            stop = at + SECTION_ENTRIES_MAX
            self._add_section(_KIND_ENTRIES, _ENTRIES, keys[at:stop], values[at:stop])
        for packed in changes.packed:
            for at in range(0, len(packed.keys), SECTION_ENTRIES_MAX):
                stop = at + SECTION_ENTRIES_MAX
                self._add_packed(packed.segment, packed.keys[at:stop], packed.values[at:stop])

    def close(self) -> StoredFile:
        """Write the end, sync the file and return its description for the commit record."""
        self._write(_END.pack(_KIND_END, self._entries, 0)[:-8])
        self._writer.write(struct.pack("<Q", self._check.intdigest()))
        self._writer.close()
        name = self._writer.path.name
        return StoredFile(name, self._writer.size_bytes, self._writer.digest, self._entries)

    def discard(self) -> None:
        """Remove the file: the batch was not published."""
        self._writer.discard()

    @property
    def size_bytes(self) -> int:
        """Return the bytes written so far."""
        return self._writer.size_bytes

    def _add_section(self, kind: int, schema: pa.Schema, left: object, right: object) -> None:
        columns = [pa.array(side, type=pa.large_binary()) for side in (left, right)]
        self._add_batch(kind, pa.RecordBatch.from_arrays(columns, schema=schema), _OPTIONS)

    def _add_packed(self, segment: int, keys: Bytes, values: Bytes) -> None:
        columns = [_fixed(keys), _fixed(values)]
        batch = pa.RecordBatch.from_arrays(columns, names=["key", "value"])
        batch = batch.replace_schema_metadata({_SEGMENT: str(segment).encode()})
        self._add_batch(_KIND_PACKED, batch, _AS_IT_IS)

    def _add_batch(self, kind: int, batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
            stream.write_batch(batch)
        body = memoryview(sink.getvalue())
        self._write(_SECTION.pack(kind, body.nbytes))
        self._write(body)
        self._entries += batch.num_rows

    def _write(self, content: bytes | memoryview) -> None:
        self._writer.write(content)
        self._check.update(content)


def read_changes(store: CheckpointStore, folder: str, stored: StoredFile) -> Iterator[StateChanges]:
    """Return the parts of a changelog file in order, after checking all of it against its commit record.

    Cut, lengthened, changed or missing: StorageCorrupt that names the file, before the first part.
    """
    path = store.path(f"{folder}/{stored.file}")
    content = _content(path)
    if len(content) != stored.size_bytes or xxhash.xxh3_128_hexdigest(content) != stored.digest:
        raise StorageCorrupt(place=str(path), reason="its bytes are not those that the commit record names")
    return decode_changes(content, str(path))


def decode_changes(content: bytes, place: str) -> Iterator[StateChanges]:
    """Return the parts of a changelog file's bytes in order; StorageCorrupt names the place."""
    view = memoryview(content)
    smallest_bytes = _HEADER.size + _END.size
    if len(view) < smallest_bytes or view[:8] != MAGIC:
        raise StorageCorrupt(place=place, reason="not a changelog file, or truncated")
    _, version = _HEADER.unpack_from(view)
    if version != CHANGES_FORMAT:
        reason = f"its format is {version}, this version of Tidegate reads format {CHANGES_FORMAT}"
        raise StorageCorrupt(
            place=place, reason=reason, hint="Use the version that wrote it, or a newer one."
        )
    (check,) = struct.unpack("<Q", view[-8:])
    if xxhash.xxh3_64_intdigest(view[:-8]) != check:
        raise StorageCorrupt(place=place, reason="the checksum does not fit its bytes")
    return _sections(view[_HEADER.size : -_END.size], place)


def _sections(view: memoryview, place: str) -> Iterator[StateChanges]:
    ranges: list[tuple[bytes, bytes]] = []
    while view:
        if len(view) < _SECTION.size:
            raise StorageCorrupt(place=place, reason="a section is cut")
        kind, length = _SECTION.unpack_from(view)
        body, view = view[_SECTION.size : _SECTION.size + length], view[_SECTION.size + length :]
        if kind not in (_KIND_RANGES, _KIND_ENTRIES, _KIND_PACKED):
            raise StorageCorrupt(place=place, reason=f"a section of kind {kind} is not known")
        if kind == _KIND_PACKED:
            yield StateChanges(ranges, packed=[_packed(body, place)])
            ranges = []
            continue
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            left, right = (column.to_pylist() for column in stream.read_all().columns)
        if kind == _KIND_RANGES:
            ranges += zip(left, right, strict=True)
        else:
            yield StateChanges(ranges, dict(zip(left, right, strict=True)))
            ranges = []
    if ranges:
        yield StateChanges(ranges)


def _packed(body: memoryview, place: str) -> PackedEntries:
    """Return the entries of a packed section, not copied where Arrow has them in one chunk."""
    with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
        table = stream.read_all().combine_chunks()
    metadata = table.schema.metadata or {}
    widths = [isinstance(kind, pa.FixedSizeBinaryType) for kind in table.schema.types]
    if _SEGMENT not in metadata or widths != [True, True]:
        raise StorageCorrupt(place=place, reason="a section of packed entries does not say what it holds")
    keys, values = (_rows(column.chunk(0)) for column in table.columns)
    return PackedEntries(int(metadata[_SEGMENT]), keys, values)


def _fixed(rows: Bytes) -> pa.FixedSizeBinaryArray:
    count, width = rows.shape
    buffer = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, buffer])


def _rows(column: pa.FixedSizeBinaryArray) -> Bytes:
    width = column.type.byte_width
    start = column.offset * width
    found = np.frombuffer(column.buffers()[1], np.uint8, len(column) * width, start)
    return found.reshape(len(column), width)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as problem:
        raise StorageCorrupt(place=str(path), reason="the file is missing") from problem
    except OSError as problem:
        raise checkpoint_error(path, problem) from problem
