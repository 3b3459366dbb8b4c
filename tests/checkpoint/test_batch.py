"""A batch is done once: replays, races, other plans, full disks."""

from __future__ import annotations

import errno
import json
import multiprocessing
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pytest

from tests.checkpoint import batches
from tests.checkpoint.batches import PARALLELISM, Job, Rows, expected, given_out, open_new, settings
from tidegate.checkpoint.backend import StateChanges
from tidegate.checkpoint.batch import open_batch
from tidegate.checkpoint.commit import StateBatch
from tidegate.checkpoint.commit_record import RunFacts, read_commit_record
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.output_file import read_output
from tidegate.checkpoint.store import CheckpointDisk, CheckpointStore, operator_store, partition_folder
from tidegate.errors import (
    BatchTaken,
    InvariantBroken,
    PlanChanged,
    StateInvalid,
    StateMismatch,
    StorageFailed,
    StorageFull,
    TidegateError,
)
from tidegate.model.clock import SystemClock


@pytest.fixture(autouse=True)
def closed_pool() -> Iterator[None]:
    yield
    pool().close()


@pytest.fixture(params=["heap", "rocksdb"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(tmp_path, settings(tmp_path, backend=request.param))


def files_of(job: Job) -> dict[str, bytes]:
    root = job.root / "checkpoint"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_batches_build_on_each_other(job: Job) -> None:
    job.drive(8)
    given, counts = expected(8)
    assert job.sunk() == given
    assert job.counts(8) == counts


def test_a_batch_done_again_gives_the_same_rows_and_touches_nothing(job: Job) -> None:
    """Case 9: evaluated twice, it gives the same rows and changes state once."""
    job.drive(3)
    before = files_of(job)
    given, counts = expected(3)
    for _ in range(2):
        rows = [row for partition in range(PARALLELISM) for row in job.do(2, partition)]
        assert rows == given[2]
    assert files_of(job) == before
    assert job.counts(3) == counts


def test_a_replayed_batch_has_no_state_to_write_to(job: Job) -> None:
    job.do(0)
    with open_batch(job.request(0), job.settings, SystemClock()) as opened:
        assert opened.replayed
        assert not any(hasattr(opened, name) for name in ("backend", "publish", "write_out", "spill"))


def test_left_without_publishing_nothing_has_happened(job: Job) -> None:
    """Case 8: a task that fails midway, also after it spilled."""
    job.drive(3)
    given, counts = expected(5)
    for spills in (False, True):
        before = files_of(job)
        with (
            pytest.raises(ValueError, match="poison"),
            open_new(job.request(3), job.settings, SystemClock()) as opened,
        ):
            opened.write_out(pa.record_batch({"key": [1], "count": [99]}))
            if spills:
                part = StateChanges(entries={batches.stored_key(1): b"99"})
                opened.spill(part)
                opened.backend.write_partly(part)
            raise ValueError("poison")
        assert files_of(job) == before
    job.drive(5)
    assert (job.sunk(), job.counts(5)) == (given, counts)


def test_a_batch_that_spills_equals_one_that_does_not(job: Job) -> None:
    job.spills = True
    job.drive(7)
    assert (job.sunk(), job.counts(7)) == expected(7)


def test_another_plan_is_refused(job: Job) -> None:
    job.do(0)
    with pytest.raises(PlanChanged, match="another plan"), opened_with(job, plan_id="another"):
        pass


def test_one_task_with_two_partitions_is_refused(job: Job) -> None:
    job.do(0)
    commit = read_commit_record(operator_store(str(job.root / "checkpoint"), batches.OPERATOR), 0, 0, 0)
    assert commit is not None
    with pytest.raises(StateInvalid, match="coalesce"), opened_with(job, attempt=commit.attempt):
        pass


def test_another_operator_in_the_same_run_is_refused_and_after_a_restart_it_is_the_same(job: Job) -> None:
    with opened_with(job, run="run 1", call="call 1") as opened:
        assert not opened.replayed
        job.work(opened, 0, 0)
        won = given_out(opened)
    with (
        pytest.raises(StateInvalid, match="two operators of one query"),
        opened_with(job, run="run 1", call="call 2"),
    ):
        pass
    # Another attempt, a restart, and a caller that knows no run.
    for run, call in (("run 1", "call 1"), ("run 2", "call 2"), (None, "call 3")):
        with opened_with(job, run=run, call=call) as opened:
            assert given_out(opened) == won


def opened_with(job: Job, **changed: object) -> AbstractContextManager[StateBatch]:
    return open_batch(job.request(0, **changed), job.settings, SystemClock())  # type: ignore[arg-type]


def test_a_batch_that_was_never_run_is_missed(job: Job) -> None:
    job.do(0)
    job.do(0, 1)
    with pytest.raises(StateMismatch, match="batch 1 of partition 0 was never done"):
        job.do(2)


def test_two_attempts_at_once_leave_one_winner(job: Job) -> None:
    """Case 8: two attempts at once; the second works on a private copy and loses."""
    job.settings = settings(job.root, backend=job.settings.backend, lock_wait_ms_max=4)
    job.drive(3)
    with (
        open_new(job.request(3), job.settings, SystemClock()) as first,
        open_new(job.request(3), job.settings, SystemClock()) as second,
    ):
        job.work(second, 3, 0)
        won = given_out(second)
        with pytest.raises(BatchTaken):
            job.work(first, 3, 0)
    assert job.do(3) == won
    job.do(3, 1)
    job.drive(6)
    assert (job.sunk(), job.counts(6)) == expected(6)
    assert not list((job.root / "local").rglob("*.private.*"))
    assert len([name for name in files_of(job) if "/0/v5." in name and name.endswith(".changes")]) == 1


def test_threads_that_race_all_give_out_the_winners_rows(job: Job) -> None:
    job.settings = settings(job.root, backend=job.settings.backend, lock_wait_ms_max=4)
    given: list[Rows] = []
    for batch in range(3):
        ready = threading.Barrier(3)

        def race(number: int, ready: threading.Barrier = ready) -> None:
            racer = Job(job.root, job.settings)
            ready.wait()
            given.append(racer.do_at_last(number, 0))

        run_all([lambda number=batch: race(number)] * 3)  # type: ignore[misc]
        job.do(batch, 1)
    assert given == [expected(3)[0][batch][: len(given[3 * batch])] for batch in range(3) for _ in range(3)]
    assert job.counts(3) == expected(3)[1]


def run_all(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_workers_that_race_all_give_out_the_winners_rows(tmp_path: Path) -> None:
    """Case 8: two attempts at once in two workers, batch after batch."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["tests.checkpoint.batches"])
    names = ["one", "two", "three"]
    ready = forks.Barrier(len(names))
    workers = [
        forks.Process(target=batches.race_in_child, args=(str(tmp_path), 8, name, ready)) for name in names
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = [json.loads((tmp_path / name).read_text()) for name in names]
    rows = [[[key, count] for key, count in batch if key % PARALLELISM == 0] for batch in expected(8)[0]]
    assert found == [rows] * 3


class Failing(CheckpointDisk):
    """A disk on which one call fails, the nth of those that change it."""

    def __init__(self, fails_at: int) -> None:
        self.calls = 0
        self.fails_at = fails_at

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.fails_at:
            raise OSError(errno.ENOSPC, "no room")

    def create(self, path: Path) -> BinaryIO:
        self._count()
        return super().create(path)

    def write(self, file: BinaryIO, content: bytes | memoryview) -> None:
        self._count()
        super().write(file, content)

    def sync(self, file: BinaryIO) -> None:
        self._count()
        super().sync(file)

    def link(self, source: Path, target: Path) -> None:
        self._count()
        super().link(source, target)

    def sync_folder(self, path: Path) -> None:
        self._count()
        super().sync_folder(path)


@pytest.mark.parametrize("spills", [False, True])
def test_a_disk_that_fails_at_any_call_fails_the_batch_and_the_next_attempt_goes_on(
    tmp_path: Path, spills: bool
) -> None:
    """Disk full: the batch fails with a clear error, state as before, and goes on when there is room."""
    job = Job(tmp_path, settings(tmp_path, snapshot_every_batches=100), spills=spills)
    number, failed = 0, 0
    for batch in range(30):
        job.disk = Failing(batch + 1)
        try:
            job.do(batch, 0)
        except StorageFull:
            failed += 1
        else:
            break
        job.disk = None
        rows = job.do(batch, 0)
        assert rows == [row for row in expected(batch + 1)[0][batch] if row[0] % PARALLELISM == 0]
        job.do(batch, 1)
        number = batch + 1
    assert 10 < failed < 30
    job.disk = None
    job.do(number, 0)
    job.do(number, 1)
    assert job.counts(number + 1) == expected(number + 1)[1]
    left = [name for name in files_of(job) if name.endswith(".new")]
    assert left == []
    # At the link itself it is not known who won, so what was written stays: once, until it is pruned.
    changes = [name for name in files_of(job) if "/0/" in name and name.endswith(".changes")]
    assert len(changes) <= number + 2


def limited(root: str) -> None:
    job = Job(Path(root), settings(Path(root)))
    job.do(0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, resource.RLIM_INFINITY))
    big = StateChanges(
        entries={batches.stored_key(2 * n): bytes(job.root) + b"%d" % n * 9 for n in range(30_000)}
    )
    said = ""
    try:
        with open_new(job.request(1), job.settings, SystemClock()) as opened:
            opened.publish(big, RunFacts())
    except TidegateError as problem:
        said = type(problem).__name__
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    (Path(root) / "said").write_text(json.dumps([said, job.do(1)]))


def test_a_limit_on_file_size_counts_as_a_full_disk(tmp_path: Path) -> None:
    forks = multiprocessing.get_context("forkserver")
    worker = forks.Process(target=limited, args=(str(tmp_path),))
    worker.start()
    worker.join()
    rows = [[key, count] for key, count in expected(2)[0][1] if key % PARALLELISM == 0]
    assert json.loads((tmp_path / "said").read_text()) == ["StorageFull", rows]


def test_output_is_given_out_after_publishing_and_dead_rows_stay_apart(job: Job) -> None:
    with open_new(job.request(0), job.settings, SystemClock()) as opened:
        with pytest.raises(InvariantBroken):
            next(opened.outputs())
        for number in range(3):
            opened.write_out(pa.record_batch({"n": [number]}))
        opened.write_dead(pa.record_batch({"why": ["bad"]}))
        opened.publish(StateChanges(), RunFacts(dead_rows=1))
        assert [batch.to_pydict() for batch in opened.outputs()] == [{"n": [0]}, {"n": [1]}, {"n": [2]}]
    with open_batch(job.request(0), job.settings, SystemClock()) as again:
        commit = again.commit
        assert commit is not None
        assert commit == opened.commit
        dead = read_output(again.store, partition_folder(commit.epoch, commit.partition), commit.dead)
        assert [batch.to_pydict() for batch in dead] == [{"why": ["bad"]}]


def test_a_batch_that_was_given_out_long_ago_says_so(job: Job) -> None:
    job.drive(3)
    with pytest.raises(StateMismatch, match="batch 1 was committed, and its output"):
        job.do(1)


def test_output_goes_when_the_next_batch_is_published_and_event_times_are_shared(job: Job) -> None:
    job.drive(2)
    outs = {name for name in files_of(job) if name.endswith(".out")}
    assert {name.split("/v")[1].split(".")[0] for name in outs} == {"1"}
    with open_new(job.request(2), job.settings, SystemClock()) as opened:
        assert opened.newest_event_ms == 1
        assert not opened.replayed


@pytest.mark.parametrize("slow", [0, 4])
def test_a_slow_attempt_at_a_batch_that_was_pruned_meanwhile_is_refused(tmp_path: Path, slow: int) -> None:
    """Its commit record's name is free again: it would publish another run of a batch that Spark has."""
    job = Job(tmp_path, settings(tmp_path))
    late = Job(tmp_path, settings(tmp_path, local_root=str(tmp_path / "another host")))
    job.drive(slow)
    store = operator_store(str(tmp_path / "checkpoint"), batches.OPERATOR)
    with pytest.raises(BatchTaken), open_new(late.request(slow), late.settings, SystemClock()) as opened:
        job.drive(slow + 4)
        assert read_commit_record(store, 0, 0, slow) is None
        late.work(opened, slow, 0)
    assert read_commit_record(store, 0, 0, slow) is None
    with pytest.raises(StateMismatch, match="committed long ago"):
        late.do(slow)


def test_a_folder_for_copies_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    job = Job(tmp_path, settings(tmp_path, local_root=str(tmp_path / "taken")))
    with pytest.raises(StorageFailed, match="taken") as caught:
        job.do(0)
    assert "TIDEGATE_STATE_DIR" in caught.value.hint


def test_heads_are_pruned_oldest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit records are removed oldest first: by a missing one a late attempt is recognised."""
    gone: list[int] = []
    remove = CheckpointStore.remove

    def noted(store: CheckpointStore, name: str) -> None:
        if name.startswith("e0/0/v") and name.endswith(".head"):
            gone.append(int(name.removeprefix("e0/0/v").removesuffix(".head")))
        remove(store, name)

    monkeypatch.setattr(CheckpointStore, "remove", noted)
    job = Job(tmp_path, settings(tmp_path, snapshot_every_batches=3))
    for batch in range(12):
        job.do(batch)
    assert len(gone) > 3
    assert gone == sorted(gone)
