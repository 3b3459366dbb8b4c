"""Epochs: takes a batch and a number of instances, gives the folder of heads that governs them.

An epoch is a stretch of batches done by one number of instances. `e<epoch>/epoch.json` is put if absent,
never changed, and says where its state comes from. For a batch, the epoch with the highest number among those
whose first batch is not later governs: of two epochs that begin at one batch the older one was left behind.

Whoever asks first with another number of instances makes the next epoch; everybody else finds it. A batch
that is complete in the old epoch (Spark may have its output already) stays there: its stored output is dealt
out to the new instances, and the new epoch begins one batch later. A batch done in part is left behind, and
done again in the new epoch from the state before it.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from tidegate.checkpoint.commit_record import NO_TIMES, Times, head_batches, head_name, read_head
from tidegate.checkpoint.crash_points import reached
from tidegate.checkpoint.keys.layout import PARALLELISM_MAX
from tidegate.checkpoint.savepoints.record import read_savepoint
from tidegate.checkpoint.snapshot import missing_files, read_manifest, snapshot_batches
from tidegate.checkpoint.store import Depot, checkpoint_path, schema_name
from tidegate.errors import InvariantBroken, StateInvalid, StateMismatch, StorageCorrupt
from tidegate.storage.sealed_json import seal, unseal

FORMAT = 1
RECORD_NAME = "epoch.json"

# The version of a partition's state before the first batch of an epoch names no head: there is none yet.
GROUND_HEAD_ID = "ground"

# What `seen` says of a checkpoint without any epoch.
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
    """A stretch of batches done by one number of instances.

    `order_shift` is added to a batch's number wherever entries are ordered by batch: after a start from a
    savepoint Spark counts from 0 again. The times are those known before the first batch. A `fenced` one was
    begun by a driver for its own tasks: an older run's, which may outlive it, have no part in it.
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
        """Return the name of its folder in an operator's folder."""
        return f"e{self.number}"

    def order_of(self, batch: int) -> int:
        """Return the number under which entries of a batch are ordered: more than any batch before."""
        return batch + self.order_shift


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """What an instance does for a batch: its part in an epoch, or giving out what old instances stored.

    `replay` is None for the first; else the (epoch, partition) whose stored output of this batch the instance
    gives out, in this order; they may be none, and state is not touched.
    """

    epoch: Epoch
    replay: tuple[tuple[int, int], ...] | None = None


class Asking(Protocol):
    """What a task says of itself: which batch of which operator, as which of how many instances."""

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


def resolve(depot: Depot, asked: Asking, seen: int | None = None) -> EpochPlan:
    """Return the epoch that governs a batch for these instances, made now when it is not there.

    All tasks of a run get the same answer, also when any of them dies in between. `seen` is the newest epoch
    when the query's plan was made (NONE_SEEN: there was none; None: not known): a task whose plan is older
    than a fenced epoch of its batch, or than one with another number of instances, belongs to a run that was
    replaced, and is refused. Spark does not wait for tasks that it gives up, so they may come that late.
    """
    check_parallelism(asked.operator, asked.parallelism, asked.max_parallelism)
    while True:
        epochs = listed(depot)
        _check_max_parallelism(asked, epochs)
        fenced = [epoch for epoch in epochs if epoch.fenced and epoch.first_batch <= asked.number]
        _check_not_replaced(asked, fenced, seen)
        plan = _found(asked, epochs)
        if plan is not None:
            _make_last(depot, plan.epoch, asked.number)
            return plan
        _check_not_replaced(asked, epochs, seen)
        # Whether this one or another task's is put first, the next round finds it.
        _put(depot, _next(depot, asked, epochs))


