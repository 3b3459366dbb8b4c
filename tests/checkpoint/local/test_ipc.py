"""Copies that another worker has open: used, returned, taken over, and lost with their server."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.batches import Job, expected, given_out, open_new, settings
from tests.checkpoint.local.ipc_peers import KINDS, full_place, hurry, is_remote, made, stop
from tests.checkpoint.local.ipc_walk import Walk, Worker
from tidegate.checkpoint.backend import StateChanges, Version
from tidegate.checkpoint.batch import open_batch
from tidegate.checkpoint.local import ipc, ipc_client
from tidegate.checkpoint.local.ipc import ConnectionLost, address_of, connect, listen
from tidegate.checkpoint.local.ipc_client import RemoteBackend, RemoteStore, connect_remote
from tidegate.checkpoint.local.lock import holder_address, lock_folder
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.local.store import acquire, return_store
from tidegate.errors import StorageFull
from tidegate.model.clock import SystemClock

pytestmark = pytest.mark.usefixtures("closed_pool")


def test_partitions_that_change_workers_all_the_time_count_as_one_worker_does(
    both: tuple[Job, Worker],
) -> None:
    job, server = both
    given = [server.do(0, 0) + server.do(0, 1)]
    for batch in range(1, 12):
        if batch % 3 == 2:
            given.append(server.do(batch, 0) + job.do(batch, 1))
        else:
            given.append(job.do(batch, 0) + server.do(batch, 1))
    rows, counts = expected(12)
    assert given == rows
    assert job.counts(12) == counts


def test_a_store_that_another_worker_has_open_is_used_there_and_stays_there(both: tuple[Job, Worker]) -> None:
    job, server = both
    with open_new(job.request(1), job.settings, SystemClock()) as opened:
        assert is_remote(opened)
        assert opened.report is not None
        assert (opened.report.source, opened.report.changelog_files) == ("local", 0)
        job.work(opened, 1, 0)
        assert given_out(opened) == expected(2)[0][1][: len(given_out(opened))]
    place = job.settings.local_directory(SystemClock())
    again = acquire(place, next(job.root.glob("local/*/counts/e*/0")), connect_remote)
    assert isinstance(again, RemoteStore)
    version = again.backend.version()
    assert version is not None
    assert version.batch == 1
    again.keep_open()
    assert server.do(1, 0) == given_out_of(job, 1)


def given_out_of(job: Job, batch: int) -> Any:
    with open_batch(job.request(batch), job.settings, SystemClock()) as opened:
        return given_out(opened)


@pytest.mark.crash
@pytest.mark.parametrize("spills", [False, True])
def test_a_server_that_is_killed_costs_the_batch_nothing(both: tuple[Job, Worker], spills: bool) -> None:
    """Case 8: the server is killed while the batch reads from it, and after a part was written."""
    job, server = both
    job.spills = spills
    rows, counts = expected(2)
    with open_new(job.request(1), job.settings, SystemClock()) as opened:
        assert is_remote(opened)
        before = list(opened.backend.scan(b"", b"\xff\xff"))
        walk = opened.backend.scan(b"", b"\xff\xff")
        read = [next(walk) for _ in range(3)]
        if not spills:
            server.kill()
        assert read + list(walk) == before
        assert list(opened.backend.scan(b"", b"\xff\xff")) == before
        job.work(opened, 1, 0)
        server.kill()
    assert job.do(1, 0) + job.do(1, 1) == rows[1]
    assert job.counts(2) == counts


def test_a_batch_that_spills_has_the_copy_for_itself_before(both: tuple[Job, Worker]) -> None:
    job, _ = both
    with open_new(job.request(1), job.settings, SystemClock()) as opened:
        backend = opened.backend
        assert isinstance(backend, RemoteBackend)
        part = StateChanges(entries={b"\x00\x00\x01zz": b"9"})
        opened.spill(part)
        backend.write_partly(part)
        assert not is_remote(opened)
        assert (backend.get(b"\x00\x00\x01zz"), backend.version()) == (b"9", None)
    rows, counts = expected(2)
    assert job.do(1, 0) + job.do(1, 1) == rows[1]
    assert job.counts(2) == counts


def test_a_server_that_hangs_counts_as_lost_and_the_client_restores_a_private_store(
    both: tuple[Job, Worker],
) -> None:
    job, server = both
    job.settings = replace(job.settings, lock_wait_ms_max=20)
    assert server.child.pid is not None
    try:
        with open_new(job.request(1), job.settings, SystemClock()) as opened:
            assert is_remote(opened)
            stop(server.child.pid)
            hurry(opened.backend, 0.3)
            job.work(opened, 1, 0)
            assert not is_remote(opened)
            given = given_out(opened)
        assert given == expected(2)[0][1][: len(given)]
    finally:
        os.kill(server.child.pid, signal.SIGCONT)
    job.settings = replace(job.settings, lock_wait_ms_max=5_000)
    assert job.do(1, 0) + job.do(1, 1) == expected(2)[0][1]
    assert job.counts(2) == expected(2)[1]


@pytest.mark.crash
def test_a_server_killed_before_it_applies_leaves_the_batch_published(both: tuple[Job, Worker]) -> None:
    job, server = both
    with open_new(job.request(1), job.settings, SystemClock()) as opened:
        backend = opened.backend
        assert isinstance(backend, RemoteBackend)
        apply = backend.apply

        def killed_first(changes: StateChanges, version: Any) -> None:
            server.kill()
            apply(changes, version)

        backend.apply = killed_first  # type: ignore[method-assign]
        job.work(opened, 1, 0)
        assert opened.commit is not None
    rows, counts = expected(2)
    assert job.do(1, 0) + job.do(1, 1) == rows[1]
    assert job.counts(2) == counts


def test_a_batch_with_too_many_calls_takes_the_store_over_and_uses_no_remote_store_again(
    both: tuple[Job, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = both
    monkeypatch.setattr(ipc_client, "CALLS_MAX", 6)
    with open_new(job.request(1), job.settings, SystemClock()) as opened:
        before = list(opened.backend.scan(b"", b"\xff\xff"))
        assert [opened.backend.get(key) for key, _ in before] == [value for _, value in before]
        assert not is_remote(opened)
    with open_batch(job.request(1, 1), job.settings, SystemClock()) as opened:
        assert not is_remote(opened)
    rows, counts = expected(2)
    assert job.do(1, 0) + job.do(1, 1) == rows[1]
    assert job.counts(2) == counts


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_serve_each_other_and_are_killed_give_what_one_would(tmp_path: Path, kind: str) -> None:
    """Case 8: the short form of the walk."""
    walk = Walk(tmp_path, secrets.randbelow(10**6), kind)
    faults = walk.run(20)
    assert not faults, (walk.seed, walk.kills, faults)
    assert not walk.failed, (walk.seed, "no task fails for another worker's end", walk.failed)


def test_a_remote_store_that_is_behind_is_caught_up_where_it_is_open(both: tuple[Job, Worker]) -> None:
    job, _ = both
    elsewhere = Job(job.root, replace(job.settings, local_root=str(job.root / "elsewhere")))
    for batch in (1, 2):
        elsewhere.do(batch, 0)
    with open_new(job.request(3), job.settings, SystemClock()) as opened:
        assert is_remote(opened)
        assert opened.report is not None
        assert (opened.report.source, opened.report.changelog_files) == ("local", 2)
        job.work(opened, 3, 0)
        given = given_out(opened)
        assert given == expected(4)[0][3][: len(given)]


def test_a_remote_store_of_another_run_is_rebuilt_by_the_client(both: tuple[Job, Worker]) -> None:
    """A checkpoint that was begun anew under its old path."""
    job, _ = both
    shutil.rmtree(job.root / "checkpoint")
    elsewhere = Job(job.root, replace(job.settings, local_root=str(job.root / "elsewhere")))
    for batch in (0, 1):
        elsewhere.do(batch, 0)
    with open_new(job.request(2), job.settings, SystemClock()) as opened:
        assert not is_remote(opened)
        assert opened.report is not None
        assert (opened.report.source, opened.report.changelog_files) == ("initial", 2)
        job.work(opened, 2, 0)
        given = given_out(opened)
        assert given == expected(3)[0][2][: len(given)]


def test_settings_that_differ_do_not_share_a_copy(tmp_path: Path) -> None:
    server = Worker(tmp_path, {"backend": "rocksdb", "lock_wait_ms_max": 5_000})
    server.do(0)
    folder = next(tmp_path.glob("local/*/counts/e*/0"))
    same = settings(tmp_path, backend="rocksdb").local_directory(SystemClock())
    heap = settings(tmp_path, backend="heap").local_directory(SystemClock())
    assert connect_remote(heap, folder) is None
    found = connect_remote(same, folder)
    assert found is not None
    assert connect_remote(same, folder) is None, "it is served already"
    found.keep_open()
    server.end()


def test_a_store_that_is_not_to_be_served_is_not(tmp_path: Path) -> None:
    serving = full_place(tmp_path)
    return_store(serving, made(serving, tmp_path / "copy"))
    assert holder_address(tmp_path / "copy") is not None
    pool().close()
    alone = replace(serving, is_served=False)
    return_store(alone, made(alone, tmp_path / "copy"))
    assert holder_address(tmp_path / "copy") is None
    assert connect_remote(serving, tmp_path / "copy") is None
    assert not settings(tmp_path, keep_open=False).local_directory(SystemClock()).is_served


def test_a_full_disk_of_the_server_is_an_error_of_the_client(tmp_path: Path) -> None:
    place = full_place(tmp_path)
    return_store(place, made(place, tmp_path / "copy"))
    found = connect_remote(place, tmp_path / "copy")
    assert found is not None
    with pytest.raises(StorageFull, match="12 bytes are free"):
        found.backend.apply(StateChanges(entries={b"a": b"b"}), Version(0, 1, "a"))
    assert found.backend.get(b"a") is None
    found.release()
    free = lock_folder(tmp_path / "copy", wait_ms_max=1_000)
    assert free is not None
    free.release()


def test_an_address_that_nobody_listens_at_serves_nothing(tmp_path: Path) -> None:
    place = full_place(tmp_path)
    return_store(place, made(place, tmp_path / "copy"))
    address = holder_address(tmp_path / "copy")
    assert address is not None
    assert connect(address + b"x", wait_seconds_max=1) is None
    (tmp_path / "copy" / "lock").write_bytes(address + b"x")
    assert connect_remote(place, tmp_path / "copy") is None


def test_another_user_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = listen()
    assert listening is not None
    monkeypatch.setattr("tidegate.checkpoint.local.ipc.os.geteuid", lambda: os.getuid() + 1)
    assert connect(address_of(listening), wait_seconds_max=1) is None
    assert ipc.accept(listening) is None
    listening.close()


def test_a_server_that_does_not_answer_is_lost(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    line = ipc.Connection(here, wait_seconds_max=0.05)
    with pytest.raises(ConnectionLost):
        line.receive()
    there.close()
    with pytest.raises(ConnectionLost):
        line.receive()
    line.close()


def test_messages_of_many_keys_arrive_as_they_were_sent() -> None:
    here, there = socket.socketpair()
    one, other = ipc.Connection(here, wait_seconds_max=5), ipc.Connection(there, wait_seconds_max=5)
    keys = [number.to_bytes(1 + number % 9, "big") for number in range(200)] + [b""]
    message = ["get_many", keys, {b"a": None, b"": b"x"}, [[b"a", b"b"]], -(2**62), "é", None, True]
    one.send(tuple(message))
    assert other.receive() == message
    here.sendall((3).to_bytes(8, "big") + b"\xc1\xc1\xc1")
    with pytest.raises(ConnectionLost, match="not decodable"):
        other.receive()
    one.close()
    other.close()
