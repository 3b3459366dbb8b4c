"""Moved partitions: takes a task that has the rows of others, leaves a mark, so that its batch is done anew.

A step behind the operator that moves partitions together or behind others gives tasks the numbers of other
partitions. The task that finds this out fails; others of the same batch may have published under a wrong
number before, and nothing in what they published shows it. So the one that finds out leaves
`e<epoch>/moved.<batch>` in the checkpoint. From then on nobody opens that batch in that epoch; the next start
begins an epoch with it, and nothing counts that was published of it.
"""

from __future__ import annotations

import logging
import re

from tidegate.checkpoint.commit_record import read_head
from tidegate.checkpoint.epochs import Epoch, is_complete, resolve
from tidegate.checkpoint.settings import Asked
from tidegate.checkpoint.store import Depot
from tidegate.errors import StateInvalid, TidegateError

log = logging.getLogger(__name__)

MOVED = (
    "what follows the operator moves its partitions together or behind others (coalesce, union); "
    "put .repartition(n) between them"
)
_HINT = "Then call process again: the batch is done anew."
_MARK = re.compile(r"moved\.(\d+)")


def moved(operator: str) -> StateInvalid:
    """Return the error for a task that has the rows of another one."""
    return StateInvalid(operator=operator, reason=MOVED, hint=_HINT)


def leave_mark(depot: Depot, asked: Asked) -> None:
    """Mark a batch as one whose tasks have the numbers of others; to be called before that is raised."""
    try:
        plan = resolve(depot, asked, asked.seen_epoch)
        # Dealt out from an older epoch, nothing is published.
        if plan.replay is None and not _was_done_before(depot, plan.epoch, asked):
            depot.put_new(_name(plan.epoch, asked.number), f"{asked.attempt}\n".encode())
    except TidegateError as problem:
        log.warning("batch %d of %s could not be marked as moved: %s", asked.number, depot.root, problem)


def check_not_moved(depot: Depot, epoch: Epoch, asked: Asked) -> None:
    """Refuse a batch that another task marked: what is published of it may be another partition's."""
    if depot.exists(_name(epoch, asked.number)):
        raise moved(asked.operator)


def moved_batches(depot: Depot, epoch: Epoch) -> tuple[int, ...]:
    """Return the batches of an epoch that were marked, in order."""
    found = (_MARK.fullmatch(name) for name in depot.names(epoch.folder))
    return tuple(sorted(int(mark[1]) for mark in found if mark))


def _was_done_before(depot: Depot, epoch: Epoch, asked: Asked) -> bool:
    """Return whether another run did the whole batch: Spark may have it already, so it holds."""
    if not is_complete(depot, epoch, asked.number):
        return False
    run = asked.attempt.rpartition("/")[0]
    heads = (
        read_head(depot, epoch.number, partition, asked.number) for partition in range(epoch.parallelism)
    )
    return not any(head is not None and head.attempt.rpartition("/")[0] == run for head in heads)


def _name(epoch: Epoch, batch: int) -> str:
    return f"{epoch.folder}/moved.{batch}"
