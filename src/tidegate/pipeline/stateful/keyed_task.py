"""The task of a keyed operator: takes one partition's rows of a batch, gives what comes out of them.

Nothing is given out before the batch is published: a task that is stopped early by what stands behind it, or
that loses the race against another attempt, has given out nothing that was not stored. A partition that was
published before, by whatever attempt, is read back and not worked on again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.checkpoint import epochs
from tidegate.checkpoint.batch import open_batch
from tidegate.checkpoint.commit import Opened
from tidegate.checkpoint.commit_record import Head, read_head
from tidegate.checkpoint.output_file import read_output
from tidegate.checkpoint.settings import Asked, StateSettings
from tidegate.checkpoint.store import Depot, operator_depot, partition_folder
from tidegate.errors import BatchTaken, TidegateError
from tidegate.model.clock import Clock, SystemClock
from tidegate.pipeline.stateful.spark_log import PlannedBatch, SparkTask, current_task
from tidegate.pipeline.stateful.task_context import StatefulTaskContext, task_name, temporary_state_folder
from tidegate.pipeline.stateful.worker_setup import prepare_worker
from tidegate.state.operator import KeyedOperator
from tidegate.state.operator_plan import OperatorPlan, checked
from tidegate.state.runtime.chunks import GROUP_COLUMN
from tidegate.state.runtime.instance import BatchTimes, OperatorInstance, Place
from tidegate.state.runtime.write_batch import Stage
from tidegate.state.schema.schema import OperatorSchema, Wanted, resolve_schema
from tidegate.state.timers import NextTimers

# Output held in memory until it is published; beyond it, it is read back from the file it was written to.
OUTPUT_BYTES_MAX = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeyedTask:
    """What runs in every task, made once on the driver and the same for all batches of a query."""

    operator: KeyedOperator[Any, Any]
    wanted: Wanted
    parallelism: int
    settings: StateSettings
    # None: the state lives as long as the task.
    checkpoint: str | None
    seen_epoch: int | None = None
    savepoint: str | None = None
    # A batch job has one batch, planned on the driver; a query's are read from Spark's log.
    planned: PlannedBatch | None = None
    event_time: str | None = None
    # None: Spark keeps the watermark.
    lateness_ms: int | None = None
    dead_letters: str | None = None
    ordered: bool = False
    # The names of the columns, where Spark could not be given them.
    columns: tuple[str, ...] | None = None
    # Which call of `process` made this.
    call: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the output of one partition of one batch."""
        try:
            yield from self._given(current_task(), batches, SystemClock())
            prepare_worker()
        except TidegateError as problem:
            self._seat.hint(problem)
            raise

    def _given(
        self, task: SparkTask, batches: Iterator[pa.RecordBatch], clock: Clock
    ) -> Iterator[pa.RecordBatch]:
        if self.checkpoint is None:
            yield from self._passing(task, self._rows(task.partition, batches, None), clock)
            return
        seat = self._seat
        planned = seat.plan(task)
        asked = seat.asked(task, planned)
        seat.check_first_time(asked, clock)
        rows = self._rows(task.partition, batches, asked)
        # A query keeps its id wherever its checkpoint is moved to; a batch job has none.
        writer = f"{task.query_id or self.checkpoint}/{self._name}"
        try:
            with open_batch(asked, self.settings, clock) as opened:
                held = self._published(asked, planned, opened, rows)
                self._set_aside(planned, opened, writer)
                if held is None:
                    yield from opened.outputs()
                    return
        except BatchTaken:
            # Another attempt was first, and nothing of ours was given out: what it made holds.
            with open_batch(asked, self.settings, clock) as opened:
                if not opened.replayed:
                    raise
                self._set_aside(planned, opened, writer)
                yield from opened.outputs()
                return
        # By now the copy of the state is free again, however slowly the rows are taken.
        yield from held

    @property
    def __name__(self) -> str:
        """Spark shows it in its plans."""
        return task_name(self._name, self.checkpoint)

    @property
    def _name(self) -> str:
        return self.wanted.operator

    @property
    def _seat(self) -> StatefulTaskContext:
        return StatefulTaskContext(
            operator=self._name,
            parallelism=self.parallelism,
            max_parallelism=self.wanted.max_parallelism,
            settings=self.settings,
            checkpoint=self.checkpoint,
            seen_epoch=self.seen_epoch,
            savepoint=self.savepoint,
            planned=self.planned,
            call=self.call,
        )

    def _published(
        self, asked: Asked, planned: PlannedBatch, opened: Opened, rows: Iterator[pa.RecordBatch]
    ) -> list[pa.RecordBatch] | None:
        """Do the batch and publish it unless that was done before; give its output, or None: read it back."""
        held: list[pa.RecordBatch] | None = None
        if opened.replayed:
            for _ in rows:  # Spark throws a worker away that leaves rows unread
                pass
        else:
            held = self._work(asked, planned, opened, rows)
        return held

    def _work(
        self, asked: Asked, planned: PlannedBatch, opened: Opened, rows: Iterator[pa.RecordBatch]
    ) -> list[pa.RecordBatch] | None:
        """Run the operator and publish what it did; give its output, or None where it is too large."""
        schema = resolve_schema(operator_depot(asked.checkpoint, asked.operator), self.wanted)
        before_ms = opened.newest_event_ms
        watermark_ms = planned.watermark_ms
        if self.lateness_ms is not None:
            watermark_ms = None if before_ms is None else before_ms - self.lateness_ms
        order = opened.epoch.order_of(asked.number)
        known = known_timers(asked, opened)
        times = BatchTimes(order, watermark_ms, planned.batch_time_ms, opened.snapshot_due, known)
        stage = Stage(opened.backend, stage_bytes_max=self.settings.stage_bytes_max, spill=opened.spill)
        instance = self._instance(schema, asked.partition)
        dead = opened.write_dead if self.dead_letters is not None else None
        held: list[pa.RecordBatch] | None = []
        held_bytes = 0
        for batch in instance.run(stage, rows, times, dead):
            opened.write_out(batch)
            held_bytes += batch.nbytes
            if held is not None and held_bytes > OUTPUT_BYTES_MAX:
                held = None
            if held is not None:
                held.append(batch)
        facts = instance.facts()
        # Of all batches so far, so that the next batch need read no more than one head of each partition.
        seen = [at_ms for at_ms in (before_ms, facts.newest_event_ms) if at_ms is not None]
        facts = replace(facts, newest_event_ms=max(seen, default=None), schema=schema.number)
        opened.publish(stage.take(), facts)
        return held

    def _passing(
        self, task: SparkTask, rows: Iterator[pa.RecordBatch], clock: Clock
    ) -> Iterator[pa.RecordBatch]:
        """Run the operator on state that begins empty and is gone afterwards."""
        planned = self.planned or PlannedBatch(0, "", None, clock.now_us() // 1000)
        with temporary_state_folder(self.settings) as folder:
            schema = resolve_schema(Depot(folder / "schema"), self.wanted)
            backend = self.settings.place(clock).open_backend(folder / "copy")
            try:
                stage = Stage(
                    backend, stage_bytes_max=self.settings.stage_bytes_max, spill=backend.write_partly
                )
                times = BatchTimes(planned.number, None, planned.batch_time_ms, is_last=True)
                yield from self._instance(schema, task.partition).run(stage, rows, times)
            finally:
                backend.close()

    def _instance(self, schema: OperatorSchema, partition: int) -> OperatorInstance:
        plan: OperatorPlan = checked(self.operator, self._name)
        return OperatorInstance(plan, schema, Place(partition, self.parallelism, self.event_time))

    def _rows(
        self, partition: int, batches: Iterable[pa.RecordBatch], asked: Asked | None
    ) -> Iterator[pa.RecordBatch]:
        """Return a partition's rows, in order where that is asked for."""
        self._seat.check_partition(partition, asked)
        rows = self._placed(partition, batches, asked)
        return sorted_rows(rows, self.event_time) if self.ordered else rows

    def _placed(
        self, partition: int, batches: Iterable[pa.RecordBatch], asked: Asked | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows on; refuse those of another instance, which would be remembered in the wrong place."""
        seat = self._seat
        for batch in batches:
            if batch.num_rows:
                if self.columns is not None:
                    batch = batch.rename_columns(list(self.columns))  # noqa: PLW2901 - the same rows
                seat.check_groups(partition, batch.column(GROUP_COLUMN), asked)
                yield batch

    def _set_aside(self, planned: PlannedBatch, opened: Opened, writer: str) -> None:
        """Write the rows of all partitions that failed into their table, once the whole batch is published.

        A batch that is published in part may be done again by another number of instances; a whole one never
        is. Whoever publishes the last partition finds it whole. If it dies before it wrote, the batch is not
        committed, and whoever repeats it finds it whole, too.
        """
        if self.dead_letters is None:
            return
        from tidegate.pipeline.stateful.dead_letters import write_dead_letters

        for head in complete_batch(opened):
            if head.dead is not None:
                folder = partition_folder(head.epoch, head.partition)
                failed = list(read_output(opened.depot, folder, head.dead))
                letters = [_letters(batch, self._name, head, planned) for batch in failed]
                write_dead_letters(self.dead_letters, writer, head.partition, head.batch, letters)


def known_timers(asked: Asked, opened: Opened) -> NextTimers | None:
    """Return the timers that the batch before left behind, as its head says; None: look for them.

    A head tells them where the same call of the same run published it, in this epoch: so the partition had
    the same key groups, and the operator the same code. One that had no `on_timer` tells of no timers, though
    some may be stored. Not told so are the first batch of an epoch, also after a savepoint or with another
    number of partitions, and the first one after a restart.
    """
    before = opened.before
    if asked.run is None or before is None or (before.run, before.call) != (asked.run, asked.call):
        return None
    return NextTimers(before.next_event_timer_ms, before.next_processing_timer_ms)


def complete_batch(opened: Opened) -> list[Head]:
    """Return the heads of all partitions of a batch; none while one is missing.

    None either where another epoch governs the batch by now: others do it anew, and this task has outlived
    its run.
    """
    head = opened.head
    epoch = epochs.governing(epochs.listed(opened.depot), head.batch) if head is not None else None
    if head is None or epoch is None or epoch.number != head.epoch:
        return []
    found = [
        read_head(opened.depot, epoch.number, partition, head.batch) for partition in range(epoch.parallelism)
    ]
    heads = [one for one in found if one is not None]
    return heads if len(heads) == len(found) else []


def sorted_rows(rows: Iterator[pa.RecordBatch], event_time: str | None) -> Iterator[pa.RecordBatch]:
    """Yield rows by time, then by every column that can be compared: the same order in each attempt.

    Holds the partition's rows of the batch in memory.
    """
    held = list(rows)
    if held:
        table = pa.Table.from_batches(held)
        plain = [one.name for one in table.schema if not pa.types.is_nested(one.type)]
        first = [event_time] if event_time is not None else []
        names = first + [name for name in plain if name not in first]
        yield from table.sort_by([(name, "ascending") for name in names]).to_batches()


def _letters(failed: pa.RecordBatch, operator: str, head: Head, planned: PlannedBatch) -> pa.RecordBatch:
    """Return rows that failed as the table of dead letters has them."""
    from tidegate.pipeline.stateful.dead_letters import DEAD_LETTER_SCHEMA

    count = failed.num_rows
    places = pc.binary_join_element_wise(" (", pc.fill_null(failed["place"], "no line of yours"), ")", "")
    reasons = pc.binary_join_element_wise(failed["error"], ": ", failed["reason"], places, "")
    at = pa.scalar(planned.batch_time_ms * 1000, pa.timestamp("us", tz="UTC"))
    columns = {
        "operator": pa.repeat(operator, count),
        "partition": pa.repeat(pa.scalar(head.partition, pa.int32()), count),
        "batch": pa.repeat(pa.scalar(head.batch, pa.int64()), count),
        "key": failed["key"],
        "reason": reasons,
        "row": failed["row"],
        "at": pa.repeat(at, count),
    }
    return pa.RecordBatch.from_pydict(columns, schema=DEAD_LETTER_SCHEMA)
