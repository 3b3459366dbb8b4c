"""Spark's offset log and commit log of a streaming query, as far as stateful operators read them.

Spark writes `offsets/<batch>` before a batch runs and `commits/<batch>` after it. What driver and tasks must
agree on is read from there: properties that the driver sets stay as they were at the start of a query.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.errors import CheckpointUnusable, InvariantBroken, StateInvalid, StateMismatch

BATCH_PROPERTY = "streaming.sql.batchId"
QUERY_PROPERTY = "sql.streaming.queryId"
APPLICATION_PROPERTY = "spark.app.id"
RUN_PROPERTY = "spark.jobGroup.id"

_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# A plan id tells two plans of one batch apart; 128 bits never collide by chance.
PLAN_ID_BYTES = 16

_NOT_THE_QUERYS = "Give process the query's own checkpointLocation."


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A planned batch: its number, its plan id, its watermark and its time."""

    number: int
    plan_id: str
    watermark_ms: int | None
    batch_time_ms: int


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The newest batch that Spark committed, and the watermark of the next one."""

    number: int
    next_watermark_ms: int | None


@dataclass(frozen=True, slots=True)
class SparkTask:
    """A task of Spark: its partition and attempt, and the batch, query and run that it belongs to."""

    partition: int
    attempt: str
    batch: int | None
    query_id: str | None
    run: str | None = None


def current_task() -> SparkTask:
    """Return the current task of Spark; only one of a streaming query has a batch and a query."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise InvariantBroken(reason="this runs in a task of Spark alone")
    batch = context.getLocalProperty(BATCH_PROPERTY)
    group = context.getLocalProperty(RUN_PROPERTY) or ""
    # Attempt numbers begin at 0 in each application, and an application may run many queries.
    marks = (context.getLocalProperty(name) or "-" for name in (APPLICATION_PROPERTY, RUN_PROPERTY))
    return SparkTask(
        partition=context.partitionId(),
        attempt="/".join((*marks, str(context.taskAttemptId()))),
        batch=None if batch is None else int(batch),
        query_id=context.getLocalProperty(QUERY_PROPERTY),
        # A job group that foreachBatch sets may have the same name in every run.
        run=group if batch is not None and _RUN_ID.fullmatch(group) else None,
    )


def read_planned_batch(checkpoint: Path, number: int, operator: str) -> PlannedBatch:
    """Return a batch by Spark's offset log; StateMismatch when it is not there."""
    path = checkpoint / "offsets" / str(number)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        reason = f"it has no offsets of batch {number}, which is running now"
        raise StateMismatch(operator=operator, reason=reason, hint=_NOT_THE_QUERYS) from None
    lines = text.decode("utf-8").splitlines()
    facts = _parsed(path, lines[1] if len(lines) > 1 else "")
    return PlannedBatch(
        number=number,
        plan_id=hashlib.blake2b(text, digest_size=PLAN_ID_BYTES).hexdigest(),
        watermark_ms=_watermark(facts.get("batchWatermarkMs")),
        batch_time_ms=int(facts["batchTimestampMs"]),
    )


def check_query(checkpoint: Path, query_id: str | None, operator: str) -> None:
    """Refuse a checkpoint of another query than the running one."""
    path = checkpoint / "metadata"
    try:
        stored = _parsed(path, path.read_text(encoding="utf-8")).get("id")
    except FileNotFoundError:
        reason = "no query has begun there, and this one runs"
        raise StateMismatch(operator=operator, reason=reason, hint=_NOT_THE_QUERYS) from None
    if stored != query_id:
        reason = f"it belongs to the query {stored}, and this is {query_id}"
        raise StateMismatch(operator=operator, reason=reason, hint=_NOT_THE_QUERYS)


def newest_committed(checkpoint: Path) -> CommittedBatch | None:
    """Return the newest batch that Spark committed; None before the first."""
    number = _newest(checkpoint / "commits")
    if number is None:
        return None
    path = checkpoint / "commits" / str(number)
    lines = path.read_text(encoding="utf-8").splitlines()
    facts = _parsed(path, lines[1] if len(lines) > 1 else "{}")
    return CommittedBatch(number, _watermark(facts.get("nextBatchWatermarkMs")))


def newest_offsets(checkpoint: Path) -> list[str] | None:
    """Return the offsets of the newest planned batch, one line for each source; None before the first."""
    number = _newest(checkpoint / "offsets")
    if number is None:
        return None
    return (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()[2:]


def check_streaming_task(task: SparkTask, operator: str) -> int:
    """Return the number of the batch that a task works for; StateInvalid outside a streaming query."""
    if task.batch is None:
        reason = "a streaming DataFrame was evaluated outside its query, or in a thread that knows no query"
        hint = "In foreachBatch start threads as pyspark.InheritableThread."
        raise StateInvalid(operator=operator, reason=reason, hint=hint)
    return task.batch


def _newest(folder: Path) -> int | None:
    try:
        return max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=None)
    except FileNotFoundError:
        return None


def _watermark(written_ms: Any) -> int | None:
    """Return a watermark; Spark writes 0 for one that no row has set yet."""
    return int(written_ms) if written_ms else None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as problem:
        raise CheckpointUnusable(path=str(path), reason="it is not as Spark writes it") from problem
