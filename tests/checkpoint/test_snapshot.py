"""Snapshots are incremental and shared, pruning leaves what is needed, and neither disturbs a batch."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoint.batches import UNMERGED, Job, expected, open_new, settings
from tidegate.checkpoint.backend import StateChanges
from tidegate.checkpoint.commit_record import RunFacts, committed_batches, read_commit_record
from tidegate.checkpoint.keys import layout
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.pruning import prune
from tidegate.checkpoint.snapshot import (
    Manifest,
    SnapshotFile,
    decode_manifest,
    encode_manifest,
    fetch,
    manifest_name,
    mark_damaged,
    missing_files,
    read_manifest,
    snapshot_batches,
    upload,
)
from tidegate.checkpoint.store import CheckpointDisk, CheckpointStore
from tidegate.errors import StorageCorrupt
from tidegate.model.clock import SystemClock

MANIFEST = Manifest(0, 1, 20, "abc", "heap", (SnapshotFile("a.sst", "sst/20.abc.0.a.sst", 3, "ff"),), 5)


pytestmark = pytest.mark.usefixtures("closed_pool")


def staged(root: Path, **files: bytes) -> Path:
    root.mkdir()
    for name, content in files.items():
        (root / name).write_bytes(content)
    return root


def test_a_manifest_is_read_as_it_was_written_and_notices_every_change() -> None:
    content = encode_manifest(MANIFEST)
    assert decode_manifest(content, "here") == MANIFEST
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 0x02
        for damaged in (bytes(changed), content[:at]):
            with pytest.raises(StorageCorrupt, match="here"):
                decode_manifest(damaged, "here")


def test_a_file_is_uploaded_once_and_shared_by_later_snapshots(
    store: CheckpointStore, tmp_path: Path
) -> None:
    """Case 12: a checkpoint is incremental."""
    empty = replace(MANIFEST, files=())
    first = upload(store, empty, staged(tmp_path / "1", a=b"aaa", b=b"bbb"), ["a", "b"])
    store.put_new(manifest_name(0, 1, 20), encode_manifest(first))
    later = replace(empty, batch=30, commit_id="def")
    second = upload(store, later, staged(tmp_path / "2", a=b"aaa", c=b"ccc"), ["a", "c"])
    assert second.files[0] == first.files[0]
    assert second.files[1].stored.startswith("sst/30.def.")
    assert len(store.names("e0/1/sst")) == 3
    fetch(store, second, tmp_path / "restored")
    assert {path.name: path.read_bytes() for path in (tmp_path / "restored").iterdir()} == {
        "a": b"aaa",
        "c": b"ccc",
    }


def test_files_of_a_damaged_snapshot_are_not_shared(store: CheckpointStore, tmp_path: Path) -> None:
    empty = replace(MANIFEST, files=())
    first = upload(store, empty, staged(tmp_path / "1", a=b"aaa"), ["a"])
    store.put_new(manifest_name(0, 1, 20), encode_manifest(first))
    mark_damaged(store, 0, 1, 20)
    assert snapshot_batches(store, 0, 1) == []
    second = upload(store, replace(empty, batch=30), staged(tmp_path / "2", a=b"aaa"), ["a"])
    assert second.files[0].stored != first.files[0].stored


def test_an_upload_that_fails_leaves_nothing(store: CheckpointStore, tmp_path: Path) -> None:
    class FullAtTheEnd(CheckpointDisk):
        def sync_folder(self, path: Path) -> None:
            if path.name == "sst":
                raise OSError(errno.ENOSPC, "no room")
            super().sync_folder(path)

    failing = CheckpointStore(store.root, FullAtTheEnd())
    with pytest.raises(Exception, match="No room"):
        upload(failing, replace(MANIFEST, files=()), staged(tmp_path / "1", a=b"aaa"), ["a"])
    assert store.names("e0/1/sst") == []


def test_what_a_snapshot_costs_follows_what_changed(tmp_path: Path, store: CheckpointStore) -> None:
    """Case 12: cost follows what changed, not the state's size."""
    job = Job(tmp_path, settings(tmp_path, backend="rocksdb", rocks=UNMERGED, snapshot_every_batches=1))
    key = layout.entry_prefix(0, 1)
    large = {key + b"%06d" % n: bytes(str(hash((n, n))), "ascii") * 4 for n in range(20_000)}
    for batch, entries in enumerate([large, {key + b"x": b"1"}, {key + b"y": b"1"}]):
        with open_new(job.request(batch), job.settings, SystemClock()) as opened:
            opened.publish(StateChanges(entries=dict(entries)), RunFacts())
    manifests = [read_manifest(store, 0, 0, batch) for batch in (1, 2)]
    newest = manifests[1]
    assert manifests[0] is not None
    assert newest is not None
    own_bytes = sum(f.size_bytes for f in newest.files if f.stored.startswith("sst/2."))
    assert own_bytes < newest.size_bytes / 10


