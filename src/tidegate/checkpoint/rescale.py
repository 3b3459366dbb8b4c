"""Rescaling: the state with which an instance of an epoch begins, built from the epoch's parents.

Everything of a key begins with its key group, so an instance's share of a parent is one range of keys:
values, timers and the TTL index move together, without being read one by one. The files of the parent with
the largest share are linked, and its other keys are deleted by range; the shares of other parents are written
into them. A segmented store moves in the same way; its filters still have all keys that were there, which is
more than there are, and harmless. Operator state is redistributed: with "split" element k goes to instance k
modulo their number, with "union" all go to every instance. With as many instances as before each retains its
own.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from tidegate.checkpoint import epochs
from tidegate.checkpoint.backend import Backend, StateChanges, Version
from tidegate.checkpoint.epochs import INITIAL_COMMIT_ID, Epoch, Parent
from tidegate.checkpoint.keys.layout import META_GROUP, OPERATOR_GROUP, group_range, groups_of
from tidegate.checkpoint.store import CheckpointStore
from tidegate.errors import InvariantBroken, StorageCorrupt

# Entries written at a time: large enough that calls cost nothing, small beside the write batch of a batch.
CHUNK_ENTRIES = 50_000

# What was deleted is still in the files, counts in sizes and would be uploaded with the first snapshot.
# Stores up to this size are compacted at once, in a few seconds; larger ones later, by RocksDB.
COMPACTED_BYTES = range(1 << 20, 1 << 30)

RedistributionMode = Literal["split", "union"]
# Opens a parent's local store as it was after a batch: (checkpoint store, epoch, partition, batch). Nobody
# else writes to it until it is returned, which is soon: only links are made meanwhile.
OpenRestored = Callable[[CheckpointStore, Epoch, int, int], AbstractContextManager[Backend]]
OpenBackend = Callable[[Path], Backend]
# Returns how the elements of each operator state are redistributed, by the state's number.
Redistribution = Callable[[CheckpointStore], Mapping[int, RedistributionMode]]


@runtime_checkable
class SupportsCompaction(Protocol):
    """A backend that can compact its files, so that what was deleted takes no room."""

    def compact(self) -> None:
        """Compact all files; this takes long for a large store."""
        ...


@runtime_checkable
class SupportsRangeCopy(Protocol):
    """A backend that copies a range from another one of its kind faster than entry by entry."""

    def copy_range(self, source: Backend, start: bytes, stop: bytes) -> None:
        """Copy the entries of a range, of which this backend has none; no version until `apply`."""
        ...


_STATE_BYTES = slice(3, 5)  # of an element's key: after the group and the space


@dataclass(frozen=True, slots=True)
class RescaleSources:
    """How rescaling opens the stores of parents and new ones, and how it redistributes operator state."""

    open_restored: OpenRestored
    open_backend: OpenBackend
    redistribution: Redistribution


def no_operator_state(store: CheckpointStore) -> Mapping[int, RedistributionMode]:  # noqa: ARG001
    """Return the redistribution of an operator without operator state."""
    return {}


def assemble(
    store: CheckpointStore, epoch: Epoch, partition: int, folder: Path, sources: RescaleSources
) -> None:
    """Build the store with which a partition begins its epoch, in a new folder, closed again on return.

    It is at Version(epoch.number, epoch.first_batch - 1, INITIAL_COMMIT_ID). A failure leaves nothing.
    An epoch without a parent begins empty.
    """
    aside = folder.with_name(f"{folder.name}.shares")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        _fill(store, epoch, partition, folder, sources)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def shares(epoch: Epoch, partition: int) -> dict[int, range]:
    """Return the parent's partitions with key groups of this one, and these groups, largest share first."""
    if epoch.parent is None:
        return {}
    mine = groups_of(partition, epoch.parallelism, epoch.max_parallelism)
    found = {}
    for old in range(epoch.parent.parallelism):
        theirs = groups_of(old, epoch.parent.parallelism, epoch.max_parallelism)
        share = range(max(mine.start, theirs.start), min(mine.stop, theirs.stop))
        if share:
            found[old] = share
    return dict(sorted(found.items(), key=lambda one: (-len(one[1]), one[0])))


def parent_of(store: CheckpointStore, parent: Parent) -> tuple[CheckpointStore, Epoch]:
    """Return the checkpoint store of a parent (this one, or a savepoint's) and its epoch."""
    if parent.savepoint is not None:
        # A relative path is in a savepoint that was itself made of one.
        store = CheckpointStore(store.root / parent.savepoint)
    found = epochs.read(store, parent.epoch)
    if found is None:
        place = str(store.path(f"e{parent.epoch}"))
        raise StorageCorrupt(place=place, reason="the epoch from which state comes is not there")
    return store, found


