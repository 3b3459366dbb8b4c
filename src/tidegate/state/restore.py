"""Restoring: takes a copy in any condition, gives it as it was after a given batch, and says how.

The ways, best first:

    local       the copy stands at a batch of this epoch whose head has the same id: the change files since
    snapshot    the newest whole snapshot that is not later, then the change files since
    ground      what the epoch began with (nothing, or the state of its parents), then all change files

A copy that is ahead, of another epoch, without a version (a batch was cut off in the middle) or with
another head's id is not looked at any further. What turns out damaged is named in the log and in the
report, and the next way is taken; when there is none left, the first damaged file is named in the error. In
the checkpoint only marks on damaged snapshots are written, so a kill at any moment costs the work and
nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import xxhash

from tidegate.errors import StateMismatch, StorageCorrupt, TidegateError
from tidegate.state.backend import Backend, Changes, Version
from tidegate.state.change_files import read_changes
from tidegate.state.depot import Depot, partition_folder
from tidegate.state.epochs import GROUND_HEAD_ID, RECORD_NAME, Epoch
from tidegate.state.heads import Head, head_name, read_head
from tidegate.state.local import LocalCopy, Place, acquire, put_back
from tidegate.state.rescale import assemble
from tidegate.state.snapshots import (
    Manifest,
    fetch,
    manifest_name,
    mark_damaged,
    read_manifest,
    snapshot_batches,
)

log = logging.getLogger(__name__)

GROUND_NAME = "ground"

Way = Literal["local", "snapshot", "ground"]


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """How a copy came to its batch: the way, where it began, what was read, and what was found damaged."""

    way: Way
    from_batch: int
    to_batch: int
    change_files: int
    snapshot_bytes: int
    damaged: tuple[str, ...]


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
class _Findings:
    """What was damaged on the way, and which batches no way may lead through any more."""

    damaged: list[str] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    other_kinds: set[str] = field(default_factory=set)
    first: StorageCorrupt | None = None
    closed_batch: int | None = None

    def note(self, problem: StorageCorrupt) -> None:
        self.damaged.append(str(problem))
        log.warning("another way is looked for: %s", problem)


def bring(copy: LocalCopy, partition: Partition, batch: int) -> RestoreReport:
    """Bring a copy to a batch of its partition, opened; StorageCorrupt when no way leads there.

    StateMismatch when that batch was never done here.
    """
    _check_done(partition, batch)
    findings = _Findings()
    start = _local_start(copy, partition, batch, findings)
    if start is not None:
        try:
            count = _catch_up(copy.backend, partition, start, batch, findings)
            return RestoreReport("local", start, batch, count, 0, tuple(findings.damaged))
        except StorageCorrupt as problem:
            findings.note(problem)
    for manifest in _ways(partition, batch, findings):
        report = _try_way(copy, partition, manifest, batch, findings)
        if report is not None:
            _mark_damaged(partition, findings)
            return report
    copy.wipe()
    raise findings.first or _no_way(partition, batch, findings)


def bringing(place: Place) -> Bringing:
    """Give what opens the copies of other partitions, as rescaling does with the parents of an epoch."""
    return Bringing(place)


@dataclass(frozen=True, slots=True)
class Bringing:
    """Opens the copy of a partition as it was after a batch; nobody else writes to it meanwhile."""

    place: Place

    def __call__(
        self, depot: Depot, epoch: Epoch, partition: int, batch: int
    ) -> AbstractContextManager[Backend]:
        return self._opened(Partition(depot, epoch, partition, self.place), batch)

    @contextmanager
    def _opened(self, partition: Partition, batch: int) -> Iterator[Backend]:
        copy = acquire(self.place, partition.copy_folder)
        try:
            bring(copy, partition, batch)
            yield copy.backend
        finally:
            put_back(self.place, copy)


def apply_parts(backend: Backend, parts: Iterable[Changes], version: Version) -> None:
    """Apply the parts of a batch's changes, the last one with the version.

    A batch of several parts takes the version away with the first and gives it with the last: a kill between
    leaves a copy without a version, which is made again.
    """
    before: Changes | None = None
    for part in parts:
        if before is not None:
            backend.write_partly(before)
        before = part
    backend.apply(before or Changes(), version)


def _has_head(partition: Partition, batch: int) -> bool:
    return partition.depot.exists(head_name(partition.epoch.number, partition.number, batch))


def _check_done(partition: Partition, batch: int) -> None:
    first = partition.epoch.first_batch
    if batch < first - 1:
        reason = f"batch {batch} is older than its epoch, which begins with batch {first}."
    elif batch >= first and not _has_head(partition, batch):
        reason = (
            f"batch {batch} of partition {partition.number} was never done, and the next one needs it. Every "
            "partition of every batch must run: nothing between the operator and the sink may skip some."
        )
    else:
        return
    raise StateMismatch(operator=partition.depot.root.name, reason=reason)


def _local_start(copy: LocalCopy, partition: Partition, batch: int, findings: _Findings) -> int | None:
    """Give the batch at which the copy stands, opened, when it can be caught up from there."""
    try:
        backend = copy.open()
        version = None if backend is None else backend.version()
        if version is None or version.epoch != partition.epoch.number or version.batch > batch:
            return None
        if version.batch < partition.epoch.first_batch:
            is_same = version.head_id == GROUND_HEAD_ID and _ground_of(copy) == _ground(partition)
        else:
            head = partition.head(version.batch)
            is_same = head is not None and head.head_id == version.head_id
        if not is_same or (version.batch < batch and not _has_head(partition, version.batch + 1)):
            return None  # of another run, or so old that the log since is pruned
        return version.batch
    except StorageCorrupt as problem:
        findings.note(problem)
        return None


def _snapshots(partition: Partition, batch: int, findings: _Findings) -> Iterator[Manifest]:
    """Give the snapshots from which a way may lead to a batch, newest first."""
    epoch, depot = partition.epoch.number, partition.depot
    for number in reversed(snapshot_batches(depot, epoch, partition.number)):
        if number > batch:
            continue
        if findings.closed_batch is not None and number < findings.closed_batch:
            return
        try:
            manifest = read_manifest(depot, epoch, partition.number, number)
            head = partition.head(number)
        except StorageCorrupt as problem:
            findings.note(problem)
            findings.snapshots.append(number)
            findings.first = findings.first or problem
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


def _ways(partition: Partition, batch: int, findings: _Findings) -> Iterator[Manifest | None]:
    """Give the snapshots to try, newest first, and None at last for the ground."""
    yield from _snapshots(partition, batch, findings)
    if _is_ground_open(partition, batch, findings):
        yield None


def _no_way(partition: Partition, batch: int, findings: _Findings) -> TidegateError:
    if findings.other_kinds:
        kinds = ", ".join(sorted(findings.other_kinds))
        reason = f"its snapshots were made by backend {kinds}, not by {partition.place.kind}."
        return StateMismatch(operator=partition.depot.root.name, reason=reason)
    return StorageCorrupt(
        place=str(partition.depot.path(partition.folder)),
        reason=f"no snapshot and no unbroken row of change files leads to batch {batch}",
    )


def _mark_damaged(partition: Partition, findings: _Findings) -> None:
    """Mark the damaged snapshots that were gone round, so that no later one shares their files.

    When no way was found, none is marked: somebody may put the right bytes back.
    """
    for batch in findings.snapshots:
        try:
            mark_damaged(partition.depot, partition.epoch.number, partition.number, batch)
        except TidegateError as problem:
            log.warning("the damaged snapshot of batch %d could not be marked: %s", batch, problem)


def _is_ground_open(partition: Partition, batch: int, findings: _Findings) -> bool:
    if findings.closed_batch is not None:
        return False
    return partition.epoch.first_batch > batch or _has_head(partition, partition.epoch.first_batch)


def _try_way(
    copy: LocalCopy, partition: Partition, manifest: Manifest | None, batch: int, findings: _Findings
) -> RestoreReport | None:
    """Make the copy anew from a snapshot or from the ground, and catch it up; None when it is damaged."""
    try:
        if manifest is None:
            way: Way = "ground"
            start, size_bytes = partition.epoch.first_batch - 1, 0
            _lay_ground(copy, partition)
        else:
            way = "snapshot"
            start, size_bytes = manifest.batch, manifest.size_bytes
            findings.snapshots.append(start)
            _lay_snapshot(copy, partition, manifest)
            findings.snapshots.remove(start)
        count = _catch_up(copy.backend, partition, start, batch, findings)
        return RestoreReport(way, start, batch, count, size_bytes, tuple(findings.damaged))
    except StorageCorrupt as problem:
        findings.note(problem)
        findings.first = findings.first or problem
        return None


def _lay_snapshot(copy: LocalCopy, partition: Partition, manifest: Manifest) -> None:
    fetch(partition.depot, manifest, copy.wipe())
    version = copy.adopt().version()
    if version != Version(manifest.epoch, manifest.batch, manifest.head_id):
        name = manifest_name(manifest.epoch, manifest.partition, manifest.batch)
        reason = f"it opens at {version}, not at the batch that it names"
        raise StorageCorrupt(place=str(partition.depot.path(name)), reason=reason)


def _lay_ground(copy: LocalCopy, partition: Partition) -> None:
    unfinished = copy.wipe()
    assemble(
        partition.depot,
        partition.epoch,
        partition.number,
        unfinished,
        bringing(partition.place),
        copy.open_beside,
    )
    (copy.folder / GROUND_NAME).write_text(_ground(partition))
    copy.adopt()


def _ground(partition: Partition) -> str:
    """Give by what the beginning of an epoch is known: a checkpoint may be made anew under the same path."""
    name = f"e{partition.epoch.number}/{RECORD_NAME}"
    content = partition.depot.read(name) or b""
    made_ns = partition.depot.path(name).stat().st_mtime_ns if content else 0
    return f"{xxhash.xxh3_64_hexdigest(content)} {made_ns}"


def _ground_of(copy: LocalCopy) -> str | None:
    try:
        return (copy.folder / GROUND_NAME).read_text()
    except FileNotFoundError:
        return None


def _catch_up(backend: Backend, partition: Partition, start: int, stop: int, findings: _Findings) -> int:
    """Apply the batches after `start` up to and with `stop`; give how many.

    A damaged head or change file closes the log at its batch: every way from before it leads through it.
    """
    for batch in range(start + 1, stop + 1):
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
        apply_parts(backend, parts, Version(head.epoch, head.batch, head.head_id))
    return stop - start