def test_the_newest_snapshots_are_kept_with_all_that_they_need(
    tmp_path: Path, store: CheckpointStore
) -> None:
    """Case 12: old ones are pruned, the newest n kept."""
    job = Job(tmp_path, settings(tmp_path, backend="rocksdb", snapshots_retained=3))
    job.drive(15)
    assert snapshot_batches(store, 0, 0) == [9, 11, 13]
    assert committed_batches(store, 0, 0) == list(range(9, 15))
    for batch in snapshot_batches(store, 0, 0):
        manifest = read_manifest(store, 0, 0, batch)
        assert manifest is not None
        assert list(missing_files(store, manifest)) == []
    named = {
        file.stored
        for batch in snapshot_batches(store, 0, 0)
        if (manifest := read_manifest(store, 0, 0, batch))
        for file in manifest.files
    }
    assert {f"sst/{name}" for name in store.names("e0/0/sst")} == named


def test_pruning_counts_whole_snapshots_alone(tmp_path: Path, store: CheckpointStore) -> None:
    job = Job(tmp_path, settings(tmp_path, snapshots_retained=3))
    job.drive(8)
    assert snapshot_batches(store, 0, 0) == [3, 5, 7]
    manifest = read_manifest(store, 0, 0, 7)
    assert manifest is not None
    store.remove(f"e0/0/{manifest.files[0].stored}")
    prune(store, 0, 0, 2)
    assert snapshot_batches(store, 0, 0) == [3, 5, 7]
    prune(store, 0, 0, 1)
    assert snapshot_batches(store, 0, 0) == [5, 7]
    assert committed_batches(store, 0, 0) == [5, 6, 7]


def test_a_snapshot_of_another_run_does_not_count(tmp_path: Path, store: CheckpointStore) -> None:
    """An upload that outlived its checkpoint, which was removed and begun anew, comes too late."""
    job = Job(tmp_path, settings(tmp_path, snapshot_every_batches=100))
    job.drive(5)
    for batch in (3, 20):
        store.put_new(
            manifest_name(0, 0, batch), encode_manifest(replace(MANIFEST, partition=0, batch=batch, files=()))
        )
    prune(store, 0, 0, 1)
    assert committed_batches(store, 0, 0) == list(range(5))


def test_pruning_removes_what_dead_attempts_left(tmp_path: Path, store: CheckpointStore) -> None:
    job = Job(tmp_path, settings(tmp_path, snapshots_retained=2))
    job.drive(5)
    left = ["v3.dead00.changes", "v3.dead00.out", "v3.head.0.new", "sst/0.dead00.0.x", "0.snapshot.0.new"]
    young = ["v5.beef00.changes", "v5.head.0.new", "sst/9.beef00.0.x", "9.snapshot.0.new", "v4.beef00.out"]
    for name in left + young:
        store.put_new(f"e0/0/{name}", b"left")
    prune(store, 0, 0, 2)
    assert [name for name in left if store.exists(f"e0/0/{name}")] == []
    assert [name for name in young if not store.exists(f"e0/0/{name}")] == []


