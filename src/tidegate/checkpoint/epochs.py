"""Epochs: the batches done with one number of instances, each with a folder of its commit records.

`e<epoch>/epoch.json` is put if absent, never changed, and names where the epoch's state comes from. A batch
is governed by the epoch with the highest number among those whose first batch is not later: of two epochs
that begin at one batch the older one is abandoned.

The first task with another number of instances creates the next epoch; all others find it. A batch that is
complete in the old epoch (Spark may have its output already) stays there: its stored output is shared out to
the new instances, and the new epoch begins one batch later. A batch committed in part is abandoned, and run
again in the new epoch from the state before it.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from tidegate.checkpoint.commit_record import (
    NO_TIMES,
    Times,
    commit_record_name,
    committed_batches,
    read_commit_record,
)
from tidegate.checkpoint.crash_points import crash_point
from tidegate.checkpoint.keys.layout import PARALLELISM_MAX
from tidegate.checkpoint.savepoints.record import read_savepoint
from tidegate.checkpoint.snapshot import missing_files, read_manifest, snapshot_batches
from tidegate.checkpoint.store import CheckpointStore, checkpoint_path, schema_name
from tidegate.errors import InvariantBroken, StateInvalid, StateMismatch, StorageCorrupt
from tidegate.storage.sealed_json import seal, unseal

FORMAT = 1
RECORD_NAME = "epoch.json"

# The commit id of a partition's state before the first batch of an epoch, which has no commit record yet.
INITIAL_COMMIT_ID = "ground"

# The value of `seen` for a checkpoint without any epoch.
NONE_SEEN = -1

_FOLDER = re.compile(r"e(\d+)")


@dataclass(frozen=True, slots=True)
class Parent:
    """Where an epoch's state comes from: an epoch after a batch, in this checkpoint or in a savepoint."""

    epoch: int
    batch: int
    parallelism: int
    savepoint: str | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """The batches done with one number of instances.

    `order_shift` is added to a batch's number wherever entries are ordered by batch: after a start from a
    savepoint Spark counts from 0 again. The times are those known before the first batch. A `fenced` epoch
    was begun by a driver for its own tasks: those of an older run, which may outlive it, have no part in it.
    """

    number: int
    parallelism: int
    max_parallelism: int
    first_batch: int
    parent: Parent | None = None
    origin: str | None = None
    order_shift: int = 0
    times: Times = NO_TIMES
    fenced: bool = False

    @property
    def folder(self) -> str:
        """Return the name of its folder in the checkpoint store."""
        return f"e{self.number}"

    def order_of(self, batch: int) -> int:
        """Return the number under which entries of a batch are ordered: more than any batch before."""
        return batch + self.order_shift


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """What an instance does for a batch: run its part in an epoch, or replay what old instances stored.

    `replay` is None for the first; else the (epoch, partition) whose stored output of this batch the instance
    returns, in this order; they may be none, and state is not touched.
    """

    epoch: Epoch
    replay: tuple[tuple[int, int], ...] | None = None


