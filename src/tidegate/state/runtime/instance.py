"""The instance: takes an operator, its stored schema and one batch's rows, gives the rows that come out.

One instance works on one batch of one partition. It reads and writes through a stage and publishes nothing.
First come the rows, in the order in which they came, then the timers that are due, then what TTL cleans.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.checkpoint.commit_record import RunFacts
from tidegate.checkpoint.keys.codec import KeyCodec
from tidegate.checkpoint.keys.layout import groups_of
from tidegate.errors import InvariantBroken, StateInvalid
from tidegate.state.context import OpenContext, Timer
from tidegate.state.instant import Moment
from tidegate.state.kinds.declaration import Binding, State
from tidegate.state.operator import KeyedOperator
from tidegate.state.operator_plan import OperatorPlan
from tidegate.state.runtime.batch_runner import BatchRunner
from tidegate.state.runtime.bound_operator import Running, bound_copy
from tidegate.state.runtime.chunks import Chunk, KeyFinder, joined
from tidegate.state.runtime.cursor import Cursor
from tidegate.state.runtime.failed_rows import NOT_THE_ROWS_FAULT, DeadRows, code_of, place_of
from tidegate.state.runtime.row_runner import Due, RowRunner
from tidegate.state.runtime.ttl_cleanup import Cleaner, Moments
from tidegate.state.runtime.write_batch import Stage
from tidegate.state.schema.migrations import Named, Upgrader
from tidegate.state.schema.schema import OperatorSchema, StoredState
from tidegate.state.timers import NextTimers, Timers

logger = logging.getLogger(__name__)

Give = Callable[[pa.RecordBatch], None]


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Which batch it is and the times that hold for it.

    `number` rises with every batch in the whole life of the state, also across savepoints: elements of lists
    lie in its order. `is_snapshot_due` lets states with `FullSnapshot` be cleaned in this batch.
    `known_timers`, from the head of the batch before, spares looking for timers where none can be due.
    `is_last` says that nothing comes after this batch: timers that are left when its rows are done come all,
    and those that they set come up to the latest of them.
    """

    number: int
    watermark_ms: int | None
    batch_time_ms: int
    is_snapshot_due: bool = False
    known_timers: NextTimers | None = None
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where an instance stands among its siblings, and which column has the time of its rows."""

    partition: int
    parallelism: int
    event_time: str | None = None


class OperatorInstance:
    """One operator on one partition for one batch."""

    def __init__(self, plan: OperatorPlan, schema: OperatorSchema, place: Place) -> None:
        """`schema` is the resolved one: it knows the key columns, max_parallelism and the states' numbers."""
        self._plan = plan
        self._schema = schema
        self._place = place
        self._rows_in = 0
        self._rows_out = 0
        self._newest_event_ms: int | None = None
        self._facts: RunFacts | None = None

    def run(
        self,
        stage: Stage,
        batches: Iterable[pa.RecordBatch],
        times: BatchTimes,
        dead: Give | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Work on a batch's rows, then on due timers; give the output as it comes. To be read to its end.

        Rows carry GROUP_COLUMN beside the key columns and the user's. With `dead`, a row that fails is undone
        and given to it in a batch of DEAD_SCHEMA (dead_rows.py); without, RowFailed ends the run.
        """
        failed = DeadRows(self._plan.name, dead)
        running = self._start(stage, times)
        self._call("open", running.operator.open, running.known)
        is_done = False
        try:
            for batch in self._worked(running, batches, times, failed):
                self._rows_out += batch.num_rows
                yield batch
            is_done = True
        finally:
            running.cursor.leave()
            self._close(running, is_done)
        failed.flush()
        self._facts = RunFacts(
            rows_in=self._rows_in,
            rows_out=self._rows_out,
            dead_rows=failed.count,
            newest_event_ms=self._newest_event_ms,
            next_event_timer_ms=running.timers.next_event_ms(),
            next_processing_timer_ms=running.timers.next_processing_ms(),
            watermark_ms=times.watermark_ms,
            batch_time_ms=times.batch_time_ms,
        )

    def facts(self) -> RunFacts:
        """Return what the run did, after its end; the schema's number is the caller's to add."""
        if self._facts is None:
            raise InvariantBroken(reason="the facts of a run are known when its output was read to the end")
        return self._facts

    @contextmanager
    def standing(
        self, stage: Stage, times: BatchTimes, key: tuple[bytes, bytes, Any]
    ) -> Iterator[KeyedOperator[Any, Any]]:
        """Return the operator standing on one key (its group, stored and plain), to look at its states."""
        running = self._start(stage, times)
        running.cursor.enter(*key, times.watermark_ms)
        try:
            yield running.operator
        finally:
            running.cursor.leave()

    def _start(self, stage: Stage, times: BatchTimes) -> Running:
        cursor = Cursor(self._plan.name, times.number, times.batch_time_ms, partition=self._place.partition)
        cursor.watermark_ms = times.watermark_ms
        states = {}
        for attribute, state in self._plan.states.items():
            stored = self._schema.states[state.name]
            states[attribute] = state.bind(
                Binding(stored.number, stage, cursor, self._upgrader(state, stored))
            )
        known = OpenContext(
            batch=times.number,
            partition=self._place.partition,
            parallelism=self._place.parallelism,
            now=Moment(times.batch_time_ms),
            watermark=None if times.watermark_ms is None else Moment(times.watermark_ms),
        )
        return Running(
            plan=self._plan,
            operator=bound_copy(self._plan.operator, states),
            states=states,
            stage=stage,
            cursor=cursor,
            timers=Timers(stage, self._groups(), times.known_timers),
            known=known,
            event_time=self._place.event_time,
        )

    def _upgrader(self, state: State, stored: StoredState) -> Upgrader | None:
        """Return what reads values of older versions; None where no older version ever wrote."""
        if len(stored.versions) == 1:
            return None
        return Upgrader(
            state.value_type,
            stored.forms(),
            state.options.migrations,
            serializer=state.serializer,
            named=Named(self._plan.name, state.name),
        )

    def _worked(
        self, running: Running, batches: Iterable[pa.RecordBatch], times: BatchTimes, failed: DeadRows
    ) -> Iterator[pa.RecordBatch]:
        finder = KeyFinder(self._schema.key, self._place.event_time)
        rows = RowRunner(running, failed)
        runner = rows if self._plan.form == "rows" else BatchRunner(running, failed)
        for batch in joined(batches):
            chunk = finder.find(batch)
            self._count(chunk)
            yield from runner.chunk(chunk)
        if self._plan.has_timers:
            yield from rows.timers(self._due(running, times))
        self._clean(running, times)

    def _count(self, chunk: Chunk) -> None:
        self._rows_in += chunk.batch.num_rows
        newest = chunk.newest_ms()
        if newest is not None and (self._newest_event_ms is None or newest > self._newest_event_ms):
            self._newest_event_ms = newest

    def _due(self, running: Running, times: BatchTimes) -> Iterator[Due]:
        """Yield due timers with their keys, as operators see both."""
        codec = KeyCodec(self._schema.key)
        timers = running.timers
        watermark_ms, now_ms = times.watermark_ms, times.batch_time_ms
        if times.is_last:
            last_ms = timers.last_ms("processing")
            watermark_ms = timers.last_ms("event")
            now_ms = now_ms if last_ms is None else max(now_ms, last_ms)
        for due in timers.due(watermark_ms, now_ms):
            key, _ = codec.decode(due.stored)
            yield due.group, due.stored, key, Timer(Moment(due.at_ms), due.clock)

    def _clean(self, running: Running, times: BatchTimes) -> None:
        """Remove what is expired, as much as one batch may."""
        cleaner = Cleaner(
            running.stage, self._groups(), list(running.states.values()), KeyCodec(self._schema.key).end_of
        )
        cleaner.clean(Moments(times.number, times.batch_time_ms, times.watermark_ms, times.is_snapshot_due))

    def _groups(self) -> range:
        return groups_of(self._place.partition, self._place.parallelism, self._schema.max_parallelism)

    def _call(self, name: str, function: Callable[..., None], *arguments: Any) -> None:
        """Call `open` or `close`; an error of the user's is told with its line."""
        try:
            function(*arguments)
        except NOT_THE_ROWS_FAULT:
            raise
        except Exception as error:
            reason = (
                f"its {name} failed: {type(error).__name__}: {error} ({place_of(error, code_of(function))})."
            )
            raise StateInvalid(operator=self._plan.name, reason=reason) from error

    def _close(self, running: Running, is_done: bool) -> None:
        """Close the operator; where the run failed, that error is the one that counts."""
        try:
            self._call("close", running.operator.close)
        except Exception as problem:
            if is_done:
                raise
            logger.warning("%s", problem)
