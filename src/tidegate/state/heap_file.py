"""The heap's file: takes entries and a version, gives them back, keeps all of them in one file.

    magic "TGHEAP" | format u8 | header length u32 | header JSON | Arrow stream of (key, value) | BLAKE2b-128

The digest is of all before it. The header has the version, or null. Entries are in key order.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from tidegate.errors import StorageCorrupt
from tidegate.state.backend import Version

MAGIC = b"TGHEAP"
FORMAT = 1
FILE_SUFFIX = ".heap"
DIGEST_BYTES = 16

# Entries in one Arrow batch: enough that the batch's own cost is nothing, small beside the heap.
BATCH_ENTRIES = 65_536

_HEAD = struct.Struct(">6sBI")
_SCHEMA = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])


class _Digested:
    """A file that is written and digested at once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.closed = False

    def write(self, content: Any) -> int:
        """Write bytes, or what has them."""
        view = memoryview(content)
        self.digest.update(view)
        self._file.write(view)
        return view.nbytes

    def flush(self) -> None:
        """Nothing is held back here."""

    def close(self) -> None:
        """The file is its opener's to close."""


def write_entries(path: Path, version: Version | None, entries: Iterable[tuple[bytes, bytes]]) -> str:
    """Write all entries and their version into a new file; gives its digest."""
    stands = None if version is None else [version.epoch, version.batch, version.head_id]
    header = json.dumps({"version": stands}).encode()
    with path.open("wb") as file:
        sink = _Digested(file)
        sink.write(_HEAD.pack(MAGIC, FORMAT, len(header)) + header)
        with pa.ipc.new_stream(pa.PythonFile(sink, "w"), _SCHEMA) as stream:
            for pairs in _in_batches(entries):
                stream.write_batch(_batch_of(pairs))
        file.write(sink.digest.digest())
    return sink.digest.hexdigest()


def read_entries(path: Path) -> tuple[Version | None, dict[bytes, bytes]]:
    """Give the version and the entries of a file; StorageCorrupt when it is damaged."""
    content = path.read_bytes()
    body = memoryview(content)[:-DIGEST_BYTES]
    digest = hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()
    if len(body) < _HEAD.size or digest != content[-DIGEST_BYTES:]:
        raise StorageCorrupt(place=str(path), reason="its checksum is wrong")
    magic, format_here, header_bytes = _HEAD.unpack_from(body)
    if magic != MAGIC or format_here != FORMAT:
        raise StorageCorrupt(place=str(path), reason=f"format {format_here} is not one that we know")
    stop = _HEAD.size + header_bytes
    stands = json.loads(bytes(body[_HEAD.size : stop]))["version"]
    entries: dict[bytes, bytes] = {}
    with pa.ipc.open_stream(pa.py_buffer(body[stop:])) as stream:
        for batch in stream:
            entries.update(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
    return (None if stands is None else Version(*stands)), entries


def _in_batches(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    rest = iter(entries)
    while pairs := list(islice(rest, BATCH_ENTRIES)):
        yield pairs


def _batch_of(pairs: list[tuple[bytes, bytes]]) -> pa.RecordBatch:
    keys, values = zip(*pairs, strict=True)
    columns = [pa.array(keys, pa.large_binary()), pa.array(values, pa.large_binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
