"""Files that are lost: of a copy, which is made again, and of a snapshot, which is gone round."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import xxhash

from tests.checkpoint.batches import OPERATOR, PARALLELISM, UNMERGED, Job, Rows, expected, open_new, settings
from tests.checkpoint.checkpoints import put_commit
from tests.checkpoint.local.ipc_peers import is_remote
from tests.checkpoint.local.ipc_walk import Worker
from tidegate.checkpoint.backend import StateChanges, Version
from tidegate.checkpoint.backends.heap import HeapBackend, HeapFactory
from tidegate.checkpoint.commit_record import CommitRecord, RunFacts, committed_batches
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.local.store import LocalDirectory, LocalStore, acquire
from tidegate.checkpoint.savepoints import savepoint
from tidegate.checkpoint.snapshot import (
    Manifest,
    SnapshotFile,
    encode_manifest,
    fetch,
    manifest_name,
    read_manifest,
    snapshot_batches,
)
from tidegate.checkpoint.snapshotter import LocalStoreDamaged, SnapshotRules, take_snapshot
from tidegate.checkpoint.store import CheckpointStore
from tidegate.errors import StorageCorrupt
from tidegate.model.clock import SystemClock

# Reading its first byte fails with EIO, as a damaged disk does: no memory lies there.
UNREADABLE = Path("/proc/self/mem")


pytestmark = pytest.mark.usefixtures("closed_pool")


def lose(path: Path, how: str) -> None:
    if how == "removed":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("how", ["removed", "cut"])
def test_copy_of_which_no_snapshot_can_be_taken_goes_and_the_next_batch_makes_it_again(
    tmp_path: Path, store: CheckpointStore, how: str
) -> None:
    """A cleaner of temporary files takes tables of a copy that is open: the batches see nothing of it."""
    job = Job(tmp_path, settings(tmp_path, backend="rocksdb", rocks=UNMERGED))
    job.drive(4)
    tables = list((tmp_path / "local").rglob("0/db-*/*.sst"))
    assert tables
    for table in tables:
        lose(table, how)
    job.drive(6)
    assert not list((tmp_path / "local").rglob("0/db-*"))
    assert snapshot_batches(store, 0, 0) == [1, 3]
    job.drive(9)
    assert snapshot_batches(store, 0, 0) == [6, 8]
    assert committed_batches(store, 0, 0) == [6, 7, 8], "the log is pruned again"
    rows, counts = expected(9)
    assert job.sunk() == rows
    assert job.counts(9) == counts
    pool().close()
    cold = Job(tmp_path, settings(tmp_path, backend="rocksdb", local_root=str(tmp_path / "cold")))
    assert cold.counts(9) == counts


def test_a_snapshot_that_took_damaged_bytes_costs_one_attempt(tmp_path: Path, store: CheckpointStore) -> None:
    """Its digests are those of the damaged files, so that only a read of the entries finds it out."""
    job = Job(tmp_path, settings(tmp_path, backend="rocksdb", rocks=UNMERGED))
    keys = [b"\x00\x00%04d" % number for number in range(500)]  # more than the block of the version holds
    for batch in range(4):
        with open_new(job.request(batch), job.settings, SystemClock()) as opened:
            changes = StateChanges(entries=dict.fromkeys(keys, b"%d" % batch * 100))
            opened.publish(changes, RunFacts(rows_in=1))
    pool().close()
    shutil.rmtree(tmp_path / "local")
    newest, older = read_manifest(store, 0, 0, 3), read_manifest(store, 0, 0, 1)
    assert newest is not None
    assert older is not None
    shared = {file.stored for file in older.files}
    files = [file if file.stored in shared else _rotten(store, file) for file in newest.files]
    store.path(manifest_name(0, 0, 3)).write_bytes(encode_manifest(replace(newest, files=tuple(files))))

    with pytest.raises(StorageCorrupt), open_new(job.request(4), job.settings, SystemClock()) as opened:
        opened.backend.get_many(keys)
    with open_new(job.request(4), job.settings, SystemClock()) as opened:
        assert opened.backend.get_many(keys) == [b"3" * 100] * len(keys)


def _rotten(store: CheckpointStore, file: SnapshotFile) -> SnapshotFile:
    """Turn a bit in the entries of a table, and say that it belongs there."""
    if not file.name.endswith(".sst"):
        return file
    path = store.path(f"e0/0/{file.stored}")
    content = bytearray(path.read_bytes())
    content[10] ^= 0x04
    path.unlink()
    path.write_bytes(content)
    return replace(file, digest=xxhash.xxh3_128_hexdigest(bytes(content)))


def test_a_damaged_remote_store_is_removed_at_its_server(tmp_path: Path, store: CheckpointStore) -> None:
    """Case 13: the worker that took the batch is not the one that has the copy open."""
    kind: dict[str, object] = {"backend": "rocksdb", "rocks": UNMERGED, "lock_wait_ms_max": 5_000}
    server = Worker(tmp_path, kind)
    job = Job(tmp_path, settings(tmp_path, **kind))
    try:
        given = [server.do(batch, 0) for batch in range(4)]
        for table in (tmp_path / "local").rglob("0/db-*/*.sst"):
            table.unlink()
        with open_new(job.request(4), job.settings, SystemClock()) as opened:
            assert is_remote(opened)
            job.work(opened, 4, 0)
        given += [job.do(batch, 0) for batch in (4, 5)]
        assert not list((tmp_path / "local").rglob("0/db-*"))
        given += [server.do(batch, 0) for batch in (6, 7, 8)]
    finally:
        server.end()
    assert [row for rows in given for row in rows] == partition_rows(9)
    assert snapshot_batches(store, 0, 0) == [6, 8]


def partition_rows(batches: int) -> Rows:
    """Return what partition 0 gives out."""
    return [row for rows in expected(batches)[0] for row in rows if row[0] % PARALLELISM == 0]


class Unreadable(HeapBackend):
    """A backend one of whose files lies where the disk is damaged: it can be named, not read."""

    def snapshot(self, folder: Path) -> list[Path]:
        files = super().snapshot(folder)
        (folder / "lost").symlink_to(UNREADABLE)
        return [*files, folder / "lost"]


class Swept(HeapBackend):
    """A backend whose files are gone from where they were put to be uploaded, as a cleaner leaves them."""

    def snapshot(self, folder: Path) -> list[Path]:
        files = super().snapshot(folder)
        for file in files:
            file.unlink()
        return files


RULES = SnapshotRules(every_batches=1, changes_bytes_max=1, snapshots_retained=2, in_background=False)


@dataclass(frozen=True)
class FaultyHeapFactory(HeapFactory):
    """Opens a backend in memory of a kind that fails."""

    backend: type[HeapBackend]

    def open(self, folder: Path, ticks_ns: Callable[[], int]) -> HeapBackend:  # noqa: ARG002
        return self.backend(folder)


def opened_copy(tmp_path: Path, kind: type[HeapBackend], commit: CommitRecord) -> LocalStore:
    factory = FaultyHeapFactory(kind)
    place = LocalDirectory(tmp_path / "local", factory, keep_open=False, wait_ms_max=0, clock=SystemClock())
    local = acquire(place, tmp_path / "local" / "0")
    local.wipe().mkdir(parents=True)
    local.adopt().apply(StateChanges(), Version(commit.epoch, commit.batch, commit.commit_id))
    return local


def test_file_that_cannot_be_read_while_it_is_uploaded_ends_the_copy_with_the_next_snapshot(
    tmp_path: Path, store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that uploads finds out, and leaves a mark for the task."""
    commit = put_commit(store, 0, 0, 1)
    local = opened_copy(tmp_path, Unreadable, commit)
    assert take_snapshot(local, store, commit, RULES, SystemClock()) is not None
    assert "it cannot be read (Input/output error)" in "\n".join(caplog.messages)
    assert store.names("e0/0/sst") == []
    with pytest.raises(LocalStoreDamaged, match="cannot be read"):
        take_snapshot(local, store, commit, RULES, SystemClock())
    assert take_snapshot(local, store, commit, RULES, SystemClock()) is not None, (
        "the copy made next has no mark"
    )
    local.release()


