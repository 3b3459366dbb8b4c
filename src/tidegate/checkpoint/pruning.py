"""Pruning of a partition's folder in the checkpoint: removal of what nothing needs any more.

Retained are the newest n whole snapshots, every commit record and changelog file from the oldest of them on,
and the newest batch's output. Fewer than n whole snapshots: nothing of the log is removed. A snapshot counts
as whole when its manifest is readable, belongs to the commit record of its batch, and all its files are there
in their sizes, so damage retains more, never less. Savepoints have files of their own.

The order makes every kill harmless: first the manifests, oldest first (from then on nothing names what only
they named), then the files that no manifest names, then commit records with their changelog files, oldest
first, so that what is left is always a complete sequence that ends with the newest. What is not removed
this time is removed the next.

An upload under way in another worker is safe: its files have its batch in their name, and only those of
batches before the oldest retained snapshot are removed; and those it shares are named by the newest manifest.
"""

from __future__ import annotations

import logging
import re

from tidegate.checkpoint.commit_record import decode_commit_record, read_commit_record
from tidegate.checkpoint.epochs import INITIAL_COMMIT_ID
from tidegate.checkpoint.snapshot import (
    FILES_FOLDER,
    Manifest,
    manifest_name,
    missing_files,
    read_manifest,
    snapshot_batches,
    uploaded_in,
)
from tidegate.checkpoint.store import CheckpointStore, partition_folder
from tidegate.errors import StorageCorrupt

log = logging.getLogger(__name__)

_BATCH_FILE = re.compile(r"^v(\d+)\.(?:([^.]+)\.)?(head|changes|out|dead)(?:\.\d+\.new)?$")
_MANIFEST_REST = re.compile(r"^(\d+)\.snapshot(\.damaged|\.\d+\.new|\.damaged\.\d+\.new)?$")


def prune(store: CheckpointStore, epoch: int, partition: int, snapshots_retained: int) -> list[str]:
    """Remove what no retained snapshot, no recovery from one and no replay needs.

    Return the names of what was removed, below the partition's folder.
    """
    removed: list[str] = []
    folder = partition_folder(epoch, partition)
    retained, old = _split_snapshots(store, epoch, partition, snapshots_retained)
    if len(retained) >= snapshots_retained:
        floor = min(manifest.batch for manifest in retained)
        for batch in old:
            _remove(store, folder, manifest_name(epoch, partition, batch).rpartition("/")[2], removed)
        _remove_files(store, folder, _named_files(store, epoch, partition), floor, removed)
        _remove_log(store, folder, floor, removed)
    _remove_left_over(store, folder, removed)
    return removed


def remove_output(store: CheckpointStore, epoch: int, partition: int, names: list[str]) -> None:
    """Remove output files of a batch that Spark has for good, since the next one is published."""
    for name in names:
        store.remove(f"{partition_folder(epoch, partition)}/{name}")


def _split_snapshots(
    store: CheckpointStore, epoch: int, partition: int, snapshots_retained: int
) -> tuple[list[Manifest], list[int]]:
    """Return the newest whole snapshots, and the batches of those older than them all."""
    retained: list[Manifest] = []
    old: list[int] = []
    for batch in reversed(snapshot_batches(store, epoch, partition)):
        if len(retained) >= snapshots_retained:
            old.append(batch)
            continue
        try:
            manifest = read_manifest(store, epoch, partition, batch)
            commit = read_commit_record(store, epoch, partition, batch)
        except StorageCorrupt as problem:
            log.warning("snapshot not counted by pruning batch=%d error=%s", batch, problem)
            continue
        commit_id = INITIAL_COMMIT_ID if commit is None else commit.commit_id
        if manifest is None or manifest.commit_id != commit_id:
            continue
        missing = next(missing_files(store, manifest), None)
        if missing is None:
            retained.append(manifest)
        else:
            log.warning("snapshot not counted by pruning, a file is missing batch=%d file=%s", batch, missing)
    return retained, sorted(old)


def _named_files(store: CheckpointStore, epoch: int, partition: int) -> set[str]:
    """Return the files that the remaining manifests name, read after the old ones are removed."""
    needed: set[str] = set()
    for batch in snapshot_batches(store, epoch, partition):
        try:
            manifest = read_manifest(store, epoch, partition, batch)
        except StorageCorrupt:
            continue
        needed |= {file.stored for file in manifest.files} if manifest else set()
    return needed


def _remove_files(
    store: CheckpointStore, folder: str, needed: set[str], floor: int, removed: list[str]
) -> None:
    for name in store.names(f"{folder}/{FILES_FOLDER}"):
        batch = uploaded_in(name)
        stored = f"{FILES_FOLDER}/{name}"
        if stored not in needed and batch is not None and batch < floor:
            _remove(store, folder, stored, removed)


def _remove_log(store: CheckpointStore, folder: str, floor: int, removed: list[str]) -> None:
    """Remove the log before the oldest retained snapshot, oldest batch first, its commit record first."""
    found = []
    for name in store.names(folder):
        match = _BATCH_FILE.match(name)
        if match and int(match[1]) < floor:
            found.append((int(match[1]), match[3] != "head", name))
        rest = _MANIFEST_REST.match(name)
        if rest and int(rest[1]) < floor:
            found.append((int(rest[1]), bool(rest[2]), name))
    for _, _, name in sorted(found):
        _remove(store, folder, name, removed)


def _remove_left_over(store: CheckpointStore, folder: str, removed: list[str]) -> None:
    """Remove the files of attempts that did not commit, and output of batches before the newest.

    A batch before the newest one is decided: an attempt at it that still runs somewhere can only be refused.
    """
    names = store.names(folder)
    files = [(match, name) for name in names if (match := _BATCH_FILE.match(name))]
    commits = {int(match[1]) for match, name in files if name.endswith(".head")}
    newest = max(commits, default=-1)
    chosen = _change_files(store, folder, commits)
    for match, name in files:
        batch = int(match[1])
        if batch >= newest or batch not in commits or name.endswith(".head"):
            continue
        if match[3] != "changes" or (batch in chosen and name != chosen[batch]):
            _remove(store, folder, name, removed)


def _change_files(store: CheckpointStore, folder: str, batches: set[int]) -> dict[int, str]:
    """Return the changelog file that each commit record names.

    A damaged record names none, and nothing of its batch is removed.
    """
    found = {}
    for batch in batches:
        name = f"{folder}/v{batch}.head"
        content = store.read(name)
        if content is None:
            continue
        try:
            found[batch] = decode_commit_record(content, name).changes.file
        except StorageCorrupt as problem:
            log.warning("commit record damaged, its files are not pruned batch=%d error=%s", batch, problem)
    return found


def _remove(store: CheckpointStore, folder: str, name: str, removed: list[str]) -> None:
    store.remove(f"{folder}/{name}")
    removed.append(name)
