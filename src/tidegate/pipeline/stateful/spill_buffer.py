"""The buffer of a partition's rows until all of them are decided.

Rows stay in memory up to a limit; beyond it they are in an Arrow file on this machine's disk, which has no
name: a worker that is killed leaves nothing behind. They are read as they were added, the same batches in the
same order, as often as needed.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.checkpoint.local.store import local_files
from tidegate.errors import InvariantBroken

# Rows that a task holds in memory; more are written to a file.
BUFFER_BYTES_MAX = 256 << 20
# Arrays with a number for each row are held in memory up to this size, wherever the rows are.
ROW_ARRAY_BYTES_MAX = 64 << 20

Longs = npt.NDArray[np.int64]


class SpillBuffer:
    """The rows of one partition of a batch; used by one thread, closed by its owner."""

    def __init__(self, root: Path, bytes_max: int = BUFFER_BYTES_MAX) -> None:
        """Nothing is created below the root while the rows fit into memory."""
        self._root = root
        self._bytes_max = bytes_max
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._starts: list[int] = [0]
        self._file: IO[bytes] | None = None
        self._places: list[tuple[int, int]] = []
        self._schema: pa.Schema | None = None
        self._map: mmap.mmap | None = None

    @property
    def row_count(self) -> int:
        """How many rows were added."""
        return self._starts[-1]

    def add(self, batch: pa.RecordBatch) -> None:
        """Append a batch; all have one schema."""
        if self._map is not None:
            raise InvariantBroken(reason="rows are added to a buffer before they are read")
        self._starts.append(self.row_count + batch.num_rows)
        size_bytes = batch.get_total_buffer_size()
        if self._file is None and self._held_bytes + size_bytes <= self._bytes_max:
            self._held.append(batch)
            self._held_bytes += size_bytes
            return
        with local_files(self._root):
            self._write(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all batches in order; none may be added afterwards."""
        for number in range(len(self._starts) - 1):
            yield self._batch(number)

    def take(self, rows: Longs, columns: int) -> pa.RecordBatch:
        """Return the rows of these numbers, in that order, with the first so many columns."""
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        ends = np.searchsorted(ordered, np.array(self._starts, np.int64))
        pieces = []
        for number in np.flatnonzero(np.diff(ends)).tolist():
            indexes = ordered[ends[number] : ends[number + 1]] - self._starts[number]
            pieces.append(self._batch(number).select(range(columns)).take(pa.array(indexes)))
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_batches(pieces).take(pa.array(back))

    def new_array(self, kind: Any) -> npt.NDArray[Any]:
        """Return an array with a number for each row, all 0; for very many rows it is in a file, too."""
        kind = np.dtype(kind)
        if self.row_count * kind.itemsize <= ROW_ARRAY_BYTES_MAX:
            return np.zeros(self.row_count, kind)
        with local_files(self._root), _unnamed_file(self._root) as file:
            return np.memmap(file, kind, mode="w+", shape=(self.row_count,))

    def close(self) -> None:
        """Release the rows; batches that were returned stay readable."""
        self._held.clear()
        self._map = None
        if self._file is not None:
            self._file.close()

    def _batch(self, number: int) -> pa.RecordBatch:
        if self._file is None:
            return self._held[number]
        if self._map is None:
            with local_files(self._root):
                self._file.flush()
                self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        start, stop = self._places[number]
        message = pa.ipc.read_message(pa.py_buffer(memoryview(self._map)[start:stop]))
        return pa.ipc.read_record_batch(message, self._schema)

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._file is None:
            self._file = _unnamed_file(self._root)
            self._schema = batch.schema
            held, self._held, self._held_bytes = self._held, [], 0
            for one in held:
                self._append(self._file, one)
        self._append(self._file, batch)

    def _append(self, file: IO[bytes], batch: pa.RecordBatch) -> None:
        start = file.tell()
        file.write(batch.serialize())
        self._places.append((start, file.tell()))


def _unnamed_file(root: Path) -> IO[bytes]:
    root.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryFile(dir=root)
