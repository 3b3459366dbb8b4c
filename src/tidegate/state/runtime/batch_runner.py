"""The vectorised form: takes chunks, calls the operator once for each, gives its output.

A chunk that fails is undone and halved until the rows that fail stand alone, where failed rows are set aside:
the operator does not know where one batch ends and the next begins, so halves are as good as the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import GeneratorType
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import ValueInvalid
from tidegate.state.arrow.encode import OutputWrong, cast_batches
from tidegate.state.context import BatchContext
from tidegate.state.runtime.bound_operator import Running
from tidegate.state.runtime.chunks import Chunk, part_of
from tidegate.state.runtime.cursor import KeyBatch
from tidegate.state.runtime.failed_rows import DeadRow, DeadRows, code_of, place_of
from tidegate.state.runtime.row_runner import ends_a_run


class BatchRunner:
    """Calls `process_batch` for chunks."""

    def __init__(self, running: Running, dead: DeadRows) -> None:
        self._running = running
        self._operator = running.operator
        self._stage = running.stage
        self._cursor = running.cursor
        self._ctx = BatchContext(running.known, running.cursor, running.set_timers, running.clock)
        self._dead = dead
        self._ends = ends_a_run(dead)
        # The user's line that the newest failure came from.
        self._failed_at: str | None = None

    def chunk(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Work on a chunk; give the output."""
        if len(chunk.timeless):
            yield from self._without_timeless(chunk)
            return
        self._stage.forget_cache()
        if not self._dead.is_taken:
            yield from self._made(chunk)
            return
        self._stage.begin_row()
        try:
            batches = list(self._made(chunk))
        except self._ends:
            raise
        except Exception as error:  # noqa: BLE001 - the operator is the user's code and may raise anything
            self._stage.undo_row()
            yield from self._in_halves(chunk, error)
            return
        self._stage.keep_row()
        yield from batches

    def _made(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Call the operator; give its output, cast. An error of the operator's is told with its line."""
        many = KeyBatch(chunk.keys, chunk.groups, chunk.stored, None)
        if chunk.times_ms is not None:
            many.newest_event_ms = chunk.newest_event_ms
        self._cursor.enter_keys(many)
        self._ctx.stand_on(many, chunk.key_index, chunk.times_ms)
        made: Any = None
        try:
            made = self._operator.process_batch(chunk.batch, self._ctx)
            for part in made if isinstance(made, Iterator) else (made,):
                yield from cast_batches(part, self._running.plan.out_schema)
        except self._ends:
            raise
        except Exception as error:
            place = self._place(error, made)
            if not self._dead.is_taken:
                self._dead.add(DeadRow(self._keys_text(chunk), None, "row", error, place, None))
            self._failed_at = place
            raise
        finally:
            self._cursor.leave()

    def _in_halves(self, chunk: Chunk, error: Exception) -> Iterator[pa.RecordBatch]:
        count = chunk.batch.num_rows
        if count == 1:
            key = chunk.key_values()[0]
            event_ms = None if chunk.times_ms is None else int(chunk.times_ms[0])
            self._dead.add(DeadRow(key, event_ms, "row", error, self._failed_at, chunk.batch.to_pylist()[0]))
            return
        yield from self.chunk(part_of(chunk, np.arange(count // 2)))
        yield from self.chunk(part_of(chunk, np.arange(count // 2, count)))

    def _without_timeless(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        keys = chunk.key_values()
        for number in chunk.timeless.tolist():
            error = ValueInvalid(
                place=f"row {number}", reason=f"the event time '{self._running.event_time}' is null"
            )
            row = chunk.batch.slice(number, 1).to_pylist()[0]
            self._dead.add(DeadRow(keys[int(chunk.key_index[number])], None, "row", error, None, row))
        others = np.setdiff1d(np.arange(chunk.batch.num_rows), chunk.timeless)
        if len(others):
            yield from self.chunk(part_of(chunk, others))

    def _place(self, error: Exception, made: Any) -> str | None:
        if isinstance(error, OutputWrong) and type(made) is GeneratorType and made.gi_frame is not None:
            frame = made.gi_frame
            return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        return place_of(error, code_of(self._operator.process_batch))

    @staticmethod
    def _keys_text(chunk: Chunk) -> str:
        keys = chunk.key_values()
        return f"{keys[0]!r}" if len(keys) == 1 else f"one of {len(keys)} ({keys[0]!r}, …)"
