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
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal

import xxhash

from tidegate.errors import StateMismatch, StorageCorrupt
from tidegate.state.backend import Backend, Changes, Parted, Version
from tidegate.state.depot import Depot
from tidegate.state.epochs import GROUND_HEAD_ID, RECORD_NAME, Epoch
from tidegate.state.local import LocalCopy, Place, acquire, put_back
from tidegate.state.mending import MendedPart, mend, missing_parts
from tidegate.state.rescale import assemble
from tidegate.state.snapshots import Manifest, fetch, manifest_name
from tidegate.state.ways import (
    Findings,
    Partition,
    check_done,
    has_head,
    logged,
    mark_all_damaged,
    no_way,
    ways,
)

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
    """Give the version at which the copy stands, opened, when it can be caught up from there."""
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


def _catch_up(backend: Backend, partition: Partition, start: int, stop: int, findings: Findings) -> int:
    """Apply the batches after `start` up to and with `stop`; give how many."""
    for version, parts in logged(partition, range(start + 1, stop + 1), findings):
        apply_parts(backend, parts, version)
    return stop - start
