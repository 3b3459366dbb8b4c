"""Taking snapshots: takes a copy that stands at a committed batch, gives its snapshot in the checkpoint.

The task gives the backend's files a second name in a folder beside the copy, which costs a flush of what is
in memory; a thread of the worker then uploads them, writes the manifest and prunes. No batch waits for
that, unless the one under way is so old that snapshots do not keep up. A snapshot that fails is named in
the log and taken again with the next batch; a worker killed meanwhile leaves a folder and files that
nothing names.

A copy may work for long after its files were removed or cut under it, by what it has in memory and the files
it has open, and no snapshot of it would succeed, or be of use. So what shows that a file is missing or
damaged ends the copy, and the next batch makes it again from the checkpoint. The thread, which finds out
beside the work, leaves a mark in the copy's folder for that.
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
from tidegate.checkpoint.commit_record import Head, read_head
from tidegate.checkpoint.crash_points import reached
from tidegate.checkpoint.epochs import Epoch
from tidegate.checkpoint.epochs import prune as prune_epochs
from tidegate.checkpoint.local.lock import Claim, claim
from tidegate.checkpoint.local.store import LocalCopy, claim_beside
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
from tidegate.checkpoint.store import Depot, checkpoint_error
from tidegate.errors import StorageCorrupt, TidegateError
from tidegate.model.clock import Clock

log = logging.getLogger(__name__)

# A snapshot under way for so many intervals is waited for: else the log grows without end.
INTERVALS_BEHIND_MAX = 3
# And so long at most: a task never waits for ever.
BEHIND_WAIT_MS_MAX = 60_000

FILES_NAME = "files"
# In a copy's folder: one of its files could not be read while a snapshot was uploaded.
DAMAGED_NAME = "damaged"

# RocksDB ends every table file with this; one that was cut has other bytes there.
_TABLE_END = bytes.fromhex("f7cff485b741e288")
# What backends say of a file of theirs that is gone or lost; RocksDB gives the reason as text alone.
_LOST = tuple(os.strerror(number) for number in (errno.ENOENT, *UNREADABLE))
_UNDER_WAY = re.compile(r"\.snapshot\.(\d+)\.\d+\.\d+$")


@dataclass(frozen=True, slots=True)
class SnapshotRules:
    """When a snapshot is taken, how many are kept, and whether a task waits for the upload."""

    every_batches: int
    changes_bytes_max: int
    kept: int
    in_background: bool


def is_due(depot: Depot, epoch: Epoch, before: Head | None, partition: int, rules: SnapshotRules) -> bool:
    """Return whether the batch after a head is to end with a snapshot.

    An epoch that has parents takes its first one at once, so that the parents' files are not needed again.
    """
    number = epoch.first_batch if before is None else before.batch + 1
    found = [batch for batch in snapshot_batches(depot, epoch.number, partition) if batch < number]
    newest = found[-1] if found else epoch.first_batch - 1
    if not found and epoch.parent is not None:
        return True
    if number - newest >= rules.every_batches:
        return True
    if before is None:
        return False
    return before.log_bytes - _log_bytes(depot, epoch, partition, newest) >= rules.changes_bytes_max


class CopyDamaged(Exception):
    """No snapshot can be taken of a copy: a file of it is missing or damaged. It is to be made again."""


@dataclass(frozen=True, slots=True)
class _Staged:
    """The files of a snapshot on their way: the folder that holds them, their names, and the copy's own."""

    held: Claim
    names: Sequence[str]
    copy_folder: Path


class _Finishing(threading.Thread):
    """The thread that finishes a snapshot in a checkpoint's folder."""

    def __init__(self, depot: Depot, manifest: Manifest, staged: _Staged, kept: int) -> None:
        name = f"state-snapshot-{manifest.partition}-{manifest.batch}"
        super().__init__(target=_finish, args=(depot, manifest, staged, kept), name=name, daemon=True)
        self.root = depot.root


def wait_for(depot: Depot) -> None:
    """Wait until no thread of this worker finishes a snapshot in a depot any more."""
    for thread in threading.enumerate():
        if isinstance(thread, _Finishing) and thread.root == depot.root:
            thread.join()


