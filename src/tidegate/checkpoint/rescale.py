"""Rescaling: takes the state of an epoch's parents, gives the state with which one of its instances begins.

Everything of a key begins with its key group, so an instance's share of a parent is one range of keys:
values, timers and the TTL index move together and are not looked at. The parent with the largest share gives
its files as they are (links on one disk), and the rest of its keys go by range deletes; the shares of other
parents are written beside. A segmented store moves in the same way; its filters know all that was there,
which is more than there is, and harmless. Operator state is dealt out: "split" gives element k to instance k
modulo their number, "union" gives all to everyone. With as many instances as before each keeps its own.
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
from tidegate.checkpoint.backend import Backend, Changes, Version
from tidegate.checkpoint.epochs import GROUND_HEAD_ID, Epoch, Parent
from tidegate.checkpoint.keys.layout import META_GROUP, OPERATOR_GROUP, group_range, groups_of
from tidegate.checkpoint.store import Depot
from tidegate.errors import InvariantBroken, StorageCorrupt

# Entries written at a time: large enough that calls do not count, small beside the stage of a batch.
CHUNK_ENTRIES = 50_000

# What was cut off still lies in the files, counts in sizes and would be uploaded with the first snapshot.
# Copies up to this size are merged at once, in a few seconds; RocksDB merges larger ones beside the work.
COMPACTED_BYTES = range(1 << 20, 1 << 30)

Redistribute = Literal["split", "union"]
# Gives a parent's copy, opened, as it was after a batch: (depot, epoch, partition, batch). Nobody else writes
# to it until it is given back, which is soon: only links are made meanwhile.
Bring = Callable[[Depot, Epoch, int, int], AbstractContextManager[Backend]]
OpenBackend = Callable[[Path], Backend]
# Returns how the elements of each operator state are shared out, by the state's number.
Redistribution = Callable[[Depot], Mapping[int, Redistribute]]


@runtime_checkable
class Compacting(Protocol):
    """A backend that can merge its files, so that what was deleted takes no room."""

    def compact(self) -> None:
        """Merge all files; a large copy takes long."""
        ...


@runtime_checkable
class Absorbing(Protocol):
    """A backend that takes a range of another one of its kind quicker than entry by entry."""

    def absorb(self, source: Backend, start: bytes, stop: bytes) -> None:
        """Take the entries of a range, of which nothing is here; no version until `apply`."""
        ...


_STATE_BYTES = slice(3, 5)  # of an element's key: behind the group and the space


@dataclass(frozen=True, slots=True)
class Sources:
    """How rescaling reads and opens stores: those of parents, new ones, and how operator state is shared."""

    bring: Bring
    open_backend: OpenBackend
    redistribution: Redistribution


def no_operator_state(depot: Depot) -> Mapping[int, Redistribute]:  # noqa: ARG001
    """Return how operator state is shared out where the operator has none."""
    return {}


def assemble(depot: Depot, epoch: Epoch, partition: int, folder: Path, sources: Sources) -> None:
    """Make the copy with which a partition begins its epoch, in a new folder, closed again on return.

    It stands at Version(epoch.number, epoch.first_batch - 1, GROUND_HEAD_ID). Failing midway leaves nothing.
    An epoch without a parent begins empty.
    """
    aside = folder.with_name(f"{folder.name}.shares")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        _fill(depot, epoch, partition, folder, sources)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def shares(epoch: Epoch, partition: int) -> dict[int, range]:
    """Return parent's partitions that hold key groups of this one, with the groups, largest share first."""
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


def parent_of(depot: Depot, parent: Parent) -> tuple[Depot, Epoch]:
    """Return where a parent lies: its depot (this one, or a savepoint's) and its epoch."""
    if parent.savepoint is not None:
        # A path that is not absolute lies in a savepoint that was itself made of one.
        depot = Depot(depot.root / parent.savepoint)
    found = epochs.read(depot, parent.epoch)
    if found is None:
        place = str(depot.path(f"e{parent.epoch}"))
        raise StorageCorrupt(place=place, reason="the epoch from which state comes is not there")
    return depot, found


