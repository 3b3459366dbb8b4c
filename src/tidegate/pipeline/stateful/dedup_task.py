"""The Spark task of a deduplication: one partition of one batch.

Rows are buffered until all of them are decided; then the accepted keys are committed, then the rows are
returned. A partition that was committed before, by whatever attempt, is not decided again: the changelog
file says which keys and times were accepted, and the same rows are returned. So no output is stored beside
the keys.

`StoreDecider` asks the store and passes on what is to be committed. `ReplayDecider` reads what was committed:
from the batch's own commit record or, where the number of instances has changed since, from those of all old
instances that had its keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.checkpoint.backend import Changes
from tidegate.checkpoint.batch import open_batch
from tidegate.checkpoint.changelog import read_changes
from tidegate.checkpoint.commit import Opened
from tidegate.checkpoint.commit_record import Head, RunFacts, head_name, read_head
from tidegate.checkpoint.keys.layout import groups_of
from tidegate.checkpoint.local.store import default_root
from tidegate.checkpoint.output_file import read_output
from tidegate.checkpoint.rescale import shares
from tidegate.checkpoint.settings import Asked
from tidegate.checkpoint.store import operator_depot, partition_folder
from tidegate.dedup.columns import GROUP_BYTES, Found, KeyColumn
from tidegate.dedup.decision import DUPLICATE, OUTCOMES, UNIQUE, BatchColumns, Decision, Lookup, decide
from tidegate.dedup.identity import Identity, check_identity
from tidegate.dedup.replay import Keep, Published, duplicates_table, redo
from tidegate.dedup.settings import SegmentRule
from tidegate.dedup.statistics import Additions, notes_after
from tidegate.dedup.store.keys import segments_in
from tidegate.dedup.store.segment import Tallies
from tidegate.dedup.store.store import SegmentStore
from tidegate.errors import BatchTaken, InvariantBroken, PlanChanged, StateMismatch, TidegateError
from tidegate.model.clock import Clock, SystemClock
from tidegate.pipeline.stateful.dedup_columns import KeyBucket, KeyRows, RowLayout, gather_rows
from tidegate.pipeline.stateful.row_hashes import row_hashes
from tidegate.pipeline.stateful.spark_log import PlannedBatch, SparkTask, current_task
from tidegate.pipeline.stateful.spill_buffer import SpillBuffer
from tidegate.pipeline.stateful.task_context import StatefulTaskContext, task_name
from tidegate.pipeline.stateful.worker_setup import prepare_worker
from tidegate.state.schema.schema import Wanted, resolve_schema

Flags = npt.NDArray[np.bool_]


class Decider(Protocol):
    """Returns the decision on the rows of a batch, or of one part of it."""

    @property
    def knows_firsts(self) -> bool:
        """Return whether the decisions have the first times of duplicates."""
        ...

    def __call__(self, rows: BatchColumns, part: KeyBucket | None) -> Decision:
        """Return the decision; each part is judged once."""
        ...


class RowOutcomes:
    """What became of every row of a batch."""

    def __init__(self, outcome: Marks, first_us: Longs | None, *, knows_firsts: bool) -> None:
        """`first_us` has room for the first times, where they are given out."""
        self.outcome = outcome
        self.counts = dict.fromkeys(OUTCOMES, 0)
        self.newest_us: int | None = None
        self._first_us = first_us
        self._knows_firsts = knows_firsts

    def add(self, decision: Decision, numbers: Longs | None) -> None:
        """Take the decision on some rows, or on all."""
        place: Any = slice(None) if numbers is None else numbers
        self.outcome[place] = decision.outcome
        if self._first_us is not None:
            self._first_us[place] = decision.first_us
        for name, count in decision.counts.items():
            self.counts[name] += count
        seen = [at_us for at_us in (self.newest_us, decision.newest_us) if at_us is not None]
        self.newest_us = max(seen, default=None)

    def firsts(self, start: int, stop: int) -> tuple[Longs, npt.NDArray[np.bool_]]:
        """Return the first times of a range of rows, and which rows have none."""
        if self._first_us is None:
            raise InvariantBroken(reason="first times are kept where they are given out")
        is_none = (
            self.outcome[start:stop] != DUPLICATE if self._knows_firsts else np.ones(stop - start, np.bool_)
        )
        return self._first_us[start:stop], is_none


class EmptyLookup:
    """The store of a batch job that remembers nothing: every key is new."""

    def __init__(self, *, with_offsets: bool) -> None:
        self._with_offsets = with_offsets

    def lookup(self, keys: KeyColumn, from_us: Longs, to_us: Longs) -> Found:  # noqa: ARG002
        """Return nothing."""
        none = np.empty(0, np.int64)
        return Found(none, none, none if self._with_offsets else None)


class StoreDecider:
    """Decides against what is stored. `left` are the changes that are still to be published at the end."""

    knows_firsts = True

    def __init__(
        self,
        store: Lookup,
        rule: SegmentRule,
        stream_us: int | None,
        opened: Opened | None,
        *,
        keeps_firsts: bool,
    ) -> None:
        """`opened` takes the changes of all parts but the last, and, where they are kept, the first times."""
        self.left = Changes()
        self._store = store
        self._rule = rule
        self._stream_us = stream_us
        self._opened = opened
        self._keeps_firsts = keeps_firsts
        self._segments: set[int] = set()

    def __call__(self, rows: BatchColumns, part: KeyBucket | None) -> Decision:
        decision = decide(rows, self._store, self._rule, self._stream_us)
        if isinstance(self._store, SegmentStore):
            self._segments |= segments_in(decision.changes)
            self._store.check_segments(self._segments)
        if self._opened is not None:
            if self._keeps_firsts and decision.counts[OUTCOMES[DUPLICATE]]:
                for batch in duplicates_table(rows, decision).to_batches():
                    self._opened.write_out(batch)
            if part is None or part.number == part.count - 1:
                self.left = decision.changes
            else:
                self._opened.add_changes(decision.changes)
        return decision


class ReplayDecider:
    """Returns the decisions of a published batch again."""

    def __init__(self, opened: Opened, heads: tuple[Head, ...]) -> None:
        """`heads` are those that hold what was accepted of this instance's keys."""
        asked = opened.asked
        notes = heads[0].notes
        self._opened = opened
        self._heads = heads
        self._rule = SegmentRule(notes["retention_us"], notes["interval_us"])
        self._stream_us: int | None = notes["stream_us"]
        self._groups = None
        if asked.number < opened.epoch.first_batch:
            self._groups = groups_of(asked.partition, asked.parallelism, asked.max_parallelism)
        self._firsts = [batch for head in heads for batch in self._output(head)]
        self.knows_firsts = bool(self._firsts)

    def __call__(self, rows: BatchColumns, part: KeyBucket | None) -> Decision:
        firsts = pa.Table.from_batches(self._firsts) if self._firsts else None
        published = Published(self._opened.asked.operator, self._changes(), firsts, self._keep(part))
        return redo(rows, published, self._rule, self._stream_us)

    def _changes(self) -> Iterator[Changes]:
        for head in self._heads:
            yield from read_changes(
                self._opened.depot, partition_folder(head.epoch, head.partition), head.changes
            )

    def _output(self, head: Head) -> Iterator[pa.RecordBatch]:
        return read_output(self._opened.depot, partition_folder(head.epoch, head.partition), head.out)

    def _keep(self, part: KeyBucket | None) -> Keep | None:
        """Return which of the published keys are those of the rows at hand; None: all of them."""
        if part is None and self._groups is None:
            return None

        def keep(keys: KeyColumn) -> Flags:
            kept = np.ones(len(keys), np.bool_) if part is None else part.holds(keys)
            return kept if self._groups is None else kept & _within(keys, self._groups)

        return keep


