"""The output file of one batch of one partition, retained until Spark has the rows for good.

`v<batch>.<id>.out` has the operator's output, `.dead` the failed rows. They are written and synced before a
commit record names them, and the task's output is read from the file, so that the first attempt and every
later one return the same rows. Format 1:

    "TGOUTPUT" | format u16 | six bytes of 0 | Arrow IPC stream (zstd) | digest u64 (xxh3 of all bytes before)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa
import xxhash

from tidegate.checkpoint.commit_record import StoredFile
from tidegate.checkpoint.store import CheckpointStore, StoreWriter, checkpoint_error
from tidegate.errors import StorageCorrupt, TidegateError

MAGIC = b"TGOUTPUT"
OUTPUT_FORMAT = 1
# Arrow writes a few bytes at a time; they are collected into writes of this size.
BUFFER_BYTES = 256 << 10

_HEADER = struct.Struct("<8sH6x")
_END = struct.Struct("<Q")
_OPTIONS = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))


class OutputWriter:
    """Writes one output file, a record batch at a time; `close` syncs it."""

    def __init__(self, writer: StoreWriter, schema: pa.Schema) -> None:
        self._writer = writer
        self._check = xxhash.xxh3_64()
        self._rows = 0
        try:
            self.write_bytes(_HEADER.pack(MAGIC, OUTPUT_FORMAT))
        except TidegateError:
            writer.discard()
            raise
        self._sink = _Sink(self)
        self._stream = pa.ipc.new_stream(pa.PythonFile(self._sink, mode="w"), schema, options=_OPTIONS)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self._stream.write_batch(batch)
        self._rows += batch.num_rows

    def close(self) -> StoredFile:
        """Write the end, sync the file and return its description for the commit record."""
        self._stream.close()
        self._sink.flush()
        self._writer.write(_END.pack(self._check.intdigest()))
        self._writer.close()
        name = self._writer.path.name
        return StoredFile(name, self._writer.size_bytes, self._writer.digest, self._rows)

    def discard(self) -> None:
        """Remove the file: the batch was not published."""
        self._writer.discard()

    def write_bytes(self, content: bytes | memoryview) -> int:
        """Write bytes that count for the digest."""
        self._check.update(content)
        return self._writer.write(content)


class _Sink:
    """A file object for Arrow that collects small writes."""

    def __init__(self, target: OutputWriter) -> None:
        self._target = target
        self._waiting = bytearray()
        self.closed = False

    def write(self, content: bytes) -> int:
        self._waiting += memoryview(content)
        if len(self._waiting) >= BUFFER_BYTES:
            self.flush()
        return memoryview(content).nbytes

    def flush(self) -> None:
        if self._waiting:
            self._target.write_bytes(bytes(self._waiting))
            self._waiting.clear()

    def close(self) -> None:
        self.closed = True


def read_output(store: CheckpointStore, folder: str, stored: StoredFile | None) -> Iterator[pa.RecordBatch]:
    """Return the rows of an output file in order; none for None.

    Damage is found before the first row: StorageCorrupt names the file.
    """
    if stored is None:
        return iter(())
    path = store.path(f"{folder}/{stored.file}")
    try:
        with pa.memory_map(str(path)) as mapped:
            content = mapped.read_buffer()
    except FileNotFoundError as problem:
        raise StorageCorrupt(place=str(path), reason="the file is missing") from problem
    except OSError as problem:
        raise checkpoint_error(path, problem) from problem
    view = memoryview(content)
    if view.nbytes != stored.size_bytes or xxhash.xxh3_128_hexdigest(view) != stored.digest:
        raise StorageCorrupt(place=str(path), reason="its bytes are not those that the commit record names")
    _, version = _HEADER.unpack_from(view)
    if version != OUTPUT_FORMAT:
        reason = f"its format is {version}, this version of Tidegate reads format {OUTPUT_FORMAT}"
        raise StorageCorrupt(
            place=str(path), reason=reason, hint="Use the version that wrote it, or a newer one."
        )
    return _batches(content.slice(_HEADER.size, view.nbytes - _HEADER.size - _END.size))


def _batches(content: pa.Buffer) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(content) as stream:
        yield from stream