def redistribute(
    elements: Mapping[bytes, bytes], modes: Mapping[int, RedistributionMode], instance: int, parallelism: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield an instance's share of the elements of all old instances: of each state every n-th, or all."""
    turns: Counter[bytes] = Counter()
    for key in sorted(elements):
        state = key[_STATE_BYTES]
        mode = modes.get(int.from_bytes(state, "big"), "split")
        if mode == "union" or turns[state] % parallelism == instance:
            yield key, elements[key]
        turns[state] += 1


def _fill(
    store: CheckpointStore, epoch: Epoch, partition: int, folder: Path, sources: RescaleSources
) -> None:
    parts = _link_parents(store, epoch, partition, folder, sources.open_restored)
    is_rescaled = epoch.parent is not None and epoch.parent.parallelism != epoch.parallelism
    modes = sources.redistribution(store) if is_rescaled else {}
    target = sources.open_backend(folder)
    try:
        if is_rescaled and not modes:
            _check_no_operator_state(target)
        if parts:
            _delete_outside(target, epoch, parts[folder])
        for place, share in parts.items():
            if place != folder:
                _add_share(target, sources.open_backend(place), share)
        if isinstance(target, SupportsCompaction) and target.sizes().size_bytes in COMPACTED_BYTES:
            target.compact()
        if modes:
            target.write_partly(_operator_state(store, epoch, partition, sources.open_restored, modes))
        target.apply(StateChanges(), Version(epoch.number, epoch.first_batch - 1, INITIAL_COMMIT_ID))
    finally:
        target.close()


def _link_parents(
    store: CheckpointStore, epoch: Epoch, partition: int, folder: Path, open_restored: OpenRestored
) -> dict[Path, range]:
    """Link the files of every parent with a share: the largest into the folder, the others beside it."""
    if epoch.parent is None:
        return {}
    source_store, source_epoch = parent_of(store, epoch.parent)
    parts = {}
    for number, (old, share) in enumerate(shares(epoch, partition).items()):
        place = folder if number == 0 else folder.with_name(f"{folder.name}.shares") / str(old)
        place.parent.mkdir(parents=True, exist_ok=True)
        with open_restored(source_store, source_epoch, old, epoch.parent.batch) as source:
            source.snapshot(place)
        parts[place] = share
    return parts


def _delete_outside(target: Backend, epoch: Epoch, share: range) -> None:
    """Delete all but the share; operator state stays when there are as many instances as before."""
    start, stop = group_range(share)
    keeps_operator = epoch.parent is not None and epoch.parent.parallelism == epoch.parallelism
    top = OPERATOR_GROUP if keeps_operator else META_GROUP
    target.write_partly(StateChanges(ranges=[(b"", start), (stop, top)]))


def _add_share(target: Backend, source: Backend, share: range) -> None:
    try:
        if isinstance(target, SupportsRangeCopy):
            target.copy_range(source, *group_range(share))
            return
        entries = source.scan(*group_range(share))
        while chunk := dict(islice(entries, CHUNK_ENTRIES)):
            target.write_partly(StateChanges(entries=dict(chunk)))
    finally:
        source.close()


def _check_no_operator_state(target: Backend) -> None:
    """Refuse to drop operator state for which no redistribution is set."""
    if next(iter(target.scan(OPERATOR_GROUP, META_GROUP)), None) is not None:
        raise InvariantBroken(reason="the parent has operator state, and the settings share none out")


def _operator_state(
    store: CheckpointStore,
    epoch: Epoch,
    partition: int,
    open_restored: OpenRestored,
    modes: Mapping[int, RedistributionMode],
) -> StateChanges:
    """Return this instance's share of the operator state of all old instances.

    An element's key has the batch and the instance that added it, so the elements of all instances have one
    order; one that several instances have, after an earlier union, counts once.
    """
    if epoch.parent is None:
        return StateChanges()
    source_store, source_epoch = parent_of(store, epoch.parent)
    elements: dict[bytes, bytes] = {}
    for old in range(epoch.parent.parallelism):
        with open_restored(source_store, source_epoch, old, epoch.parent.batch) as source:
            elements |= dict(source.scan(OPERATOR_GROUP, META_GROUP))
    return StateChanges(entries=dict(redistribute(elements, modes, partition, epoch.parallelism)))
