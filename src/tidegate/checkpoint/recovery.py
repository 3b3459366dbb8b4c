"""Restoring: takes a copy in any condition, gives it as it was after a given batch, and says how.

The ways, best first:

    local       the copy stands at a batch of this epoch whose head has the same id: parts that it lacks are
                made again alone (mending.py), then the change files since
    snapshot    the newest whole snapshot that is not later, then the change files since
    ground      what the epoch began with (nothing, or the state of its parents), then all change files

A copy that is ahead, of another epoch, without a version (a batch was cut off in the middle) or with
another head's id is not looked at any further. What turns out damaged is named in the log and in the
report, and the next way is taken; when there is none left, the first damaged file is named in the error. In
the checkpoint only marks on damaged snapshots are written, so a kill at any moment costs the work and
nothing else.

The ways back: takes a partition in a checkpoint, gives the snapshots and the log that restore it.

Whoever restores notes what turned out damaged in `Findings`, so that no later way leads through it.

Mending a copy: takes the name of a part that it lacks, gives that part back, leaves the others alone.

A copy of parts (a folder for each segment of a deduplicating store) may lose one: its bytes are damaged and
it was set aside, or somebody removed its folder. The part is made again as it was at the version of the
copy: its files of the newest whole snapshot that is not later, then what the change files since say of it.
A part that the snapshot does not know began later, and begins empty. A kill meanwhile leaves a part that is
missing still: the backend counts it as whole once it is told so, on the disk, and at the copy's version.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import xxhash

from tidegate.checkpoint.backend import Backend, Changes, Parted, Version
from tidegate.checkpoint.changelog import read_changes
from tidegate.checkpoint.commit_record import Head, head_name, read_head
from tidegate.checkpoint.epochs import GROUND_HEAD_ID, RECORD_NAME, Epoch
from tidegate.checkpoint.local.store import CopyMoved, LocalCopy, Place, acquire, put_back
from tidegate.checkpoint.rescale import Sources, assemble
from tidegate.checkpoint.snapshot import (
    Manifest,
    SnapshotFile,
    fetch,
    manifest_name,
    mark_damaged,
    read_manifest,
    snapshot_batches,
)
from tidegate.checkpoint.store import Depot, partition_folder
from tidegate.errors import StateMismatch, StorageCorrupt, TidegateError

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
        """Return the name of its folder in the depot."""
        return partition_folder(self.epoch.number, self.number)

    @property
    def copy_folder(self) -> Path:
        """Return the folder of its copy on this machine."""
        return self.place.folder(self.depot, self.epoch.number, self.number)

    def head(self, batch: int) -> Head | None:
        """Return its head of a batch; None when that batch is not done."""
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
    """Return whether a batch is done."""
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
    """Yield the snapshots from which a way may lead to a batch, newest first."""
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
        if manifest.backend != partition.place.factory.kind:
            findings.other_kinds.add(manifest.backend)
            continue
        if head is not None and head.head_id != manifest.head_id:
            log.warning("the snapshot of batch %d belongs to another run of it and is not used", number)
            continue
        yield manifest


def ways(partition: Partition, batch: int, findings: Findings) -> Iterator[Manifest | None]:
    """Yield the snapshots to try, newest first, and None at last for the ground."""
    yield from snapshots(partition, batch, findings)
    if is_ground_open(partition, batch, findings):
        yield None


def no_way(partition: Partition, batch: int, findings: Findings) -> TidegateError:
    """Return the error that says that nothing leads to a batch."""
    if findings.other_kinds:
        kinds = ", ".join(sorted(findings.other_kinds))
        reason = f"its snapshots were made by backend {kinds}, not by {partition.place.factory.kind}."
        return StateMismatch(operator=partition.depot.root.name, reason=reason)
    return StorageCorrupt(
        place=str(partition.depot.path(partition.folder)),
        reason=f"no snapshot and no unbroken row of change files leads to batch {batch}",
    )


def is_ground_open(partition: Partition, batch: int, findings: Findings) -> bool:
    """Return whether a way leads to a batch from what the epoch began with."""
    if findings.closed_batch is not None:
        return False
    return partition.epoch.first_batch > batch or has_head(partition, partition.epoch.first_batch)


def logged(
    partition: Partition, batches: range, findings: Findings
) -> Iterator[tuple[Version, Iterator[Changes]]]:
    """Yield what batches did, each with its version.

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


