"""Copies that another worker has open: borrowed, given back, taken over, and lost with their lender."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.state.batches import Job, expected, given_out, settings
from tidegate.errors import StorageFailed, StorageFull
from tidegate.model.clock import SystemClock
from tidegate.state import borrowing, lines
from tidegate.state.backend import Changes
from tidegate.state.batch import open_batch
from tidegate.state.borrowing import BorrowedBackend, BorrowedCopy, borrow
from tidegate.state.claims import claim, holder_of
from tidegate.state.kept import pool
from tidegate.state.lines import LineLost, address_of, connect, listen
from tidegate.state.local import Place, acquire, put_back
from tidegate.state.rocks import RocksBackend

KINDS = ["rocksdb", "heap"]


@pytest.fixture(autouse=True)
def _closed_pool() -> Iterator[None]:
    borrowing._TALKATIVE.clear()
    yield
    pool().close()
    borrowing._TALKATIVE.clear()


class Lender:
    """Another worker of this machine, which does batches when told and keeps its copies open."""

    def __init__(self, root: Path, **changed: object) -> None:
        forks = multiprocessing.get_context("forkserver")
        forks.set_forkserver_preload(["tests.state.batches"])
        self._line, theirs = forks.Pipe()
        self.child = forks.Process(target=_work, args=(str(root), changed, theirs), daemon=True)
        self.child.start()
        theirs.close()

    def do(self, batch: int, partition: int = 0) -> Any:
        self._line.send((batch, partition))
        return self._line.recv()

    def end(self) -> None:
        self._line.close()
        self.child.join()

    def kill(self) -> None:
        assert self.child.pid is not None
        os.kill(self.child.pid, signal.SIGKILL)
        self.child.join()


def _work(root: str, changed: dict[str, object], line: Connection[Any, Any]) -> None:
    job = Job(Path(root), settings(Path(root), **changed))
    while True:
        try:
            line.send(job.do(*line.recv()))
        except EOFError:
            return


@pytest.fixture(params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Job, Lender]]:
    """This worker and another one, which has done the first batch of both partitions."""
    kind = {"backend": request.param, "snapshot_every_batches": 100, "lock_wait_ms_max": 5_000}
    lender = Lender(tmp_path, **kind)
    for partition in range(2):
        lender.do(0, partition)
    yield Job(tmp_path, settings(tmp_path, **kind)), lender
    lender.end()


def is_borrowed(opened: Any) -> bool:
    return isinstance(opened.backend, BorrowedBackend)


def test_partitions_that_change_workers_all_the_time_count_as_one_worker_does(
    both: tuple[Job, Lender],
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


def test_a_copy_that_another_worker_keeps_open_is_borrowed_and_stays_there(both: tuple[Job, Lender]) -> None:
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
def test_a_lender_that_is_killed_costs_nothing_unless_a_part_of_the_batch_was_with_it(
    both: tuple[Job, Lender], spills: bool
) -> None:
    """Case 8: the worker that lends is killed before, while and after the batch reads from it."""
    job, lender = both
    rows, counts = expected(2)
    with open_batch(job.asked(1), job.settings, SystemClock()) as opened:
        assert is_borrowed(opened)
        before = list(opened.backend.scan(b"", b"\xff\xff"))
        walk = opened.backend.scan(b"", b"\xff\xff")
        read = [next(walk) for _ in range(3)]
        if spills:
            part = Changes(entries={b"\x00\x00\x01zz": b"9"})
            opened.spill(part)
            opened.backend.write_partly(part)
        lender.kill()
        if spills:
            with pytest.raises(StorageFailed, match="ended"):
                opened.backend.get(read[0][0])
        else:
            assert read + list(walk) == before
            assert list(opened.backend.scan(b"", b"\xff\xff")) == before
            job.work(opened, 1, 0)
    again = job.do(1, 0) + job.do(1, 1)
    assert again == rows[1]
    assert job.counts(2) == counts


@pytest.mark.crash
def test_a_lender_killed_before_it_applies_leaves_the_batch_published(both: tuple[Job, Lender]) -> None:
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


@pytest.mark.parametrize("spills", [False, True])
def test_a_batch_that_asks_too_often_takes_the_copy_over_and_borrows_no_more(
    both: tuple[Job, Lender], monkeypatch: pytest.MonkeyPatch, spills: bool
) -> None:
    job, _ = both
    monkeypatch.setattr(borrowing, "CALLS_MAX", 6)
    with open_batch(job.asked(1), job.settings, SystemClock()) as opened:
        before = list(opened.backend.scan(b"", b"\xff\xff"))
        if spills:
            part = Changes(entries={key: b"7" for key, _ in before})
            opened.spill(part)
            opened.backend.write_partly(part)
        found = [opened.backend.get(key) for key, _ in before]
        assert found == ([b"7"] * len(before) if spills else [value for _, value in before])
        assert not isinstance(opened.backend, BorrowedBackend)
    with open_batch(job.asked(1, 1), job.settings, SystemClock()) as opened:
        assert not is_borrowed(opened)
    rows, counts = expected(2)
    assert job.do(1, 0) + job.do(1, 1) == rows[1]
    assert job.counts(2) == counts


def test_a_borrowed_copy_that_is_behind_is_caught_up_where_it_is_open(both: tuple[Job, Lender]) -> None:
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


def test_a_borrowed_copy_of_another_run_is_made_anew_by_the_borrower(both: tuple[Job, Lender]) -> None:
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
    lender = Lender(tmp_path, backend="rocksdb", lock_wait_ms_max=5_000)
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
    lending = _full_place(tmp_path)
    put_back(lending, _made(lending, tmp_path / "copy"))
    assert holder_of(tmp_path / "copy") is not None
    pool().close()
    alone = replace(lending, lends=False)
    put_back(alone, _made(alone, tmp_path / "copy"))
    assert holder_of(tmp_path / "copy") is None
    assert borrow(lending, tmp_path / "copy") is None
    assert not settings(tmp_path, keep_open=False).place(SystemClock()).lends


def test_what_the_lenders_disk_refuses_is_told_to_the_borrower(tmp_path: Path) -> None:
    place = _full_place(tmp_path)
    put_back(place, _made(place, tmp_path / "copy"))
    found = borrow(place, tmp_path / "copy")
    assert found is not None
    with pytest.raises(StorageFull, match="12 bytes are free"):
        found.backend.write_partly(Changes(entries={b"a": b"b"}))
    assert found.backend.get(b"a") is None
    found.give_up()
    free = claim(tmp_path / "copy", wait_ms_max=1_000)
    assert free is not None
    free.release()


def _full_place(root: Path) -> Place:
    def opened(folder: Path) -> RocksBackend:
        return RocksBackend(folder, free_bytes=lambda _: 12)

    return Place(root, "rocksdb", opened, True, 500, SystemClock(), lends=True)


def _made(place: Place, folder: Path) -> Any:
    copy = acquire(place, folder)
    copy.wipe().mkdir()
    copy.adopt()
    return copy


def test_an_address_that_nobody_listens_at_is_no_loan(tmp_path: Path) -> None:
    place = _full_place(tmp_path)
    put_back(place, _made(place, tmp_path / "copy"))
    address = holder_of(tmp_path / "copy")
    assert address is not None
    assert connect(address + b"x", wait_seconds_max=1) is None
    (tmp_path / "copy" / "lock").write_bytes(address + b"x")
    assert borrow(place, tmp_path / "copy") is None


def test_another_user_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = listen()
    assert listening is not None
    monkeypatch.setattr("tidegate.state.lines.os.geteuid", lambda: os.getuid() + 1)
    assert connect(address_of(listening), wait_seconds_max=1) is None
    assert lines.accept(listening) is None
    listening.close()


def test_a_lender_that_does_not_answer_is_lost(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    line = lines.Line(here, wait_seconds_max=0.05)
    with pytest.raises(LineLost):
        line.receive()
    there.close()
    with pytest.raises(LineLost):
        line.receive()
    line.close()


def test_messages_of_many_keys_arrive_as_they_were_sent() -> None:
    here, there = socket.socketpair()
    one, other = lines.Line(here, wait_seconds_max=5), lines.Line(there, wait_seconds_max=5)
    keys = [number.to_bytes(1 + number % 9, "big") for number in range(200)] + [b""]
    message = ["get_many", keys, {b"a": None, b"": b"x"}, [[b"a", b"b"]], -(2**62), "é", None, True]
    one.send(tuple(message))
    assert other.receive() == message
    here.sendall((3).to_bytes(8, "big") + b"\xc1\xc1\xc1")
    with pytest.raises(LineLost, match="language"):
        other.receive()
    one.close()
    other.close()
