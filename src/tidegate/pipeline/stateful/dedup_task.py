"""The task of a deduplication: one partition of one batch.

Rows are buffered until all of them are decided; then the accepted keys are committed, then the rows are
output. A partition that was committed before, by whatever attempt, is not decided again: the changelog file
says which keys and times were accepted, and the same rows are output. So no output is stored beside the keys.

`StoreDecider` looks keys up in the store and passes on what is to be committed. `ReplayDecider` reads what
was committed: from the batch's own commit record or, where the number of instances has changed since, from
those of all old instances that had its keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.checkpoint.backend import StateChanges
from tidegate.checkpoint.batch import open_batch
from tidegate.checkpoint.changelog import read_changes
from tidegate.checkpoint.commit import OpenBatch, ReplayedBatch
from tidegate.checkpoint.commit_record import CommitRecord, RunFacts, commit_record_name, read_commit_record
from tidegate.checkpoint.keys.layout import groups_of
from tidegate.checkpoint.local.store import default_root
from tidegate.checkpoint.output_file import read_output
from tidegate.checkpoint.rescale import shares
from tidegate.checkpoint.settings import BatchRequest
from tidegate.checkpoint.store import operator_store, partition_folder
from tidegate.dedup.columns import GROUP_BYTES, SegmentKeys, StoredTimes
from tidegate.dedup.decision import DUPLICATE, OUTCOMES, UNIQUE, BatchColumns, Decision, decide
from tidegate.dedup.identity import DedupIdentity, check_identity
from tidegate.dedup.replay import Keep, PublishedBatch, duplicates_table, replay_decision
from tidegate.dedup.settings import SegmentRule
from tidegate.dedup.statistics import Additions, notes_after
from tidegate.dedup.store.keys import segments_in
from tidegate.dedup.store.store import SegmentStore
from tidegate.errors import BatchTaken, InvariantBroken, PlanChanged, StateMismatch
from tidegate.model.clock import Clock
from tidegate.pipeline.stateful.dedup_columns import KeyBucket, KeyRows, RowLayout, gather_rows
from tidegate.pipeline.stateful.row_hashes import row_hashes
from tidegate.pipeline.stateful.spark_log import PlannedBatch, SparkTask
from tidegate.pipeline.stateful.spill_buffer import SpillBuffer
from tidegate.pipeline.stateful.task_context import StatefulTask
from tidegate.state.schema.schema import SchemaRequest, resolve_schema

Flags = npt.NDArray[np.bool_]


class Decider(Protocol):
    """Returns the decision on the rows of a batch, or of one part of it."""

    @property
    def knows_firsts(self) -> bool:
        """True if the decisions have the first times of duplicates."""
        ...

    def __call__(self, rows: BatchColumns, part: KeyBucket | None) -> Decision:
        """Return the decision; each part is decided once."""
        ...


class RowOutcomes:
    """The outcome of every row of a batch."""

    def __init__(self, outcome: Marks, first_us: Longs | None, *, knows_firsts: bool) -> None:
        """`first_us` has room for the first times, where they are output."""
        self.outcome = outcome
        self.counts = dict.fromkeys(OUTCOMES, 0)
        self.newest_us: int | None = None
        self._first_us = first_us
        self._knows_firsts = knows_firsts

    def add(self, decision: Decision, numbers: Longs | None) -> None:
        """Add the decision on some rows, or on all."""
        index: Any = slice(None) if numbers is None else numbers
        self.outcome[index] = decision.outcome
        if self._first_us is not None:
            self._first_us[index] = decision.first_us
        for name, count in decision.counts.items():
            self.counts[name] += count
        self.newest_us = _later(self.newest_us, decision.newest_us)

    def firsts(self, start: int, stop: int) -> tuple[Longs, npt.NDArray[np.bool_]]:
        """Return the first times of a range of rows, and which rows have none."""
        if self._first_us is None:
            raise InvariantBroken(reason="first times are stored where they are output")
        is_none = (
            self.outcome[start:stop] != DUPLICATE if self._knows_firsts else np.ones(stop - start, np.bool_)
        )
        return self._first_us[start:stop], is_none


@dataclass(frozen=True, slots=True)
class StatelessDecider:
    """Decides the batch of a job without a checkpoint: to its store, which is empty, every key is new."""

    rule: SegmentRule
    with_offsets: bool

    knows_firsts = True

    def __call__(self, rows: BatchColumns, part: KeyBucket | None) -> Decision:  # noqa: ARG002
        return decide(rows, self, self.rule, None)

    def lookup(self, keys: SegmentKeys, from_us: Longs, to_us: Longs) -> StoredTimes:  # noqa: ARG002
        """Return no stored times."""
        none = np.empty(0, np.int64)
        return StoredTimes(none, none, none if self.with_offsets else None)


class StoreDecider:
    """Decides against the store.

    `left` are the changes that are committed at the end, `added` is what all parts add to segments.
    """

    knows_firsts = True

    def __init__(
        self,
        store: SegmentStore,
        rule: SegmentRule,
        stream_us: int | None,
        batch: OpenBatch,
        *,
        keeps_firsts: bool,
    ) -> None:
        """`batch` gets the changes of all parts but the last, and the first times where they are kept."""
        self.left = StateChanges()
        self.added = Additions(store.settings)
        self._store = store
        self._rule = rule
        self._stream_us = stream_us
        self._batch = batch
        self._keeps_firsts = keeps_firsts

    def __call__(self, rows: BatchColumns, part: KeyBucket | None) -> Decision:
        decision = decide(rows, self._store, self._rule, self._stream_us)
        self._store.check_segments({*self.added.by_segment, *segments_in(decision.changes)})
        self.added.add(decision.changes)
        if self._keeps_firsts and decision.counts[OUTCOMES[DUPLICATE]]:
            for firsts in duplicates_table(rows, decision).to_batches():
                self._batch.write_out(firsts)
        if part is None or part.number == part.count - 1:
            self.left = decision.changes
        else:
            self._batch.add_changes(decision.changes)
        return decision


class ReplayDecider:
    """Repeats the decisions of a committed batch."""

    def __init__(self, batch: ReplayedBatch, commits: tuple[CommitRecord, ...]) -> None:
        """`heads` are those that hold what was accepted of this instance's keys."""
        request = batch.request
        notes = commits[0].notes
        self._batch = batch
        self._commits = commits
        self._rule = SegmentRule(notes["retention_us"], notes["interval_us"])
        self._stream_us: int | None = notes["stream_us"]
        self._groups = None
        if request.number < batch.epoch.first_batch:
            self._groups = groups_of(request.partition, request.parallelism, request.max_parallelism)
        self._firsts = [batch for commit in commits for batch in self._output(commit)]
        self.knows_firsts = bool(self._firsts)

    def __call__(self, rows: BatchColumns, part: KeyBucket | None) -> Decision:
        firsts = pa.Table.from_batches(self._firsts) if self._firsts else None
        published = PublishedBatch(self._batch.request.operator, self._changes(), firsts, self._keep(part))
        return replay_decision(rows, published, self._rule, self._stream_us)

    def _changes(self) -> Iterator[StateChanges]:
        for commit in self._commits:
            yield from read_changes(
                self._batch.store, partition_folder(commit.epoch, commit.partition), commit.changes
            )

    def _output(self, commit: CommitRecord) -> Iterator[pa.RecordBatch]:
        return read_output(self._batch.store, partition_folder(commit.epoch, commit.partition), commit.out)

    def _keep(self, part: KeyBucket | None) -> Keep | None:
        """Return the filter for the committed keys of the current rows; None: all of them."""
        if part is None and self._groups is None:
            return None

        def keep(keys: SegmentKeys) -> Flags:
            mask = np.ones(len(keys), np.bool_) if part is None else part.holds(keys)
            return mask if self._groups is None else mask & _within(keys, self._groups)

        return keep


