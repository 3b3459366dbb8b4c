"""What is left of a batch after its task: the copy takes it beside the work, and the next task waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.state.batches import Job, expected, given_out, settings
from tidegate.errors import StorageFull
from tidegate.model.clock import SystemClock
from tidegate.state.asking import StateSettings
from tidegate.state.backend import Backend, Changes, Version
from tidegate.state.batch import open_batch
from tidegate.state.heap import HeapBackend
from tidegate.state.local import pool

GATE = threading.Event()


class Gated(HeapBackend):
    """A copy that takes no batch before the gate is open."""

    def apply(self, changes: Changes, version: Version) -> None:
        assert not changes or GATE.wait(30)
        super().apply(changes, version)


class Full(HeapBackend):
    """A copy that takes nothing but its first version."""

    def apply(self, changes: Changes, version: Version) -> None:
        if changes:
            raise StorageFull(path="here", free_bytes=0)
        super().apply(changes, version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen(StateSettings):
    """Settings that open a backend of one's choice."""

    opens: type[HeapBackend] = HeapBackend

    def open_backend(self, folder: Path) -> Backend:
        return self.opens(folder)


@pytest.fixture(autouse=True)
def closed_pool() -> Iterator[None]:
    GATE.clear()
    yield
    GATE.set()
    pool().close()


def job_with(root: Path, opens: type[HeapBackend]) -> Job:
    chosen = Chosen(
        local_root=str(root / "local"),
        backend="heap",
        snapshot_every_batches=100,
        lock_wait_ms_max=500,
        opens=opens,
    )
    return Job(root, chosen)


def test_output_does_not_wait_for_the_copy_and_the_next_task_does(tmp_path: Path) -> None:
    job = job_with(tmp_path, Gated)
    given, _ = expected(2)
    rows = job.do(0)
    assert rows
    assert rows == [row for row in given[0] if row in rows]
    ways = []

    def next_task() -> None:
        with open_batch(job.asked(1), job.settings, SystemClock()) as opened:
            job.work(opened, 1, 0)
            ways.append((opened.report, given_out(opened)))

    thread = threading.Thread(target=next_task)
    thread.start()
    thread.join(0.05)
    assert ways == []
    GATE.set()
    thread.join(30)
    [(report, rows)] = ways
    assert report is not None
    assert (report.way, report.from_batch, report.change_files) == ("local", 0, 0)
    assert rows == [row for row in given[1] if row in rows]
    assert rows


def test_a_copy_that_does_not_take_the_batch_is_caught_up_by_the_next_task(tmp_path: Path) -> None:
    job = job_with(tmp_path, Full)
    job.do(0)
    job.settings = settings(tmp_path)
    with open_batch(job.asked(1), job.settings, SystemClock()) as opened:
        assert opened.report is not None
        assert opened.report.change_files == 1


def test_many_batches_whose_copies_are_left_behind_the_work_give_what_they_should(tmp_path: Path) -> None:
    job = Job(tmp_path, replace(settings(tmp_path, backend="rocksdb"), snapshot_in_background=True))
    job.drive(8)
    assert (job.sunk(), job.counts(8)) == expected(8)
