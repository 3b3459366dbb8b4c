"""The spool: takes a partition's rows of a batch as they come, gives them again once all of them are decided.

Rows stay in memory up to a limit; beyond it they lie in an Arrow file on this machine's disk, which has no
name: a worker that is killed leaves nothing behind. They are given back as they came, the same batches in the
same order, as often as asked.
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

# Of rows held in memory by a task; beyond it they are written to a file.
BUFFER_BYTES_MAX = 256 << 20
# Marks of rows up to here are held in memory, whatever lies in the file.
ROW_ARRAY_BYTES_MAX = 64 << 20

Longs = npt.NDArray[np.int64]


class SpillBuffer:
    """The rows of one partition of a batch; used by one thread, closed by whoever made it."""

    def __init__(self, root: Path, bytes_max: int = BUFFER_BYTES_MAX) -> None:
        """Nothing is made below the root before the rows no longer fit into memory."""
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
    def rows(self) -> int:
        """Return how many rows were added."""
        return self._starts[-1]

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep a batch behind those before; all have one schema."""
        if self._map is not None:
            raise InvariantBroken(reason="rows are added to a spool before they are read")
        self._starts.append(self.rows + batch.num_rows)
        size_bytes = batch.get_total_buffer_size()
        if self._file is None and self._held_bytes + size_bytes <= self._bytes_max:
            self._held.append(batch)
            self._held_bytes += size_bytes
            return
        with local_files(self._root):
            self._write(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all batches in order; nothing is added any more."""
        for number in range(len(self._starts) - 1):
            yield self._batch(number)

    def take(self, rows: Longs, columns: int) -> pa.RecordBatch:
        """Return some rows, by their numbers and in that order, of the first so many columns."""
        order = np.argsort(rows, kind="stable")
        wanted = rows[order]
        ends = np.searchsorted(wanted, np.array(self._starts, np.int64))
        pieces = []
        for number in np.flatnonzero(np.diff(ends)).tolist():
            inside = wanted[ends[number] : ends[number + 1]] - self._starts[number]
            pieces.append(self._batch(number).select(range(columns)).take(pa.array(inside)))
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_batches(pieces).take(pa.array(back))

    def new_marks(self, kind: Any) -> npt.NDArray[Any]:
        """Return an array with a number for each row, all 0; of very many rows it lies in a file as well."""
        kind = np.dtype(kind)
        if self.rows * kind.itemsize <= ROW_ARRAY_BYTES_MAX:
            return np.zeros(self.rows, kind)
        with local_files(self._root), _unnamed_file(self._root) as file:
            return np.memmap(file, kind, mode="w+", shape=(self.rows,))

    def close(self) -> None:
        """Let go of the rows; batches that were given out stay readable."""
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
