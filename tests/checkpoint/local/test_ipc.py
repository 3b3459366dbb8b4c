"""Copies that another worker has open: borrowed, given back, taken over, and lost with their lender."""

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

from tests.checkpoint.batches import Job, expected, given_out, settings
from tests.checkpoint.local.ipc_peers import KINDS, full_place, hurry, is_borrowed, made, stop
from tests.checkpoint.local.ipc_walk import Walk, Worker
from tidegate.checkpoint.backend import Changes, Version
from tidegate.checkpoint.batch import open_batch
from tidegate.checkpoint.local import ipc, ipc_client
from tidegate.checkpoint.local.ipc import LineLost, address_of, connect, listen
from tidegate.checkpoint.local.ipc_client import BorrowedBackend, BorrowedCopy, borrow
from tidegate.checkpoint.local.lock import claim, holder_of
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.local.store import acquire, put_back
from tidegate.errors import StorageFull
from tidegate.model.clock import SystemClock

pytestmark = pytest.mark.usefixtures("closed_pool")


def test_partitions_that_change_workers_all_the_time_count_as_one_worker_does(
    both: tuple[Job, Worker],
) -> None:
    job, lender = both
    given = [lender.do(0, 0) + lender.do(0, 1)]
    for batch in range(1, 12):
        if batch % 3 == 2:
            given.append(lender.do(batch, 0) + job.do(batch, 1))
        else:
            given.append(job.do(batch, 0) + lender.do(batch, 1))
    rows, counts = expected(12)
    assert given == rows
    assert job.counts(12) == counts


def test_a_copy_that_another_worker_keeps_open_is_borrowed_and_stays_there(both: tuple[Job, Worker]) -> None:
    job, lender = both
    with open_batch(job.asked(1), job.settings, SystemClock()) as opened:
        assert is_borrowed(opened)
        assert opened.report is not None
        assert (opened.report.way, opened.report.change_files) == ("local", 0)
        job.work(opened, 1, 0)
        assert given_out(opened) == expected(2)[0][1][: len(given_out(opened))]
    place = job.settings.place(SystemClock())
    again = acquire(place, next(job.root.glob("local/*/counts/e*/0")), borrow)
    assert isinstance(again, BorrowedCopy)
    version = again.backend.version()
    assert version is not None
    assert version.batch == 1
    again.keep()
    assert lender.do(1, 0) == given_out_of(job, 1)


def given_out_of(job: Job, batch: int) -> Any:
    with open_batch(job.asked(batch), job.settings, SystemClock()) as opened:
        return given_out(opened)


@pytest.mark.crash
@pytest.mark.parametrize("spills", [False, True])
def test_a_lender_that_is_killed_costs_the_batch_nothing(both: tuple[Job, Worker], spills: bool) -> None:
    """Case 8: the worker that lends is killed while the batch reads from it, and after a part was written."""
    job, lender = both
    job.spills = spills
    rows, counts = expected(2)
    with open_batch(job.asked(1), job.settings, SystemClock()) as opened:
        assert is_borrowed(opened)
        before = list(opened.backend.scan(b"", b"\xff\xff"))
        walk = opened.backend.scan(b"", b"\xff\xff")
        read = [next(walk) for _ in range(3)]
        if not spills:
            lender.kill()
        assert read + list(walk) == before
        assert list(opened.backend.scan(b"", b"\xff\xff")) == before
        job.work(opened, 1, 0)
        lender.kill()
    assert job.do(1, 0) + job.do(1, 1) == rows[1]
    assert job.counts(2) == counts


def test_a_batch_that_spills_has_the_copy_for_itself_before(both: tuple[Job, Worker]) -> None:
    job, _ = both
    with open_batch(job.asked(1), job.settings, SystemClock()) as opened:
        backend = opened.backend
        assert isinstance(backend, BorrowedBackend)
        part = Changes(entries={b"\x00\x00\x01zz": b"9"})
        opened.spill(part)
        backend.write_partly(part)
        assert not is_borrowed(opened)
        assert (backend.get(b"\x00\x00\x01zz"), backend.version()) == (b"9", None)
    rows, counts = expected(2)
    assert job.do(1, 0) + job.do(1, 1) == rows[1]
    assert job.counts(2) == counts


