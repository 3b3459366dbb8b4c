"""Taking snapshots: takes a copy that stands at a committed batch, gives its snapshot in the checkpoint.

The task gives the backend's files a second name in a folder beside the copy, which costs a flush of what is
in memory; a thread of the worker then uploads them, writes the manifest and prunes. No batch waits for
that, unless the one under way is so old that snapshots do not keep up. A snapshot that fails is named in
the log and taken again with the next batch; a worker killed meanwhile leaves a folder and files that
nothing names.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import StorageCorrupt, TidegateError
from tidegate.model.clock import Clock
from tidegate.state.claims import Claim, claim
from tidegate.state.depot import Depot
from tidegate.state.epochs import Epoch
from tidegate.state.epochs import prune as prune_epochs
from tidegate.state.heads import Head, read_head
from tidegate.state.local import LocalCopy, claim_beside
from tidegate.state.points import reached
from tidegate.state.pruning import prune
from tidegate.state.snapshots import (
    Manifest,
    encode_manifest,
    manifest_name,
    remove_files,
    snapshot_batches,
    upload,
)

log = logging.getLogger(__name__)

# A snapshot under way for so many intervals is waited for: else the log grows without end.
INTERVALS_BEHIND_MAX = 3
# And so long at most: a task never waits for ever.
BEHIND_WAIT_MS_MAX = 60_000

FILES_NAME = "files"
_UNDER_WAY = re.compile(r"\.snapshot\.(\d+)\.\d+\.\d+$")


@dataclass(frozen=True, slots=True)
class SnapshotRules:
    """When a snapshot is taken, how many are kept, and whether a task waits for the upload."""

    every_batches: int
    changes_bytes_max: int
    kept: int
    in_background: bool


def is_due(depot: Depot, epoch: Epoch, before: Head | None, partition: int, rules: SnapshotRules) -> bool:
    """Say whether the batch after a head is to end with a snapshot.

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


class _Finishing(threading.Thread):
    """The thread that finishes a snapshot in a checkpoint's folder."""

    def __init__(self, depot: Depot, manifest: Manifest, held: Claim, names: list[str], kept: int) -> None:
        name = f"state-snapshot-{manifest.partition}-{manifest.batch}"
        super().__init__(target=_finish, args=(depot, manifest, held, names, kept), name=name, daemon=True)
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

    Before: nothing. After: the files have a second name here. The rest happens beside the work.
    """
    if copy.is_private or _is_under_way(copy.folder, head.batch, rules):
        return None
    held = claim_beside(copy.folder, f"snapshot.{head.batch}")
    try:
        files = held.folder / FILES_NAME
        names = [_relative(path, files) for path in copy.backend.snapshot(files)]
    except TidegateError as problem:
        held.remove()
        log.warning("no snapshot of batch %d of %s was taken: %s", head.batch, copy.folder, problem)
        return None
    except BaseException:
        held.remove()
        raise
    reached("snapshot-linked", head.partition, head.batch)
    manifest = Manifest(
        head.epoch, head.partition, head.batch, head.head_id, copy.kind, (), clock.now_us() // 1_000
    )
    thread = _Finishing(depot, manifest, held, names, rules.kept)
    thread.start()
    if not rules.in_background:
        thread.join()
    return thread


def _finish(depot: Depot, manifest: Manifest, held: Claim, names: Sequence[str], kept: int) -> None:
    try:
        _upload(depot, manifest, held, names)
        prune(depot, manifest.epoch, manifest.partition, kept)
        if manifest.partition == 0:
            prune_epochs(depot, kept)
        reached("pruned", manifest.partition, manifest.batch)
    except (TidegateError, OSError) as problem:
        log.warning("the snapshot of batch %d of %s failed: %s", manifest.batch, depot.root, problem)
    finally:
        held.remove()


def _upload(depot: Depot, manifest: Manifest, held: Claim, names: Sequence[str]) -> None:
    """Upload the files, then put the manifest that names them: from then on the snapshot is there."""
    whole = upload(depot, manifest, held.folder / FILES_NAME, names)
    reached("snapshot-copied", manifest.partition, manifest.batch)
    name = manifest_name(manifest.epoch, manifest.partition, manifest.batch)
    if not depot.put_new(name, encode_manifest(whole)):
        own = f"sst/{manifest.batch}.{manifest.head_id}."
        remove_files(depot, manifest, [file.stored for file in whole.files if file.stored.startswith(own)])
        return
    reached("snapshot-written", manifest.partition, manifest.batch)


def _is_under_way(folder: Path, batch: int, rules: SnapshotRules) -> bool:
    """Say whether a snapshot of this copy is on its way; one that is far behind is waited for first.

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
