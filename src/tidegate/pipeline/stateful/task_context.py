"""Seats: takes where a task of an operator with state runs, gives the one batch that it works for.

A task works for one partition of one batch. Which one that is, Spark's log says, or the driver that planned a
batch job. A task that has the rows of another one is refused before it has remembered any of them.
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

from tidegate.checkpoint.coalesce_guard import leave_mark, moved
from tidegate.checkpoint.keys.layout import groups_of
from tidegate.checkpoint.local.attempts import is_first_time
from tidegate.checkpoint.local.store import default_root, local_files
from tidegate.checkpoint.settings import Asked, StateSettings
from tidegate.checkpoint.store import checkpoint_path, operator_depot
from tidegate.errors import PlanChanged, StateInvalid, TidegateError
from tidegate.model.clock import Clock
from tidegate.pipeline.stateful.spark_log import (
    PlannedBatch,
    SparkTask,
    check_query,
    check_streaming_task,
    read_planned_batch,
)
from tidegate.pipeline.topic.client import with_hint_note

# Of the hash of a checkpoint's path, which tells a few apart.
PLACE_BYTES = 4

_DOOR = re.compile(r"\bprocess\b")
_TWO_JOBS = (
    "Two batch jobs were planned on this checkpoint at once. Call process again once the other job is done, "
    "or give each job a checkpoint of its own."
)


@dataclass(frozen=True, slots=True)
class StatefulTaskContext:
    """Where the tasks of an operator sit: made once on the driver, the same for all batches of a query."""

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
    # Which call on the driver made this, and of which function.
    call: str = ""
    door: str = "process"

    def plan(self, task: SparkTask) -> PlannedBatch:
        """Return the batch that a task works for, from the driver or from Spark's log."""
        if self.planned is not None:
            return self.planned
        checkpoint = checkpoint_path(str(self.checkpoint))
        number = check_streaming_task(task, self.operator)
        check_query(checkpoint, task.query_id, self.operator)
        return read_planned_batch(checkpoint, number, self.operator)

    def asked(self, task: SparkTask, planned: PlannedBatch) -> Asked:
        """Return what a task asks of state."""
        return Asked(
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

    def check_first_time(self, asked: Asked, clock: Clock) -> None:
        """Refuse a task that was here before, for another partition: Spark moved them together."""
        place = self.settings.place(clock)
        folder = place.operator_folder(operator_depot(asked.checkpoint, asked.operator))
        with local_files(folder):
            is_first = is_first_time(folder, asked.partition, asked.attempt)
        if not is_first:
            raise self.moved(asked)

    def check_partition(self, partition: int, asked: Asked | None) -> None:
        """Refuse a task behind the last partition: Spark moved them."""
        if partition >= self.parallelism:
            raise self.moved(asked)

    def check_groups(self, partition: int, groups: pa.Array, asked: Asked | None) -> None:
        """Refuse rows of another instance, which would be remembered in the wrong place."""
        owned = groups_of(partition, self.parallelism, self.max_parallelism)
        ends = pc.min_max(groups).as_py()
        if ends["min"] not in owned or ends["max"] not in owned:
            raise self.moved(asked)

    def moved(self, asked: Asked | None) -> StateInvalid:
        """Return the refusal of a task that has the rows of another one, and mark its batch."""
        if asked is not None:
            leave_mark(operator_depot(asked.checkpoint, asked.operator), asked)
        return moved(self.operator)

    def hint(self, problem: TidegateError) -> None:
        """Add to an error what helps where this task runs."""
        if isinstance(problem, PlanChanged) and self.planned is not None:
            problem.hint = _TWO_JOBS
        reword_hint(problem, self.door)
        with_hint_note(problem)


def reword_hint(problem: TidegateError, door: str) -> None:
    """Let what an error tells to do speak of the function that was called."""
    if door != "process":
        if problem.hint == StateInvalid.default_hint:
            problem.hint = "docs/guide/dedup.md shows what it takes."
        problem.hint = _DOOR.sub(door, problem.hint)


def task_name(operator: str, checkpoint: str | None) -> str:
    """Return the name under which an operator stands in Spark's plans.

    Two on one checkpoint never share it.
    """
    place = hashlib.blake2b(str(checkpoint).encode(), digest_size=PLACE_BYTES).hexdigest()
    return f"KeyedTask.{operator}@{place}"


@contextmanager
def temporary_state_folder(settings: StateSettings) -> Iterator[Path]:
    """Return a folder on this machine's disk for state that is gone afterwards."""
    root = Path(settings.local_root) if settings.local_root else default_root()
    with local_files(root):
        root.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix="passing-", dir=root)
    with made as folder:
        yield Path(folder)
