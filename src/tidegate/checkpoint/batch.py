"""One batch of one partition, done once: takes a task that asks, gives its state or its earlier output.

A batch is done when its head is in the checkpoint, and its head is put once. The steps of an attempt, what
is on the disk after each, and what a kill right after it leaves to the next attempt:

    1 look for the head     there: the batch is done, its output is given out again; state is not touched
    2 bring the copy        the local copy stands at the batch before. Nothing in the checkpoint has changed
    3 run the operator      writes stay in memory. Spilled: a part lies in a change file that nothing
                            names, and the copy has no version, so the next attempt makes it anew
    4 write the changes     a whole change file, synced, that nothing names: the next attempt starts
                            over, pruning removes it
    5 write the output      likewise
    6 link the head         the batch is done, also after a loss of power: the files it names and their
                            folder were synced before, the folder is synced again after. The next
                            attempt gives out this output
    7 apply to the copy     one write with the version. Killed before: the copy is one batch behind, and
                            is caught up with the change file
    8 give out the output   from the file, as every later attempt does
    9 snapshot, pruning     beside the work; see snapshotting.py and pruning.py

Two attempts at once, on one host or two, both come to step 6; the file system lets one of them link. The
other one raises BatchTaken, removes its files, and its retry gives out what the first one made: two
attempts may see rows in another order, so they are never mixed. A copy that another attempt brought
further, or that took part of a batch, is told by its version: (epoch, batch, head id).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tidegate.checkpoint.coalesce_guard import check_not_moved, leave_mark
from tidegate.checkpoint.commit import Fresh, Opened, Surroundings
from tidegate.checkpoint.commit_record import Head, head_batches, head_name, read_head
from tidegate.checkpoint.crash_points import reached
from tidegate.checkpoint.epochs import EpochPlan, resolve
from tidegate.checkpoint.local.ipc_client import BorrowedCopy, borrow
from tidegate.checkpoint.local.store import (
    LocalCopy,
    Place,
    acquire,
    drop,
    local_files,
    put_back,
    remove_unused,
)
from tidegate.checkpoint.recovery import Partition, bring, missing_parts
from tidegate.checkpoint.settings import Asked, StateSettings
from tidegate.checkpoint.snapshot import mark_damaged
from tidegate.checkpoint.store import CheckpointDisk, Depot, operator_depot
from tidegate.errors import PlanChanged, StateInvalid, StateMismatch, StorageCorrupt, TidegateError
from tidegate.model.clock import Clock
from tidegate.storage.allocator import Level

log = logging.getLogger(__name__)

_TWO_OPERATORS = "two operators of one query have this name, and would give out each other's rows."
_BEGIN_ANEW = (
    "Give each operator a name of its own, and begin a new checkpoint, from a savepoint where there is one: "
    "what one of them did in this batch stands in this checkpoint."
)


@contextmanager
def open_batch(
    asked: Asked, settings: StateSettings, clock: Clock, disk: CheckpointDisk | None = None
) -> Iterator[Opened]:
    """Open a batch: fresh with its state at the batch before, or done already and to be given out again.

    Left without `publish`, nothing has happened. Another plan id than that of the batch done before:
    PlanChanged. `disk` is how the checkpoint is written to; tests give one that fails.
    """
    depot = operator_depot(asked.checkpoint, asked.operator, disk)
    plan = resolve(depot, asked, asked.seen_epoch)
    check_not_moved(depot, plan.epoch, asked)
    heads = _done(asked, depot, plan)
    if heads is not None:
        yield Opened(asked, depot, plan.epoch, heads)
        return
    reached("opened", asked.partition, asked.number)
    place = settings.place(clock)
    _remove_unused_once(place)
    _level.give_back()  # what the batch before has left
    partition = Partition(depot, plan.epoch, asked.partition, place)
    with local_files(partition.copy_folder):
        copy = acquire(place, partition.copy_folder, borrow if place.is_served else None)
        try:
            fresh = _fresh(asked, settings, partition, copy, clock)
        except BaseException:
            copy.give_up()
            raise
    yield from _worked(fresh, place, copy)


def _worked(fresh: Fresh, place: Place, copy: LocalCopy) -> Iterator[Opened]:
    """Lend a fresh batch to its task, and leave the copy as what became of it demands."""
    is_trusted = has_lost_part = False
    try:
        yield fresh
        is_trusted = True
    except StorageCorrupt as problem:
        # The copy may be what is damaged: it is made anew, or the one part that its backend has set aside.
        has_lost_part = not fresh.is_spilled and copy.is_open and bool(missing_parts(copy.backend))
        if not has_lost_part:
            _distrust_snapshot(fresh, copy, problem)
        raise
    except BaseException:
        is_trusted = not fresh.is_spilled or bool(fresh.heads)
        raise
    finally:
        try:
            if fresh.heads:
                fresh.finish()
            else:
                fresh.discard()
        finally:
            has_lost_part = has_lost_part or (fresh.is_copy_damaged and bool(missing_parts(copy.backend)))
            if has_lost_part:
                copy.give_up()
            elif not is_trusted or fresh.is_copy_damaged or (fresh.is_spilled and not fresh.heads):
                drop(copy)
            elif fresh.is_copy_current:
                put_back(place, copy)
            else:
                copy.give_up()


def _distrust_snapshot(fresh: Fresh, copy: LocalCopy, problem: StorageCorrupt) -> None:
    """Mark the snapshot that a damaged copy was just made from: the next attempt begins with an older one.

    Its files have the bytes that it names, and those were damaged on the disk of whoever took it.
    """
    report = fresh.report
    place = str(problem.values.get("place", ""))
    if report is None or report.way != "snapshot" or not place.startswith(str(copy.folder)):
        return
    log.warning("the snapshot of batch %d holds damaged bytes: %s", report.from_batch, problem)
    try:
        mark_damaged(fresh.depot, fresh.epoch.number, fresh.asked.partition, report.from_batch)
    except TidegateError as refused:
        log.warning("the damaged snapshot of batch %d could not be marked: %s", report.from_batch, refused)


def _fresh(
    asked: Asked, settings: StateSettings, partition: Partition, copy: LocalCopy, clock: Clock
) -> Fresh:
    report = bring(copy, partition, asked.number - 1)
    if isinstance(copy, BorrowedCopy):
        copy.bring_again = partial(bring, copy, partition, asked.number - 1)
    before = None
    if asked.number > partition.epoch.first_batch:
        before = partition.head(asked.number - 1)
    reached("restored", asked.partition, asked.number)
    around = Surroundings(partition, copy, before, report, settings.snapshot_rules(), clock)
    return Fresh(asked, around)


def _done(asked: Asked, depot: Depot, plan: EpochPlan) -> tuple[Head, ...] | None:
    """Return the heads whose output a task gives out again; None when the batch is still to be done.

    Before anything is given out, the names are put on the disk once more: whoever linked a head may have been
    killed before it came to that, and what Spark is given must not be gone after a loss of power.
    """
    if plan.replay is None:
        head = read_head(depot, plan.epoch.number, asked.partition, asked.number)
        if head is None:
            _check_not_over(asked, depot, plan)
            return None
        heads: tuple[Head, ...] = (head,)
    else:
        heads = tuple(_old_head(asked, depot, epoch, partition) for epoch, partition in plan.replay)
    for head in heads:
        _check_same(asked, head, depot)
        depot.sync(head_name(head.epoch, head.partition, head.batch))
    return heads


def _check_not_over(asked: Asked, depot: Depot, plan: EpochPlan) -> None:
    """Refuse a batch without a head that has newer ones behind it: it was done, and its head is pruned.

    Heads are pruned oldest first, so that only a batch without the head before it can be one.
    """
    epoch = plan.epoch
    if asked.number > epoch.first_batch and depot.exists(
        head_name(epoch.number, asked.partition, asked.number - 1)
    ):
        return
    newest = max(head_batches(depot, epoch.number, asked.partition), default=-1)
    if newest > asked.number:
        reason = (
            f"Spark asks for batch {asked.number}, and batch {newest} is done: it was committed long ago."
        )
        raise StateMismatch(operator=asked.operator, reason=reason)


def _old_head(asked: Asked, depot: Depot, epoch: int, partition: int) -> Head:
    head = read_head(depot, epoch, partition, asked.number)
    if head is None:
        reason = f"batch {asked.number} of partition {partition}, epoch {epoch}, is gone."
        raise StateMismatch(operator=asked.operator, reason=reason)
    return head


def _check_same(asked: Asked, head: Head, depot: Depot) -> None:
    if head.plan_id != asked.plan_id:
        raise PlanChanged(operator=asked.operator, partition=asked.partition, batch=asked.number)
    # A run has one plan: another call in it is another operator. After a restart calls are made anew.
    if asked.run is not None and asked.run == head.run and asked.call != head.call:
        raise StateInvalid(operator=asked.operator, reason=_TWO_OPERATORS, hint=_BEGIN_ANEW)
    if head.attempt == asked.attempt:
        leave_mark(depot, asked)
        reason = (
            "one task runs several of its partitions, as after a coalesce(): their rows cannot be told "
            "apart. Use repartition() after the operator instead."
        )
        raise StateInvalid(operator=asked.operator, reason=reason)


_level = Level()
_SWEPT: set[str] = set()


def _remove_unused_once(place: Place) -> None:
    """Remove copies that nobody used for long, once in the life of a worker, beside the work."""
    if str(place.root) in _SWEPT:
        return
    _SWEPT.add(str(place.root))
    threading.Thread(target=remove_unused, args=(place,), name="state-unused", daemon=True).start()