def begin_anew(depot: Depot, operator: str, batch: int) -> Epoch:
    """Leave behind what a batch did in part: make an epoch that begins with it, with as many instances.

    For batches whose plan is made anew instead of repeated. Only the driver calls this, before any task runs.
    """
    epochs = listed(depot)
    old = governing(epochs, batch)
    if old is None:
        raise StateMismatch(operator=operator, reason=f"there is no epoch that batch {batch} belongs to.")
    new = replace(_begun(depot, operator, old, batch), number=epochs[-1].number + 1, fenced=True)
    if not _put(depot, new):
        raise StateMismatch(operator=operator, reason="another query runs on it at the same time.")
    return new


def listed(depot: Depot) -> list[Epoch]:
    """Return the epochs of an operator, oldest first."""
    numbers = sorted(int(found[1]) for name in depot.names() if (found := _FOLDER.fullmatch(name)))
    return [epoch for number in numbers if (epoch := read(depot, number)) is not None]


def read(depot: Depot, number: int) -> Epoch | None:
    """Return an epoch by its number; None when it was never made, or is removed."""
    name = f"e{number}/{RECORD_NAME}"
    content = depot.read(name)
    return None if content is None else decode_epoch(content, str(depot.path(name)))


def governing(epochs: list[Epoch], batch: int) -> Epoch | None:
    """Return the epoch that governs a batch: the highest number among those that begin with it or before."""
    return next((epoch for epoch in reversed(epochs) if epoch.first_batch <= batch), None)


def is_complete(depot: Depot, epoch: Epoch, batch: int) -> bool:
    """Return whether every partition of an epoch has its head of a batch.

    The batch before its first counts.
    """
    if batch < epoch.first_batch:
        return batch == epoch.first_batch - 1
    return all(
        depot.exists(head_name(epoch.number, partition, batch)) for partition in range(epoch.parallelism)
    )


def last_complete(depot: Depot, epoch: Epoch) -> int:
    """Return the newest batch that every partition of an epoch has done.

    The one before its first when none.
    """
    return min(
        max(head_batches(depot, epoch.number, partition), default=epoch.first_batch - 1)
        for partition in range(epoch.parallelism)
    )


def times_after(depot: Depot, epoch: Epoch, batch: int) -> Times:
    """Return what all partitions of an epoch know together after a batch that is complete."""
    if batch < epoch.first_batch:
        return epoch.times
    heads = [read_head(depot, epoch.number, partition, batch) for partition in range(epoch.parallelism)]
    return Times.of([head for head in heads if head is not None])


def prune(depot: Depot, snapshots_wanted: int) -> list[int]:
    """Remove epochs that nothing needs any more, and give their numbers.

    An epoch stands alone when each of its partitions can be restored without older epochs: it has so many
    snapshots, the newest of them of a batch of its own (so Spark has the output of every batch before).
    Everything older than the newest epoch that stands alone goes; its record first, so that an epoch removed
    in part is none.
    """
    numbers = sorted(int(found[1]) for name in depot.names() if (found := _FOLDER.fullmatch(name)))
    alone = _newest_alone(depot, snapshots_wanted) if len(numbers) > 1 else None
    if alone is None:
        return []
    removed = [number for number in numbers if number < alone.number]
    for number in removed:
        depot.remove(f"e{number}/{RECORD_NAME}")
        depot.remove_folder(f"e{number}")
    return removed


def _newest_alone(depot: Depot, snapshots_wanted: int) -> Epoch | None:
    epochs = {epoch.number: epoch for epoch in listed(depot)}
    epoch = epochs[max(epochs)] if epochs else None
    batch_max: int | None = None
    while epoch is not None and not _stands_alone(depot, epoch, snapshots_wanted, batch_max):
        if epoch.parent is None or epoch.parent.savepoint is not None:
            return None
        batch_max = epoch.parent.batch
        epoch = epochs.get(epoch.parent.epoch)
    return epoch


