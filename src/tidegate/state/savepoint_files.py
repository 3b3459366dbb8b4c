"""The files of a savepoint: takes a batch in a checkpoint, puts all that restores it into a folder.

Per partition the newest whole snapshot that is not later, and heads and change files after it. An epoch whose
partitions have no snapshot yet rests on its parent, which is then put there as well: under its own number,
or, when it is a savepoint, below `origin/`. Files are links where the disk allows it, and checked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from tidegate.errors import StorageCorrupt
from tidegate.state import epochs
from tidegate.state.depot import Depot, partition_folder
from tidegate.state.epochs import Epoch, encode_epoch
from tidegate.state.heads import head_name, read_head
from tidegate.state.schemas import schema_name
from tidegate.state.segments.identity import IDENTITY_FILE
from tidegate.state.snapshots import FILES_FOLDER, Manifest, manifest_name, read_manifest, snapshot_batches
from tidegate.storage.files import COPY_BYTES, link_or_copy

ORIGIN_FOLDER = "origin"


@dataclass(frozen=True, slots=True)
class _Placed:
    """The snapshot that a partition of a savepoint begins with, and what was damaged before one was found."""

    batch: int | None
    size_bytes: int
    damage: StorageCorrupt | None


class FilesMoved(Exception):
    """A file that was there a moment ago is gone: the query prunes while its files are read."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path


def place_epoch(source: Depot, target: Depot, epoch: Epoch, batch: int) -> int:
    """Put an epoch as it was after a batch into a folder, with all that it rests on; give the bytes of it.

    FilesMoved when files go meanwhile: nothing in the folder is of use then.
    """
    size_bytes, rests_on_parent = 0, False
    for partition in range(epoch.parallelism):
        snapshot = _place_snapshot(source, target, epoch, partition, batch)
        first = epoch.first_batch if snapshot.batch is None else snapshot.batch + 1
        try:
            changes_bytes = _place_changes(source, target, epoch, partition, range(first, batch + 1))
        except FilesMoved as problem:
            raise snapshot.damage or problem from problem
        size_bytes += snapshot.size_bytes + changes_bytes
        rests_on_parent = rests_on_parent or (snapshot.batch is None and epoch.parent is not None)
    if rests_on_parent and epoch.parent is not None:
        old_source, old_target = source, target
        if epoch.parent.savepoint is not None:
            old_source = Depot(source.root / epoch.parent.savepoint)
            old_target = Depot(target.root / ORIGIN_FOLDER)
            epoch = replace(epoch, parent=replace(epoch.parent, savepoint=ORIGIN_FOLDER))
        size_bytes += _place_parent(old_source, old_target, epoch)
    target.put_new(f"{epoch.folder}/{epochs.RECORD_NAME}", encode_epoch(epoch))
    return size_bytes


def place_schemas(source: Depot, target: Depot) -> tuple[int, int]:
    """Put what the operator is into a folder; give the number of its newest schema (0: none) and the bytes.

    That is its schemas and, of a deduplication, by which columns its keys are stored.
    """
    number, size_bytes = 0, 0
    if source.exists(IDENTITY_FILE):
        size_bytes += _link(source, target, IDENTITY_FILE)
    while source.exists(schema_name(number + 1)):
        number += 1
        size_bytes += _link(source, target, schema_name(number))
    return number, size_bytes


def _place_parent(source: Depot, target: Depot, epoch: Epoch) -> int:
    parent = epoch.parent
    found = None if parent is None else epochs.read(source, parent.epoch)
    if parent is None or found is None:
        raise FilesMoved(source.root)
    return place_epoch(source, target, found, parent.batch)


def _place_snapshot(source: Depot, target: Depot, epoch: Epoch, partition: int, batch: int) -> _Placed:
    """Put the newest whole snapshot there that is not later than a batch; none when there is none.

    Damaged or just pruned: the one before it and more change files do as well.
    """
    damage: StorageCorrupt | None = None
    for found in reversed(snapshot_batches(source, epoch.number, partition)):
        if found > batch:
            continue
        try:
            manifest = read_manifest(source, epoch.number, partition, found)
            if manifest is not None:
                _link_snapshot(source, target, manifest)
                return _Placed(found, manifest.size_bytes, damage)
        except StorageCorrupt as problem:
            damage = damage or problem
        except FilesMoved:
            continue
    return _Placed(None, 0, damage)


def _link_snapshot(source: Depot, target: Depot, manifest: Manifest) -> None:
    """Put the files of a snapshot there, then its manifest; nothing of it stays when one is damaged."""
    folder = partition_folder(manifest.epoch, manifest.partition)
    try:
        for file in manifest.files:
            _link(source, target, f"{folder}/{file.stored}", file.digest)
        _link(source, target, manifest_name(manifest.epoch, manifest.partition, manifest.batch))
    except (StorageCorrupt, FilesMoved):
        target.remove_folder(f"{folder}/{FILES_FOLDER}")
        raise


def _place_changes(source: Depot, target: Depot, epoch: Epoch, partition: int, batches: range) -> int:
    folder = partition_folder(epoch.number, partition)
    target.path(folder).mkdir(parents=True, exist_ok=True)
    size_bytes = 0
    snapshot_head = head_name(epoch.number, partition, batches.start - 1)
    if source.exists(snapshot_head):
        size_bytes += _link(source, target, snapshot_head)
    for batch in batches:
        head = read_head(source, epoch.number, partition, batch)
        if head is None:
            raise FilesMoved(source.path(head_name(epoch.number, partition, batch)))
        size_bytes += _link(source, target, f"{folder}/{head.changes.file}", head.changes.digest)
        size_bytes += _link(source, target, head_name(epoch.number, partition, batch))
    return size_bytes


def _link(source: Depot, target: Depot, name: str, digest: str | None = None) -> int:
    """Give a file a second name in a savepoint, and say how large it is; checked when a digest is known."""
    old, new = source.path(name), target.path(name)
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        link_or_copy(old, new)
    except FileNotFoundError as problem:
        raise FilesMoved(old) from problem
    if digest is not None and _digest(new) != digest:
        raise StorageCorrupt(place=str(old), reason="its bytes are not those that were written")
    return new.stat().st_size


def _digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb", 0) as file:
        while content := file.read(COPY_BYTES):
            digest.update(content)
    return digest.hexdigest()
