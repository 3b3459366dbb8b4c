"""What happens to files between two starts: bytes are flipped, folders are lost."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.faults.driver import load_case
from tests.faults.strikes import wait_until_alone
from tidegate.checkpoint.commit_record import read_commit_record
from tidegate.checkpoint.epochs import last_complete, list_epochs
from tidegate.checkpoint.snapshot import manifest_name, snapshot_batches
from tidegate.checkpoint.store import CheckpointStore, operator_store

ASIDE = ".aside"


def lose_local(folder: Path) -> None:
    """Lose every local copy, as another machine would begin."""
    shutil.rmtree(load_case(folder).local(folder), ignore_errors=True)


def damage_local(folder: Path) -> None:
    """Flip bytes in every file of the local copies."""
    wait_until_alone(folder)
    for path in load_case(folder).local(folder).rglob("*.sst"):
        _flip(path)


def damage_snapshot(folder: Path) -> None:
    """Flip a byte in the newest snapshot of each partition, or in one of its files; lose the local copies."""
    wait_until_alone(folder)  # what a worker still uploads or prunes is not what is damaged
    store = _store(folder)
    epoch = list_epochs(store)[-1]
    for partition in range(epoch.parallelism):
        batches = snapshot_batches(store, epoch.number, partition)
        if not batches:
            continue
        manifest = store.path(manifest_name(epoch.number, partition, batches[-1]))
        stored = sorted((manifest.parent / "sst").glob("*"), key=lambda path: path.stat().st_mtime_ns)
        _flip(stored[-1] if partition % 2 and stored else manifest)
    lose_local(folder)


def damage_changes(folder: Path) -> None:
    """Flip a byte in the newest change file of each partition, the old one kept aside; lose the copies."""
    wait_until_alone(folder)  # with a snapshot that comes later the file would not be needed
    store = _store(folder)
    epoch = list_epochs(store)[-1]
    batch = last_complete(store, epoch)
    for partition in range(epoch.parallelism):
        head = read_commit_record(store, epoch.number, partition, batch)
        if head is None:
            continue
        path = store.path(f"e{epoch.number}/{partition}/{head.changes.file}")
        shutil.copy(path, path.with_name(path.name + ASIDE))
        _flip(path)
        # The snapshots from this batch on would do without the file.
        for newer in snapshot_batches(store, epoch.number, partition):
            if newer >= batch:
                store.path(manifest_name(epoch.number, partition, newer)).unlink()
    lose_local(folder)


def mend_changes(folder: Path) -> None:
    """Put the change files back."""
    for aside in load_case(folder).checkpoint(folder).rglob("*" + ASIDE):
        aside.replace(aside.with_name(aside.name.removesuffix(ASIDE)))


def lose_segment(folder: Path) -> None:
    """Lose one segment of each local copy of a deduplication, as who removes a damaged one does."""
    wait_until_alone(folder)
    for copy in load_case(folder).local(folder).glob("*/*/e*/*/db-segments*"):
        for segment in sorted(copy.glob("*.*000"))[-1:]:
            shutil.rmtree(segment)


def _store(folder: Path) -> CheckpointStore:
    case = load_case(folder)
    return operator_store(str(case.checkpoint(folder)), "orders" if case.is_dedup else "ledger")


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[len(content) // 2] ^= 0x40
        # A file may have a second name in a snapshot: only this one is damaged.
        path.unlink()
        path.write_bytes(content)
