"""Bytewax counts per key: `python bytewax_count.py FILE BATCH_ROWS`, run by a Python that has Bytewax.

It reads int64 keys from a file of raw bytes, keeps the counts in memory, on one worker, and prints the
seconds of each batch as JSON. It takes no part of this package: its Python need not have it.
"""

# The signatures are the peer's.
# ruff: noqa: ARG002

from __future__ import annotations

import array
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import bytewax.operators as op  # type: ignore[import-not-found]
from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
from bytewax.inputs import DynamicSource, StatelessSourcePartition  # type: ignore[import-not-found]
from bytewax.outputs import DynamicSink, StatelessSinkPartition  # type: ignore[import-not-found]
from bytewax.testing import run_main  # type: ignore[import-not-found]

CHUNK_ROWS = 10_000


class _Rows(StatelessSourcePartition):  # type: ignore[misc] # untyped here
    def __init__(self, keys: array.array[int]) -> None:
        self._keys, self._at = keys, 0

    def next_batch(self) -> list[tuple[str, int]]:
        """Return the next rows; keys must be text."""
        if self._at >= len(self._keys):
            raise StopIteration
        rows = [(str(key), 1) for key in self._keys[self._at : self._at + CHUNK_ROWS]]
        self._at += CHUNK_ROWS
        return rows


class _Source(DynamicSource):  # type: ignore[misc]
    def __init__(self, keys: array.array[int]) -> None:
        self._keys = keys

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Rows:
        """Return the one partition."""
        return _Rows(self._keys)


class _Timed(StatelessSinkPartition):  # type: ignore[misc]
    def __init__(self, batch_rows: int, ends: list[float]) -> None:
        self._batch_rows, self._ends, self._rows = batch_rows, ends, 0

    def write_batch(self, items: list[Any]) -> None:
        """Take rows; note when each batch is through."""
        self._rows += len(items)
        while self._rows >= self._batch_rows * len(self._ends):
            self._ends.append(time.perf_counter())


class _Sink(DynamicSink):  # type: ignore[misc]
    def __init__(self, batch_rows: int, ends: list[float]) -> None:
        self._made = _Timed(batch_rows, ends)

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Timed:
        """Return the one partition."""
        return self._made


def _add(total: int | None, one: int) -> tuple[int, int]:
    counted = (total or 0) + one
    return counted, counted


def main() -> None:
    """Count, and print the seconds of each batch."""
    keys = array.array("q", Path(sys.argv[1]).read_bytes())
    batch_rows = int(sys.argv[2])
    ends = [time.perf_counter()]
    flow = Dataflow("count")
    rows = op.input("in", flow, _Source(keys))
    op.output("out", op.stateful_map("count", rows, _add), _Sink(batch_rows, ends))
    run_main(flow)
    json.dump([end - start for start, end in itertools.pairwise(ends)], sys.stdout)


if __name__ == "__main__":
    main()