def _stands_alone(depot: Depot, epoch: Epoch, snapshots_wanted: int, batch_max: int | None) -> bool:
    for partition in range(epoch.parallelism):
        batches = _whole_snapshots(depot, epoch.number, partition)
        usable = [batch for batch in batches if batch_max is None or batch <= batch_max]
        if len(usable) < snapshots_wanted or max(usable) < epoch.first_batch:
            return False
    return True


def _whole_snapshots(depot: Depot, epoch: int, partition: int) -> list[int]:
    """Return the batches of snapshots whose manifest reads well and whose files are there."""
    batches = []
    for batch in snapshot_batches(depot, epoch, partition):
        try:
            manifest = read_manifest(depot, epoch, partition, batch)
        except StorageCorrupt:
            continue  # damage keeps more, never less
        if manifest is not None and next(missing_files(depot, manifest), None) is None:
            batches.append(batch)
    return batches


def check_parallelism(operator: str, parallelism: int, max_parallelism: int) -> None:
    """Refuse a number of instances that cannot be: each owns at least one key group."""
    if not 1 <= max_parallelism <= PARALLELISM_MAX:
        reason = f"max_parallelism is {max_parallelism}, and must be from 1 to {PARALLELISM_MAX}."
        raise StateInvalid(operator=operator, reason=reason)
    if not 1 <= parallelism <= max_parallelism:
        reason = f"{parallelism} instances cannot share {max_parallelism} key groups (max_parallelism)."
        raise StateInvalid(operator=operator, reason=reason)


def _found(asked: Asking, epochs: list[Epoch]) -> EpochPlan | None:
    """Return the plan that the epochs there are lead to; None when the next one must be made."""
    if not epochs:
        return None
    governs = governing(epochs, asked.number)
    if governs is None:
        reason = (
            f"Spark asks for batch {asked.number}, and its state begins with batch "
            f"{min(epoch.first_batch for epoch in epochs)}: offsets and state are not of one query."
        )
        raise StateMismatch(operator=asked.operator, reason=reason)
    if governs.parallelism == asked.parallelism:
        return EpochPlan(governs)
    newest = epochs[-1]
    if newest.first_batch == asked.number + 1 and newest.parallelism == asked.parallelism:
        return EpochPlan(newest, _dealt(governs, asked))
    if newest.first_batch > asked.number + 1:
        reason = f"Spark asks for batch {asked.number}, and batch {newest.first_batch} was begun already."
        raise StateMismatch(operator=asked.operator, reason=reason)
    return None


def _dealt(old: Epoch, asked: Asking) -> tuple[tuple[int, int], ...]:
    return tuple(
        (old.number, partition)
        for partition in range(old.parallelism)
        if partition % asked.parallelism == asked.partition
    )


def _next(depot: Depot, asked: Asking, epochs: list[Epoch]) -> Epoch:
    if not epochs:
        return _first(depot, asked)
    old = governing(epochs, asked.number)
    if old is None:
        raise InvariantBroken(reason=f"no epoch governs batch {asked.number}")
    is_done = is_complete(depot, old, asked.number)
    begun = _begun(depot, asked.operator, old, asked.number + is_done)
    return replace(begun, number=epochs[-1].number + 1, parallelism=asked.parallelism)


def _begun(depot: Depot, operator: str, old: Epoch, batch: int) -> Epoch:
    """Return an epoch like the old one that begins with a batch."""
    if old.first_batch == batch:
        return replace(old, fenced=False)  # nothing of it counts: the same parents, the same times
    if not is_complete(depot, old, batch - 1):
        reason = (
            f"batch {batch} cannot begin: batch {batch - 1} is not complete in epoch {old.number} with "
            f"{old.parallelism} instances."
        )
        raise StateMismatch(operator=operator, reason=reason)
    times = times_after(depot, old, batch - 1)
    parent = Parent(epoch=old.number, batch=batch - 1, parallelism=old.parallelism)
    return replace(old, first_batch=batch, parent=parent, times=times, fenced=False)