def replayed_heads(opened: Opened) -> tuple[Head, ...]:
    """Return the heads that hold what a published batch accepted of an instance's keys.

    After a change of the number of instances these are of all old ones that had some of its key groups.
    """
    asked, epoch = opened.asked, opened.epoch
    if asked.number >= epoch.first_batch:
        return opened.heads
    if epoch.parent is None:
        raise InvariantBroken(reason=f"batch {asked.number} lies before an epoch that comes from nowhere")
    found = []
    for partition in shares(epoch, asked.partition):
        head = read_head(opened.depot, epoch.parent.epoch, partition, asked.number)
        if head is None:
            reason = f"batch {asked.number} of partition {partition}, epoch {epoch.parent.epoch}, is gone."
            raise StateMismatch(operator=asked.operator, reason=reason)
        if head.plan_id != asked.plan_id:
            raise PlanChanged(operator=asked.operator, partition=asked.partition, batch=asked.number)
        # Whoever linked it may have been killed before its name was on the disk for good.
        opened.depot.sync(head_name(head.epoch, head.partition, head.batch))
        found.append(head)
    return tuple(found)


def lookup_counts(before: Tallies, after: Tallies) -> dict[str, int]:
    """Return what lookups did between two moments, as heads count it."""
    old, new = asdict(before), asdict(after)
    did = {name: new[name] - old[name] for name in new}
    did["lookup_us"] = did.pop("lookup_ns") // 1_000
    return did


