"""What the tests of deduplication share: a dictionary model, tasks without Spark, tasks that are struck."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from tests.pipeline.stateful.keyed_jobs import is_first
from tidegate.checkpoint.commit import OpenBatch
from tidegate.checkpoint.crash_points import ONCE_VARIABLE, POINT_VARIABLE
from tidegate.checkpoint.keys.codec import KeyType, StateKeyColumn
from tidegate.checkpoint.keys.spark_hash import groups_of_hashes
from tidegate.checkpoint.settings import StateSettings
from tidegate.dedup.identity import DedupIdentity, digest_columns
from tidegate.dedup.settings import SegmentRule, SegmentSettings
from tidegate.dedup.store.store import SegmentStoreFactory
from tidegate.model.clock import SystemClock
from tidegate.pipeline.stateful.dedup_columns import RowLayout
from tidegate.pipeline.stateful.dedup_task import DedupTask, RowOutcomes
from tidegate.pipeline.stateful.spark_log import PlannedBatch, SparkTask, current_task
from tidegate.pipeline.stateful.spill_buffer import SpillBuffer
from tidegate.pipeline.stateful.task_context import StatefulTaskContext
from tidegate.state.schema.schema import SchemaRequest

# Spark's Python workers may be started in any folder: what stands here travels to them by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SECOND_US = 1_000_000
MAX_PARALLELISM = 8

Seen = tuple[str | None, int, int]  # key, a number that tells rows apart, event time in seconds


def expected_outcomes(batches: Sequence[Sequence[Seen]], retention_s: int) -> list[list[list[Any]]]:
    """Return each batch's rows with their outcome and first time, by the rule, from a plain dictionary."""
    stored: dict[str | None, list[int]] = {}
    newest: int | None = None
    given = []
    for batch in batches:
        counts_from = None if newest is None else newest - retention_s
        rows: list[list[Any]] = []
        for key, number, at in sorted(batch, key=lambda row: row[2]):
            times = [t for t in stored.get(key, []) if counts_from is None or t >= counts_from]
            near = [t for t in times if abs(t - at) < retention_s]
            if counts_from is not None and at < counts_from:
                rows.append([key, number, at, "late", None])
            elif near:
                rows.append([key, number, at, "duplicate", min(near)])
            else:
                rows.append([key, number, at, "unique", None])
                stored.setdefault(key, []).append(at)
        newest = max([at for _, _, at in batch] + ([] if newest is None else [newest]), default=None)
        given.append(sorted(rows, key=repr))
    return given


def unique_of(batches: Sequence[Sequence[list[Any]]]) -> list[list[list[Any]]]:
    """Return the rows that come out without `outcome`."""
    return [[row[:3] for row in batch if row[3] == "unique"] for batch in batches]


def random_rows(seed: int, count: int, keys: int = 60, span_s: int = 240) -> list[Seen]:
    """Return rows of few keys, out of order, around a time that rises with the seed.

    No key and time twice.
    """
    rng = np.random.default_rng(seed)
    picked = rng.integers(0, keys, count).tolist()
    times = (rng.integers(0, span_s, count) + seed * 90).tolist()
    rows = {(number, at): row for row, (number, at) in enumerate(zip(picked, times, strict=True))}
    return [(None if key == 0 else f"k{key}", row + seed * 10_000, at) for (key, at), row in rows.items()]


@dataclass(frozen=True, slots=True)
class Struck(DedupTask):
    """A task whose worker is killed at named points, one for each batch, each once."""

    folder: str = ""
    points: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batch = current_task().batch or 0
        if batch < len(self.points):
            os.environ[POINT_VARIABLE] = self.points[batch]
            os.environ[ONCE_VARIABLE] = f"{self.folder}/struck.{batch}"
        try:
            yield from DedupTask.__call__(self, batches)
        finally:
            os.environ.pop(POINT_VARIABLE, None)


@dataclass(frozen=True, slots=True)
class Overtaken(DedupTask):
    """A task before whose decision something else is done."""

    before: Callable[[], None] | None = None

    def _run_batch(self, planned: PlannedBatch, batch: OpenBatch, buffer: SpillBuffer) -> RowOutcomes:
        if self.before is not None:
            self.before()
        return DedupTask._run_batch(self, planned, batch, buffer)


