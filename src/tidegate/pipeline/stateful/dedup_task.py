"""The task of a deduplication: takes one partition's rows of a batch, gives those that were not there before.

Rows are held until all of them are decided; then the accepted keys are published, then rows are given out. A
partition that was published before, by whatever attempt, is not decided again: the change file says which
keys and times were accepted, and the same rows are given out. So no output is stored beside the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import BatchTaken, InvariantBroken, StateMismatch, TidegateError
from tidegate.model.clock import Clock, SystemClock
from tidegate.pipeline.dedup_columns import Gathered, Part, RowLayout, gathered
from tidegate.pipeline.dedup_judges import (
    Deciding,
    Judge,
    NothingStored,
    Redoing,
    Verdict,
    counted,
    replayed_heads,
)
from tidegate.pipeline.planned import Planned, Task, current_task
from tidegate.pipeline.row_hashes import row_hashes
from tidegate.pipeline.seats import Seat, task_name
from tidegate.pipeline.settling import settle_once
from tidegate.pipeline.spool import Spool
from tidegate.state.batch import Asked, Opened, RunFacts, open_batch
from tidegate.state.depot import operator_depot
from tidegate.state.local import default_root
from tidegate.state.schemas import Wanted, resolve_schema
from tidegate.state.segments.decide import OUTCOMES, UNIQUE, BatchColumns, Decision
from tidegate.state.segments.identity import Identity, check_identity
from tidegate.state.segments.noting import Additions, notes_after
from tidegate.state.segments.rule import SegmentRule
from tidegate.state.segments.store import SegmentStore

# Rows that are decided at once; more are worked on in parts, so that memory does not grow with the batch.
PART_ROWS_MAX = 4_000_000

# Of the columns behind the caller's; Spark takes columns by their place, and names them as it was told.
OUTCOME_NAME = "outcome"
FIRST_TIME_NAME = "first_time"

_OTHER = (
    "The source, or what stands between it and the deduplication, must give the same rows when a batch is "
    "repeated."
)

Longs = npt.NDArray[np.int64]
Marks = npt.NDArray[np.uint8]

_TEXTS = pa.array(OUTCOMES)


@dataclass(frozen=True, slots=True)
class _Noting:
    """Decides as another judge does, and notes what each part puts into segments."""

    judge: Judge
    added: Additions

    @property
    def knows_firsts(self) -> bool:
        return self.judge.knows_firsts

    def __call__(self, rows: BatchColumns, part: Part | None) -> Decision:
        decision = self.judge(rows, part)
        self.added.add(decision.changes)
        return decision


@dataclass(frozen=True, slots=True)
class DedupTask:
    """What runs in every task, made once on the driver and the same for all batches of a query."""

    seat: Seat
    wanted: Wanted
    identity: Identity
    rule: SegmentRule
    layout: RowLayout
    # The type of the column with the first time; None: only unique rows are given out.
    first_time: pa.DataType | None = None
    part_rows_max: int = PART_ROWS_MAX

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the rows of one partition of one batch."""
        try:
            yield from self._given(current_task(), batches, SystemClock())
            settle_once()
        except TidegateError as problem:
            self.seat.hint(problem)
            raise

    @property
    def __name__(self) -> str:
        """Spark shows it in its plans."""
        return task_name(self.seat.operator, self.seat.checkpoint)

    def _given(self, task: Task, batches: Iterator[pa.RecordBatch], clock: Clock) -> Iterator[pa.RecordBatch]:
        seat = self.seat
        root = Path(seat.settings.local_root) if seat.settings.local_root else default_root()
        with closing(Spool(root)) as spool:
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
        self, spool: Spool, partition: int, batches: Iterable[pa.RecordBatch], asked: Asked | None
    ) -> None:
        """Take all rows; refuse those of another instance, which would be remembered in the wrong place."""
        self.seat.check_partition(partition, asked)
        for batch in batches:
            if batch.num_rows:
                self.seat.check_groups(partition, batch.column(self.layout.group), asked)
                self.layout.check(batch)
                spool.add(batch)

    def _once(self, asked: Asked, planned: Planned, spool: Spool, clock: Clock) -> Verdict:
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

    def _published(self, planned: Planned, opened: Opened, spool: Spool) -> Verdict:
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
        deciding = Deciding(store, self.rule, stream_us, opened, keeps_firsts=self.first_time is not None)
        added = Additions(store.settings)
        verdict = self._judged(spool, _Noting(deciding, added))
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
            counts=verdict.counts | counted(before, tallies),
            notes=notes_after(store, self.rule, stream_us, added),
        )
        opened.publish(deciding.left, facts)
        return verdict

    def _again(self, asked: Asked, opened: Opened, spool: Spool) -> Verdict:
        """Give the verdict of a batch that was published, by this number of instances or by another."""
        heads = replayed_heads(opened)
        verdict = self._judged(spool, Redoing(opened, heads))
        if asked.number >= opened.epoch.first_batch:
            before = {name: heads[0].counts.get(name, 0) for name in OUTCOMES}
            if before != verdict.counts:
                reason = f"batch {asked.number} had {before} rows the first time, and now {verdict.counts}"
                raise StateMismatch(operator=asked.operator, reason=reason, hint=_OTHER)
        return verdict

    def _deciding_on_nothing(self) -> Deciding:
        return Deciding(
            NothingStored(with_offsets=self.identity.with_offsets), self.rule, None, None, keeps_firsts=False
        )

    def _judged(self, spool: Spool, judge: Judge) -> Verdict:
        """Give the verdict on all rows, in parts where they are many."""
        parts = max(1, -(-spool.rows // self.part_rows_max))
        has_firsts = self.first_time is not None
        first_us = spool.new_marks(np.int64) if has_firsts else None
        verdict = Verdict(spool.new_marks(np.uint8), first_us, knows_firsts=judge.knows_firsts)
        for number in range(parts):
            part = Part(number, parts) if parts > 1 else None
            found = gathered(self.layout, spool.batches(), part)
            rows = BatchColumns(found.keys, found.times_us, found.offsets, self._tie(spool, found))
            verdict.add(judge(rows, part), found.numbers)
        return verdict

    def _tie(self, spool: Spool, found: Gathered) -> Any:
        def tie(places: Longs) -> npt.NDArray[np.uint64]:
            numbers = places if found.numbers is None else found.numbers[places]
            return row_hashes(spool.take(numbers, self.layout.given))

        return tie

    def _rows(self, spool: Spool, verdict: Verdict) -> Iterator[pa.RecordBatch]:
        """Give the rows out as they came: the unique ones, or all of them with what became of each."""
        start, given = 0, range(self.layout.given)
        for batch in spool.batches():
            stop = start + batch.num_rows
            marks = verdict.outcome[start:stop]
            plain = batch.select(given)
            if self.first_time is not None:
                yield _marked(plain, marks, verdict.firsts(start, stop), self.first_time)
            else:
                is_unique = marks == UNIQUE
                count = int(np.count_nonzero(is_unique))
                if count:
                    yield plain if count == len(marks) else plain.filter(pa.array(is_unique))
            start = stop


def _marked(
    batch: pa.RecordBatch, marks: Marks, firsts: tuple[Longs, npt.NDArray[np.bool_]], kind: pa.DataType
) -> pa.RecordBatch:
    """Give rows with what became of each, and the first time of duplicates."""
    texts = _TEXTS.take(pa.array(marks))
    first_us, is_none = firsts
    times = pa.array(first_us, mask=is_none).cast(kind)
    names = [*batch.schema.names, OUTCOME_NAME, FIRST_TIME_NAME]
    return pa.RecordBatch.from_arrays([*batch.columns, texts, times], names=names)
