"""Pruning: takes a partition's folder in the checkpoint, removes what nothing needs any more.

Kept are the newest n whole snapshots, every head and change file from the oldest of them on, and the newest
batch's output. Fewer than n whole snapshots: nothing of the log goes. A snapshot counts as whole when its
manifest reads well, belongs to the head of its batch, and all its files are there in their sizes, so damage
keeps more, never less. Savepoints hold files of their own.

The order makes every kill harmless: first the manifests, oldest first (from then on nothing names what only
they named), then the files that no manifest names, then heads with their change files, oldest first, so
that what is left is always an unbroken row that ends with the newest. What is not removed this time is
removed the next.

An upload under way in another worker is safe: its files carry its batch in their name, and only those of
batches before the oldest kept snapshot go; and those it shares are named by the newest manifest.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from tidegate.checkpoint.commit_record import decode_head, read_head
from tidegate.checkpoint.epochs import GROUND_HEAD_ID
from tidegate.checkpoint.snapshot import (
    FILES_FOLDER,
    Manifest,
    manifest_name,
    missing_files,
    read_manifest,
    snapshot_batches,
    uploaded_in,
)
from tidegate.checkpoint.store import Depot, partition_folder
from tidegate.errors import StorageCorrupt

log = logging.getLogger(__name__)

_BATCH_FILE = re.compile(r"^v(\d+)\.(?:([^.]+)\.)?(head|changes|out|dead)(?:\.\d+\.new)?$")
_MANIFEST_REST = re.compile(r"^(\d+)\.snapshot(\.damaged|\.\d+\.new|\.damaged\.\d+\.new)?$")


@dataclass(frozen=True, slots=True)
class Pruned:
    """What pruning removed, as names below the partition's folder."""

    names: tuple[str, ...]


def prune(depot: Depot, epoch: int, partition: int, snapshots_kept: int) -> Pruned:
    """Remove what no kept snapshot, no restore from one and no replay needs."""
    gone: list[str] = []
    folder = partition_folder(epoch, partition)
    kept, old = _divided(depot, epoch, partition, snapshots_kept)
    if len(kept) >= snapshots_kept:
        floor = min(manifest.batch for manifest in kept)
        for batch in old:
            _remove(depot, folder, manifest_name(epoch, partition, batch).rpartition("/")[2], gone)
        _remove_files(depot, folder, _needed(depot, epoch, partition), floor, gone)
        _remove_log(depot, folder, floor, gone)
    _remove_left_over(depot, folder, gone)
    return Pruned(tuple(gone))


def remove_output(depot: Depot, epoch: int, partition: int, names: list[str]) -> None:
    """Remove output files of a batch that Spark has for good: the next one was published."""
    for name in names:
        depot.remove(f"{partition_folder(epoch, partition)}/{name}")


def _divided(
    depot: Depot, epoch: int, partition: int, snapshots_kept: int
) -> tuple[list[Manifest], list[int]]:
    """Return the newest whole snapshots, and the batches of those older than them all."""
    kept: list[Manifest] = []
    old: list[int] = []
    for batch in reversed(snapshot_batches(depot, epoch, partition)):
        if len(kept) >= snapshots_kept:
            old.append(batch)
            continue
        try:
            manifest = read_manifest(depot, epoch, partition, batch)
            head = read_head(depot, epoch, partition, batch)
        except StorageCorrupt as problem:
            log.warning("a snapshot does not count when old ones are removed: %s", problem)
            continue
        head_id = GROUND_HEAD_ID if head is None else head.head_id
        if manifest is None or manifest.head_id != head_id:
            continue
        missing = next(missing_files(depot, manifest), None)
        if missing is None:
            kept.append(manifest)
        else:
            log.warning("the snapshot of batch %d lacks %s and does not count", batch, missing)
    return kept, sorted(old)


def _needed(depot: Depot, epoch: int, partition: int) -> set[str]:
    """Return the files that manifests name which are still there, read after the old ones are gone."""
    needed: set[str] = set()
    for batch in snapshot_batches(depot, epoch, partition):
        try:
            manifest = read_manifest(depot, epoch, partition, batch)
        except StorageCorrupt:
            continue
        needed |= {file.stored for file in manifest.files} if manifest else set()
    return needed


def _remove_files(depot: Depot, folder: str, needed: set[str], floor: int, gone: list[str]) -> None:
    for name in depot.names(f"{folder}/{FILES_FOLDER}"):
        batch = uploaded_in(name)
        stored = f"{FILES_FOLDER}/{name}"
        if stored not in needed and batch is not None and batch < floor:
            _remove(depot, folder, stored, gone)


def _remove_log(depot: Depot, folder: str, floor: int, gone: list[str]) -> None:
    """Remove heads and what they name before the oldest kept snapshot, oldest batch first, its head first."""
    found = []
    for name in depot.names(folder):
        match = _BATCH_FILE.match(name)
        if match and int(match[1]) < floor:
            found.append((int(match[1]), match[3] != "head", name))
        rest = _MANIFEST_REST.match(name)
        if rest and int(rest[1]) < floor:
            found.append((int(rest[1]), bool(rest[2]), name))
    for _, _, name in sorted(found):
        _remove(depot, folder, name, gone)


def _remove_left_over(depot: Depot, folder: str, gone: list[str]) -> None:
    """Remove what attempts that came to nothing wrote, and output of batches before the newest.

    A batch before the newest one is decided: an attempt at it that still runs somewhere can only find that
    out.
    """
    names = depot.names(folder)
    files = [(match, name) for name in names if (match := _BATCH_FILE.match(name))]
    heads = {int(match[1]) for match, name in files if name.endswith(".head")}
    newest = max(heads, default=-1)
    chosen = _change_files(depot, folder, heads)
    for match, name in files:
        batch = int(match[1])
        if batch >= newest or batch not in heads or name.endswith(".head"):
            continue
        if match[3] != "changes" or (batch in chosen and name != chosen[batch]):
            _remove(depot, folder, name, gone)


def _change_files(depot: Depot, folder: str, batches: set[int]) -> dict[int, str]:
    """Return the change file that each head names.

    A damaged head names none, and nothing of its batch goes.
    """
    found = {}
    for batch in batches:
        name = f"{folder}/v{batch}.head"
        content = depot.read(name)
        if content is None:
            continue
        try:
            found[batch] = decode_head(content, name).changes.file
        except StorageCorrupt as problem:
            log.warning("files of a batch are kept: %s", problem)
    return found


def _remove(depot: Depot, folder: str, name: str, gone: list[str]) -> None:
    depot.remove(f"{folder}/{name}")
    gone.append(name)