def failing_once(mark: str) -> Any:
    """Return a step behind the operator that fails once, when it has seen rows of a published batch."""

    def given_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows and is_first(mark):
                raise RuntimeError("told to fail")
            yield batch

    return given_on


class Bench:
    """Runs tasks of a deduplication without Spark: rows (key, number, seconds), one call a partition."""

    def __init__(
        self,
        folder: Path,
        retention_s: int = 100,
        mark: str = "local",
        before: Callable[[], None] | None = None,
        **task: Any,
    ) -> None:
        """`mark` tells the machines of two benches apart; `before` is called once a batch is opened."""
        self._folder = folder
        self._mark = mark
        self._before = before
        self._task = task
        # As long as the retention: few segments, whose files take most of the time.
        self._rule = SegmentRule.of(retention_s * SECOND_US, retention_s * SECOND_US)
        self._attempts = 0

    def task(self, parallelism: int, number: int) -> DedupTask:
        """Return the task of a batch."""
        rule = self._rule
        segments = SegmentSettings(store="d", retention_us=rule.retention_us, interval_us=rule.interval_us)
        context = StatefulTaskContext(
            operator="d",
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            settings=StateSettings(
                backend=SegmentStoreFactory(segments), local_root=str(self._folder / self._mark)
            ),
            checkpoint=str(self._folder / "checkpoint"),
            planned=PlannedBatch(number, f"plan {number}", None, 0),
        )
        wanted = SchemaRequest("d", KeyType((StateKeyColumn("digest", "binary"),)), MAX_PARALLELISM, ())
        identity = DedupIdentity(
            rule.retention_us,
            rule.interval_us,
            exact_keys=False,
            with_offsets=False,
            columns=(("k", "string"),),
        )
        layout = RowLayout("d", 3, 2, "at")
        first_time = pa.timestamp("us", tz="UTC")
        made = Overtaken(context, wanted, identity, rule, layout, first_time)
        before, self._before = self._before, None
        return replace(made, before=before, **self._task)

    def run(
        self, number: int, rows: Sequence[Seen], parallelism: int = 2, pieces: int = 3
    ) -> list[list[Any]]:
        """Return what comes out of a batch, in the order of `expected_outcomes`."""
        out: list[list[Any]] = []
        task = self.task(parallelism, number)
        for partition in range(parallelism):
            self._attempts += 1
            at = SparkTask(partition, f"app/{self._mark}/{self._attempts}", None, None)
            for batch in task._output_rows(
                at, iter(self._rows(rows, parallelism, partition, pieces)), SystemClock()
            ):
                out += map(_plain, batch.to_pylist())
        return sorted(out, key=repr)

    def _rows(
        self, rows: Sequence[Seen], parallelism: int, partition: int, pieces: int
    ) -> Iterable[pa.RecordBatch]:
        keys = pa.array([key for key, _, _ in rows], pa.string())
        first, second = digest_columns([keys])
        groups = groups_of_hashes(first, MAX_PARALLELISM)
        batch = pa.RecordBatch.from_arrays(
            [
                keys,
                pa.array([number for _, number, _ in rows], pa.int64()),
                pa.array([at and at * SECOND_US for _, _, at in rows], pa.timestamp("us", tz="UTC")),
                pa.array(groups, pa.int32()),
                pa.array(first.view(np.int64)),
                pa.array(second.view(np.int64)),
            ],
            names=["c0", "c1", "c2", "c3", "c4", "c5"],
        )
        mine = batch.filter(pa.array(groups * parallelism // MAX_PARALLELISM == partition))
        step = max(1, -(-mine.num_rows // pieces))
        return [mine.slice(start, step) for start in range(0, mine.num_rows, step)]


def _plain(row: dict[str, Any]) -> list[Any]:
    key, number, at, outcome, first = row.values()
    return [key, number, int(at.timestamp()), outcome, None if first is None else int(first.timestamp())]