@dataclass(frozen=True, slots=True)
class MendedPart:
    """A part that was made again: where it began, and what was read for it."""

    name: str
    from_batch: int
    to_batch: int
    change_files: int
    size_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.name} was missing or damaged in the local copy, and was made again alone: as it was "
            f"after batch {self.from_batch}, and {self.change_files} change files up to batch {self.to_batch}"
        )


def missing_parts(backend: Backend) -> list[str]:
    """Return the parts that a copy lacks; none where copies have no parts."""
    return backend.missing_parts() if isinstance(backend, Parted) else []


def mend(
    backend: Backend, partition: Partition, target: Version, findings: Findings, room: Path
) -> list[MendedPart]:
    """Make every part again that a copy lacks, as it was at the version of the copy; say which.

    `room` is a folder for files on their way, not there before and not there after. StorageCorrupt when no
    way leads to a part; the others, and those made before it, are whole.
    """
    if not isinstance(backend, Parted):
        return []
    mended = []
    for part in backend.missing_parts():
        try:
            mended.append(_mend_part(backend, part, partition, target, findings, room))
        finally:
            shutil.rmtree(room, ignore_errors=True)
        log.warning("%s", mended[-1])
    return mended


def _mend_part(
    backend: Parted, part: str, partition: Partition, target: Version, findings: Findings, room: Path
) -> MendedPart:
    for manifest in _beginnings(partition, target.batch, findings):
        shutil.rmtree(room, ignore_errors=True)
        try:
            size_bytes = _fetch(partition.depot, manifest, part, room)
            backend.lay_part(part, room)
        except StorageCorrupt as problem:
            if manifest is None:
                raise
            findings.note_snapshot(manifest.batch, problem)
            continue
        begun = partition.epoch.first_batch - 1 if manifest is None else manifest.batch
        batches = range(begun + 1, target.batch + 1)
        for version, pieces in logged(partition, batches, findings):
            for piece in pieces:
                backend.apply_to_part(part, piece, version)
        backend.end_part(part)
        return MendedPart(part, begun, target.batch, len(batches), size_bytes)
    reason = f"no snapshot and no unbroken row of change files leads to {part} of its local copy"
    raise findings.first or StorageCorrupt(place=str(partition.depot.path(partition.folder)), reason=reason)


def _beginnings(partition: Partition, batch: int, findings: Findings) -> Iterator[Manifest | None]:
    """Yield the snapshots that a part can begin with, newest first, and None where it can begin empty.

    An epoch that began with the state of others is made again as a whole: nobody keeps a part of that.
    """
    yield from snapshots(partition, batch, findings)
    if partition.epoch.parent is None and is_ground_open(partition, batch, findings):
        yield None


def _fetch(depot: Depot, manifest: Manifest | None, part: str, room: Path) -> int:
    """Put a part's files of a snapshot into a new folder, under the names that they have in the part."""
    if manifest is None:
        room.mkdir(parents=True)
        return 0
    own = replace(manifest, files=tuple(_files_of(manifest, part)))
    fetch(depot, own, room)
    return own.size_bytes


def _files_of(manifest: Manifest, part: str) -> Iterator[SnapshotFile]:
    for file in manifest.files:
        folder, mark, name = file.name.partition("/")
        if mark and folder == part:
            yield replace(file, name=name)


__all__ = ["Bringing", "Partition", "RestoreReport", "apply_parts", "bring", "bringing"]

GROUND_NAME = "ground"
MENDING_NAME = "mending"
# Parts of one copy that turn out damaged one after the other while it is brought on; then it is made anew.
MENDS_MAX = 8

Way = Literal["local", "snapshot", "ground"]


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """How a copy came to its batch: the way, where it began, what was read, and what was found damaged.

    `parts` are those that a local copy lacked and that were made again alone.
    """

    way: Way
    from_batch: int
    to_batch: int
    change_files: int
    snapshot_bytes: int
    damaged: tuple[str, ...]
    parts: tuple[MendedPart, ...] = ()