def deal(
    elements: Mapping[bytes, bytes], modes: Mapping[int, Redistribute], instance: int, parallelism: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield an instance's elements of those of all old instances: of each state every so-manieth, or all."""
    turns: Counter[bytes] = Counter()
    for key in sorted(elements):
        state = key[_STATE_BYTES]
        mode = modes.get(int.from_bytes(state, "big"), "split")
        if mode == "union" or turns[state] % parallelism == instance:
            yield key, elements[key]
        turns[state] += 1


def _fill(depot: Depot, epoch: Epoch, partition: int, folder: Path, sources: Sources) -> None:
    parts = _linked(depot, epoch, partition, folder, sources.bring)
    is_rescaled = epoch.parent is not None and epoch.parent.parallelism != epoch.parallelism
    modes = sources.redistribution(depot) if is_rescaled else {}
    target = sources.open_backend(folder)
    try:
        if is_rescaled and not modes:
            _check_no_operator_state(target)
        if parts:
            _cut(target, epoch, parts[folder])
        for place, share in parts.items():
            if place != folder:
                _add(target, sources.open_backend(place), share)
        if isinstance(target, Compacting) and target.sizes().size_bytes in COMPACTED_BYTES:
            target.compact()
        if modes:
            target.write_partly(_operator_state(depot, epoch, partition, sources.bring, modes))
        target.apply(Changes(), Version(epoch.number, epoch.first_batch - 1, GROUND_HEAD_ID))
    finally:
        target.close()


def _linked(depot: Depot, epoch: Epoch, partition: int, folder: Path, bring: Bring) -> dict[Path, range]:
    """Link the files of every parent with a share: the largest into the folder itself, the others aside."""
    if epoch.parent is None:
        return {}
    source_depot, source_epoch = parent_of(depot, epoch.parent)
    parts = {}
    for number, (old, share) in enumerate(shares(epoch, partition).items()):
        place = folder if number == 0 else folder.with_name(f"{folder.name}.shares") / str(old)
        place.parent.mkdir(parents=True, exist_ok=True)
        with bring(source_depot, source_epoch, old, epoch.parent.batch) as source:
            source.snapshot(place)
        parts[place] = share
    return parts


def _cut(target: Backend, epoch: Epoch, share: range) -> None:
    """Remove what is not of the share; operator state stays when there are as many instances as before."""
    start, stop = group_range(share)
    keeps_operator = epoch.parent is not None and epoch.parent.parallelism == epoch.parallelism
    top = OPERATOR_GROUP if keeps_operator else META_GROUP
    target.write_partly(Changes(ranges=[(b"", start), (stop, top)]))


def _add(target: Backend, source: Backend, share: range) -> None:
    try:
        if isinstance(target, Absorbing):
            target.absorb(source, *group_range(share))
            return
        entries = source.scan(*group_range(share))
        while chunk := dict(islice(entries, CHUNK_ENTRIES)):
            target.write_partly(Changes(entries=dict(chunk)))
    finally:
        source.close()


def _check_no_operator_state(target: Backend) -> None:
    """Refuse to drop operator state of which nobody said how it is shared out."""
    if next(iter(target.scan(OPERATOR_GROUP, META_GROUP)), None) is not None:
        raise InvariantBroken(reason="the parent has operator state, and the settings share none out")


def _operator_state(
    depot: Depot, epoch: Epoch, partition: int, bring: Bring, modes: Mapping[int, Redistribute]
) -> Changes:
    """Return this instance's share of the operator state of all old instances.

    An element's key says when and by whom it was added, so the elements of all instances lie in one order;
    one that several instances have, after an earlier union, counts once.
    """
    if epoch.parent is None:
        return Changes()
    source_depot, source_epoch = parent_of(depot, epoch.parent)
    elements: dict[bytes, bytes] = {}
    for old in range(epoch.parent.parallelism):
        with bring(source_depot, source_epoch, old, epoch.parent.batch) as source:
            elements |= dict(source.scan(OPERATOR_GROUP, META_GROUP))
    return Changes(entries=dict(deal(elements, modes, partition, epoch.parallelism)))