def test_a_lender_that_hangs_counts_as_lost_and_the_borrower_makes_a_copy_for_itself(
    both: tuple[Job, Worker],
) -> None:
    job, lender = both
    job.settings = replace(job.settings, lock_wait_ms_max=20)
    assert lender.child.pid is not None
    try:
        with open_batch(job.asked(1), job.settings, SystemClock()) as opened:
            assert is_borrowed(opened)
            stop(lender.child.pid)
            hurry(opened.backend, 0.3)
            job.work(opened, 1, 0)
            assert not is_borrowed(opened)
            given = given_out(opened)
        assert given == expected(2)[0][1][: len(given)]
    finally:
        os.kill(lender.child.pid, signal.SIGCONT)
    job.settings = replace(job.settings, lock_wait_ms_max=5_000)
    assert job.do(1, 0) + job.do(1, 1) == expected(2)[0][1]
    assert job.counts(2) == expected(2)[1]


@pytest.mark.crash
def test_a_lender_killed_before_it_applies_leaves_the_batch_published(both: tuple[Job, Worker]) -> None:
    job, lender = both
    with open_batch(job.asked(1), job.settings, SystemClock()) as opened:
        backend = opened.backend
        assert isinstance(backend, BorrowedBackend)
        apply = backend.apply

        def killed_first(changes: Changes, version: Any) -> None:
            lender.kill()
            apply(changes, version)

        backend.apply = killed_first  # type: ignore[method-assign]
        job.work(opened, 1, 0)
        assert opened.head is not None
    rows, counts = expected(2)
    assert job.do(1, 0) + job.do(1, 1) == rows[1]
    assert job.counts(2) == counts


