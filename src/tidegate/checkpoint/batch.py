"""The life of one batch of one partition: committed once, then replayed.

A batch is committed when its commit record is in the checkpoint, and its commit record is linked once. The
steps of an attempt, what is on the disk after each, and what a kill right after it leaves to the next one:

    1 look for the commit   there: the batch is committed, its stored output is returned; state is not touched
    2 restore the store     the local store is at the batch before. Nothing in the checkpoint has changed
    3 run the operator      writes stay in memory. Spilled: a part is in a changelog file that nothing
                            names, and the local store has no version, so the next attempt rebuilds it
    4 write the changes     a whole changelog file, synced, that nothing names: the next attempt starts
                            over, pruning removes it
    5 write the output      likewise
    6 link the commit       the batch is committed, also after a power loss: the files that the commit record
                            names and their folder were synced before, the folder is synced again after. The
                            next attempt returns this output
    7 apply to the store    one write with the version. Killed before: the local store is one batch behind,
                            and is caught up from the changelog file
    8 return the output     from the file, as every later attempt does
    9 snapshot, pruning     in the background; see snapshotter.py and pruning.py

Two attempts at once, on one host or two, both come to step 6; the file system lets one of them link. The
other one raises BatchTaken, removes its files, and its retry returns what the first one stored: two
attempts may see rows in another order, so they are never mixed. A local store that another attempt has moved
further, or that took part of a batch, is recognised by its version: (epoch, batch, commit id).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tidegate.checkpoint.coalesce_guard import check_not_moved, mark_moved
from tidegate.checkpoint.commit import OpenBatch, OpenBatchContext, ReplayedBatch, StateBatch
from tidegate.checkpoint.commit_record import (
    CommitRecord,
    commit_record_name,
    committed_batches,
    read_commit_record,
)
from tidegate.checkpoint.crash_points import crash_point
from tidegate.checkpoint.epochs import EpochPlan, resolve
from tidegate.checkpoint.local.ipc_client import RemoteStore, connect_remote
from tidegate.checkpoint.local.store import (
    LocalDirectory,
    LocalStore,
    acquire,
    discard_store,
    local_files,
    remove_unused,
    return_store,
)
from tidegate.checkpoint.recovery import StatePartition, missing_parts, restore
from tidegate.checkpoint.settings import BatchRequest, StateSettings
from tidegate.checkpoint.snapshot import mark_damaged
from tidegate.checkpoint.store import CheckpointDisk, CheckpointStore, operator_store
from tidegate.errors import PlanChanged, StateInvalid, StateMismatch, StorageCorrupt, TidegateError
from tidegate.model.clock import Clock
from tidegate.storage.allocator import MemoryTrimmer

log = logging.getLogger(__name__)

_TWO_OPERATORS = "two operators of one query have this name, and would return each other's rows."
_BEGIN_ANEW = (
    "Give each operator a name of its own, and begin a new checkpoint, from a savepoint where there is one: "
    "this checkpoint already has this batch of one of them."
)


@contextmanager
def open_batch(
    request: BatchRequest, settings: StateSettings, clock: Clock, disk: CheckpointDisk | None = None
) -> Iterator[StateBatch]:
    """Open a batch: with its state at the batch before, or to be replayed when it is committed already.

    Left without `publish`, nothing has happened. Another plan id than that of the committed batch:
    PlanChanged. `disk` is how the checkpoint is written to; tests pass one that fails.
    """
    store = operator_store(request.checkpoint, request.operator, disk)
    plan = resolve(store, request, request.seen_epoch)
    check_not_moved(store, plan.epoch, request)
    commits = _published_commits(request, store, plan)
    if commits is not None:
        yield ReplayedBatch(request, store, plan.epoch, commits)
        return
    crash_point("opened", request.partition, request.number)
    directory = settings.local_directory(clock)
    _remove_unused_once(directory)
    _level.trim()  # what the batch before has left
    partition = StatePartition(store, plan.epoch, request.partition, directory)
    with local_files(partition.local_folder):
        local = acquire(directory, partition.local_folder, connect_remote if directory.is_served else None)
        try:
            batch = _restore_batch(request, settings, partition, local, clock)
        except BaseException:
            local.release()
            raise
    yield from _run_batch(batch, directory, local)


def _run_batch(batch: OpenBatch, directory: LocalDirectory, local: LocalStore) -> Iterator[OpenBatch]:
    """Yield an open batch to its task, and return, release or discard the local store as the batch ended."""
    is_trusted = has_lost_part = False
    try:
        yield batch
        is_trusted = True
    except StorageCorrupt as problem:
        # The local store may be what is damaged: all of it is rebuilt, or the one part that its backend has
        # set aside.
        has_lost_part = not batch.is_spilled and local.is_open and bool(missing_parts(local.backend))
        if not has_lost_part:
            _distrust_snapshot(batch, local, problem)
        raise
    except BaseException:
        is_trusted = not batch.is_spilled or bool(batch.commits)
        raise
    finally:
        try:
            if batch.commits:
                batch.finish()
            else:
                batch.discard()
        finally:
            has_lost_part = has_lost_part or (batch.is_local_damaged and bool(missing_parts(local.backend)))
            if has_lost_part:
                local.release()
            elif not is_trusted or batch.is_local_damaged or (batch.is_spilled and not batch.commits):
                discard_store(local)
            elif batch.is_local_current:
                return_store(directory, local)
            else:
                local.release()


def _distrust_snapshot(batch: OpenBatch, local: LocalStore, problem: StorageCorrupt) -> None:
    """Mark the snapshot from which a damaged local store was restored: the next attempt uses an older one.

    Its files have the bytes that it names, and those were damaged on the disk of the worker that took it.
    """
    report = batch.report
    place = str(problem.values.get("place", ""))
    if report.source != "snapshot" or not place.startswith(str(local.folder)):
        return
    log.warning("snapshot holds damaged bytes batch=%d error=%s", report.from_batch, problem)
    try:
        mark_damaged(batch.store, batch.epoch.number, batch.request.partition, report.from_batch)
    except TidegateError as refused:
        log.warning("damaged snapshot not marked batch=%d error=%s", report.from_batch, refused)


def _restore_batch(
    request: BatchRequest,
    settings: StateSettings,
    partition: StatePartition,
    local: LocalStore,
    clock: Clock,
) -> OpenBatch:
    report = restore(local, partition, request.number - 1)
    if isinstance(local, RemoteStore):
        local.restore_again = partial(restore, local, partition, request.number - 1)
    before = None
    if request.number > partition.epoch.first_batch:
        before = partition.commit_record(request.number - 1)
    crash_point("restored", request.partition, request.number)
    context = OpenBatchContext(partition, local, before, report, settings.snapshot_rules(), clock)
    return OpenBatch(request, context)


def _published_commits(
    request: BatchRequest, store: CheckpointStore, plan: EpochPlan
) -> tuple[CommitRecord, ...] | None:
    """Return the commit records whose output a task returns again; None when the batch is not committed yet.

    Before any output is returned, the names are synced once more: the attempt that linked a commit record may
    have been killed before its sync, and what Spark received must not be gone after a power loss.
    """
    if plan.replay is None:
        commit = read_commit_record(store, plan.epoch.number, request.partition, request.number)
        if commit is None:
            _check_not_pruned(request, store, plan)
            return None
        commits: tuple[CommitRecord, ...] = (commit,)
    else:
        commits = tuple(_old_commit(request, store, epoch, partition) for epoch, partition in plan.replay)
    for commit in commits:
        _check_same(request, commit, store)
        store.sync(commit_record_name(commit.epoch, commit.partition, commit.batch))
    return commits


def _check_not_pruned(request: BatchRequest, store: CheckpointStore, plan: EpochPlan) -> None:
    """Refuse a batch without a commit record while newer ones are there: it was committed, and is pruned.

    Commit records are pruned oldest first, so that only a batch without the record before it can be one.
    """
    epoch = plan.epoch
    if request.number > epoch.first_batch and store.exists(
        commit_record_name(epoch.number, request.partition, request.number - 1)
    ):
        return
    newest = max(committed_batches(store, epoch.number, request.partition), default=-1)
    if newest > request.number:
        reason = (
            f"Spark asks for batch {request.number}, and batch {newest} is done: it was committed long ago."
        )
        raise StateMismatch(operator=request.operator, reason=reason)


def _old_commit(request: BatchRequest, store: CheckpointStore, epoch: int, partition: int) -> CommitRecord:
    commit = read_commit_record(store, epoch, partition, request.number)
    if commit is None:
        reason = f"batch {request.number} of partition {partition}, epoch {epoch}, is gone."
        raise StateMismatch(operator=request.operator, reason=reason)
    return commit


def _check_same(request: BatchRequest, commit: CommitRecord, store: CheckpointStore) -> None:
    if commit.plan_id != request.plan_id:
        raise PlanChanged(operator=request.operator, partition=request.partition, batch=request.number)
    # A run has one plan: another call in it is another operator. A restart makes new calls.
    if request.run is not None and request.run == commit.run and request.call != commit.call:
        raise StateInvalid(operator=request.operator, reason=_TWO_OPERATORS, hint=_BEGIN_ANEW)
    if commit.attempt == request.attempt:
        mark_moved(store, request)
        reason = (
            "one task runs several of its partitions, as after a coalesce(): their rows cannot be "
            "distinguished. Use repartition() after the operator instead."
        )
        raise StateInvalid(operator=request.operator, reason=reason)


_level = MemoryTrimmer()
_SWEPT: set[str] = set()


def _remove_unused_once(directory: LocalDirectory) -> None:
    """Remove local stores that no task used for long, once in the life of a worker, in the background."""
    if str(directory.root) in _SWEPT:
        return
    _SWEPT.add(str(directory.root))
    threading.Thread(target=remove_unused, args=(directory,), name="state-unused", daemon=True).start()
