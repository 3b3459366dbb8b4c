"""The runner of row operators: one call of `process` for each row, of `on_timer` for each due timer.

The writes of a row that fails are rolled back and its output is dropped, as if the row had not been there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, repeat
from types import GeneratorType
from typing import Any

import pyarrow as pa

from tidegate.errors import StateInvalid, StateMismatch, StateOutsideKey, ValueInvalid
from tidegate.state.arrow.decode import Faults
from tidegate.state.arrow.encode import OutputCollector, OutputWrong
from tidegate.state.arrow.types import Build, event_builder
from tidegate.state.context import Context, Timer
from tidegate.state.operator import KeyedOperator
from tidegate.state.operator_plan import OperatorPlan
from tidegate.state.runtime.bound_operator import BoundOperator
from tidegate.state.runtime.chunks import Chunk
from tidegate.state.runtime.failed_rows import INFRASTRUCTURE_ERRORS, FailedRow, FailedRows, code_of, place_of

# A due timer: key group, stored key, key as operators see it, and the timer.
Due = tuple[bytes, bytes, Any, Timer]

logger = logging.getLogger(__name__)

# Errors of the operator that every row would raise: they end the run, and no row becomes a dead letter.
OPERATOR_ERRORS = (StateInvalid, StateOutsideKey, StateMismatch)

# Rows of an output batch, about: enough for Arrow, few enough to wait for.
OUT_ROWS_MAX = 65_536

# Rows that are processed between two checks of how much output there is.
STRIDE_ROWS = 512


class RowRunner:
    """Calls `process` for rows and `on_timer` for timers, one at a time."""

    def __init__(self, bound: BoundOperator, failed_rows: FailedRows) -> None:
        self._bound = bound
        self._plan: OperatorPlan = bound.plan
        self._operator: KeyedOperator[Any, Any] = bound.operator
        self._write_batch = bound.write_batch
        self._cursor = bound.cursor
        self._ctx: Context = bound.context()
        self._failed_rows = failed_rows
        self._fatal = fatal_errors(failed_rows)
        self._out = OutputCollector(bound.plan.out_schema, bound.plan.out_type)
        self._build: Build | None = None
        self._schema: pa.Schema | None = None
        self.event_time: str | None = bound.event_time

    def chunk(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Process the rows of a chunk in their order; yield the output."""
        events, faults = self._events(chunk)
        for number, error in sorted(faults.items()):
            self._set_aside(chunk, number, error, None)
        self._bound.prefetch(chunk)
        feed = _feed(chunk, events)
        if faults:
            feed = (row for row in feed if row[0] not in faults)
        while self._stride(chunk, islice(feed, STRIDE_ROWS)):
            if len(self._out.rows) >= OUT_ROWS_MAX:
                yield self._out.batch()
        self._cursor.leave()
        if self._out.rows:
            yield self._out.batch()

    def _stride(self, chunk: Chunk, rows: Iterable[tuple[Any, ...]]) -> int:
        """Process the given rows; return the number of them."""
        cursor, ctx, process, take = self._cursor, self._ctx, self._operator.process, self._out.take
        begin = self._write_batch.begin_row if self._failed_rows.is_collected else None
        count = 0
        result: Any = None
        for number, group, stored, key, event_ms, event in rows:
            count += 1
            cursor.group = group
            cursor.stored = stored
            cursor.key = ctx.key = key
            cursor.event_ms = event_ms
            mark = len(self._out.rows)
            if begin is not None:
                begin()
            try:
                result = process(event, ctx)
                if result is not None:
                    take(result)
            except self._fatal:
                raise
            except Exception as error:  # noqa: BLE001 - an operator may raise anything
                place = self._undo(error, result, self._operator.process, mark)
                self._set_aside(chunk, number, error, place)
            result = None
        if begin is not None and count:
            self._write_batch.keep_row()
        return count

    def timers(self, due: Iterator[Due]) -> Iterator[pa.RecordBatch]:
        """Process due timers, which come with group, stored key and key; yield the output."""
        cursor, ctx, take = self._cursor, self._ctx, self._out.take
        on_timer = self._operator.on_timer
        result: Any = None
        for group, stored, key, timer in due:
            event_ms = int(timer.at) if timer.clock == "event" else None
            cursor.enter(group, stored, key, event_ms)
            ctx.key, ctx.firing = key, timer
            mark = len(self._out.rows)
            if self._failed_rows.is_collected:
                self._write_batch.begin_row()
            try:
                result = on_timer(timer, ctx)
                take(result)
            except self._fatal:
                raise
            except Exception as error:  # noqa: BLE001 - an operator may raise anything
                place = self._undo(error, result, on_timer, mark)
                self._failed_rows.add(FailedRow(key, int(timer.at), "timer", error, place, None))
            result = None
            if self._failed_rows.is_collected:
                self._write_batch.keep_row()
            if len(self._out.rows) >= OUT_ROWS_MAX:
                yield self._out.batch()
        ctx.firing = None
        cursor.leave()
        if self._out.rows:
            yield self._out.batch()

    def _events(self, chunk: Chunk) -> tuple[list[Any], Faults]:
        """Return the events of a chunk, and the errors of the rows that are no events."""
        if self._build is None or not chunk.batch.schema.equals(self._schema):
            self._build = event_builder(self._plan.in_type, chunk.batch.schema, self._plan.name)
            self._schema = chunk.batch.schema
        faults: Faults = {}
        events = self._build(chunk.batch, faults)
        for number in chunk.timeless.tolist():
            reason = f"the event time '{self.event_time}' is null"
            faults.setdefault(number, ValueInvalid(place=f"row {number}", reason=reason))
        return events, faults

    def _undo(self, error: Exception, result: Any, method: Callable[..., Any], mark: int) -> str | None:
        """Roll back what a row wrote; return the line of the user's code at which it failed."""
        code = code_of(method)
        place = place_of(error, code)
        if type(result) is GeneratorType:
            frame = result.gi_frame
            if isinstance(error, OutputWrong) and frame is not None:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
            # Its `finally` blocks run now, so that what they write is rolled back too.
            try:
                result.close()
            except Exception as problem:  # noqa: BLE001 - the first error is the one that counts
                logger.warning("failed generator not closed operator=%s error=%r", self._plan.name, problem)
        del self._out.rows[mark:]
        if self._failed_rows.is_collected:
            self._write_batch.undo_row()
        return place

    def _set_aside(self, chunk: Chunk, number: int, error: Exception, place: str | None) -> None:
        row = chunk.batch.slice(number, 1)
        index = chunk.key_index[number]
        key = chunk.keys.slice(int(index), 1).to_pylist()[0]
        key = tuple(key.values()) if isinstance(key, dict) else key
        is_timed = chunk.times_ms is not None and number not in chunk.timeless
        event_ms = int(chunk.times_ms[number]) if chunk.times_ms is not None and is_timed else None
        self._failed_rows.add(FailedRow(key, event_ms, "row", error, place, row.to_pylist()[0]))


def fatal_errors(failed_rows: FailedRows) -> tuple[type[Exception], ...]:
    """Return the errors that are raised as they are; others become a dead letter, or RowFailed."""
    return (*INFRASTRUCTURE_ERRORS, *OPERATOR_ERRORS) if failed_rows.is_collected else INFRASTRUCTURE_ERRORS


def _feed(chunk: Chunk, events: list[Any]) -> Iterator[tuple[Any, ...]]:
    """Return number, key group, stored key, key, event time and event of each row; no Python loop."""
    groups = [group.to_bytes(2, "big") for group in chunk.groups]
    index = chunk.key_index.tolist()
    return zip(
        range(len(events)),
        map(groups.__getitem__, index),
        map(chunk.stored.__getitem__, index),
        map(chunk.key_values().__getitem__, index),
        repeat(None) if chunk.times_ms is None else chunk.times_ms.tolist(),
        events,
        strict=False,
    )