def take(
    copy: LocalCopy, depot: Depot, head: Head, rules: SnapshotRules, clock: Clock
) -> threading.Thread | None:
    """Take a snapshot of a copy that stands at a head; give the thread that finishes it, if one is taken.

    Before: nothing. After: the files have a second name here. The rest happens beside the work. CopyDamaged
    when the copy cannot give its files, or the thread of an earlier snapshot could not read them.
    """
    if copy.is_private or _is_under_way(copy.folder, head.batch, rules):
        return None
    _check_unmarked(copy.folder)
    held = claim_beside(copy.folder, f"snapshot.{head.batch}")
    try:
        files = held.folder / FILES_NAME
        names = [_relative(path, files) for path in copy.backend.snapshot(files)]
        _check_tables(files, names)
    except TidegateError as problem:
        held.remove()
        if _is_damage(problem):
            raise CopyDamaged(str(problem)) from problem
        log.warning("no snapshot of batch %d of %s was taken: %s", head.batch, copy.folder, problem)
        return None
    except BaseException:
        held.remove()
        raise
    reached("snapshot-linked", head.partition, head.batch)
    manifest = Manifest(
        head.epoch, head.partition, head.batch, head.head_id, copy.kind, (), clock.now_us() // 1_000
    )
    thread = _Finishing(depot, manifest, _Staged(held, names, copy.folder), rules.kept)
    thread.start()
    if not rules.in_background:
        thread.join()
    return thread


def _finish(depot: Depot, manifest: Manifest, staged: _Staged, kept: int) -> None:
    try:
        _upload(depot, manifest, staged)
        prune(depot, manifest.epoch, manifest.partition, kept)
        if manifest.partition == 0:
            prune_epochs(depot, kept)
        reached("pruned", manifest.partition, manifest.batch)
    except (TidegateError, OSError) as problem:
        log.warning("the snapshot of batch %d of %s failed: %s", manifest.batch, depot.root, problem)
    finally:
        staged.held.remove()


def _upload(depot: Depot, manifest: Manifest, staged: _Staged) -> None:
    """Upload the files, then put the manifest that names them: from then on the snapshot is there."""
    try:
        whole = upload(depot, manifest, staged.held.folder / FILES_NAME, staged.names)
    except StorageCorrupt as problem:
        place = Path(str(problem.values.get("place", "")))
        # A staged file is one of the copy's by a second name; one that is gone here may be there still.
        if place.is_relative_to(staged.held.folder) and place.exists():
            (staged.copy_folder / DAMAGED_NAME).touch()
        raise
    reached("snapshot-copied", manifest.partition, manifest.batch)
    name = manifest_name(manifest.epoch, manifest.partition, manifest.batch)
    if not depot.put_new(name, encode_manifest(whole)):
        own = f"sst/{manifest.batch}.{manifest.head_id}."
        remove_files(depot, manifest, [file.stored for file in whole.files if file.stored.startswith(own)])
        return
    reached("snapshot-written", manifest.partition, manifest.batch)


def _check_unmarked(folder: Path) -> None:
    """Refuse a copy whose files could not be read before; the copy that is made next has no mark."""
    mark = folder / DAMAGED_NAME
    if mark.exists():
        mark.unlink(missing_ok=True)
        raise CopyDamaged(f"a file of the copy in {folder} cannot be read")


def _check_tables(files: Path, names: Sequence[str]) -> None:
    """Refuse files of RocksDB that were cut: it links them without a look, and opens no snapshot with one."""
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
    """Return whether a snapshot of this copy is on its way; one that is far behind is waited for first.

    What a dead worker left is removed.
    """
    for beside in sorted(folder.parent.glob(f"{folder.name}.snapshot.*")):
        match = _UNDER_WAY.search(beside.name)
        if match is None:
            continue
        is_behind = batch - int(match[1]) >= INTERVALS_BEHIND_MAX * rules.every_batches
        held = claim(beside, wait_ms_max=BEHIND_WAIT_MS_MAX if is_behind else 0)
        if held is None:
            return True
        held.remove()
    return False


def _relative(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_absolute() else str(path)


def _log_bytes(depot: Depot, epoch: Epoch, partition: int, batch: int) -> int:
    try:
        head = read_head(depot, epoch.number, partition, batch)
    except StorageCorrupt:
        return 0
    return head.log_bytes if head is not None else 0