def test_pruning_cut_off_anywhere_leaves_a_state_that_restores(
    tmp_path: Path, store: CheckpointStore
) -> None:
    """Case 12: a kill in the middle of pruning."""
    job = Job(tmp_path, settings(tmp_path, backend="rocksdb", snapshots_retained=100))
    job.drive(9)
    counts = expected(9)[1]
    pool().close()

    class Cut(CheckpointStore):
        left = 0

        def remove(self, name: str) -> None:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            super().remove(name)

    cutting = Cut(store.root)
    for steps in (1, 1, 2, 3, 5, 100):
        cutting.left = steps
        try:
            prune(cutting, 0, 0, 1)
        except KeyboardInterrupt:
            pass
        cold = Job(
            tmp_path, settings(tmp_path, backend="rocksdb", local_root=str(tmp_path / f"{cutting.left}"))
        )
        assert cold.counts(9) == counts
        pool().close()
    assert snapshot_batches(store, 0, 0) == [7]


def test_a_batch_does_not_wait_for_a_snapshot_under_way(tmp_path: Path, store: CheckpointStore) -> None:
    """Batches go on, and take no second snapshot, while the upload of one stands still."""
    may_go_on = threading.Event()
    stood = threading.Event()

    class Slow(CheckpointDisk):
        def sync_folder(self, path: Path) -> None:
            if path.name == "sst":
                stood.set()
                may_go_on.wait()
            super().sync_folder(path)

    job = Job(tmp_path, settings(tmp_path, backend="rocksdb", snapshot_in_background=True), disk=Slow())
    for batch in range(5):
        job.do(batch)
    assert stood.wait(60)
    assert snapshot_batches(store, 0, 0) == []
    assert len(list((tmp_path / "local").rglob("0.snapshot.*"))) == 1
    may_go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("state-snapshot"):
            thread.join()
    assert snapshot_batches(store, 0, 0) == [1]
    job.do(5)
    for thread in threading.enumerate():
        if thread.name.startswith("state-snapshot"):
            thread.join()
    assert snapshot_batches(store, 0, 0) == [1, 5]
    assert not list((tmp_path / "local").rglob("0.snapshot.*"))


def test_a_snapshot_that_fails_does_not_fail_its_batch(
    tmp_path: Path, store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(CheckpointDisk):
        def link(self, source: Path, target: Path) -> None:
            if target.name.endswith(".snapshot"):
                raise OSError(errno.ENOSPC, "no room")
            super().link(source, target)

    job = Job(tmp_path, settings(tmp_path), disk=Full())
    job.drive(4)
    assert job.sunk() == expected(4)[0]
    assert snapshot_batches(store, 0, 0) == []
    assert "snapshot failed batch=1" in "\n".join(caplog.messages)
    job.disk = None
    job.drive(5)
    assert snapshot_batches(store, 0, 0) == [4]


def test_change_files_beyond_a_size_bring_a_snapshot_early(tmp_path: Path, store: CheckpointStore) -> None:
    job = Job(tmp_path, settings(tmp_path, snapshot_every_batches=100, snapshot_changes_bytes_max=1))
    job.drive(4)
    assert snapshot_batches(store, 0, 0) == [1, 3]
    commit = read_commit_record(store, 0, 0, 3)
    assert commit is not None
    assert commit.log_bytes > commit.changes.size_bytes


def test_with_fewer_snapshots_than_are_kept_nothing_of_the_log_goes(
    tmp_path: Path, store: CheckpointStore
) -> None:
    job = Job(tmp_path, settings(tmp_path, snapshots_retained=3))
    job.drive(5)
    assert snapshot_batches(store, 0, 0) == [1, 3]
    prune(store, 0, 0, 3)
    assert snapshot_batches(store, 0, 0) == [1, 3]
    assert committed_batches(store, 0, 0) == [0, 1, 2, 3, 4]
    prune(store, 0, 0, 2)
    assert committed_batches(store, 0, 0) == [1, 2, 3, 4]


def test_files_are_shared_with_a_whole_snapshot_alone(store: CheckpointStore, tmp_path: Path) -> None:
    """A snapshot that lacks one file does not count: its other files go with it, when it is pruned."""
    empty = replace(MANIFEST, files=())
    first = upload(store, empty, staged(tmp_path / "1", a=b"aaa", b=b"bbb"), ["a", "b"])
    store.put_new(manifest_name(0, 1, 20), encode_manifest(first))
    store.remove(f"e0/1/{first.files[1].stored}")
    second = upload(store, replace(empty, batch=30), staged(tmp_path / "2", a=b"aaa"), ["a"])
    assert second.files[0].stored != first.files[0].stored
