"""The runner of vectorised operators: one call of `process_batch` for each chunk.

Where failed rows become dead letters, a chunk that fails is rolled back and halved until each row that fails
is alone. The boundaries of batches have no meaning to the operator, so halves are as good as the whole.
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
from tidegate.state.cursor import KeyBatch
from tidegate.state.runtime.bound_operator import BoundOperator
from tidegate.state.runtime.chunks import Chunk, take_rows
from tidegate.state.runtime.failed_rows import FailedRow, FailedRows, code_of, place_of
from tidegate.state.runtime.row_runner import fatal_errors


class BatchRunner:
    """Calls `process_batch` for chunks."""

    def __init__(self, bound: BoundOperator, failed_rows: FailedRows) -> None:
        self._bound = bound
        self._operator = bound.operator
        self._write_batch = bound.write_batch
        self._cursor = bound.cursor
        self._ctx = BatchContext(bound.known, bound.cursor, bound.set_timers, bound.clock)
        self._failed_rows = failed_rows
        self._fatal = fatal_errors(failed_rows)
        # The line of the user's code at which the newest failure was raised.
        self._failed_at: str | None = None

    def chunk(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Process a chunk; yield the output."""
        if len(chunk.timeless):
            yield from self._without_timeless(chunk)
            return
        self._write_batch.forget_cache()
        if not self._failed_rows.is_collected:
            yield from self._call_operator(chunk)
            return
        self._write_batch.begin_row()
        try:
            batches = list(self._call_operator(chunk))
        except self._fatal:
            raise
        except Exception as error:  # noqa: BLE001 - the operator is the user's code and may raise anything
            self._write_batch.undo_row()
            yield from self._in_halves(chunk, error)
            return
        self._write_batch.keep_row()
        yield from batches

    def _call_operator(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Call the operator and yield its output, cast; note the line at which it raises."""
        many = KeyBatch(chunk.keys, chunk.groups, chunk.stored, None)
        if chunk.times_ms is not None:
            many.newest_event_ms = chunk.newest_event_ms
        self._cursor.enter_keys(many)
        self._ctx.enter_keys(many, chunk.key_index, chunk.times_ms)
        result: Any = None
        try:
            result = self._operator.process_batch(chunk.batch, self._ctx)
            for part in result if isinstance(result, Iterator) else (result,):
                yield from cast_batches(part, self._bound.plan.out_schema)
        except self._fatal:
            raise
        except Exception as error:
            place = self._place(error, result)
            if not self._failed_rows.is_collected:
                self._failed_rows.add(FailedRow(self._keys_text(chunk), None, "row", error, place, None))
            self._failed_at = place
            raise
        finally:
            self._cursor.leave()

    def _in_halves(self, chunk: Chunk, error: Exception) -> Iterator[pa.RecordBatch]:
        count = chunk.batch.num_rows
        if count == 1:
            key = chunk.key_values()[0]
            event_ms = None if chunk.times_ms is None else int(chunk.times_ms[0])
            self._failed_rows.add(
                FailedRow(key, event_ms, "row", error, self._failed_at, chunk.batch.to_pylist()[0])
            )
            return
        yield from self.chunk(take_rows(chunk, np.arange(count // 2)))
        yield from self.chunk(take_rows(chunk, np.arange(count // 2, count)))

    def _without_timeless(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        keys = chunk.key_values()
        for number in chunk.timeless.tolist():
            reason = f"the event time '{self._bound.event_time}' is null"
            error = ValueInvalid(place=f"row {number}", reason=reason)
            key, row = keys[int(chunk.key_index[number])], chunk.batch.slice(number, 1).to_pylist()[0]
            self._failed_rows.add(FailedRow(key, None, "row", error, None, row))
        others = np.setdiff1d(np.arange(chunk.batch.num_rows), chunk.timeless)
        if len(others):
            yield from self.chunk(take_rows(chunk, others))

    def _place(self, error: Exception, result: Any) -> str | None:
        if isinstance(error, OutputWrong) and type(result) is GeneratorType and result.gi_frame is not None:
            frame = result.gi_frame
            return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        return place_of(error, code_of(self._operator.process_batch))

    @staticmethod
    def _keys_text(chunk: Chunk) -> str:
        keys = chunk.key_values()
        return f"{keys[0]!r}" if len(keys) == 1 else f"one of {len(keys)} ({keys[0]!r}, …)"
