"""The context of the tasks of a stateful operator: which batch and partition a task works for.

A task works for one partition of one batch. Spark's log names the batch, or the driver that planned a batch
job. A task that has the rows of another one is refused before it has stored any of them.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.checkpoint.coalesce_guard import mark_moved, moved_error
from tidegate.checkpoint.keys.layout import groups_of
from tidegate.checkpoint.local.attempts import is_first_time
from tidegate.checkpoint.local.store import default_root, local_files
from tidegate.checkpoint.settings import BatchRequest, StateSettings
from tidegate.checkpoint.store import checkpoint_path, operator_store
from tidegate.errors import PlanChanged, StateInvalid, TidegateError
from tidegate.model.clock import Clock, SystemClock
from tidegate.pipeline.stateful.spark_log import (
    PlannedBatch,
    SparkTask,
    check_query,
    check_streaming_task,
    current_task,
    read_planned_batch,
)
from tidegate.pipeline.stateful.worker_setup import prepare_worker
from tidegate.pipeline.topic.client import with_hint_note

# Of the hash of a checkpoint's path, which tells a few apart.
DIGEST_BYTES = 4

_PROCESS = re.compile(r"\bprocess\b")
_TWO_JOBS = (
    "Two batch jobs were planned on this checkpoint at once. Call process again once the other job is done, "
    "or give each job a checkpoint of its own."
)


@dataclass(frozen=True, slots=True)
class StatefulTaskContext:
    """What all tasks of an operator share: made once on the driver, the same for all batches of a query."""

    operator: str
    parallelism: int
    max_parallelism: int
    settings: StateSettings
    # None: the state lives as long as the task.
    checkpoint: str | None
    seen_epoch: int | None = None
    savepoint: str | None = None
    # A batch job has one batch, planned on the driver; a query's are read from Spark's log.
    planned: PlannedBatch | None = None
    # Which call on the driver made this, and of which public function.
    call: str = ""
    function: str = "process"

    def plan(self, task: SparkTask) -> PlannedBatch:
        """Return the batch that a task works for, from the driver or from Spark's log."""
        if self.planned is not None:
            return self.planned
        checkpoint = checkpoint_path(str(self.checkpoint))
        number = check_streaming_task(task, self.operator)
        check_query(checkpoint, task.query_id, self.operator)
        return read_planned_batch(checkpoint, number, self.operator)

    def request(self, task: SparkTask, planned: PlannedBatch) -> BatchRequest:
        """Return the request of a task for its batch and partition."""
        return BatchRequest(
            checkpoint=str(self.checkpoint),
            operator=self.operator,
            partition=task.partition,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            number=planned.number,
            plan_id=planned.plan_id,
            attempt=task.attempt,
            savepoint=self.savepoint,
            seen_epoch=self.seen_epoch,
            run=task.run,
            call=self.call,
        )

    def check_first_time(self, request: BatchRequest, clock: Clock) -> None:
        """Refuse an attempt that ran before for another partition: Spark coalesced the partitions."""
        directory = self.settings.local_directory(clock)
        folder = directory.operator_folder(operator_store(request.checkpoint, request.operator))
        with local_files(folder):
            is_first = is_first_time(folder, request.partition, request.attempt)
        if not is_first:
            raise self.moved(request)

    def check_partition(self, partition: int, request: BatchRequest | None) -> None:
        """Refuse a task after the last partition: Spark moved the partitions."""
        if partition >= self.parallelism:
            raise self.moved(request)

    def check_groups(self, partition: int, groups: pa.Array, request: BatchRequest | None) -> None:
        """Refuse rows of another instance, whose state would be stored in the wrong partition."""
        owned = groups_of(partition, self.parallelism, self.max_parallelism)
        ends = pc.min_max(groups).as_py()
        if ends["min"] not in owned or ends["max"] not in owned:
            raise self.moved(request)

    def moved(self, request: BatchRequest | None) -> StateInvalid:
        """Return the refusal of a task that has the rows of another one, and mark its batch."""
        if request is not None:
            mark_moved(operator_store(request.checkpoint, request.operator), request)
        return moved_error(self.operator)

    def hint(self, problem: TidegateError) -> None:
        """Set the hint of an error to what helps in this task, and add it as a note."""
        if isinstance(problem, PlanChanged) and self.planned is not None:
            problem.hint = _TWO_JOBS
        reword_hint(problem, self.function)
        with_hint_note(problem)


@dataclass(frozen=True, slots=True)
class StatefulTask:
    """The function that each task runs, made once on the driver and the same for all batches of a query."""

    context: StatefulTaskContext

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the output of one partition of one batch."""
        try:
            yield from self._output_rows(current_task(), batches, SystemClock())
            prepare_worker()
        except TidegateError as problem:
            self.context.hint(problem)
            raise

    @property
    def __name__(self) -> str:
        """The name of the task in Spark's plans."""
        return task_name(self.context.operator, self.context.checkpoint)

    def _output_rows(
        self, task: SparkTask, batches: Iterator[pa.RecordBatch], clock: Clock
    ) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError


def reword_hint(problem: TidegateError, function: str) -> None:
    """Let the hint of an error name the public function that was called."""
    if function != "process":
        if problem.hint == StateInvalid.default_hint:
            problem.hint = "docs/guide/dedup.md shows what it takes."
        problem.hint = _PROCESS.sub(function, problem.hint)


def task_name(operator: str, checkpoint: str | None) -> str:
    """Return the name of an operator's task in Spark's plans.

    Two operators on one checkpoint never share it.
    """
    digest = hashlib.blake2b(str(checkpoint).encode(), digest_size=DIGEST_BYTES).hexdigest()
    return f"KeyedTask.{operator}@{digest}"


@contextmanager
def temporary_state_folder(settings: StateSettings) -> Iterator[Path]:
    """Yield a folder on this machine's disk for state that is removed afterwards."""
    root = Path(settings.local_root) if settings.local_root else default_root()
    with local_files(root):
        root.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix="passing-", dir=root)
    with made as folder:
        yield Path(folder)
