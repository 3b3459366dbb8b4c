"""Taking a snapshot of a local store that is at a committed batch.

The task links the backend's files into a folder beside the local store, which costs a flush of what is in
memory; a thread of the worker then uploads them, writes the manifest and prunes. No batch waits for that,
unless the snapshot under way is so old that snapshots do not keep up. A snapshot that fails is logged and
taken again with the next batch; a worker killed meanwhile leaves a folder and files that nothing names.

A local store may work for long after its files were removed or cut under it, by what it has in memory and the
files it has open, and no snapshot of it would succeed, or be of use. So a file found missing or damaged ends
the local store, and the next batch restores it from the checkpoint. The thread, which finds this out in the
background, leaves a mark in the local store's folder for that.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.checkpoint.backends.rocksdb_snapshot import TABLE_SUFFIX
from tidegate.checkpoint.commit_record import CommitRecord, read_commit_record
from tidegate.checkpoint.crash_points import crash_point
from tidegate.checkpoint.epochs import Epoch
from tidegate.checkpoint.epochs import prune as prune_epochs
from tidegate.checkpoint.local.lock import FolderLock, lock_folder
from tidegate.checkpoint.local.store import LocalStore, lock_beside
from tidegate.checkpoint.pruning import prune
from tidegate.checkpoint.snapshot import (
    UNREADABLE,
    Manifest,
    encode_manifest,
    manifest_name,
    remove_files,
    snapshot_batches,
    unreadable,
    upload,
)
from tidegate.checkpoint.store import CheckpointStore, checkpoint_error
from tidegate.errors import StorageCorrupt, TidegateError
from tidegate.model.clock import Clock

log = logging.getLogger(__name__)

# A snapshot that is under way for so many intervals is waited for: else the log grows without end.
INTERVALS_BEHIND_MAX = 3
# The longest wait for one: no task waits without limit.
BEHIND_WAIT_MS_MAX = 60_000

FILES_NAME = "files"
# In a local store's folder: one of its files could not be read while a snapshot was uploaded.
DAMAGED_NAME = "damaged"

# RocksDB ends every table file with this; one that was cut has other bytes there.
_TABLE_END = bytes.fromhex("f7cff485b741e288")
# The reasons in errors of backends about a missing or lost file; RocksDB has them as text alone.
_LOST = tuple(os.strerror(number) for number in (errno.ENOENT, *UNREADABLE))
_UNDER_WAY = re.compile(r"\.snapshot\.(\d+)\.\d+\.\d+$")


@dataclass(frozen=True, slots=True)
class SnapshotRules:
    """When a snapshot is taken, how many are retained, and whether a task waits for the upload."""

    every_batches: int
    changes_bytes_max: int
    snapshots_retained: int
    in_background: bool


def is_due(
    store: CheckpointStore, epoch: Epoch, before: CommitRecord | None, partition: int, rules: SnapshotRules
) -> bool:
    """Return whether the batch after a committed one ends with a snapshot.

    An epoch with parents takes its first snapshot at once, so that the parents' files are not needed again.
    """
    number = epoch.first_batch if before is None else before.batch + 1
    found = [batch for batch in snapshot_batches(store, epoch.number, partition) if batch < number]
    newest = found[-1] if found else epoch.first_batch - 1
    if not found and epoch.parent is not None:
        return True
    if number - newest >= rules.every_batches:
        return True
    if before is None:
        return False
    return before.log_bytes - _log_bytes(store, epoch, partition, newest) >= rules.changes_bytes_max


class LocalStoreDamaged(Exception):
    """No snapshot can be taken of a local store: a file is missing or damaged. It must be restored."""


@dataclass(frozen=True, slots=True)
class _StagedSnapshot:
    """The linked files of a snapshot: their locked folder, their names, and the local store's folder."""

    lock: FolderLock
    names: Sequence[str]
    local_folder: Path


class _UploadThread(threading.Thread):
    """The thread that uploads a snapshot into the checkpoint."""

    def __init__(
        self, store: CheckpointStore, manifest: Manifest, staged: _StagedSnapshot, snapshots_retained: int
    ) -> None:
        name = f"state-snapshot-{manifest.partition}-{manifest.batch}"
        super().__init__(
            target=_finish_snapshot,
            args=(store, manifest, staged, snapshots_retained),
            name=name,
            daemon=True,
        )
        self.root = store.root


def wait_for_snapshots(store: CheckpointStore) -> None:
    """Wait until no thread of this worker uploads a snapshot into a checkpoint store."""
    for thread in threading.enumerate():
        if isinstance(thread, _UploadThread) and thread.root == store.root:
            thread.join()


