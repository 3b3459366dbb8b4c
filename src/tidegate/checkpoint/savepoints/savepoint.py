"""Savepoints: takes a running or stopped operator's checkpoint, gives a named state that stays.

A savepoint is a folder of its own below `savepoints/`, with links to or copies of the files it needs, so it
survives pruning and the removal of everything else in the checkpoint. It is built under a spare name and
renamed when it is whole. Formats: savepoint_record.py, and savepoint_offsets.py for where the sources stood.

The files of a savepoint: takes a batch in a checkpoint, puts all that restores it into a folder.

Per partition the newest whole snapshot that is not later, and heads and change files after it. An epoch whose
partitions have no snapshot yet rests on its parent, which is then put there as well: under its own number,
or, when it is a savepoint, below `origin/`. Files are links where the disk allows it, and checked.
"""

from __future__ import annotations

import errno
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from tidegate.checkpoint import epochs
from tidegate.checkpoint.commit_record import head_name, read_head
from tidegate.checkpoint.epochs import Epoch, encode_epoch
from tidegate.checkpoint.savepoints.record import RECORD_NAME, Savepoint, read_savepoint
from tidegate.checkpoint.savepoints.source_offsets import OFFSETS_NAME, offsets_after, offsets_path
from tidegate.checkpoint.snapshot import (
    FILES_FOLDER,
    Manifest,
    manifest_name,
    read_manifest,
    snapshot_batches,
    unreadable,
)
from tidegate.checkpoint.store import (
    Depot,
    checkpoint_error,
    description_names,
    operator_depot,
    partition_folder,
    schema_name,
)
from tidegate.errors import CheckpointUnusable, NameInvalid, SavepointExists, StateNotFound, StorageCorrupt
from tidegate.model.clock import Clock
from tidegate.model.names import shorten
from tidegate.storage.files import COPY_BYTES, link_or_copy, sync_folder, sync_tree

SAVEPOINTS_FOLDER = "savepoints"
NAME_CHARS_MAX = 63  # as for pipelines: also the name of a folder

# No query prunes faster than files are linked five times in a row; in a damaged checkpoint files are missing.
TRIES_MAX = 5
# Attempts that fight for one spare name; each killed one leaves one behind for a day.
SPARES_MAX = 1_000
# What a killed attempt leaves is removed by a later one; no attempt takes a day.
SPARE_AGE_MS_MAX = 24 * 3_600 * 1_000

_SPARE_SUFFIX = ".new"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_RULE = (
    "A savepoint's name has letters a-z and A-Z, digits, '_' and '-', begins with a letter or a digit, "
    f"and is {NAME_CHARS_MAX} characters at most."
)


def make(checkpoint: str | Path, operator: str, name: str, clock: Clock) -> Savepoint:
    """Keep the state after the newest complete batch under a name; the query may run meanwhile.

    SavepointExists when the name is taken. All or nothing: it is there and whole on the disk, or not at all.
    """
    check_savepoint_name(name)
    depot = operator_depot(str(checkpoint), operator)
    target = depot.path(f"{SAVEPOINTS_FOLDER}/{name}")
    if not epochs.listed(depot):
        raise StateNotFound(state=operator)
    if target.exists():
        raise SavepointExists(savepoint=name, operator=operator)
    now_ms = clock.now_us() // 1_000
    _remove_old_spares(target.parent, now_ms)
    moved: FilesMoved | None = None
    for _ in range(TRIES_MAX):
        spare = _new_spare(target)
        try:
            made = _build(depot, Depot(spare), operator, name, now_ms)
            sync_tree(spare)
            _rename(spare, target, operator)
            return made
        except FilesMoved as problem:
            moved = problem  # the query went on and pruned; what it has now is newer
        except OSError as problem:
            raise checkpoint_error(target, problem) from problem
        finally:
            shutil.rmtree(spare, ignore_errors=True)
    raise StorageCorrupt(place=str(moved and moved.path), reason="the file is missing") from moved


def listing(checkpoint: str | Path, operator: str) -> list[Savepoint]:
    """Return the savepoints of an operator, oldest first."""
    depot = operator_depot(str(checkpoint), operator)
    names = [name for name in depot.names(SAVEPOINTS_FOLDER) if _NAME.fullmatch(name)]
    folders = [depot.path(f"{SAVEPOINTS_FOLDER}/{name}") for name in names]
    found = [read_savepoint(folder) for folder in folders if (folder / RECORD_NAME).exists()]
    return sorted(found, key=lambda made: (made.made_at_ms, made.name))


def remove(checkpoint: str | Path, operator: str, name: str) -> None:
    """Remove a savepoint; NotFound when there is none of that name."""
    folder = path_of(checkpoint, operator, name)
    spare = _new_spare(folder)
    try:
        folder.rename(spare)
    except OSError as problem:
        raise checkpoint_error(folder, problem) from problem
    shutil.rmtree(spare, ignore_errors=True)


