"""The ways back: takes a partition in a checkpoint, gives the snapshots and the log that restore it.

Whoever restores notes what turned out damaged in `Findings`, so that no later way leads through it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.errors import StateMismatch, StorageCorrupt, TidegateError
from tidegate.state.backend import Changes, Version
from tidegate.state.change_files import read_changes
from tidegate.state.depot import Depot, partition_folder
from tidegate.state.epochs import Epoch
from tidegate.state.heads import Head, head_name, read_head
from tidegate.state.local import Place
from tidegate.state.snapshots import Manifest, mark_damaged, read_manifest, snapshot_batches

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of an epoch in a checkpoint or savepoint, and where its copies are on this machine."""

    depot: Depot
    epoch: Epoch
    number: int
    place: Place

    @property
    def folder(self) -> str:
        """Give the name of its folder in the depot."""
        return partition_folder(self.epoch.number, self.number)

    @property
    def copy_folder(self) -> Path:
        """Give the folder of its copy on this machine."""
        return self.place.folder(self.depot, self.epoch.number, self.number)

    def head(self, batch: int) -> Head | None:
        """Give its head of a batch; None when that batch is not done."""
        return read_head(self.depot, self.epoch.number, self.number, batch)


@dataclass(slots=True)
class Findings:
    """What was damaged on the way, and which batches no way may lead through any more."""

    damaged: list[str] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    other_kinds: set[str] = field(default_factory=set)
    first: StorageCorrupt | None = None
    closed_batch: int | None = None

    def note(self, problem: StorageCorrupt) -> None:
        """Say what is damaged, in the log and for the report."""
        self.damaged.append(str(problem))
        log.warning("another way is looked for: %s", problem)

    def note_snapshot(self, batch: int, problem: StorageCorrupt) -> None:
        """Note a snapshot that is damaged: nothing begins with it any more."""
        self.note(problem)
        self.snapshots.append(batch)
        self.first = self.first or problem


def has_head(partition: Partition, batch: int) -> bool:
    """Say whether a batch is done."""
    return partition.depot.exists(head_name(partition.epoch.number, partition.number, batch))


def check_done(partition: Partition, batch: int) -> None:
    """Refuse a batch that was never done here, with StateMismatch."""
    first = partition.epoch.first_batch
    if batch < first - 1:
        reason = f"batch {batch} is older than its epoch, which begins with batch {first}."
    elif batch >= first and not has_head(partition, batch):
        reason = (
            f"batch {batch} of partition {partition.number} was never done, and the next one needs it. Every "
            "partition of every batch must run: nothing between the operator and the sink may skip some."
        )
    else:
        return
    raise StateMismatch(operator=partition.depot.root.name, reason=reason)


def snapshots(partition: Partition, batch: int, findings: Findings) -> Iterator[Manifest]:
    """Give the snapshots from which a way may lead to a batch, newest first."""
    epoch, depot = partition.epoch.number, partition.depot
    for number in reversed(snapshot_batches(depot, epoch, partition.number)):
        if number > batch or number in findings.snapshots:
            continue
        if findings.closed_batch is not None and number < findings.closed_batch:
            return
        try:
            manifest = read_manifest(depot, epoch, partition.number, number)
            head = partition.head(number)
        except StorageCorrupt as problem:
            findings.note_snapshot(number, problem)
            continue
        if manifest is None:
            continue
        if manifest.backend != partition.place.kind:
            findings.other_kinds.add(manifest.backend)
            continue
        if head is not None and head.head_id != manifest.head_id:
            log.warning("the snapshot of batch %d belongs to another run of it and is not used", number)
            continue
        yield manifest


def ways(partition: Partition, batch: int, findings: Findings) -> Iterator[Manifest | None]:
    """Give the snapshots to try, newest first, and None at last for the ground."""
    yield from snapshots(partition, batch, findings)
    if is_ground_open(partition, batch, findings):
        yield None


def no_way(partition: Partition, batch: int, findings: Findings) -> TidegateError:
    """Give the error that says that nothing leads to a batch."""
    if findings.other_kinds:
        kinds = ", ".join(sorted(findings.other_kinds))
        reason = f"its snapshots were made by backend {kinds}, not by {partition.place.kind}."
        return StateMismatch(operator=partition.depot.root.name, reason=reason)
    return StorageCorrupt(
        place=str(partition.depot.path(partition.folder)),
        reason=f"no snapshot and no unbroken row of change files leads to batch {batch}",
    )


def is_ground_open(partition: Partition, batch: int, findings: Findings) -> bool:
    """Say whether a way leads to a batch from what the epoch began with."""
    if findings.closed_batch is not None:
        return False
    return partition.epoch.first_batch > batch or has_head(partition, partition.epoch.first_batch)


def logged(
    partition: Partition, batches: range, findings: Findings
) -> Iterator[tuple[Version, Iterator[Changes]]]:
    """Give what batches did, each with its version.

    A damaged head or change file closes the log at its batch: every way from before it leads through it.
    """
    for batch in batches:
        try:
            head = partition.head(batch)
            if head is None:
                name = head_name(partition.epoch.number, partition.number, batch)
                raise StorageCorrupt(place=str(partition.depot.path(name)), reason="the file is missing")
            parts = read_changes(partition.depot, partition.folder, head.changes)
        except StorageCorrupt as problem:
            findings.closed_batch = max(batch, findings.closed_batch or 0)
            findings.first = findings.first or problem
            raise
        yield Version(head.epoch, head.batch, head.head_id), parts


def mark_all_damaged(partition: Partition, findings: Findings) -> None:
    """Mark the damaged snapshots that were gone round, so that no later one shares their files.

    When no way was found, none is marked: somebody may put the right bytes back.
    """
    for batch in findings.snapshots:
        try:
            mark_damaged(partition.depot, partition.epoch.number, partition.number, batch)
        except TidegateError as problem:
            log.warning("the damaged snapshot of batch %d could not be marked: %s", batch, problem)
