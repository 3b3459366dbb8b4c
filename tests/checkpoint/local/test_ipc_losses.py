"""Lenders that end at the worst moment, and copies that somebody removes under those who have them open."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.batches import Job, expected, settings
from tests.checkpoint.local.ipc_peers import full_place, hurry, made, stop
from tests.checkpoint.local.ipc_walk import Worker
from tidegate.checkpoint.backend import Changes, Version
from tidegate.checkpoint.backends.rocksdb import RocksBackend
from tidegate.checkpoint.batch import open_batch
from tidegate.checkpoint.local.ipc import Line
from tidegate.checkpoint.local.ipc_client import BorrowedBackend, BorrowedCopy, borrow
from tidegate.checkpoint.local.lock import ask_for, claim
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.local.store import put_back
from tidegate.errors import StorageCorrupt
from tidegate.model.clock import SystemClock

pytestmark = pytest.mark.usefixtures("closed_pool")


@pytest.mark.crash
@pytest.mark.parametrize("spills", [False, True])
def test_a_lender_killed_while_its_copy_is_caught_up_costs_the_batch_nothing(
    both: tuple[Job, Worker], monkeypatch: pytest.MonkeyPatch, spills: bool
) -> None:
    """Case 8: what was in the lender's memory is gone, and no change file is put on top of an older batch."""
    job, lender = both
    elsewhere = Job(job.root, replace(job.settings, local_root=str(job.root / "elsewhere")), spills=spills)
    for batch in range(1, 6):
        for partition in range(2):
            (lender if batch < 4 else elsewhere).do(batch, partition)
    for name in ("apply", "write_partly"):
        monkeypatch.setattr(BorrowedBackend, name, _killed_first(lender, getattr(BorrowedBackend, name)))
    rows, counts = expected(7)
    assert job.do(6, 0) + job.do(6, 1) == rows[6]
    assert job.counts(7) == counts


def _killed_first(lender: Worker, call: Any) -> Any:
    def called(*arguments: Any) -> Any:
        lender.kill()
        return call(*arguments)

    return called


def test_damage_that_a_borrower_finds_behind_a_lost_lender_is_said_as_it_is(
    both: tuple[Job, Worker],
) -> None:
    """No copy is open then, and none has a part to bring back."""
    job, lender = both
    with pytest.raises(StorageCorrupt), open_batch(job.asked(1), job.settings, SystemClock()) as opened:
        lender.kill()
        for stored in (job.root / "checkpoint").rglob("*.changes"):
            stored.write_bytes(b"nothing of ours")
        job.work(opened, 1, 0)


def test_a_lender_that_hangs_before_its_first_answer_counts_as_lost(
    both: tuple[Job, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, lender = both
    job.settings = replace(job.settings, lock_wait_ms_max=20)
    asked = BorrowedBackend.version
    pid = lender.child.pid
    assert pid is not None

    def stopped_first(backend: BorrowedBackend) -> Version | None:
        stop(pid)
        hurry(backend, 0.3)
        return asked(backend)

    waits: list[Line] = []
    receive = Line.receive

    def counted(line: Line) -> list[Any]:
        waits.append(line)
        return receive(line)

    monkeypatch.setattr(BorrowedBackend, "version", stopped_first)
    monkeypatch.setattr(Line, "receive", counted)
    try:
        given = job.do(1, 0)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert given == expected(2)[0][1][: len(given)]
    # One for the loan itself, one that is never answered, and none to say goodbye.
    assert len(waits) == 2


def test_the_end_of_a_loan_is_never_taken_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lender that runs out of memory must not say of a key that it is not there."""
    place = full_place(tmp_path)
    copy = made(place, tmp_path / "copy")
    copy.backend._free_bytes = lambda _: 1 << 40
    copy.backend.apply(Changes(entries={b"a": b"b"}), Version(0, 1, "a"))
    put_back(place, copy)
    found = borrow(place, tmp_path / "copy")
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
    found.give_up()


def test_a_borrower_that_is_gone_leaves_the_copy_to_whoever_claims_it(tmp_path: Path) -> None:
    place = full_place(tmp_path)
    put_back(place, made(place, tmp_path / "copy"))
    found = borrow(place, tmp_path / "copy")
    assert isinstance(found, BorrowedCopy)
    assert found.line is not None
    found.line.close()
    deadline = time.monotonic() + 60
    while (free := claim(tmp_path / "copy")) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert free is not None, "nobody asked for it"
    free.release()


def test_a_copy_that_was_asked_for_while_a_task_had_it_is_not_kept(tmp_path: Path) -> None:
    place = full_place(tmp_path)
    copy = made(place, tmp_path / "copy")
    ask_for(tmp_path / "copy")
    put_back(place, copy)
    free = claim(tmp_path / "copy")
    assert free is not None
    free.release()


def test_a_copy_that_is_removed_under_its_worker_shares_no_folder_with_the_next(tmp_path: Path) -> None:
    """Each would take the other's files for its own, and put them into its snapshots."""
    place = full_place(tmp_path)
    removed = made(place, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy")
    again = made(place, tmp_path / "copy")
    assert again.files != removed.files
    put_back(place, removed)
    assert pool().take(tmp_path / "copy") is None, "what was removed is not kept"
    again.give_up()


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


def test_a_copy_that_is_borrowed_counts_as_used(tmp_path: Path) -> None:
    """Else the one that is lent in every batch would be removed after a week as one that nobody used."""
    place = full_place(tmp_path)
    put_back(place, made(place, tmp_path / "copy"))
    os.utime(tmp_path / "copy" / "lock", ns=(0, 0))
    found = borrow(place, tmp_path / "copy")
    assert found is not None
    found.keep()
    assert (tmp_path / "copy" / "lock").stat().st_mtime_ns > 0