def replayed_commits(batch: ReplayedBatch) -> tuple[CommitRecord, ...]:
    """Return the commit records of what a committed batch accepted of an instance's keys.

    After a rescale these are of all old instances that had some of its key groups.
    """
    request, epoch = batch.request, batch.epoch
    if request.number >= epoch.first_batch:
        return batch.commits
    if epoch.parent is None:
        raise InvariantBroken(reason=f"batch {request.number} lies before an epoch without a parent")
    found = []
    for partition in shares(epoch, request.partition):
        commit = read_commit_record(batch.store, epoch.parent.epoch, partition, request.number)
        if commit is None:
            reason = f"batch {request.number} of partition {partition}, epoch {epoch.parent.epoch}, is gone."
            raise StateMismatch(operator=request.operator, reason=reason)
        if commit.plan_id != request.plan_id:
            raise PlanChanged(operator=request.operator, partition=request.partition, batch=request.number)
        # The task that linked it may have been killed before the directory was synced.
        batch.store.sync(commit_record_name(commit.epoch, commit.partition, commit.batch))
        found.append(commit)
    return tuple(found)


def _later(first_us: int | None, second_us: int | None) -> int | None:
    """Return the later of two times, either of which may be missing."""
    return max((at_us for at_us in (first_us, second_us) if at_us is not None), default=None)


