"""The run of an operator over one batch of one partition.

It reads and writes through a write batch and commits nothing. In this order: the rows as they came, the
timers that are due, the cleanup of expired entries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.checkpoint.commit_record import RunFacts
from tidegate.checkpoint.keys.codec import StateKeyCodec
from tidegate.checkpoint.keys.layout import groups_of
from tidegate.errors import InvariantBroken, StateInvalid
from tidegate.state.context import OpenContext, Timer
from tidegate.state.cursor import KeyCursor
from tidegate.state.instant import Moment
from tidegate.state.kinds.declaration import State, StateBinding
from tidegate.state.operator import KeyedOperator
from tidegate.state.operator_plan import OperatorPlan
from tidegate.state.runtime.batch_runner import BatchRunner
from tidegate.state.runtime.bound_operator import BoundOperator, bound_copy
from tidegate.state.runtime.chunks import Chunk, KeyFinder, rechunk
from tidegate.state.runtime.failed_rows import INFRASTRUCTURE_ERRORS, FailedRows, code_of, place_of
from tidegate.state.runtime.row_runner import Due, RowRunner
from tidegate.state.runtime.ttl_cleanup import CleanupTimes, TtlCleaner
from tidegate.state.schema.migrations import StateRef, Upgrader
from tidegate.state.schema.schema import OperatorSchema, StoredState
from tidegate.state.timers import NextTimers, Timers
from tidegate.state.write_batch import WriteBatch

logger = logging.getLogger(__name__)

RowSink = Callable[[pa.RecordBatch], None]


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The number of a batch and its times.

    `number` rises during the whole life of the state, also across savepoints: elements of lists are stored in
    its order. With `is_snapshot_due`, states with `FullSnapshot` are cleaned up in this batch. `known_timers`
    come from the commit record of the batch before: where none can be due, none are read. After a batch that
    `is_last` nothing follows: all timers fire, and those that they set fire up to the latest of them.
    """

    number: int
    watermark_ms: int | None
    batch_time_ms: int
    is_snapshot_due: bool = False
    known_timers: NextTimers | None = None
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """The partition of an instance, the number of partitions, and the event time column of its rows."""

    partition: int
    parallelism: int
    event_time: str | None = None