def _within(keys: KeyColumn, groups: range) -> Flags:
    if isinstance(keys.bytes_, list):
        numbers = np.array([int.from_bytes(key[:GROUP_BYTES]) for key in keys.bytes_], np.int64)
    else:
        numbers = np.ascontiguousarray(keys.bytes_[:, :GROUP_BYTES]).view(">u2").reshape(-1).astype(np.int64)
    return (numbers >= groups.start) & (numbers < groups.stop)


# Rows that are decided at once; more are worked on in parts, so that memory does not grow with the batch.
PART_ROWS_MAX = 4_000_000

# Of the columns behind the caller's; Spark takes columns by their place, and names them as it was told.
OUTCOME_NAME = "outcome"
FIRST_TIME_NAME = "first_time"

_ROWS_CHANGED_HINT = (
    "The source, or what stands between it and the deduplication, must give the same rows when a batch is "
    "repeated."
)

Longs = npt.NDArray[np.int64]
Marks = npt.NDArray[np.uint8]

_TEXTS = pa.array(OUTCOMES)


@dataclass(frozen=True, slots=True)
class _RecordingDecider:
    """Decides as another judge does, and notes what each part puts into segments."""

    judge: Decider
    added: Additions

    @property
    def knows_firsts(self) -> bool:
        return self.judge.knows_firsts

    def __call__(self, rows: BatchColumns, part: KeyBucket | None) -> Decision:
        decision = self.judge(rows, part)
        self.added.add(decision.changes)
        return decision