def _within(keys: SegmentKeys, groups: range) -> Flags:
    if isinstance(keys.bytes_, list):
        numbers = np.array([int.from_bytes(key[:GROUP_BYTES]) for key in keys.bytes_], np.int64)
    else:
        numbers = np.ascontiguousarray(keys.bytes_[:, :GROUP_BYTES]).view(">u2").reshape(-1).astype(np.int64)
    return (numbers >= groups.start) & (numbers < groups.stop)


# Rows that are decided at once; more are decided in parts, so that memory does not grow with the batch.
PART_ROWS_MAX = 4_000_000

# Of the columns after the caller's; Spark matches them by position, and names them by the plan's schema.
OUTCOME_NAME = "outcome"
FIRST_TIME_NAME = "first_time"

_ROWS_CHANGED_HINT = (
    "The source, or what is between it and the deduplication, must give the same rows when a batch is "
    "repeated."
)

Longs = npt.NDArray[np.int64]
Marks = npt.NDArray[np.uint8]

_TEXTS = pa.array(OUTCOMES)


@dataclass(frozen=True, slots=True)
class DedupTask(StatefulTask):
    """The task that outputs the rows of one partition of one batch, decided."""

    schema_request: SchemaRequest
    identity: DedupIdentity
    rule: SegmentRule
    layout: RowLayout
    # The type of the column with the first time; None: only unique rows are output.
    first_time: pa.DataType | None = None
    part_rows_max: int = PART_ROWS_MAX

    def _output_rows(
        self, task: SparkTask, batches: Iterator[pa.RecordBatch], clock: Clock
    ) -> Iterator[pa.RecordBatch]:
        context = self.context
        root = Path(context.settings.local_root) if context.settings.local_root else default_root()
        with closing(SpillBuffer(root)) as buffer:
            if context.checkpoint is None:
                self._fill(buffer, task.partition, batches, None)
                outcomes = self._decide(buffer, StatelessDecider(self.rule, self.identity.with_offsets))
            else:
                planned = context.plan(task)
                request = context.request(task, planned)
                context.check_first_time(request, clock)
                self._fill(buffer, task.partition, batches, request)
                outcomes = self._run_or_replay(request, planned, buffer, clock)
            # By now the local store is free again, however slowly the rows are consumed.
            yield from self._rows(buffer, outcomes)

    def _fill(
        self,
        buffer: SpillBuffer,
        partition: int,
        batches: Iterable[pa.RecordBatch],
        request: BatchRequest | None,
    ) -> None:
        """Buffer all rows; refuse those of another instance."""
        self.context.check_partition(partition, request)
        for batch in batches:
            if batch.num_rows:
                self.context.check_groups(partition, batch.column(self.layout.group), request)
                self.layout.check(batch)
                buffer.add(batch)

    def _run_or_replay(
        self, request: BatchRequest, planned: PlannedBatch, buffer: SpillBuffer, clock: Clock
    ) -> RowOutcomes:
        """Decide and commit the batch, unless that was done before."""
        settings = self.context.settings
        try:
            with open_batch(request, settings, clock) as batch:
                if batch.replayed:
                    return self._replay(batch, buffer)
                return self._run_batch(planned, batch, buffer)
        except BatchTaken:
            # Another attempt committed first, and nothing of this one was output: its decisions hold.
            with open_batch(request, settings, clock) as batch:
                if not batch.replayed:
                    raise
                return self._replay(batch, buffer)

    def _run_batch(self, planned: PlannedBatch, batch: OpenBatch, buffer: SpillBuffer) -> RowOutcomes:
        """Decide every row against the store, and commit the keys that were accepted."""
        request, store = batch.request, batch.backend
        if not isinstance(store, SegmentStore):
            raise InvariantBroken(reason=f"keys lie in segments, not in {type(store).__name__}")
        checkpoint_store = operator_store(request.checkpoint, request.operator)
        schema = resolve_schema(checkpoint_store, self.schema_request)
        check_identity(checkpoint_store, self.identity, request.operator)
        stream_us = batch.newest_event_us
        store.expire(stream_us)
        before = store.lookup_counters()
        decider = StoreDecider(store, self.rule, stream_us, batch, keeps_firsts=self.first_time is not None)
        outcomes = self._decide(buffer, decider)
        newest_us = _later(stream_us, outcomes.newest_us)
        facts = RunFacts(
            rows_in=buffer.row_count,
            rows_out=outcomes.counts[OUTCOMES[UNIQUE]] if self.first_time is None else buffer.row_count,
            newest_event_ms=None if newest_us is None else newest_us // 1_000,
            newest_event_us=newest_us,
            watermark_ms=planned.watermark_ms,
            batch_time_ms=planned.batch_time_ms,
            schema=schema.number,
            counts=outcomes.counts | store.lookup_counters().since(before),
            notes=notes_after(store, self.rule, stream_us, decider.added),
        )
        batch.publish(decider.left, facts)
        return outcomes

    def _replay(self, batch: ReplayedBatch, buffer: SpillBuffer) -> RowOutcomes:
        """Return the outcomes of a committed batch, by this number of instances or by another."""
        request = batch.request
        commits = replayed_commits(batch)
        outcomes = self._decide(buffer, ReplayDecider(batch, commits))
        if request.number >= batch.epoch.first_batch:
            before = {name: commits[0].counts.get(name, 0) for name in OUTCOMES}
            if before != outcomes.counts:
                reason = f"batch {request.number} had {before} rows the first time, and now {outcomes.counts}"
                raise StateMismatch(operator=request.operator, reason=reason, hint=_ROWS_CHANGED_HINT)
        return outcomes

    def _decide(self, buffer: SpillBuffer, decider: Decider) -> RowOutcomes:
        """Return the outcomes of all rows, decided in parts where they are many."""
        parts = max(1, -(-buffer.row_count // self.part_rows_max))
        has_firsts = self.first_time is not None
        first_us = buffer.new_array(np.int64) if has_firsts else None
        outcomes = RowOutcomes(buffer.new_array(np.uint8), first_us, knows_firsts=decider.knows_firsts)
        for number in range(parts):
            part = KeyBucket(number, parts) if parts > 1 else None
            keys = gather_rows(self.layout, buffer.batches(), part)
            rows = BatchColumns(keys.keys, keys.times_us, keys.offsets, self._tie_breaker(buffer, keys))
            outcomes.add(decider(rows, part), keys.numbers)
        return outcomes

    def _tie_breaker(self, buffer: SpillBuffer, keys: KeyRows) -> Any:
        def hashes(indexes: Longs) -> npt.NDArray[np.uint64]:
            numbers = indexes if keys.numbers is None else keys.numbers[indexes]
            return row_hashes(buffer.take(numbers, self.layout.input_columns))

        return hashes

    def _rows(self, buffer: SpillBuffer, outcomes: RowOutcomes) -> Iterator[pa.RecordBatch]:
        """Yield the rows in their order: the unique ones, or all of them with their outcomes."""
        start, columns = 0, range(self.layout.input_columns)
        for batch in buffer.batches():
            stop = start + batch.num_rows
            marks = outcomes.outcome[start:stop]
            plain = batch.select(columns)
            if self.first_time is not None:
                yield _with_outcomes(plain, marks, outcomes.firsts(start, stop), self.first_time)
            else:
                is_unique = marks == UNIQUE
                count = int(np.count_nonzero(is_unique))
                if count:
                    yield plain if count == len(marks) else plain.filter(pa.array(is_unique))
            start = stop


def _with_outcomes(
    batch: pa.RecordBatch, marks: Marks, firsts: tuple[Longs, npt.NDArray[np.bool_]], kind: pa.DataType
) -> pa.RecordBatch:
    """Return rows with their outcomes, and the first times of duplicates."""
    texts = _TEXTS.take(pa.array(marks))
    first_us, is_none = firsts
    times = pa.array(first_us, mask=is_none).cast(kind)
    names = [*batch.schema.names, OUTCOME_NAME, FIRST_TIME_NAME]
    return pa.RecordBatch.from_arrays([*batch.columns, texts, times], names=names)
