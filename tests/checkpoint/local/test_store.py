"""Local copies: one holder at a time, kept open, handed over, or made privately when nobody can wait."""

from __future__ import annotations

import errno
import fcntl
import logging
import multiprocessing
import os
import shutil
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.checkpoint.batches import Job, Rows, expected, open_new, settings
from tidegate.checkpoint.local import lock as locks
from tidegate.checkpoint.local import store
from tidegate.checkpoint.local.lock import FolderLock, lock_folder, sweep
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.local.store import (
    UNUSED_US_MAX,
    acquire,
    default_root,
    discard_store,
    remove_unused,
    return_store,
)
from tidegate.checkpoint.settings import StateSettings
from tidegate.checkpoint.store import CheckpointStore
from tidegate.errors import BatchTaken
from tidegate.model.clock import SystemClock
from tidegate.testing.clock import ManualClock


@pytest.fixture(autouse=True)
def closed_pool() -> Iterator[None]:
    yield
    pool().close()


def test_a_folder_has_one_holder(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path / "a")
    assert lock is not None
    assert lock_folder(tmp_path / "a") is None
    assert lock_folder(tmp_path / "a", wait_ms_max=6) is None
    assert lock.is_requested()
    assert not lock.is_requested()
    lock.release()
    again = lock_folder(tmp_path / "a")
    assert again is not None
    assert not again.is_requested()
    again.release()


def test_who_waits_gets_a_folder_that_is_released_meanwhile(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path / "a")
    assert lock is not None

    def release_when_asked() -> None:
        while not lock.is_requested():
            pass
        lock.release()

    thread = threading.Thread(target=release_when_asked)
    thread.start()
    second = lock_folder(tmp_path / "a", wait_ms_max=60_000)
    thread.join()
    assert second is not None
    second.release()


def test_a_removed_folder_is_made_again_for_the_next_holder(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path / "a")
    assert lock is not None
    lock.remove()
    assert not (tmp_path / "a").exists()
    again = lock_folder(tmp_path / "a")
    assert again is not None
    assert sweep(tmp_path, "*") == []
    again.release()
    assert sweep(tmp_path, "*") == [tmp_path / "a"]


def place_of(
    root: Path, clock: SystemClock | ManualClock | None = None, **changed: object
) -> store.LocalDirectory:
    return settings(root, **changed).local_directory(clock or SystemClock())


@pytest.mark.parametrize("kind", ["heap", "rocksdb"])
def test_a_copy_is_kept_open_between_tasks(tmp_path: Path, kind: str) -> None:
    """Case 13: warm without opening anything."""
    job = Job(tmp_path, settings(tmp_path, backend=kind))
    opened = []
    for batch in range(3):
        with open_new(job.request(batch), job.settings, SystemClock()) as task:
            job.work(task, batch, 0)
            opened.append(task.backend)
    assert opened[0] is opened[1] is opened[2]
    job.settings = settings(tmp_path, backend=kind, keep_open=False)
    for batch in (3, 4):
        with open_new(job.request(batch), job.settings, SystemClock()) as task:
            job.work(task, batch, 0)
            opened.append(task.backend)
    assert opened[3] is opened[0]
    assert opened[4] is not opened[3]


def work_in_turns(root: str, kind: str, turns: Connection) -> None:
    """Do each batch that comes through the pipe, and answer with its rows and how the copy was found."""
    job = Job(Path(root), settings(Path(root), backend=kind, lock_wait_ms_max=20_000))
    while True:
        batch = turns.recv()
        if batch is None:
            return
        with open_new(job.request(batch), job.settings, SystemClock()) as task:
            way = task.report.source if task.report else None
            job.work(task, batch, 0)
            rows: Rows = [(r["key"], r["count"]) for part in task.outputs() for r in part.to_pylist()]
        turns.send((rows, way))


