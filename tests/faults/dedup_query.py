"""The deduplication that is disturbed; its worker has no code of ours, so strikes stand around its task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.faults.dedup_rows import RETENTION
from tests.faults.driver import Case
from tests.faults.strikes import Strikes

NAME = "orders"
Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Struck:
    """A task around which strikes come; it goes to the Python workers."""

    def __init__(self, task: Task, strikes: Strikes) -> None:
        self.task = task
        self.strikes = strikes
        self.__name__ = getattr(task, "__name__", type(task).__name__)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Set the point at which this worker is to die, if it is, and do the work."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        self.strikes.arm(batch)
        yield from self.task(self._rows(batches, context.partitionId(), batch))

    def _rows(
        self, batches: Iterator[pa.RecordBatch], partition: int, batch: int
    ) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            yield rows
            if rows.num_rows:
                self.strikes.at_row(NAME, partition, batch)


def deduplicated(case: Case, rows: Any, checkpoint: str, local: Path, strikes: Strikes) -> Any:
    """Return every row with its outcome."""
    from tidegate.pipeline.stateful.deduplicate import deduplicate

    kind = type(rows)
    usual = kind.mapInArrow

    def watched(frame: Any, function: Task, *rest: Any, **options: Any) -> Any:
        return usual(frame, Struck(function, strikes), *rest, **options)

    kind.mapInArrow = watched
    try:
        return deduplicate(
            rows,
            name=NAME,
            on=["site", "number"],
            event_time="at",
            retention=RETENTION,
            checkpoint=checkpoint,
            outcome="outcome",
            offset="id",
            exact_keys=case.keeper == "dedup-exact",
            partitions=case.partitions,
            snapshot_every=case.snapshot_every,
            # Each worker of a cluster stands for a host with a disk of its own.
            local_dir=str(local) if case.master.startswith("local") else None,
        )
    finally:
        kind.mapInArrow = usual
