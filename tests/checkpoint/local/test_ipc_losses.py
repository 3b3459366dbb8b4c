"""Servers that end at the worst moment, and copies that somebody removes under those who have them open."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.batches import Job, expected, open_new, settings
from tests.checkpoint.local.ipc_peers import full_place, hurry, made, stop
from tests.checkpoint.local.ipc_walk import Worker
from tidegate.checkpoint.backend import StateChanges, Version
from tidegate.checkpoint.backends.rocksdb import RocksBackend
from tidegate.checkpoint.local.ipc import Connection
from tidegate.checkpoint.local.ipc_client import RemoteBackend, RemoteStore, connect_remote
from tidegate.checkpoint.local.lock import lock_folder, request_lock
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.local.store import return_store
from tidegate.errors import StorageCorrupt
from tidegate.model.clock import SystemClock

pytestmark = pytest.mark.usefixtures("closed_pool")


@pytest.mark.crash
@pytest.mark.parametrize("spills", [False, True])
def test_a_server_killed_while_its_store_is_caught_up_costs_the_batch_nothing(
    both: tuple[Job, Worker], monkeypatch: pytest.MonkeyPatch, spills: bool
) -> None:
    """Case 8: what was in the server's memory is gone, and no change file is put on top of an older batch."""
    job, server = both
    elsewhere = Job(job.root, replace(job.settings, local_root=str(job.root / "elsewhere")), spills=spills)
    for batch in range(1, 6):
        for partition in range(2):
            (server if batch < 4 else elsewhere).do(batch, partition)
    for name in ("apply", "write_partly"):
        monkeypatch.setattr(RemoteBackend, name, _killed_first(server, getattr(RemoteBackend, name)))
    rows, counts = expected(7)
    assert job.do(6, 0) + job.do(6, 1) == rows[6]
    assert job.counts(7) == counts


def _killed_first(server: Worker, call: Any) -> Any:
    def called(*arguments: Any) -> Any:
        server.kill()
        return call(*arguments)

    return called


def test_damage_that_a_client_finds_after_its_server_is_lost_is_raised_as_it_is(
    both: tuple[Job, Worker],
) -> None:
    """No copy is open then, and none has a part to bring back."""
    job, server = both
    with pytest.raises(StorageCorrupt), open_new(job.request(1), job.settings, SystemClock()) as opened:
        server.kill()
        for stored in (job.root / "checkpoint").rglob("*.changes"):
            stored.write_bytes(b"nothing of ours")
        job.work(opened, 1, 0)


def test_a_server_that_hangs_before_its_first_answer_counts_as_lost(
    both: tuple[Job, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, server = both
    job.settings = replace(job.settings, lock_wait_ms_max=20)
    asked = RemoteBackend.version
    pid = server.child.pid
    assert pid is not None

    def stopped_first(backend: RemoteBackend) -> Version | None:
        stop(pid)
        hurry(backend, 0.3)
        return asked(backend)

    waits: list[Connection] = []
    receive = Connection.receive

    def counted(line: Connection) -> list[Any]:
        waits.append(line)
        return receive(line)

    monkeypatch.setattr(RemoteBackend, "version", stopped_first)
    monkeypatch.setattr(Connection, "receive", counted)
    try:
        given = job.do(1, 0)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert given == expected(2)[0][1][: len(given)]
    # One for the session itself, one that is never answered, and none for its end.
    assert len(waits) == 2


def test_the_end_of_a_session_is_never_taken_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that runs out of memory must not say of a key that it is not there."""
    place = full_place(tmp_path)
    local = made(place, tmp_path / "copy")
    local.backend._free_bytes = lambda _: 1 << 40
    local.backend.apply(StateChanges(entries={b"a": b"b"}), Version(0, 1, "a"))
    return_store(place, local)
    found = connect_remote(place, tmp_path / "copy")
    assert found is not None
    read = RocksBackend.get
    fails = [MemoryError()]

    def fails_once(backend: RocksBackend, key: bytes) -> bytes | None:
        if fails:
            raise fails.pop()
        return read(backend, key)

    monkeypatch.setattr(RocksBackend, "get", fails_once)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    assert found.backend.get(b"a") == b"b"
    found.release()


def test_a_client_that_is_gone_leaves_the_store_to_whoever_locks_it(tmp_path: Path) -> None:
    place = full_place(tmp_path)
    return_store(place, made(place, tmp_path / "copy"))
    found = connect_remote(place, tmp_path / "copy")
    assert isinstance(found, RemoteStore)
    assert found.connection is not None
    found.connection.close()
    deadline = time.monotonic() + 60
    while (free := lock_folder(tmp_path / "copy")) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert free is not None, "nobody asked for it"
    free.release()


def test_a_copy_that_was_asked_for_while_a_task_had_it_is_not_kept(tmp_path: Path) -> None:
    place = full_place(tmp_path)
    local = made(place, tmp_path / "copy")
    request_lock(tmp_path / "copy")
    return_store(place, local)
    free = lock_folder(tmp_path / "copy")
    assert free is not None
    free.release()


def test_a_copy_that_is_removed_under_its_worker_shares_no_folder_with_the_next(tmp_path: Path) -> None:
    """Each would take the other's files for its own, and put them into its snapshots."""
    place = full_place(tmp_path)
    removed = made(place, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy")
    again = made(place, tmp_path / "copy")
    assert again.files != removed.files
    return_store(place, removed)
    assert pool().take(tmp_path / "copy") is None, "what was removed is not kept"
    again.release()


@pytest.mark.crash
def test_copies_that_are_removed_while_workers_have_them_open_cost_time_and_nothing_else(
    tmp_path: Path,
) -> None:
    changed: dict[str, object] = {
        "backend": "rocksdb",
        "snapshot_every_batches": 1,
        "lock_wait_ms_max": 5_000,
    }
    workers = [Worker(tmp_path, changed) for _ in range(2)]
    rows, counts = expected(12)
    given = []
    for batch in range(12):
        if batch in (1, 4, 6):
            shutil.rmtree(tmp_path / "local", ignore_errors=True)
        given.append([row for at in range(2) for row in workers[(batch // 2 + at) % 2].do(batch, at)])
    for worker in workers:
        worker.kill()
    assert given == rows
    shutil.rmtree(tmp_path / "local")
    assert Job(tmp_path, settings(tmp_path, **changed)).counts(12) == counts


def test_a_remote_store_counts_as_used(tmp_path: Path) -> None:
    """Else the one that is served in every batch would be removed after a week as one that nobody used."""
    place = full_place(tmp_path)
    return_store(place, made(place, tmp_path / "copy"))
    os.utime(tmp_path / "copy" / "lock", ns=(0, 0))
    found = connect_remote(place, tmp_path / "copy")
    assert found is not None
    found.keep_open()
    assert (tmp_path / "copy" / "lock").stat().st_mtime_ns > 0