def test_a_batch_that_asks_too_often_takes_the_copy_over_and_borrows_no_more(
    both: tuple[Job, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = both
    monkeypatch.setattr(ipc_client, "CALLS_MAX", 6)
    with open_batch(job.asked(1), job.settings, SystemClock()) as opened:
        before = list(opened.backend.scan(b"", b"\xff\xff"))
        assert [opened.backend.get(key) for key, _ in before] == [value for _, value in before]
        assert not is_borrowed(opened)
    with open_batch(job.asked(1, 1), job.settings, SystemClock()) as opened:
        assert not is_borrowed(opened)
    rows, counts = expected(2)
    assert job.do(1, 0) + job.do(1, 1) == rows[1]
    assert job.counts(2) == counts


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_lend_to_each_other_and_are_killed_give_what_one_would(
    tmp_path: Path, kind: str
) -> None:
    """Case 8: the short form of the walk."""
    walk = Walk(tmp_path, secrets.randbelow(10**6), kind)
    faults = walk.run(20)
    assert not faults, (walk.seed, walk.kills, faults)
    assert not walk.failed, (walk.seed, "no task fails for another worker's end", walk.failed)


def test_a_borrowed_copy_that_is_behind_is_caught_up_where_it_is_open(both: tuple[Job, Worker]) -> None:
    job, _ = both
    elsewhere = Job(job.root, replace(job.settings, local_root=str(job.root / "elsewhere")))
    for batch in (1, 2):
        elsewhere.do(batch, 0)
    with open_batch(job.asked(3), job.settings, SystemClock()) as opened:
        assert is_borrowed(opened)
        assert opened.report is not None
        assert (opened.report.way, opened.report.change_files) == ("local", 2)
        job.work(opened, 3, 0)
        given = given_out(opened)
        assert given == expected(4)[0][3][: len(given)]


def test_a_borrowed_copy_of_another_run_is_made_anew_by_the_borrower(both: tuple[Job, Worker]) -> None:
    """A checkpoint that was begun anew under its old path."""
    job, _ = both
    shutil.rmtree(job.root / "checkpoint")
    elsewhere = Job(job.root, replace(job.settings, local_root=str(job.root / "elsewhere")))
    for batch in (0, 1):
        elsewhere.do(batch, 0)
    with open_batch(job.asked(2), job.settings, SystemClock()) as opened:
        assert not is_borrowed(opened)
        assert opened.report is not None
        assert (opened.report.way, opened.report.change_files) == ("ground", 2)
        job.work(opened, 2, 0)
        given = given_out(opened)
        assert given == expected(3)[0][2][: len(given)]


def test_settings_that_differ_do_not_share_a_copy(tmp_path: Path) -> None:
    lender = Worker(tmp_path, {"backend": "rocksdb", "lock_wait_ms_max": 5_000})
    lender.do(0)
    folder = next(tmp_path.glob("local/*/counts/e*/0"))
    same = settings(tmp_path, backend="rocksdb").place(SystemClock())
    heap = settings(tmp_path, backend="heap").place(SystemClock())
    assert borrow(heap, folder) is None
    found = borrow(same, folder)
    assert found is not None
    assert borrow(same, folder) is None, "it is lent already"
    found.keep()
    lender.end()


def test_a_copy_that_is_not_to_be_lent_is_not(tmp_path: Path) -> None:
    lending = full_place(tmp_path)
    put_back(lending, made(lending, tmp_path / "copy"))
    assert holder_of(tmp_path / "copy") is not None
    pool().close()
    alone = replace(lending, is_served=False)
    put_back(alone, made(alone, tmp_path / "copy"))
    assert holder_of(tmp_path / "copy") is None
    assert borrow(lending, tmp_path / "copy") is None
    assert not settings(tmp_path, keep_open=False).place(SystemClock()).is_served


def test_what_the_lenders_disk_refuses_is_told_to_the_borrower(tmp_path: Path) -> None:
    place = full_place(tmp_path)
    put_back(place, made(place, tmp_path / "copy"))
    found = borrow(place, tmp_path / "copy")
    assert found is not None
    with pytest.raises(StorageFull, match="12 bytes are free"):
        found.backend.apply(Changes(entries={b"a": b"b"}), Version(0, 1, "a"))
    assert found.backend.get(b"a") is None
    found.give_up()
    free = claim(tmp_path / "copy", wait_ms_max=1_000)
    assert free is not None
    free.release()


def test_an_address_that_nobody_listens_at_is_no_loan(tmp_path: Path) -> None:
    place = full_place(tmp_path)
    put_back(place, made(place, tmp_path / "copy"))
    address = holder_of(tmp_path / "copy")
    assert address is not None
    assert connect(address + b"x", wait_seconds_max=1) is None
    (tmp_path / "copy" / "lock").write_bytes(address + b"x")
    assert borrow(place, tmp_path / "copy") is None


def test_another_user_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = listen()
    assert listening is not None
    monkeypatch.setattr("tidegate.checkpoint.local.ipc.os.geteuid", lambda: os.getuid() + 1)
    assert connect(address_of(listening), wait_seconds_max=1) is None
    assert ipc.accept(listening) is None
    listening.close()


def test_a_lender_that_does_not_answer_is_lost(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    line = ipc.Line(here, wait_seconds_max=0.05)
    with pytest.raises(LineLost):
        line.receive()
    there.close()
    with pytest.raises(LineLost):
        line.receive()
    line.close()


def test_messages_of_many_keys_arrive_as_they_were_sent() -> None:
    here, there = socket.socketpair()
    one, other = ipc.Line(here, wait_seconds_max=5), ipc.Line(there, wait_seconds_max=5)
    keys = [number.to_bytes(1 + number % 9, "big") for number in range(200)] + [b""]
    message = ["get_many", keys, {b"a": None, b"": b"x"}, [[b"a", b"b"]], -(2**62), "é", None, True]
    one.send(tuple(message))
    assert other.receive() == message
    here.sendall((3).to_bytes(8, "big") + b"\xc1\xc1\xc1")
    with pytest.raises(LineLost, match="language"):
        other.receive()
    one.close()
    other.close()