class EpochRequest(Protocol):
    """The part of a batch request that decides its epoch."""

    @property
    def operator(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def parallelism(self) -> int: ...
    @property
    def max_parallelism(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def savepoint(self) -> str | None: ...


def resolve(store: CheckpointStore, request: EpochRequest, seen: int | None = None) -> EpochPlan:
    """Return the epoch that governs a batch for these instances, created now when it is not there.

    All tasks of a run get the same answer, also when any of them dies in between. `seen` is the newest epoch
    when the query was planned (NONE_SEEN: there was none; None: not known): a task whose plan is older than a
    fenced epoch of its batch, or than one with another number of instances, belongs to a run that was
    replaced, and is refused. Spark does not wait for tasks that it gives up, so they may come that late.
    """
    check_parallelism(request.operator, request.parallelism, request.max_parallelism)
    while True:
        epochs = list_epochs(store)
        _check_max_parallelism(request, epochs)
        fenced = [epoch for epoch in epochs if epoch.fenced and epoch.first_batch <= request.number]
        _check_not_replaced(request, fenced, seen)
        plan = _existing_plan(request, epochs)
        if plan is not None:
            _make_last(store, plan.epoch, request.number)
            return plan
        _check_not_replaced(request, epochs, seen)
        # Whether this one or another task's is linked first, the next round finds it.
        _put(store, _next(store, request, epochs))


def begin_epoch(store: CheckpointStore, operator: str, batch: int) -> Epoch:
    """Abandon what a batch committed in part: begin an epoch with it, with as many instances.

    For batches that are planned again instead of repeated. Only the driver calls this, before any task runs.
    """
    epochs = list_epochs(store)
    old = governing(epochs, batch)
    if old is None:
        raise StateMismatch(operator=operator, reason=f"there is no epoch that batch {batch} belongs to.")
    new = replace(_epoch_after(store, operator, old, batch), number=epochs[-1].number + 1, fenced=True)
    if not _put(store, new):
        raise StateMismatch(operator=operator, reason="another query runs on it at the same time.")
    return new


def list_epochs(store: CheckpointStore) -> list[Epoch]:
    """Return the epochs of an operator, oldest first."""
    numbers = sorted(int(found[1]) for name in store.names() if (found := _FOLDER.fullmatch(name)))
    return [epoch for number in numbers if (epoch := read(store, number)) is not None]


def read(store: CheckpointStore, number: int) -> Epoch | None:
    """Return an epoch by its number; None when it was never created, or is removed."""
    name = f"e{number}/{RECORD_NAME}"
    content = store.read(name)
    return None if content is None else decode_epoch(content, str(store.path(name)))


def governing(epochs: list[Epoch], batch: int) -> Epoch | None:
    """Return the epoch that governs a batch: the highest number among those that begin with it or before."""
    return next((epoch for epoch in reversed(epochs) if epoch.first_batch <= batch), None)


def is_complete(store: CheckpointStore, epoch: Epoch, batch: int) -> bool:
    """Return whether every partition of an epoch has its commit record of a batch.

    The batch before its first counts.
    """
    if batch < epoch.first_batch:
        return batch == epoch.first_batch - 1
    return all(
        store.exists(commit_record_name(epoch.number, partition, batch))
        for partition in range(epoch.parallelism)
    )


def last_complete(store: CheckpointStore, epoch: Epoch) -> int:
    """Return the newest batch that every partition of an epoch has committed.

    The one before its first when none.
    """
    return min(
        max(committed_batches(store, epoch.number, partition), default=epoch.first_batch - 1)
        for partition in range(epoch.parallelism)
    )


def times_after(store: CheckpointStore, epoch: Epoch, batch: int) -> Times:
    """Return the times of all partitions of an epoch together after a batch that is complete."""
    if batch < epoch.first_batch:
        return epoch.times
    commits = [
        read_commit_record(store, epoch.number, partition, batch) for partition in range(epoch.parallelism)
    ]
    return Times.of([commit for commit in commits if commit is not None])


def prune(store: CheckpointStore, snapshots_required: int) -> list[int]:
    """Remove epochs that nothing needs any more, and return their numbers.

    An epoch is self-contained when each of its partitions can be restored without older epochs: it has so
    many snapshots, the newest of them of a batch of its own (so Spark has the output of every batch before).
    Everything older than the newest self-contained epoch is removed; its record first, so that an epoch
    removed in part is none.
    """
    numbers = sorted(int(found[1]) for name in store.names() if (found := _FOLDER.fullmatch(name)))
    alone = _newest_self_contained(store, snapshots_required) if len(numbers) > 1 else None
    if alone is None:
        return []
    removed = [number for number in numbers if number < alone.number]
    for number in removed:
        store.remove(f"e{number}/{RECORD_NAME}")
        store.remove_folder(f"e{number}")
    return removed


def _newest_self_contained(store: CheckpointStore, snapshots_required: int) -> Epoch | None:
    epochs = {epoch.number: epoch for epoch in list_epochs(store)}
    epoch = epochs[max(epochs)] if epochs else None
    batch_max: int | None = None
    while epoch is not None and not _is_self_contained(store, epoch, snapshots_required, batch_max):
        if epoch.parent is None or epoch.parent.savepoint is not None:
            return None
        batch_max = epoch.parent.batch
        epoch = epochs.get(epoch.parent.epoch)
    return epoch


def _is_self_contained(
    store: CheckpointStore, epoch: Epoch, snapshots_required: int, batch_max: int | None
) -> bool:
    for partition in range(epoch.parallelism):
        batches = _whole_snapshots(store, epoch.number, partition)
        usable = [batch for batch in batches if batch_max is None or batch <= batch_max]
        if len(usable) < snapshots_required or max(usable) < epoch.first_batch:
            return False
    return True


def _whole_snapshots(store: CheckpointStore, epoch: int, partition: int) -> list[int]:
    """Return the batches of snapshots whose manifest is readable and whose files are there."""
    batches = []
    for batch in snapshot_batches(store, epoch, partition):
        try:
            manifest = read_manifest(store, epoch, partition, batch)
        except StorageCorrupt:
            continue  # damage retains more, never less
        if manifest is not None and next(missing_files(store, manifest), None) is None:
            batches.append(batch)
    return batches


def check_parallelism(operator: str, parallelism: int, max_parallelism: int) -> None:
    """Refuse an impossible number of instances: each owns at least one key group."""
    if not 1 <= max_parallelism <= PARALLELISM_MAX:
        reason = f"max_parallelism is {max_parallelism}, and must be from 1 to {PARALLELISM_MAX}."
        raise StateInvalid(operator=operator, reason=reason)
    if not 1 <= parallelism <= max_parallelism:
        reason = f"{parallelism} instances cannot share {max_parallelism} key groups (max_parallelism)."
        raise StateInvalid(operator=operator, reason=reason)


def _existing_plan(request: EpochRequest, epochs: list[Epoch]) -> EpochPlan | None:
    """Return the plan by the existing epochs; None when the next one must be created."""
    if not epochs:
        return None
    governs = governing(epochs, request.number)
    if governs is None:
        reason = (
            f"Spark asks for batch {request.number}, and its state begins with batch "
            f"{min(epoch.first_batch for epoch in epochs)}: offsets and state are not of one query."
        )
        raise StateMismatch(operator=request.operator, reason=reason)
    if governs.parallelism == request.parallelism:
        return EpochPlan(governs)
    newest = epochs[-1]
    if newest.first_batch == request.number + 1 and newest.parallelism == request.parallelism:
        return EpochPlan(newest, _replay_shares(governs, request))
    if newest.first_batch > request.number + 1:
        reason = f"Spark asks for batch {request.number}, and batch {newest.first_batch} was begun already."
        raise StateMismatch(operator=request.operator, reason=reason)
    return None


def _replay_shares(old: Epoch, request: EpochRequest) -> tuple[tuple[int, int], ...]:
    return tuple(
        (old.number, partition)
        for partition in range(old.parallelism)
        if partition % request.parallelism == request.partition
    )


def _next(store: CheckpointStore, request: EpochRequest, epochs: list[Epoch]) -> Epoch:
    if not epochs:
        return _first(store, request)
    old = governing(epochs, request.number)
    if old is None:
        raise InvariantBroken(reason=f"no epoch governs batch {request.number}")
    is_done = is_complete(store, old, request.number)
    begun = _epoch_after(store, request.operator, old, request.number + is_done)
    return replace(begun, number=epochs[-1].number + 1, parallelism=request.parallelism)


def _epoch_after(store: CheckpointStore, operator: str, old: Epoch, batch: int) -> Epoch:
    """Return an epoch like the old one that begins with a batch."""
    if old.first_batch == batch:
        return replace(old, fenced=False)  # no batch of it counts: the same parents, the same times
    if not is_complete(store, old, batch - 1):
        reason = (
            f"batch {batch} cannot begin: batch {batch - 1} is not complete in epoch {old.number} with "
            f"{old.parallelism} instances."
        )
        raise StateMismatch(operator=operator, reason=reason)
    times = times_after(store, old, batch - 1)
    parent = Parent(epoch=old.number, batch=batch - 1, parallelism=old.parallelism)
    return replace(old, first_batch=batch, parent=parent, times=times, fenced=False)


def _first(store: CheckpointStore, request: EpochRequest) -> Epoch:
    new = Epoch(
        number=0,
        parallelism=request.parallelism,
        max_parallelism=request.max_parallelism,
        first_batch=request.number,
    )
    if request.savepoint is None:
        return new
    folder = checkpoint_path(request.savepoint).absolute()
    made = read_savepoint(folder)
    _refuse_other_max(request, made.max_parallelism, f"the savepoint {folder}")
    _adopt_schemas(store, folder, request, made.schema)
    parent = Parent(made.epoch, made.batch, made.parallelism, savepoint=str(folder))
    shift = made.batch + made.order_shift + 1 - request.number
    return replace(new, parent=parent, origin=parent.savepoint, order_shift=shift, times=made.times)


def _adopt_schemas(store: CheckpointStore, folder: Path, request: EpochRequest, newest: int) -> None:
    """Copy the savepoint's schemas, before the epoch is created: entries are found by the numbers in them."""
    for number in range(1, newest + 1):
        name = schema_name(number)
        content = CheckpointStore(folder).read(name)
        if content is None:
            raise StorageCorrupt(place=str(folder / name), reason="the file is missing")
        if not store.put_new(name, content) and store.read(name) != content:
            reason = f"it has other states than the savepoint {folder}. A savepoint starts a new checkpoint."
            raise StateMismatch(operator=request.operator, reason=reason)


def _check_max_parallelism(request: EpochRequest, epochs: list[Epoch]) -> None:
    if epochs:
        _refuse_other_max(request, epochs[-1].max_parallelism, "it")


def _refuse_other_max(request: EpochRequest, stored: int, what: str) -> None:
    if stored != request.max_parallelism:
        reason = (
            f"{what} was made with max_parallelism={stored}, and {request.max_parallelism} is asked for. "
            "It is fixed at the first start: key groups are counted by it."
        )
        raise StateMismatch(operator=request.operator, reason=reason)


def _check_not_replaced(request: EpochRequest, epochs: list[Epoch], seen: int | None) -> None:
    if seen is not None and epochs and epochs[-1].number > seen:
        newest = epochs[-1]
        is_same = newest.parallelism == request.parallelism
        other = "a newer one" if is_same else f"one with {newest.parallelism}"
        reason = (
            f"this task is of a run with {request.parallelism} instances that was replaced by {other} "
            f"(epoch {newest.number})."
        )
        hint = "Nothing was changed. A query that is started again needs a new call of `process`."
        raise StateMismatch(operator=request.operator, reason=reason, hint=hint)


def _put(store: CheckpointStore, epoch: Epoch) -> bool:
    is_first = store.put_new(f"{epoch.folder}/{RECORD_NAME}", encode_epoch(epoch))
    if is_first:
        crash_point("epoch-written", None, epoch.first_batch)
    return is_first


def _make_last(store: CheckpointStore, epoch: Epoch, batch: int) -> None:
    """Sync the name of a new epoch: the task that created it may have been killed before its sync."""
    if batch <= epoch.first_batch:
        store.sync(f"{epoch.folder}/{RECORD_NAME}")
        store.sync(epoch.folder)


def encode_epoch(epoch: Epoch) -> bytes:
    """Return the bytes of an epoch's record."""
    fields = asdict(epoch) | {"times": epoch.times.record()}
    if not epoch.fenced:
        del fields["fenced"]  # as in records from before there were fenced epochs
    return seal({"format": FORMAT} | fields)


def decode_epoch(content: bytes, place: str) -> Epoch:
    """Return the epoch of a record; StorageCorrupt names the place when it is damaged."""
    fields = unseal(content, place, FORMAT)
    try:
        del fields["format"]
        parent, times = fields.pop("parent"), fields.pop("times")
        return Epoch(**fields, parent=None if parent is None else Parent(**parent), times=Times(**times))
    except (TypeError, KeyError) as problem:
        raise StorageCorrupt(place=place, reason="fields are missing or unknown") from problem