class OperatorInstance:
    """One operator on one partition for one batch."""

    def __init__(self, plan: OperatorPlan, schema: OperatorSchema, settings: InstanceSettings) -> None:
        """`schema` is the resolved one, with the key columns, max_parallelism and the states' numbers."""
        self._plan = plan
        self._schema = schema
        self._settings = settings
        self._rows_in = 0
        self._rows_out = 0
        self._newest_event_ms: int | None = None
        self._facts: RunFacts | None = None

    def run(
        self,
        write_batch: WriteBatch,
        batches: Iterable[pa.RecordBatch],
        times: BatchTimes,
        failed_rows: RowSink | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Process a batch's rows, then its due timers; yield the output, which is to be read to its end.

        Rows have GROUP_COLUMN beside the key columns and the user's. With `failed_rows`, a row that fails is
        rolled back and passed to that sink in a batch of FAILED_ROWS_SCHEMA; without, RowFailed ends the run.
        """
        failed = FailedRows(self._plan.name, failed_rows)
        bound = self._start(write_batch, times)
        self._call("open", bound.operator.open, bound.known)
        is_done = False
        try:
            for batch in self._run_batch(bound, batches, times, failed):
                self._rows_out += batch.num_rows
                yield batch
            is_done = True
        finally:
            bound.cursor.leave()
            self._close(bound, is_done)
        failed.flush()
        self._facts = RunFacts(
            rows_in=self._rows_in,
            rows_out=self._rows_out,
            dead_rows=failed.count,
            newest_event_ms=self._newest_event_ms,
            next_event_timer_ms=bound.timers.next_event_ms(),
            next_processing_timer_ms=bound.timers.next_processing_ms(),
            watermark_ms=times.watermark_ms,
            batch_time_ms=times.batch_time_ms,
        )

    def facts(self) -> RunFacts:
        """Return the facts of the run after its end; the caller adds the schema's number."""
        if self._facts is None:
            raise InvariantBroken(reason="the facts of a run are known when its output was read to the end")
        return self._facts

    @contextmanager
    def at_key(
        self, write_batch: WriteBatch, times: BatchTimes, key: tuple[bytes, bytes, Any]
    ) -> Iterator[KeyedOperator[Any, Any]]:
        """Yield the operator with one current key (group, stored and plain form), to inspect its states."""
        bound = self._start(write_batch, times)
        bound.cursor.enter(*key, times.watermark_ms)
        try:
            yield bound.operator
        finally:
            bound.cursor.leave()

    def _start(self, write_batch: WriteBatch, times: BatchTimes) -> BoundOperator:
        cursor = KeyCursor(
            self._plan.name, times.number, times.batch_time_ms, partition=self._settings.partition
        )
        cursor.watermark_ms = times.watermark_ms
        states = {}
        for attribute, state in self._plan.states.items():
            stored = self._schema.states[state.name]
            states[attribute] = state.bind(
                StateBinding(stored.number, write_batch, cursor, self._upgrader(state, stored))
            )
        known = OpenContext(
            batch=times.number,
            partition=self._settings.partition,
            parallelism=self._settings.parallelism,
            now=Moment(times.batch_time_ms),
            watermark=None if times.watermark_ms is None else Moment(times.watermark_ms),
        )
        return BoundOperator(
            plan=self._plan,
            operator=bound_copy(self._plan.operator, states),
            states=states,
            write_batch=write_batch,
            cursor=cursor,
            timers=Timers(write_batch, self._groups(), times.known_timers),
            known=known,
            event_time=self._settings.event_time,
        )

    def _upgrader(self, state: State, stored: StoredState) -> Upgrader | None:
        """Return the reader of values of older versions; None where there is only one version."""
        if len(stored.versions) == 1:
            return None
        return Upgrader(
            state.value_type,
            stored.forms(),
            state.options.migrations,
            serializer=state.serializer,
            ref=StateRef(self._plan.name, state.name),
        )

    def _run_batch(
        self, bound: BoundOperator, batches: Iterable[pa.RecordBatch], times: BatchTimes, failed: FailedRows
    ) -> Iterator[pa.RecordBatch]:
        finder = KeyFinder(self._schema.key, self._settings.event_time)
        rows = RowRunner(bound, failed)
        runner = rows if self._plan.form == "rows" else BatchRunner(bound, failed)
        for batch in rechunk(batches):
            chunk = finder.find(batch)
            self._count(chunk)
            yield from runner.chunk(chunk)
        if self._plan.has_timers:
            yield from rows.timers(self._due(bound, times))
        self._clean(bound, times)

    def _count(self, chunk: Chunk) -> None:
        self._rows_in += chunk.batch.num_rows
        newest = chunk.newest_ms()
        if newest is not None and (self._newest_event_ms is None or newest > self._newest_event_ms):
            self._newest_event_ms = newest

    def _due(self, bound: BoundOperator, times: BatchTimes) -> Iterator[Due]:
        """Yield due timers with their keys, both in the form that operators see."""
        codec = StateKeyCodec(self._schema.key)
        timers = bound.timers
        watermark_ms, now_ms = times.watermark_ms, times.batch_time_ms
        if times.is_last:
            last_ms = timers.last_ms("processing")
            watermark_ms = timers.last_ms("event")
            now_ms = now_ms if last_ms is None else max(now_ms, last_ms)
        for due in timers.due(watermark_ms, now_ms):
            key, _ = codec.decode(due.stored)
            yield due.group, due.stored, key, Timer(Moment(due.at_ms), due.clock)

    def _clean(self, bound: BoundOperator, times: BatchTimes) -> None:
        """Remove expired entries, as many as one batch may."""
        cleaner = TtlCleaner(
            bound.write_batch,
            self._groups(),
            list(bound.states.values()),
            StateKeyCodec(self._schema.key).end_of,
        )
        cleaner.clean(
            CleanupTimes(times.number, times.batch_time_ms, times.watermark_ms, times.is_snapshot_due)
        )

    def _groups(self) -> range:
        return groups_of(self._settings.partition, self._settings.parallelism, self._schema.max_parallelism)

    def _call(self, name: str, function: Callable[..., None], *arguments: Any) -> None:
        """Call `open` or `close`; StateInvalid names the line at which the user's code raised."""
        try:
            function(*arguments)
        except INFRASTRUCTURE_ERRORS:
            raise
        except Exception as error:
            reason = (
                f"its {name} failed: {type(error).__name__}: {error} ({place_of(error, code_of(function))})."
            )
            raise StateInvalid(operator=self._plan.name, reason=reason) from error

    def _close(self, bound: BoundOperator, is_done: bool) -> None:
        """Close the operator; where the run has failed already, log an error of `close`."""
        try:
            self._call("close", bound.operator.close)
        except Exception as problem:
            if is_done:
                raise
            logger.warning("operator not closed operator=%s error=%s", self._plan.name, problem)