def path_of(checkpoint: str | Path, operator: str, name: str) -> Path:
    """Return the folder of a savepoint, which a start from it names; NotFound when there is none."""
    check_savepoint_name(name)
    depot = operator_depot(str(checkpoint), operator)
    folder = depot.path(f"{SAVEPOINTS_FOLDER}/{name}")
    read_savepoint(folder)
    return folder


def check_savepoint_name(name: str) -> str:
    """Return the name back, or raise NameInvalid with what is wrong and the rule."""
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        reason = f"it has {len(name)} characters" if len(name) > NAME_CHARS_MAX else "it breaks the rule"
        raise NameInvalid(name=shorten(name), noun="savepoint", reason=reason, rule=_RULE)
    return name


def _build(depot: Depot, target: Depot, operator: str, name: str, now_ms: int) -> Savepoint:
    epoch, batch = _newest(depot, operator)
    times = epochs.times_after(depot, epoch, batch)
    offsets_bytes = _place_offsets(depot, target, operator, epoch, batch)
    size_bytes = place_epoch(depot, target, epoch, batch)
    schema, schema_bytes = place_descriptions(depot, target)
    made = Savepoint(
        name=name,
        operator=operator,
        epoch=epoch.number,
        batch=batch,
        parallelism=epoch.parallelism,
        max_parallelism=epoch.max_parallelism,
        schema=schema,
        order_shift=epoch.order_shift,
        times=times,
        made_at_ms=now_ms,
        size_bytes=size_bytes + schema_bytes + offsets_bytes,
    )
    target.put_new(RECORD_NAME, made.to_bytes())
    return made


def _place_offsets(depot: Depot, target: Depot, operator: str, epoch: Epoch, batch: int) -> int:
    """Put where the sources stood after a batch into a folder, if Spark says it; give the bytes of that.

    FilesMoved when the query has gone on so far that Spark may have removed it.
    """
    offsets = offsets_after(depot, epoch, batch)
    if offsets is not None:
        content = offsets.to_bytes()
        target.put_new(OFFSETS_NAME, content)
        return len(content)
    if _newest(depot, operator) != (epoch, batch):
        raise FilesMoved(offsets_path(depot, batch))
    return 0


def _newest(depot: Depot, operator: str) -> tuple[Epoch, int]:
    """Return the newest complete batch and its epoch: the parent's when the newest epoch has none yet."""
    epoch = epochs.listed(depot)[-1]
    batch = epochs.last_complete(depot, epoch)
    if batch >= epoch.first_batch:
        return epoch, batch
    # Old tasks may have gone on in the parent; what counts ended with the batch that the epoch came from.
    parent = epoch.parent
    if parent is None or parent.savepoint is not None:
        raise StateNotFound(state=operator, hint="No batch of it is complete yet: let the query run first.")
    found = epochs.read(depot, parent.epoch)
    if found is None:
        raise FilesMoved(depot.path(f"e{parent.epoch}"))
    return found, parent.batch


def _rename(spare: Path, target: Path, operator: str) -> None:
    try:
        spare.rename(target)
    except OSError as problem:
        if problem.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise SavepointExists(savepoint=target.name, operator=operator) from problem
        raise
    sync_folder(target.parent)


def _new_spare(target: Path) -> Path:
    """Make a folder beside a savepoint that nobody else has; no savepoint can have such a name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for number in range(SPARES_MAX):
        spare = target.with_name(f"{target.name}.{number}{_SPARE_SUFFIX}")
        try:
            spare.mkdir()
        except FileExistsError:
            continue
        return spare
    raise CheckpointUnusable(path=str(target), reason=f"{SPARES_MAX} spare folders lie there")


def _remove_old_spares(folder: Path, now_ms: int) -> None:
    for spare in folder.glob(f"*{_SPARE_SUFFIX}"):
        if now_ms - spare.stat().st_mtime_ns // 1_000_000 > SPARE_AGE_MS_MAX:
            shutil.rmtree(spare, ignore_errors=True)


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


def place_descriptions(source: Depot, target: Depot) -> tuple[int, int]:
    """Put the files that describe the operator into a folder.

    Return the number of its newest schema (0: none) and their size in bytes.
    """
    size_bytes = sum(_link(source, target, name) for name in description_names(source))
    number = 0
    while target.exists(schema_name(number + 1)):
        number += 1
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
    """Return a file a second name in a savepoint, and say how large it is; checked when a digest is known."""
    old, new = source.path(name), target.path(name)
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        link_or_copy(old, new)
    except FileNotFoundError as problem:
        raise FilesMoved(old) from problem
    if digest is not None and _digest(new, old) != digest:
        raise StorageCorrupt(place=str(old), reason="its bytes are not those that were written")
    return new.stat().st_size


def _digest(path: Path, named: Path) -> str:
    """Return the digest of a file; an unreadable one is StorageCorrupt by the name of what it was made of."""
    digest = xxhash.xxh3_128()
    try:
        with path.open("rb", 0) as file:
            while content := file.read(COPY_BYTES):
                digest.update(content)
    except OSError as problem:
        damage = unreadable(named, problem)
        if damage is None:
            raise
        raise damage from problem
    return digest.hexdigest()