def _first(depot: Depot, asked: Asking) -> Epoch:
    new = Epoch(
        number=0,
        parallelism=asked.parallelism,
        max_parallelism=asked.max_parallelism,
        first_batch=asked.number,
    )
    if asked.savepoint is None:
        return new
    folder = checkpoint_path(asked.savepoint).absolute()
    made = read_savepoint(folder)
    _refuse_other_max(asked, made.max_parallelism, f"the savepoint {folder}")
    _adopt_schemas(depot, folder, asked, made.schema)
    parent = Parent(made.epoch, made.batch, made.parallelism, savepoint=str(folder))
    shift = made.batch + made.order_shift + 1 - asked.number
    return replace(new, parent=parent, origin=parent.savepoint, order_shift=shift, times=made.times)


def _adopt_schemas(depot: Depot, folder: Path, asked: Asking, newest: int) -> None:
    """Take over the savepoint's schemas, before the epoch: by the numbers in them entries are found."""
    for number in range(1, newest + 1):
        name = schema_name(number)
        content = Depot(folder).read(name)
        if content is None:
            raise StorageCorrupt(place=str(folder / name), reason="the file is missing")
        if not depot.put_new(name, content) and depot.read(name) != content:
            reason = f"it has other states than the savepoint {folder}. A savepoint starts a new checkpoint."
            raise StateMismatch(operator=asked.operator, reason=reason)


def _check_max_parallelism(asked: Asking, epochs: list[Epoch]) -> None:
    if epochs:
        _refuse_other_max(asked, epochs[-1].max_parallelism, "it")


def _refuse_other_max(asked: Asking, stored: int, what: str) -> None:
    if stored != asked.max_parallelism:
        reason = (
            f"{what} was made with max_parallelism={stored}, and {asked.max_parallelism} is asked for. "
            "It is fixed at the first start: key groups are counted by it."
        )
        raise StateMismatch(operator=asked.operator, reason=reason)


def _check_not_replaced(asked: Asking, epochs: list[Epoch], seen: int | None) -> None:
    if seen is not None and epochs and epochs[-1].number > seen:
        newest = epochs[-1]
        is_same = newest.parallelism == asked.parallelism
        other = "a newer one" if is_same else f"one with {newest.parallelism}"
        reason = (
            f"this task is of a run with {asked.parallelism} instances that was replaced by {other} "
            f"(epoch {newest.number})."
        )
        hint = "Nothing was changed. A query that is started again needs a new call of `process`."
        raise StateMismatch(operator=asked.operator, reason=reason, hint=hint)


def _put(depot: Depot, epoch: Epoch) -> bool:
    is_first = depot.put_new(f"{epoch.folder}/{RECORD_NAME}", encode_epoch(epoch))
    if is_first:
        reached("epoch-written", None, epoch.first_batch)
    return is_first


def _make_last(depot: Depot, epoch: Epoch, batch: int) -> None:
    """Put a new epoch's name on the disk: who made it may have been killed before it came to that."""
    if batch <= epoch.first_batch:
        depot.sync(f"{epoch.folder}/{RECORD_NAME}")
        depot.sync(epoch.folder)


def encode_epoch(epoch: Epoch) -> bytes:
    """Return the bytes of an epoch's record."""
    fields = asdict(epoch) | {"times": epoch.times.record()}
    if not epoch.fenced:
        del fields["fenced"]  # as before there were any
    return seal({"format": FORMAT} | fields)


def decode_epoch(content: bytes, place: str) -> Epoch:
    """Return the epoch that a record holds; StorageCorrupt names the place when it is damaged."""
    fields = unseal(content, place, FORMAT)
    try:
        del fields["format"]
        parent, times = fields.pop("parent"), fields.pop("times")
        return Epoch(**fields, parent=None if parent is None else Parent(**parent), times=Times(**times))
    except (TypeError, KeyError) as problem:
        raise StorageCorrupt(place=place, reason="fields are missing or unknown") from problem
