"""The task of a keyed operator: one partition of one batch.

Nothing is output before the batch is committed: a task that a later step stops early, or that loses the race
against another attempt, has output nothing that was not stored. A partition that was committed before, by
whatever attempt, is read back and not run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.checkpoint import epochs
from tidegate.checkpoint.batch import open_batch
from tidegate.checkpoint.commit import OpenBatch, StateBatch
from tidegate.checkpoint.commit_record import CommitRecord, read_commit_record
from tidegate.checkpoint.output_file import read_output
from tidegate.checkpoint.settings import BatchRequest
from tidegate.checkpoint.store import CheckpointStore, operator_store, partition_folder
from tidegate.errors import BatchTaken
from tidegate.model.clock import Clock
from tidegate.pipeline.stateful.spark_log import PlannedBatch, SparkTask
from tidegate.pipeline.stateful.task_context import StatefulTask, temporary_state_folder
from tidegate.state.operator import KeyedOperator
from tidegate.state.operator_plan import OperatorPlan, plan_operator
from tidegate.state.runtime.chunks import GROUP_COLUMN
from tidegate.state.runtime.instance import BatchTimes, InstanceSettings, OperatorInstance
from tidegate.state.schema.schema import OperatorSchema, SchemaRequest, resolve_schema
from tidegate.state.timers import NextTimers
from tidegate.state.write_batch import WriteBatch

# Output held in memory until the batch is committed; more is read back from its output file.
OUTPUT_BYTES_MAX = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeyedTask(StatefulTask):
    """The task that runs a keyed operator on one partition of one batch."""

    operator: KeyedOperator[Any, Any]
    schema_request: SchemaRequest
    event_time: str | None = None
    # None: Spark keeps the watermark.
    lateness_ms: int | None = None
    dead_letters: str | None = None
    ordered: bool = False
    # The names of the columns, where Spark cannot have them in the plan.
    columns: tuple[str, ...] | None = None

    def _output_rows(
        self, task: SparkTask, batches: Iterator[pa.RecordBatch], clock: Clock
    ) -> Iterator[pa.RecordBatch]:
        context = self.context
        if context.checkpoint is None:
            yield from self._run_without_checkpoint(task, self._rows(task.partition, batches, None), clock)
            return
        planned = context.plan(task)
        request = context.request(task, planned)
        context.check_first_time(request, clock)
        rows = self._rows(task.partition, batches, request)
        # A query keeps its id wherever its checkpoint is moved to; a batch job has none.
        writer = f"{task.query_id or context.checkpoint}/{context.operator}"
        try:
            with open_batch(request, context.settings, clock) as batch:
                output = self._run_or_replay(planned, batch, rows)
                self._write_dead_letters(planned, batch, writer)
                if output is None:
                    yield from batch.outputs()
                    return
        except BatchTaken:
            # Another attempt committed first, and nothing of this one was output: its output holds.
            with open_batch(request, context.settings, clock) as batch:
                if not batch.replayed:
                    raise
                self._write_dead_letters(planned, batch, writer)
                yield from batch.outputs()
                return
        # By now the local store is free again, however slowly the rows are consumed.
        yield from output

    def _run_or_replay(
        self, planned: PlannedBatch, batch: StateBatch, rows: Iterator[pa.RecordBatch]
    ) -> list[pa.RecordBatch] | None:
        """Run and commit the batch unless that was done before; return its output, or None: read it back."""
        if batch.replayed:
            for _ in rows:  # Spark throws a worker away that leaves rows unread
                pass
            return None
        return self._run_batch(planned, batch, rows)

    def _run_batch(
        self, planned: PlannedBatch, batch: OpenBatch, rows: Iterator[pa.RecordBatch]
    ) -> list[pa.RecordBatch] | None:
        """Run the operator and commit the batch; return its output, or None where it is too large."""
        request = batch.request
        schema = resolve_schema(operator_store(request.checkpoint, request.operator), self.schema_request)
        before_ms = batch.newest_event_ms
        watermark_ms = planned.watermark_ms
        if self.lateness_ms is not None:
            watermark_ms = None if before_ms is None else before_ms - self.lateness_ms
        order = batch.epoch.order_of(request.number)
        known = known_timers(request, batch)
        times = BatchTimes(order, watermark_ms, planned.batch_time_ms, batch.snapshot_due, known)
        stage_bytes_max = self.context.settings.stage_bytes_max
        stage = WriteBatch(batch.backend, stage_bytes_max=stage_bytes_max, spill=batch.spill)
        instance = self._instance(schema, request.partition)
        dead = batch.write_dead if self.dead_letters is not None else None
        output: list[pa.RecordBatch] | None = []
        output_bytes = 0
        for rows_out in instance.run(stage, rows, times, dead):
            batch.write_out(rows_out)
            output_bytes += rows_out.nbytes
            if output is not None and output_bytes > OUTPUT_BYTES_MAX:
                output = None
            if output is not None:
                output.append(rows_out)
        facts = instance.facts()
        # Of all batches so far: the next batch need read one commit record of each partition only.
        newest_ms = max((ms for ms in (before_ms, facts.newest_event_ms) if ms is not None), default=None)
        batch.publish(stage.take(), replace(facts, newest_event_ms=newest_ms, schema=schema.number))
        return output

    def _run_without_checkpoint(
        self, task: SparkTask, rows: Iterator[pa.RecordBatch], clock: Clock
    ) -> Iterator[pa.RecordBatch]:
        """Run the operator on state that begins empty and is removed afterwards."""
        settings = self.context.settings
        planned = self.context.planned or PlannedBatch(0, "", None, clock.now_us() // 1000)
        with temporary_state_folder(settings) as folder:
            schema = resolve_schema(CheckpointStore(folder / "schema"), self.schema_request)
            backend = settings.local_directory(clock).open_backend(folder / "copy")
            try:
                stage = WriteBatch(
                    backend, stage_bytes_max=settings.stage_bytes_max, spill=backend.write_partly
                )
                times = BatchTimes(planned.number, None, planned.batch_time_ms, is_last=True)
                yield from self._instance(schema, task.partition).run(stage, rows, times)
            finally:
                backend.close()

    def _instance(self, schema: OperatorSchema, partition: int) -> OperatorInstance:
        plan: OperatorPlan = plan_operator(self.operator, self.context.operator)
        settings = InstanceSettings(partition, self.context.parallelism, self.event_time)
        return OperatorInstance(plan, schema, settings)

    def _rows(
        self, partition: int, batches: Iterable[pa.RecordBatch], request: BatchRequest | None
    ) -> Iterator[pa.RecordBatch]:
        """Return a partition's rows, sorted where the options say so."""
        self.context.check_partition(partition, request)
        rows = self._own_rows(partition, batches, request)
        return sorted_rows(rows, self.event_time) if self.ordered else rows

    def _own_rows(
        self, partition: int, batches: Iterable[pa.RecordBatch], request: BatchRequest | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows; refuse those of another instance."""
        for batch in batches:
            if batch.num_rows:
                if self.columns is not None:
                    batch = batch.rename_columns(list(self.columns))  # noqa: PLW2901 - the same rows
                self.context.check_groups(partition, batch.column(GROUP_COLUMN), request)
                yield batch

    def _write_dead_letters(self, planned: PlannedBatch, batch: StateBatch, writer: str) -> None:
        """Write the failed rows of all partitions into their table, once the whole batch is committed.

        A batch that is committed in part may be run again by another number of instances; a complete one
        never is. The task that commits the last partition finds it complete. If it dies before it wrote,
        Spark has not committed the batch, and the task that repeats it finds it complete, too.
        """
        if self.dead_letters is None:
            return
        from tidegate.pipeline.stateful.dead_letters import write_dead_letters

        for commit in complete_batch(batch):
            if commit.dead is not None:
                folder = partition_folder(commit.epoch, commit.partition)
                failed = read_output(batch.store, folder, commit.dead)
                letters = [_letters(rows, self.context.operator, commit, planned) for rows in failed]
                write_dead_letters(self.dead_letters, writer, commit.partition, commit.batch, letters)


def known_timers(request: BatchRequest, batch: OpenBatch) -> NextTimers | None:
    """Return the next timers after the batch before, from its commit record; None: search the state.

    The record is used where the same call of the same run committed it, in this epoch: then the partition had
    the same key groups, and the operator the same code. A record of an operator without `on_timer` has no
    timers, though some may be stored. So the first batch of an epoch, also after a savepoint or with another
    number of partitions, and the first one after a restart search the state.
    """
    before = batch.before
    if request.run is None or before is None or (before.run, before.call) != (request.run, request.call):
        return None
    return NextTimers(before.next_event_timer_ms, before.next_processing_timer_ms)


def complete_batch(batch: StateBatch) -> list[CommitRecord]:
    """Return the commit records of all partitions of a batch; none while one is missing.

    None either where another epoch governs the batch by now: it is run again there, and this task has
    outlived its run.
    """
    commit, store = batch.commit, batch.store
    epoch = epochs.governing(epochs.list_epochs(store), commit.batch) if commit is not None else None
    if commit is None or epoch is None or epoch.number != commit.epoch:
        return []
    partitions = range(epoch.parallelism)
    commits = [read_commit_record(store, epoch.number, partition, commit.batch) for partition in partitions]
    complete = [record for record in commits if record is not None]
    return complete if len(complete) == len(commits) else []


def sorted_rows(rows: Iterator[pa.RecordBatch], event_time: str | None) -> Iterator[pa.RecordBatch]:
    """Yield rows by time, then by every column that can be compared: the same order in each attempt.

    Holds the partition's rows of the batch in memory.
    """
    batches = list(rows)
    if batches:
        table = pa.Table.from_batches(batches)
        plain = [field.name for field in table.schema if not pa.types.is_nested(field.type)]
        first = [event_time] if event_time is not None else []
        names = first + [name for name in plain if name not in first]
        yield from table.sort_by([(name, "ascending") for name in names]).to_batches()


def _letters(
    failed: pa.RecordBatch, operator: str, commit: CommitRecord, planned: PlannedBatch
) -> pa.RecordBatch:
    """Return failed rows in the schema of the dead letter table."""
    from tidegate.pipeline.stateful.dead_letters import DEAD_LETTER_SCHEMA

    count = failed.num_rows
    places = pc.binary_join_element_wise(" (", pc.fill_null(failed["place"], "no line of yours"), ")", "")
    reasons = pc.binary_join_element_wise(failed["error"], ": ", failed["reason"], places, "")
    at = pa.scalar(planned.batch_time_ms * 1000, pa.timestamp("us", tz="UTC"))
    columns = {
        "operator": pa.repeat(operator, count),
        "partition": pa.repeat(pa.scalar(commit.partition, pa.int32()), count),
        "batch": pa.repeat(pa.scalar(commit.batch, pa.int64()), count),
        "key": failed["key"],
        "reason": reasons,
        "row": failed["row"],
        "at": pa.repeat(at, count),
    }
    return pa.RecordBatch.from_pydict(columns, schema=DEAD_LETTER_SCHEMA)
