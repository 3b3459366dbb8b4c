"""The savepoint of an operator: a named copy of its state after one batch, of a running or stopped query.

A savepoint is a folder of its own below `savepoints/`, with links to or copies of the files it needs, so it
survives pruning and the removal of everything else in the checkpoint. It is built under a spare name and
renamed when it is whole. Formats: record.py, and source_offsets.py for the offsets of the sources.

Its files are, for each partition, the newest whole snapshot that is not later, and the commit records and
changelog files after it. An epoch whose partitions have no snapshot yet depends on its parent, which is then
included as well: under its own number, or, when it is a savepoint, below `origin/`. Files are links where the
disk allows it, and checked.
"""

from __future__ import annotations

import errno
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from tidegate.checkpoint import epochs
from tidegate.checkpoint.commit_record import commit_record_name, read_commit_record
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
    CheckpointStore,
    checkpoint_error,
    checkpoint_errors,
    description_names,
    operator_store,
    partition_folder,
    schema_name,
)
from tidegate.errors import CheckpointUnusable, NameInvalid, SavepointExists, StateNotFound, StorageCorrupt
from tidegate.model.clock import Clock
from tidegate.model.names import shorten
from tidegate.storage.files import COPY_BYTES, link_or_copy, sync_folder, sync_tree

SAVEPOINTS_FOLDER = "savepoints"
NAME_CHARS_MAX = 63  # as for pipelines: also the name of a folder

# No query prunes faster than files are linked, five times in a row: then files are missing by damage.
TRIES_MAX = 5
# Attempts that compete for one spare name; each killed one leaves one behind for a day.
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
    """Make a savepoint of the state after the newest complete batch; the query may run meanwhile.

    SavepointExists when the name is taken. All or nothing: it is there, whole and synced, or not at all.
    """
    check_savepoint_name(name)
    store = operator_store(str(checkpoint), operator)
    target = store.path(f"{SAVEPOINTS_FOLDER}/{name}")
    if not epochs.list_epochs(store):
        raise StateNotFound(state=operator)
    if target.exists():
        raise SavepointExists(savepoint=name, operator=operator)
    now_ms = clock.now_us() // 1_000
    _remove_old_spares(target.parent, now_ms)
    moved: FilesMoved | None = None
    for _ in range(TRIES_MAX):
        spare = _new_spare(target)
        try:
            made = _build(store, CheckpointStore(spare), operator, name, now_ms)
            sync_tree(spare)
            _rename(spare, target, operator)
            return made
        except FilesMoved as problem:
            moved = problem  # the query has pruned meanwhile; what it has now is newer
        except OSError as problem:
            raise checkpoint_error(target, problem) from problem
        finally:
            shutil.rmtree(spare, ignore_errors=True)
    raise StorageCorrupt(place=str(moved and moved.path), reason="the file is missing") from moved


def listing(checkpoint: str | Path, operator: str) -> list[Savepoint]:
    """Return the savepoints of an operator, oldest first."""
    store = operator_store(str(checkpoint), operator)
    names = [name for name in store.names(SAVEPOINTS_FOLDER) if _NAME.fullmatch(name)]
    folders = [store.path(f"{SAVEPOINTS_FOLDER}/{name}") for name in names]
    found = [read_savepoint(folder) for folder in folders if (folder / RECORD_NAME).exists()]
    return sorted(found, key=lambda made: (made.made_at_ms, made.name))


def remove(checkpoint: str | Path, operator: str, name: str) -> None:
    """Remove a savepoint; NotFound when there is none with that name."""
    folder = path_of(checkpoint, operator, name)
    spare = _new_spare(folder)
    with checkpoint_errors(folder):
        folder.rename(spare)
    shutil.rmtree(spare, ignore_errors=True)


def path_of(checkpoint: str | Path, operator: str, name: str) -> Path:
    """Return the folder of a savepoint, from which a query is started; NotFound when there is none."""
    check_savepoint_name(name)
    store = operator_store(str(checkpoint), operator)
    folder = store.path(f"{SAVEPOINTS_FOLDER}/{name}")
    read_savepoint(folder)
    return folder


def check_savepoint_name(name: str) -> str:
    """Return the name, or raise NameInvalid with what is wrong and the rule."""
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        reason = f"it has {len(name)} characters" if len(name) > NAME_CHARS_MAX else "it breaks the rule"
        raise NameInvalid(name=shorten(name), noun="savepoint", reason=reason, rule=_RULE)
    return name


def _build(
    store: CheckpointStore, target: CheckpointStore, operator: str, name: str, now_ms: int
) -> Savepoint:
    epoch, batch = _newest(store, operator)
    times = epochs.times_after(store, epoch, batch)
    offsets_bytes = _write_offsets(store, target, operator, epoch, batch)
    size_bytes = link_epoch(store, target, epoch, batch)
    schema, schema_bytes = link_descriptions(store, target)
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


def _write_offsets(
    store: CheckpointStore, target: CheckpointStore, operator: str, epoch: Epoch, batch: int
) -> int:
    """Write the sources' offsets after a batch into a folder, if Spark has them; return their size in bytes.

    FilesMoved when the query is so much further that Spark may have removed them.
    """
    offsets = offsets_after(store, epoch, batch)
    if offsets is not None:
        content = offsets.to_bytes()
        target.put_new(OFFSETS_NAME, content)
        return len(content)
    if _newest(store, operator) != (epoch, batch):
        raise FilesMoved(offsets_path(store, batch))
    return 0