def bring(copy: LocalCopy, partition: Partition, batch: int) -> RestoreReport:
    """Bring a copy to a batch of its partition, opened; StorageCorrupt when no way leads there.

    StateMismatch when that batch was never done here.
    """
    check_done(partition, batch)
    findings = Findings()
    report = _brought_on(copy, partition, batch, findings)
    if report is not None:
        return report
    for manifest in ways(partition, batch, findings):
        report = _try_way(copy, partition, manifest, batch, findings)
        if report is not None:
            mark_all_damaged(partition, findings)
            return report
    copy.wipe()
    raise findings.first or no_way(partition, batch, findings)


def bringing(place: Place) -> Bringing:
    """Return what opens the copies of other partitions, as rescaling does with the parents of an epoch."""
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
    leaves a copy without a version, which is made again. A segmented store keeps the version from before, and
    takes the whole batch once more.
    """
    before: Changes | None = None
    for part in parts:
        if before is not None and isinstance(backend, Parted):
            backend.apply_early(before, version)
        elif before is not None:
            backend.write_partly(before)
        before = part
    backend.apply(before or Changes(), version)


def _brought_on(
    copy: LocalCopy, partition: Partition, batch: int, findings: Findings
) -> RestoreReport | None:
    """Bring the copy on from where it stands; None when it is to be made anew.

    A part that turns out damaged on the way is made again, and the others stay.
    """
    first: int | None = None
    parts: list[MendedPart] = []
    for _ in range(MENDS_MAX):
        start = _local_start(copy, partition, batch, findings)
        if start is None:
            return None
        first = start.batch if first is None else first
        if not _is_mended(copy, partition, start, findings, parts):
            return None
        try:
            _catch_up(copy.backend, partition, start.batch, batch, findings)
        except CopyMoved:
            continue
        except StorageCorrupt as problem:
            findings.note(problem)
            if not missing_parts(copy.backend):
                return None
            continue
        if parts:
            mark_all_damaged(partition, findings)
        size_bytes = sum(part.size_bytes for part in parts)
        damaged = (*findings.damaged, *map(str, parts))
        return RestoreReport("local", first, batch, batch - first, size_bytes, damaged, tuple(parts))
    return None


def _is_mended(
    copy: LocalCopy, partition: Partition, target: Version, findings: Findings, parts: list[MendedPart]
) -> bool:
    """Make the parts again that the copy lacks, and add them to a list; False when no way leads there."""
    try:
        parts += mend(copy.backend, partition, target, findings, copy.folder / MENDING_NAME)
        return True
    except StorageCorrupt as problem:
        findings.note(problem)
        return False


def _local_start(copy: LocalCopy, partition: Partition, batch: int, findings: Findings) -> Version | None:
    """Return the version at which the copy stands, opened, when it can be caught up from there."""
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
        if not is_same or (version.batch < batch and not has_head(partition, version.batch + 1)):
            return None  # of another run, or so old that the log since is pruned
        return version
    except StateMismatch:
        return None  # made by a checkpoint that lay here before; what lies here now was compared already
    except StorageCorrupt as problem:
        findings.note(problem)
        return None


def _try_way(
    copy: LocalCopy, partition: Partition, manifest: Manifest | None, batch: int, findings: Findings
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
    place = partition.place
    sources = Sources(bringing(place), copy.open_beside, place.redistribution)
    assemble(partition.depot, partition.epoch, partition.number, unfinished, sources)
    (copy.folder / GROUND_NAME).write_text(_ground(partition))
    copy.adopt()


def _ground(partition: Partition) -> str:
    """Return by what the beginning of an epoch is known."""
    name = f"e{partition.epoch.number}/{RECORD_NAME}"
    content = partition.depot.read(name) or b""
    made_ns = partition.depot.path(name).stat().st_mtime_ns if content else 0
    return f"{xxhash.xxh3_64_hexdigest(content)} {made_ns}"


def _ground_of(copy: LocalCopy) -> str | None:
    try:
        return (copy.folder / GROUND_NAME).read_text()
    except FileNotFoundError:
        return None


def _catch_up(backend: Backend, partition: Partition, start: int, stop: int, findings: Findings) -> int:
    """Apply the batches after `start` up to and with `stop`; give how many."""
    for version, parts in logged(partition, range(start + 1, stop + 1), findings):
        apply_parts(backend, parts, version)
    return stop - start