@pytest.mark.parametrize("kind", ["heap", "rocksdb"])
def test_a_copy_that_is_kept_open_is_handed_over_to_another_worker(tmp_path: Path, kind: str) -> None:
    """Case 8: partitions move between workers at will; the one that idles gives the copy up."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["tests.checkpoint.batches"])
    pipes = []
    for _ in range(2):
        ours, theirs = forks.Pipe()
        worker = forks.Process(target=work_in_turns, args=(str(tmp_path), kind, theirs), daemon=True)
        worker.start()
        pipes.append((ours, worker))
    ways = []
    for batch in range(6):
        pipe = pipes[batch // 2 % 2][0]
        pipe.send(batch)
        rows, way = pipe.recv()
        ways.append(way)
        assert rows == [row for row in expected(batch + 1)[0][batch] if row[0] % 2 == 0]
    for pipe, worker in pipes:
        pipe.send(None)
        worker.join()
    assert ways == ["initial", *["local"] * 5]
    assert not list((tmp_path / "local").rglob("*.private.*"))


def test_who_cannot_wait_works_on_a_private_copy_that_goes_afterwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path, settings(tmp_path, lock_wait_ms_max=2))
    job.drive(2)
    with open_new(job.request(2), job.settings, SystemClock()) as first:
        with caplog.at_level(logging.WARNING):
            rows = job.do(2)
        assert "private" in "\n".join(caplog.messages)
        with pytest.raises(BatchTaken):
            job.work(first, 2, 0)
    assert rows == [row for row in expected(3)[0][2] if row[0] % 2 == 0]
    assert not list((tmp_path / "local").rglob("*.private.*"))


def test_what_dead_workers_left_beside_a_copy_is_removed(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    folder = place.folder(CheckpointStore(tmp_path / "op"), 0, 3)
    dead = [folder.with_name("3.private.99.0"), folder.with_name("3.snapshot.7.99.0")]
    for path in dead:
        lock = lock_folder(path)
        assert lock is not None
        lock.release()
    return_store(place, acquire(place, folder))
    assert [path for path in dead if path.exists()] == []


def test_copies_that_nobody_used_for_a_week_are_removed(tmp_path: Path) -> None:
    clock = ManualClock()
    place = place_of(tmp_path, clock, keep_open=False)
    store = CheckpointStore(tmp_path / "op")
    old, young, used = (place.folder(store, 0, number) for number in range(3))
    return_store(place, acquire(place, old))
    in_use = acquire(place, used)
    clock.advance(UNUSED_US_MAX / 1e6)
    return_store(place, acquire(place, young))
    assert remove_unused(place) == []
    clock.advance(1)
    assert remove_unused(place) == [old]
    assert young.exists()
    in_use.release()


def test_a_copy_that_is_dropped_is_empty_for_the_next_one(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    folder = place.folder(CheckpointStore(tmp_path / "op"), 0, 0)
    local = acquire(place, folder)
    local.wipe().mkdir()
    local.adopt()
    discard_store(local)
    again = acquire(place, folder)
    assert again.open() is None
    again.release()


def test_only_so_many_copies_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.checkpoint.local.pool.IDLE_STORES_MAX", 2)
    place = place_of(tmp_path)
    folders = [place.folder(CheckpointStore(tmp_path / "op"), 0, number) for number in range(3)]
    for folder in folders:
        return_store(place, acquire(place, folder))
    assert pool().take(folders[0]) is None
    for folder in folders[1:]:
        kept = pool().take(folder)
        assert kept is not None
        kept.release()


def test_a_forked_child_leaves_the_parents_copies_alone(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    folder = place.folder(CheckpointStore(tmp_path / "op"), 0, 0)
    local = acquire(place, folder)
    local.wipe().mkdir()
    local.adopt()
    return_store(place, local)
    child = os.fork()
    if child == 0:
        is_apart = pool().take(folder) is None and lock_folder(folder) is None
        os._exit(0 if is_apart else 1)
    assert os.waitpid(child, 0)[1] == 0
    kept = pool().take(folder)
    assert kept is local
    assert lock_folder(folder) is None
    kept.release()


def test_the_root_comes_from_the_settings_the_environment_or_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEGATE_STATE_DIR", raising=False)
    assert default_root().name == f"tidegate-state-{os.getuid()}"
    monkeypatch.setenv("TIDEGATE_STATE_DIR", str(tmp_path))
    assert default_root() == tmp_path
    assert StateSettings().local_directory(SystemClock()).root == tmp_path
    assert StateSettings(local_root="/elsewhere").local_directory(SystemClock()).root == Path("/elsewhere")


def test_a_folder_that_is_removed_is_free_for_the_next_holder_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing takes time: the next holder does not share its folder with what is going."""
    lock = lock_folder(tmp_path / "a")
    assert lock is not None
    (tmp_path / "a" / "old").write_text("")
    later: list[FolderLock] = []
    remove = shutil.rmtree

    def slow(path: Path, *, ignore_errors: bool) -> None:
        found = lock_folder(tmp_path / "a")
        assert found is not None
        (tmp_path / "a" / "new").write_text("")
        later.append(found)
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", slow)
    lock.remove()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["lock", "new", "wanted"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    later[0].release()


def test_what_is_left_of_a_removal_that_was_cut_off_goes(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    folder = place.folder(CheckpointStore(tmp_path / "op"), 0, 3)
    left = folder.with_name("3.private.9.0.gone.9.4")
    left.mkdir(parents=True)
    return_store(place, acquire(place, folder))
    assert not left.exists()


def test_a_folder_that_was_used_just_before_it_is_swept_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_folder(tmp_path / "a")
    assert lock is not None
    lock.touch(1)
    lock.release()
    take = locks._try_lock

    def used_before(folder: Path) -> FolderLock | None:
        user = take(folder)
        assert user is not None
        user.touch(100)
        user.release()
        return take(folder)

    monkeypatch.setattr(locks, "_try_lock", used_before)
    assert sweep(tmp_path, "*", 50) == []
    monkeypatch.undo()
    assert sweep(tmp_path, "*", 101) == [tmp_path / "a"]


def test_a_lock_that_a_fork_has_open_too_is_released_all_the_same(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path / "copy")
    assert lock is not None
    waits, ends = os.pipe()
    child = os.fork()
    if not child:
        os.close(ends)
        os.read(waits, 1)
        os._exit(0)
    lock.release()
    free = lock_folder(tmp_path / "copy")
    os.close(ends)
    os.waitpid(child, 0)
    os.close(waits)
    assert free is not None
    free.release()


def test_a_lock_file_that_was_removed_before_it_was_locked_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, folder = fcntl.flock, tmp_path / "copy"
    removals = [folder]

    def removed_first(file: int, how: int) -> None:
        if removals:
            shutil.rmtree(removals.pop())
            folder.mkdir()
        flock(file, how)

    monkeypatch.setattr("tidegate.checkpoint.local.lock.fcntl.flock", removed_first)
    lock = lock_folder(folder)
    assert lock is not None
    assert lock_folder(folder) is None, "two would hold one folder"
    lock.release()


def test_locking_that_fails_midway_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as changed:
        changed.setattr("tidegate.checkpoint.local.lock.os.mkfifo", full)
        with pytest.raises(OSError, match="No space"):
            lock_folder(tmp_path / "copy")
    lock = lock_folder(tmp_path / "copy")
    assert lock is not None
    lock.release()


def test_a_relative_root_of_local_stores_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    clock = ManualClock()
    assert StateSettings(local_root="stores").local_directory(clock).root == tmp_path / "stores"
    monkeypatch.setenv(store.ROOT_VARIABLE, "named")
    assert StateSettings().local_directory(clock).root == tmp_path / "named"