@dataclass(frozen=True, slots=True)
class DedupTask:
    """What runs in every task, made once on the driver and the same for all batches of a query."""

    seat: StatefulTaskContext
    wanted: Wanted
    identity: Identity
    rule: SegmentRule
    layout: RowLayout
    # The type of the column with the first time; None: only unique rows are given out.
    first_time: pa.DataType | None = None
    part_rows_max: int = PART_ROWS_MAX

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition of one batch."""
        try:
            yield from self._given(current_task(), batches, SystemClock())
            prepare_worker()
        except TidegateError as problem:
            self.seat.hint(problem)
            raise

    @property
    def __name__(self) -> str:
        """Spark shows it in its plans."""
        return task_name(self.seat.operator, self.seat.checkpoint)

    def _given(
        self, task: SparkTask, batches: Iterator[pa.RecordBatch], clock: Clock
    ) -> Iterator[pa.RecordBatch]:
        seat = self.seat
        root = Path(seat.settings.local_root) if seat.settings.local_root else default_root()
        with closing(SpillBuffer(root)) as spool:
            if seat.checkpoint is None:
                self._fill(spool, task.partition, batches, None)
                verdict = self._judged(spool, self._deciding_on_nothing())
            else:
                planned = seat.plan(task)
                asked = seat.asked(task, planned)
                seat.check_first_time(asked, clock)
                self._fill(spool, task.partition, batches, asked)
                verdict = self._once(asked, planned, spool, clock)
            # By now the copy of the state is free again, however slowly the rows are taken.
            yield from self._rows(spool, verdict)

    def _fill(
        self, spool: SpillBuffer, partition: int, batches: Iterable[pa.RecordBatch], asked: Asked | None
    ) -> None:
        """Take all rows; refuse those of another instance, which would be remembered in the wrong place."""
        self.seat.check_partition(partition, asked)
        for batch in batches:
            if batch.num_rows:
                self.seat.check_groups(partition, batch.column(self.layout.group), asked)
                self.layout.check(batch)
                spool.add(batch)

    def _once(self, asked: Asked, planned: PlannedBatch, spool: SpillBuffer, clock: Clock) -> RowOutcomes:
        """Decide and publish the batch, unless that was done before."""
        settings = self.seat.settings
        try:
            with open_batch(asked, settings, clock) as opened:
                if opened.replayed:
                    return self._again(asked, opened, spool)
                return self._published(planned, opened, spool)
        except BatchTaken:
            # Another attempt was first, and nothing of ours was given out: what it accepted holds.
            with open_batch(asked, settings, clock) as opened:
                if not opened.replayed:
                    raise
                return self._again(asked, opened, spool)

    def _published(self, planned: PlannedBatch, opened: Opened, spool: SpillBuffer) -> RowOutcomes:
        """Decide every row against what is stored, and publish the keys that were accepted."""
        asked, store = opened.asked, opened.backend
        if not isinstance(store, SegmentStore):
            raise InvariantBroken(reason=f"keys lie in segments, not in {type(store).__name__}")
        depot = operator_depot(asked.checkpoint, asked.operator)
        schema = resolve_schema(depot, self.wanted)
        check_identity(depot, self.identity, asked.operator)
        stream_us = opened.newest_event_us
        store.expire(stream_us)
        before = replace(store.tallies())
        deciding = StoreDecider(store, self.rule, stream_us, opened, keeps_firsts=self.first_time is not None)
        added = Additions(store.settings)
        verdict = self._judged(spool, _RecordingDecider(deciding, added))
        tallies = store.tallies()
        seen = [at_us for at_us in (stream_us, verdict.newest_us) if at_us is not None]
        newest_us = max(seen, default=None)
        facts = RunFacts(
            rows_in=spool.rows,
            rows_out=verdict.counts[OUTCOMES[UNIQUE]] if self.first_time is None else spool.rows,
            newest_event_ms=None if newest_us is None else newest_us // 1_000,
            newest_event_us=newest_us,
            watermark_ms=planned.watermark_ms,
            batch_time_ms=planned.batch_time_ms,
            schema=schema.number,
            counts=verdict.counts | lookup_counts(before, tallies),
            notes=notes_after(store, self.rule, stream_us, added),
        )
        opened.publish(deciding.left, facts)
        return verdict

    def _again(self, asked: Asked, opened: Opened, spool: SpillBuffer) -> RowOutcomes:
        """Return the verdict of a batch that was published, by this number of instances or by another."""
        heads = replayed_heads(opened)
        verdict = self._judged(spool, ReplayDecider(opened, heads))
        if asked.number >= opened.epoch.first_batch:
            before = {name: heads[0].counts.get(name, 0) for name in OUTCOMES}
            if before != verdict.counts:
                reason = f"batch {asked.number} had {before} rows the first time, and now {verdict.counts}"
                raise StateMismatch(operator=asked.operator, reason=reason, hint=_ROWS_CHANGED_HINT)
        return verdict

    def _deciding_on_nothing(self) -> StoreDecider:
        return StoreDecider(
            EmptyLookup(with_offsets=self.identity.with_offsets), self.rule, None, None, keeps_firsts=False
        )

    def _judged(self, spool: SpillBuffer, judge: Decider) -> RowOutcomes:
        """Return the verdict on all rows, in parts where they are many."""
        parts = max(1, -(-spool.rows // self.part_rows_max))
        has_firsts = self.first_time is not None
        first_us = spool.new_marks(np.int64) if has_firsts else None
        verdict = RowOutcomes(spool.new_marks(np.uint8), first_us, knows_firsts=judge.knows_firsts)
        for number in range(parts):
            part = KeyBucket(number, parts) if parts > 1 else None
            found = gather_rows(self.layout, spool.batches(), part)
            rows = BatchColumns(found.keys, found.times_us, found.offsets, self._tie(spool, found))
            verdict.add(judge(rows, part), found.numbers)
        return verdict

    def _tie(self, spool: SpillBuffer, found: KeyRows) -> Any:
        def tie(places: Longs) -> npt.NDArray[np.uint64]:
            numbers = places if found.numbers is None else found.numbers[places]
            return row_hashes(spool.take(numbers, self.layout.given))

        return tie

    def _rows(self, spool: SpillBuffer, verdict: RowOutcomes) -> Iterator[pa.RecordBatch]:
        """Yield the rows out as they came: the unique ones, or all of them with what became of each."""
        start, given = 0, range(self.layout.given)
        for batch in spool.batches():
            stop = start + batch.num_rows
            marks = verdict.outcome[start:stop]
            plain = batch.select(given)
            if self.first_time is not None:
                yield _with_outcomes(plain, marks, verdict.firsts(start, stop), self.first_time)
            else:
                is_unique = marks == UNIQUE
                count = int(np.count_nonzero(is_unique))
                if count:
                    yield plain if count == len(marks) else plain.filter(pa.array(is_unique))
            start = stop


def _with_outcomes(
    batch: pa.RecordBatch, marks: Marks, firsts: tuple[Longs, npt.NDArray[np.bool_]], kind: pa.DataType
) -> pa.RecordBatch:
    """Return rows with what became of each, and the first time of duplicates."""
    texts = _TEXTS.take(pa.array(marks))
    first_us, is_none = firsts
    times = pa.array(first_us, mask=is_none).cast(kind)
    names = [*batch.schema.names, OUTCOME_NAME, FIRST_TIME_NAME]
    return pa.RecordBatch.from_arrays([*batch.columns, texts, times], names=names)
