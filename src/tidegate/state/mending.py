"""Mending a copy: takes the name of a part that it lacks, gives that part back, leaves the others alone.

A copy of parts (a folder for each segment of a deduplicating store) may lose one: its bytes are damaged and
it was set aside, or somebody removed its folder. The part is made again as it was at the version of the
copy: its files of the newest whole snapshot that is not later, then what the change files since say of it.
A part that the snapshot does not know began later, and begins empty. A kill meanwhile leaves a part that is
missing still: the backend counts it as whole once it is told so, on the disk, and at the copy's version.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tidegate.errors import StorageCorrupt
from tidegate.state.backend import Backend, Parted, Version
from tidegate.state.depot import Depot
from tidegate.state.snapshots import Manifest, SnapshotFile, fetch
from tidegate.state.ways import Findings, Partition, is_ground_open, logged, snapshots

log = logging.getLogger(__name__)


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
    """Give the parts that a copy lacks; none where copies have no parts."""
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
    """Give the snapshots that a part can begin with, newest first, and None where it can begin empty.

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
