"""The row form: takes chunks and due timers, calls the operator once for each, gives its output.

A row that fails is undone in the stage and its output dropped, so that it is as if it had never come.
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
from tidegate.state.arrow.encode import OutputWrong, RowsOut
from tidegate.state.arrow.types import Build, event_builder
from tidegate.state.context import Context, Timer
from tidegate.state.operator import KeyedOperator
from tidegate.state.operator_plan import OperatorPlan
from tidegate.state.runtime.bound_operator import Running
from tidegate.state.runtime.chunks import Chunk
from tidegate.state.runtime.failed_rows import NOT_THE_ROWS_FAULT, DeadRow, DeadRows, code_of, place_of

# A due timer: key group, stored key, key as operators see it, and the timer.
Due = tuple[bytes, bytes, Any, Timer]

logger = logging.getLogger(__name__)

# What the operator does wrong, and would do wrong on every row: no row is set aside for it.
OPERATORS_FAULT = (StateInvalid, StateOutsideKey, StateMismatch)

# Output is handed on in batches of about so many rows: large enough for Arrow, small enough to wait for.
OUT_ROWS_MAX = 65_536

# So many rows are worked on between two looks at how much output there is.
STRIDE_ROWS = 512


class RowRunner:
    """Calls `process` for rows and `on_timer` for timers, one at a time."""

    def __init__(self, running: Running, dead: DeadRows) -> None:
        self._running = running
        self._plan: OperatorPlan = running.plan
        self._operator: KeyedOperator[Any, Any] = running.operator
        self._stage = running.stage
        self._cursor = running.cursor
        self._ctx: Context = running.context()
        self._dead = dead
        self._ends = ends_a_run(dead)
        self._out = RowsOut(running.plan.out_schema, running.plan.out_type)
        self._build: Build | None = None
        self._schema: pa.Schema | None = None
        self.event_time: str | None = running.event_time

    def chunk(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Work on the rows of a chunk in their order; give the output."""
        events, faults = self._events(chunk)
        for number, error in sorted(faults.items()):
            self._set_aside(chunk, number, error, None)
        self._running.prefetch(chunk)
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
        """Work on a few rows; give the number of them."""
        cursor, ctx, process, take = self._cursor, self._ctx, self._operator.process, self._out.take
        begin = self._stage.begin_row if self._dead.is_taken else None
        count = 0
        made: Any = None
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
                made = process(event, ctx)
                if made is not None:
                    take(made)
            except self._ends:
                raise
            except Exception as error:  # noqa: BLE001 - an operator may raise anything
                place = self._undone(error, made, self._operator.process, mark)
                self._set_aside(chunk, number, error, place)
            made = None
        if begin is not None and count:
            self._stage.keep_row()
        return count

    def timers(self, due: Iterator[Due]) -> Iterator[pa.RecordBatch]:
        """Work on due timers, which come with group, stored key and key; give the output."""
        cursor, ctx, take = self._cursor, self._ctx, self._out.take
        on_timer = self._operator.on_timer
        made: Any = None
        for group, stored, key, timer in due:
            event_ms = int(timer.at) if timer.clock == "event" else None
            cursor.enter(group, stored, key, event_ms)
            ctx.key, ctx.firing = key, timer
            mark = len(self._out.rows)
            if self._dead.is_taken:
                self._stage.begin_row()
            try:
                made = on_timer(timer, ctx)
                take(made)
            except self._ends:
                raise
            except Exception as error:  # noqa: BLE001 - an operator may raise anything
                place = self._undone(error, made, on_timer, mark)
                self._dead.add(DeadRow(key, int(timer.at), "timer", error, place, None))
            made = None
            if self._dead.is_taken:
                self._stage.keep_row()
            if len(self._out.rows) >= OUT_ROWS_MAX:
                yield self._out.batch()
        ctx.firing = None
        cursor.leave()
        if self._out.rows:
            yield self._out.batch()

    def _events(self, chunk: Chunk) -> tuple[list[Any], Faults]:
        """Build the events of a chunk, and say of the rows that cannot be built why not."""
        if self._build is None or not chunk.batch.schema.equals(self._schema):
            self._build = event_builder(self._plan.in_type, chunk.batch.schema, self._plan.name)
            self._schema = chunk.batch.schema
        faults: Faults = {}
        events = self._build(chunk.batch, faults)
        for number in chunk.timeless.tolist():
            reason = f"the event time '{self.event_time}' is null"
            faults.setdefault(number, ValueInvalid(place=f"row {number}", reason=reason))
        return events, faults

    def _undone(self, error: Exception, made: Any, method: Callable[..., Any], mark: int) -> str | None:
        """Undo what a row did; give the user's line that it failed at."""
        code = code_of(method)
        place = place_of(error, code)
        if type(made) is GeneratorType:
            frame = made.gi_frame
            if isinstance(error, OutputWrong) and frame is not None:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
            # Its `finally` blocks run now, where what they write is still undone.
            try:
                made.close()
            except Exception as problem:  # noqa: BLE001 - the first error is the one that counts
                logger.warning("closing a generator that failed, failed too: %r", problem)
        del self._out.rows[mark:]
        if self._dead.is_taken:
            self._stage.undo_row()
        return place

    def _set_aside(self, chunk: Chunk, number: int, error: Exception, place: str | None) -> None:
        row = chunk.batch.slice(number, 1)
        index = chunk.key_index[number]
        key = chunk.keys.slice(int(index), 1).to_pylist()[0]
        key = tuple(key.values()) if isinstance(key, dict) else key
        is_timed = chunk.times_ms is not None and number not in chunk.timeless
        event_ms = int(chunk.times_ms[number]) if chunk.times_ms is not None and is_timed else None
        self._dead.add(DeadRow(key, event_ms, "row", error, place, row.to_pylist()[0]))


def ends_a_run(dead: DeadRows) -> tuple[type[Exception], ...]:
    """Return the errors that end a run as they are.

    Without dead rows the first of any other kind does, too.
    """
    return (*NOT_THE_ROWS_FAULT, *OPERATORS_FAULT) if dead.is_taken else NOT_THE_ROWS_FAULT


def _feed(chunk: Chunk, events: list[Any]) -> Iterator[tuple[Any, ...]]:
    """Return of each row its number, key group, stored key, key, event time and event; no Python loop."""
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