def _newest(store: CheckpointStore, operator: str) -> tuple[Epoch, int]:
    """Return the newest complete batch and its epoch: the parent's when the newest epoch has none yet."""
    epoch = epochs.list_epochs(store)[-1]
    batch = epochs.last_complete(store, epoch)
    if batch >= epoch.first_batch:
        return epoch, batch
    # Old tasks may have continued in the parent; what counts ended with the batch that the epoch began from.
    parent = epoch.parent
    if parent is None or parent.savepoint is not None:
        raise StateNotFound(state=operator, hint="No batch of it is complete yet: let the query run first.")
    found = epochs.read(store, parent.epoch)
    if found is None:
        raise FilesMoved(store.path(f"e{parent.epoch}"))
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
    """Create a spare folder beside a savepoint; no savepoint can have such a name."""
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
class _LinkedSnapshot:
    """The snapshot linked for a partition of a savepoint, and the damage found before it."""

    batch: int | None
    size_bytes: int
    damage: StorageCorrupt | None


class FilesMoved(Exception):
    """A file was removed meanwhile: the query prunes while its files are read."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path


def link_epoch(source: CheckpointStore, target: CheckpointStore, epoch: Epoch, batch: int) -> int:
    """Link an epoch as it was after a batch into a folder, with its dependencies; return its size in bytes.

    FilesMoved when files are removed meanwhile: the folder is useless then.
    """
    size_bytes, needs_parent = 0, False
    for partition in range(epoch.parallelism):
        snapshot = _link_newest_snapshot(source, target, epoch, partition, batch)
        first = epoch.first_batch if snapshot.batch is None else snapshot.batch + 1
        try:
            changes_bytes = _link_changes(source, target, epoch, partition, range(first, batch + 1))
        except FilesMoved as problem:
            raise snapshot.damage or problem from problem
        size_bytes += snapshot.size_bytes + changes_bytes
        needs_parent = needs_parent or (snapshot.batch is None and epoch.parent is not None)
    if needs_parent and epoch.parent is not None:
        old_source, old_target = source, target
        if epoch.parent.savepoint is not None:
            old_source = CheckpointStore(source.root / epoch.parent.savepoint)
            old_target = CheckpointStore(target.root / ORIGIN_FOLDER)
            epoch = replace(epoch, parent=replace(epoch.parent, savepoint=ORIGIN_FOLDER))
        size_bytes += _link_parent(old_source, old_target, epoch)
    target.put_new(f"{epoch.folder}/{epochs.RECORD_NAME}", encode_epoch(epoch))
    return size_bytes


def link_descriptions(source: CheckpointStore, target: CheckpointStore) -> tuple[int, int]:
    """Link the files that describe the operator into a folder.

    Return the number of its newest schema (0: none) and their size in bytes.
    """
    size_bytes = sum(_link_file(source, target, name) for name in description_names(source))
    number = 0
    while target.exists(schema_name(number + 1)):
        number += 1
    return number, size_bytes


def _link_parent(source: CheckpointStore, target: CheckpointStore, epoch: Epoch) -> int:
    parent = epoch.parent
    found = None if parent is None else epochs.read(source, parent.epoch)
    if parent is None or found is None:
        raise FilesMoved(source.root)
    return link_epoch(source, target, found, parent.batch)


def _link_newest_snapshot(
    source: CheckpointStore, target: CheckpointStore, epoch: Epoch, partition: int, batch: int
) -> _LinkedSnapshot:
    """Link the newest whole snapshot that is not later than a batch; none when there is none.

    Damaged or just pruned: the one before it and more changelog files serve as well.
    """
    damage: StorageCorrupt | None = None
    for found in reversed(snapshot_batches(source, epoch.number, partition)):
        if found > batch:
            continue
        try:
            manifest = read_manifest(source, epoch.number, partition, found)
            if manifest is not None:
                _link_snapshot(source, target, manifest)
                return _LinkedSnapshot(found, manifest.size_bytes, damage)
        except StorageCorrupt as problem:
            damage = damage or problem
        except FilesMoved:
            continue
    return _LinkedSnapshot(None, 0, damage)


def _link_snapshot(source: CheckpointStore, target: CheckpointStore, manifest: Manifest) -> None:
    """Link the files of a snapshot, then its manifest; nothing of it stays when one is damaged."""
    folder = partition_folder(manifest.epoch, manifest.partition)
    try:
        for file in manifest.files:
            _link_file(source, target, f"{folder}/{file.stored}", file.digest)
        _link_file(source, target, manifest_name(manifest.epoch, manifest.partition, manifest.batch))
    except (StorageCorrupt, FilesMoved):
        target.remove_folder(f"{folder}/{FILES_FOLDER}")
        raise


def _link_changes(
    source: CheckpointStore, target: CheckpointStore, epoch: Epoch, partition: int, batches: range
) -> int:
    folder = partition_folder(epoch.number, partition)
    target.path(folder).mkdir(parents=True, exist_ok=True)
    size_bytes = 0
    snapshot_commit = commit_record_name(epoch.number, partition, batches.start - 1)
    if source.exists(snapshot_commit):
        size_bytes += _link_file(source, target, snapshot_commit)
    for batch in batches:
        commit = read_commit_record(source, epoch.number, partition, batch)
        if commit is None:
            raise FilesMoved(source.path(commit_record_name(epoch.number, partition, batch)))
        size_bytes += _link_file(source, target, f"{folder}/{commit.changes.file}", commit.changes.digest)
        size_bytes += _link_file(source, target, commit_record_name(epoch.number, partition, batch))
    return size_bytes


def _link_file(source: CheckpointStore, target: CheckpointStore, name: str, digest: str | None = None) -> int:
    """Link a file into a savepoint and return its size in bytes; checked when a digest is known."""
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
    """Return the digest of a file; an unreadable one is StorageCorrupt that names the linked file."""
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
