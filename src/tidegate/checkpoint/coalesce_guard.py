"""The mark of a batch whose partitions Spark moved to other tasks.

A step behind the operator that moves partitions together or behind others gives tasks the numbers of other
partitions. The task that detects this fails; others of the same batch may have published under a wrong number
before, and nothing in what they published shows it. So the one that detects it writes
`e<epoch>/moved.<batch>` to the checkpoint. From then on no task opens that batch in that epoch; the next
start begins an epoch with it, and nothing counts that was published of it.
"""

from __future__ import annotations

import logging
import re

from tidegate.checkpoint.commit_record import read_commit_record
from tidegate.checkpoint.epochs import Epoch, is_complete, resolve
from tidegate.checkpoint.settings import BatchRequest
from tidegate.checkpoint.store import CheckpointStore
from tidegate.errors import StateInvalid, TidegateError

log = logging.getLogger(__name__)

MOVED = (
    "what follows the operator moves its partitions together or behind others (coalesce, union); "
    "put .repartition(n) between them"
)
_HINT = "Then call process again: the batch is run again in a new epoch."
_MARK = re.compile(r"moved\.(\d+)")


def moved_error(operator: str) -> StateInvalid:
    """Return the error for a task that has the rows of another partition."""
    return StateInvalid(operator=operator, reason=MOVED, hint=_HINT)


def mark_moved(store: CheckpointStore, request: BatchRequest) -> None:
    """Mark a batch whose tasks have the rows of other partitions; called before the error is raised."""
    try:
        plan = resolve(store, request, request.seen_epoch)
        # A batch replayed from an older epoch publishes nothing.
        if plan.replay is None and not _was_done_before(store, plan.epoch, request):
            store.put_new(_name(plan.epoch, request.number), f"{request.attempt}\n".encode())
    except TidegateError as problem:
        log.warning(
            "batch not marked as moved batch=%d store=%s error=%s", request.number, store.root, problem
        )


def check_not_moved(store: CheckpointStore, epoch: Epoch, request: BatchRequest) -> None:
    """Refuse a batch that is marked: what is published of it may be another partition's."""
    if store.exists(_name(epoch, request.number)):
        raise moved_error(request.operator)


def moved_batches(store: CheckpointStore, epoch: Epoch) -> tuple[int, ...]:
    """Return the marked batches of an epoch, in order."""
    found = (_MARK.fullmatch(name) for name in store.names(epoch.folder))
    return tuple(sorted(int(mark[1]) for mark in found if mark))


def _was_done_before(store: CheckpointStore, epoch: Epoch, request: BatchRequest) -> bool:
    """Return whether another run committed the whole batch: Spark may have it already, so it stays valid."""
    if not is_complete(store, epoch, request.number):
        return False
    run = request.attempt.rpartition("/")[0]
    commits = (
        read_commit_record(store, epoch.number, partition, request.number)
        for partition in range(epoch.parallelism)
    )
    return not any(commit is not None and commit.attempt.rpartition("/")[0] == run for commit in commits)


def _name(epoch: Epoch, batch: int) -> str:
    return f"{epoch.folder}/moved.{batch}"
