"""A description of a checkpoint: its operators, partitions, sizes and ages.

Nothing is changed. The query may run meanwhile: everything is as of the newest complete batch, sizes are
current.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from tidegate.checkpoint import epochs
from tidegate.checkpoint.commit_record import CommitRecord, read_commit_record
from tidegate.checkpoint.epochs import Epoch
from tidegate.checkpoint.savepoints import savepoint
from tidegate.checkpoint.snapshot import read_manifest, snapshot_batches
from tidegate.checkpoint.store import CheckpointStore, checkpoint_path, partition_folder
from tidegate.errors import StorageCorrupt

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition of an operator; `commit` is of the last complete batch, None before the first one.

    `snapshot_batch` and `snapshot_made_at_ms` are of its newest snapshot. `checkpoint_bytes` is the size of
    its files in the newest epoch.
    """

    partition: int
    commit: CommitRecord | None
    snapshot_batch: int | None
    snapshot_made_at_ms: int | None
    checkpoint_bytes: int


@dataclass(frozen=True, slots=True)
class OperatorState:
    """One operator of a checkpoint; `last_batch` is the newest that every partition has committed.

    `checkpoint_bytes` is without the savepoints.
    """

    operator: str
    epoch: Epoch
    last_batch: int
    checkpoint_bytes: int
    partitions: tuple[PartitionState, ...]
    savepoints: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the local stores of all partitions."""
        return sum(one.commit.size_bytes for one in self.partitions if one.commit)

    @property
    def entry_count(self) -> int:
        """Return about how many entries there are in all partitions."""
        return sum(one.commit.entry_count for one in self.partitions if one.commit)


def describe(checkpoint: str | Path) -> list[OperatorState]:
    """Return the operators of a checkpoint in name order; none when it has no state."""
    root = checkpoint_path(str(checkpoint)) / "state"
    found = []
    for name in CheckpointStore(root).names():
        store = CheckpointStore(root / name)
        known = epochs.list_epochs(store)
        if known:
            found.append(_operator(str(checkpoint), name, store, known[-1]))
    return found


def newest_backend(store: CheckpointStore) -> str | None:
    """Return the backend that made an operator's newest snapshot; None where there is no readable one."""
    for epoch in reversed(epochs.list_epochs(store)):
        for batch in reversed(snapshot_batches(store, epoch.number, 0)):
            try:
                manifest = read_manifest(store, epoch.number, 0, batch)
            except StorageCorrupt as problem:
                log.warning("manifest damaged, the backend of the snapshot is unknown error=%r", str(problem))
                continue
            if manifest is not None:
                return manifest.backend
    return None


def _operator(checkpoint: str, operator: str, store: CheckpointStore, epoch: Epoch) -> OperatorState:
    last_batch = epochs.last_complete(store, epoch)
    folders = [name for name in store.names() if name != savepoint.SAVEPOINTS_FOLDER]
    return OperatorState(
        operator=operator,
        epoch=epoch,
        last_batch=last_batch,
        checkpoint_bytes=sum(_bytes_below(store.path(name)) for name in folders),
        partitions=tuple(_partition(store, epoch, number, last_batch) for number in range(epoch.parallelism)),
        savepoints=tuple(made.name for made in savepoint.listing(checkpoint, operator)),
    )


def _partition(store: CheckpointStore, epoch: Epoch, partition: int, batch: int) -> PartitionState:
    batches = snapshot_batches(store, epoch.number, partition)
    return PartitionState(
        partition=partition,
        commit=read_commit_record(store, epoch.number, partition, batch),
        snapshot_batch=batches[-1] if batches else None,
        snapshot_made_at_ms=_made_at_ms(store, epoch, partition, batches[-1]) if batches else None,
        checkpoint_bytes=_bytes_below(store.path(partition_folder(epoch.number, partition))),
    )


def _made_at_ms(store: CheckpointStore, epoch: Epoch, partition: int, batch: int) -> int | None:
    try:
        manifest = read_manifest(store, epoch.number, partition, batch)
    except StorageCorrupt:
        return None  # recovery reports the damage; here the rest is still worth showing
    return None if manifest is None else manifest.made_at_ms


def _bytes_below(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; those removed meanwhile do not count."""
    if path.is_file():
        return _file_bytes(path)
    return sum(_file_bytes(Path(folder) / name) for folder, _, names in os.walk(path) for name in names)


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