def test_file_that_is_gone_on_its_way_into_the_checkpoint_leaves_the_copy_alone(
    tmp_path: Path, store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    commit = put_commit(store, 0, 0, 1)
    local = opened_copy(tmp_path, Swept, commit)
    for _ in range(2):
        assert take_snapshot(local, store, commit, RULES, SystemClock()) is not None
    assert "\n".join(caplog.messages).count("the file is missing") == 2
    local.release()


def unreadable_snapshot(store: CheckpointStore, batch: int) -> None:
    for path in store.path("e0/0/sst").glob(f"{batch}.*"):
        path.unlink()
        path.symlink_to(UNREADABLE)


def test_snapshot_that_cannot_be_read_is_gone_round_and_marked(
    tmp_path: Path, store: CheckpointStore
) -> None:
    job = Job(tmp_path, settings(tmp_path))
    job.drive(5)
    assert snapshot_batches(store, 0, 0) == [1, 3]
    unreadable_snapshot(store, 3)
    cold = Job(tmp_path, settings(tmp_path, local_root=str(tmp_path / "cold")))
    assert cold.counts(5) == expected(5)[1]
    assert snapshot_batches(store, 0, 0) == [1]


def test_snapshot_that_cannot_be_read_is_not_what_a_savepoint_is_made_of(
    tmp_path: Path, store: CheckpointStore
) -> None:
    Job(tmp_path, settings(tmp_path)).drive(5)
    unreadable_snapshot(store, 3)
    savepoint.make(tmp_path / "checkpoint", OPERATOR, "sound", SystemClock())
    assert {name[0] for name in store.names("savepoints/sound/e0/0/sst")} == {"1"}


def test_file_of_a_snapshot_that_cannot_be_read_is_the_one_that_is_named(
    tmp_path: Path, store: CheckpointStore
) -> None:
    file = SnapshotFile("a", "sst/1.x.0.a", 3, "ff")
    manifest = Manifest(0, 0, 1, "x", "heap", (file,), 5)
    with pytest.raises(StorageCorrupt, match=r"1\.x\.0\.a: the file is missing"):
        fetch(store, manifest, tmp_path / "first")
    store.path("e0/0/sst").mkdir(parents=True)
    store.path("e0/0/sst/1.x.0.a").symlink_to(UNREADABLE)
    with pytest.raises(StorageCorrupt, match=r"1\.x\.0\.a: it cannot be read"):
        fetch(store, manifest, tmp_path / "second")