def take_snapshot(
    local: LocalStore, store: CheckpointStore, commit: CommitRecord, rules: SnapshotRules, clock: Clock
) -> threading.Thread | None:
    """Take a snapshot of a local store at a commit; return the thread that uploads it, if one is taken.

    On return the files are linked here; the rest happens in the background. LocalStoreDamaged when the files
    cannot be linked, or the thread of an earlier snapshot could not read them.
    """
    if local.is_private or _is_under_way(local.folder, commit.batch, rules):
        return None
    _check_unmarked(local.folder)
    lock = lock_beside(local.folder, f"snapshot.{commit.batch}")
    try:
        files = lock.folder / FILES_NAME
        names = [_relative(path, files) for path in local.backend.snapshot(files)]
        _check_tables(files, names)
    except TidegateError as problem:
        lock.remove()
        if _is_damage(problem):
            raise LocalStoreDamaged(str(problem)) from problem
        log.warning("snapshot not taken batch=%d folder=%s error=%s", commit.batch, local.folder, problem)
        return None
    except BaseException:
        lock.remove()
        raise
    crash_point("snapshot-linked", commit.partition, commit.batch)
    manifest = Manifest(
        commit.epoch,
        commit.partition,
        commit.batch,
        commit.commit_id,
        local.kind,
        (),
        clock.now_us() // 1_000,
    )
    thread = _UploadThread(
        store, manifest, _StagedSnapshot(lock, names, local.folder), rules.snapshots_retained
    )
    thread.start()
    if not rules.in_background:
        thread.join()
    return thread


def _finish_snapshot(
    store: CheckpointStore, manifest: Manifest, staged: _StagedSnapshot, snapshots_retained: int
) -> None:
    try:
        _upload(store, manifest, staged)
        prune(store, manifest.epoch, manifest.partition, snapshots_retained)
        if manifest.partition == 0:
            prune_epochs(store, snapshots_retained)
        crash_point("pruned", manifest.partition, manifest.batch)
    except (TidegateError, OSError) as problem:
        log.warning("snapshot failed batch=%d store=%s error=%s", manifest.batch, store.root, problem)
    finally:
        staged.lock.remove()


def _upload(store: CheckpointStore, manifest: Manifest, staged: _StagedSnapshot) -> None:
    """Upload the files, then the manifest that names them: from then on the snapshot is there."""
    try:
        whole = upload(store, manifest, staged.lock.folder / FILES_NAME, staged.names)
    except StorageCorrupt as problem:
        place = Path(str(problem.values.get("place", "")))
        # A staged file is a link to one of the local store; one that is gone here may be there still.
        if place.is_relative_to(staged.lock.folder) and place.exists():
            (staged.local_folder / DAMAGED_NAME).touch()
        raise
    crash_point("snapshot-copied", manifest.partition, manifest.batch)
    name = manifest_name(manifest.epoch, manifest.partition, manifest.batch)
    if not store.put_new(name, encode_manifest(whole)):
        own = f"sst/{manifest.batch}.{manifest.commit_id}."
        remove_files(store, manifest, [file.stored for file in whole.files if file.stored.startswith(own)])
        return
    crash_point("snapshot-written", manifest.partition, manifest.batch)


def _check_unmarked(folder: Path) -> None:
    """Refuse a local store whose files could not be read before; the one restored next has no mark."""
    mark = folder / DAMAGED_NAME
    if mark.exists():
        mark.unlink(missing_ok=True)
        raise LocalStoreDamaged(f"a file of the local store in {folder} cannot be read")


def _check_tables(files: Path, names: Sequence[str]) -> None:
    """Refuse files of RocksDB that were cut: it links them unchecked, and opens no snapshot with one."""
    for name in names:
        if name.endswith(TABLE_SUFFIX) and not _has_end(files / name):
            raise StorageCorrupt(place=str(files / name), reason="the file is cut")


def _has_end(path: Path) -> bool:
    try:
        with path.open("rb", 0) as table:
            size_bytes = table.seek(0, os.SEEK_END)
            table.seek(max(0, size_bytes - len(_TABLE_END)))
            return table.read() == _TABLE_END
    except OSError as problem:
        raise unreadable(path, problem) or checkpoint_error(path, problem) from problem


def _is_damage(problem: TidegateError) -> bool:
    reason = str(problem.values.get("reason", ""))
    return isinstance(problem, StorageCorrupt) or any(sign in reason for sign in _LOST)


def _is_under_way(folder: Path, batch: int, rules: SnapshotRules) -> bool:
    """Return whether a snapshot of this local store is under way; one that is far behind is waited for first.

    What a dead worker left is removed.
    """
    for beside in sorted(folder.parent.glob(f"{folder.name}.snapshot.*")):
        match = _UNDER_WAY.search(beside.name)
        if match is None:
            continue
        is_behind = batch - int(match[1]) >= INTERVALS_BEHIND_MAX * rules.every_batches
        lock = lock_folder(beside, wait_ms_max=BEHIND_WAIT_MS_MAX if is_behind else 0)
        if lock is None:
            return True
        lock.remove()
    return False


def _relative(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_absolute() else str(path)


def _log_bytes(store: CheckpointStore, epoch: Epoch, partition: int, batch: int) -> int:
    try:
        commit = read_commit_record(store, epoch.number, partition, batch)
    except StorageCorrupt:
        return 0
    return commit.log_bytes if commit is not None else 0
