"""Rescaling between real batches: output and state equal those of a run that was never disturbed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoint.batches import open_new
from tests.checkpoint.checkpoints import Job
from tests.checkpoint.rescale_walk import expected, model, walk, words_of
from tidegate.checkpoint import epochs
from tidegate.checkpoint.local.pool import pool
from tidegate.errors import StateMismatch


@pytest.mark.parametrize("seed", range(2))
def test_random_restarts_give_what_an_undisturbed_run_gives(tmp_path: Path, seed: int) -> None:
    """Cases 8 and 10: batches cut off anywhere, other parallelisms, old tasks that run on, lost copies."""
    found = walk(tmp_path, seed, steps=20)
    assert found.restarts > 3
    assert found.batch > 3


@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_batches_with_changing_parallelism_give_what_one_instance_gives(tmp_path: Path, backend: str) -> None:
    """Case 10: 1, 3, 2, 5 instances, with old epochs pruned on the way."""
    job = Job(tmp_path, backend=backend)
    job.settings = replace(job.settings, keep_open=True, snapshot_every_batches=1)
    for batch, parallelism in enumerate([1, 3, 2, 5, 5, 5]):
        assert job.run(batch, words_of(batch), parallelism) == expected(batch)
        job.clock.advance(seconds=1)
    assert job.counts(5, 6) == model(6)
    assert [epoch.number for epoch in epochs.list_epochs(job.store)] == [3]
    pool().close()


def test_counts_are_the_same_when_all_local_copies_are_lost(tmp_path: Path) -> None:
    """Case 13: an epoch without snapshots of its own is restored from its parents."""
    job = Job(tmp_path)
    for batch, parallelism in enumerate([2, 2, 2]):
        job.run(batch, words_of(batch), parallelism)
    elsewhere = Job(tmp_path)
    elsewhere.settings = replace(job.settings, local_root=str(tmp_path / "other"))
    assert elsewhere.counts(3, 3) == model(3)
    assert elsewhere.run(3, words_of(3), 3) == expected(3)
    assert job.counts(3, 4) == model(4)


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_batch_that_spark_did_not_commit_is_replayed_by_other_instances(
    tmp_path: Path, parallelism: int
) -> None:
    """Case 8: killed between the last commit record and Spark's commit, restarted with another number."""
    job = Job(tmp_path)
    for batch in range(3):
        job.run(batch, words_of(batch), 3)
    again = job.run(2, words_of(2), parallelism, seen=0)
    assert again == expected(2)
    assert job.run(3, words_of(3), parallelism, seen=0) == expected(3)
    assert job.counts(parallelism, 4) == model(4)


def test_batch_done_in_part_is_done_again_by_other_instances(tmp_path: Path) -> None:
    """Case 8: killed after one of three commit records."""
    job = Job(tmp_path)
    job.run(0, words_of(0), 3)
    job.task(job.ask(1, 3, 1), words_of(1))
    assert job.run(1, words_of(1), 2, seen=0) == expected(1)
    assert job.counts(2, 2) == model(2)


def test_old_task_that_publishes_late_changes_nothing(tmp_path: Path) -> None:
    """Case 8: tasks of the replaced run go on while the new one works."""
    job = Job(tmp_path)
    job.run(0, words_of(0), 2, seen=epochs.NONE_SEEN)
    job.task(job.ask(0, 2, 1), words_of(1))
    late = job.ask(1, 2, 1, seen=epochs.NONE_SEEN)
    with open_new(late, job.settings, job.clock) as opened:
        first = job.task(job.ask(0, 3, 1, seen=0), words_of(1))
        job.count(late, opened, words_of(1))
    rest = [row for i in (1, 2) for row in job.task(job.ask(i, 3, 1, seen=0), words_of(1))]
    assert dict(first + rest) == expected(1)
    assert job.run(2, words_of(2), 3, seen=0) == expected(2)
    with pytest.raises(StateMismatch, match="replaced"):
        job.task(job.ask(0, 2, 2, seen=epochs.NONE_SEEN), words_of(2))


def test_newest_event_time_goes_on_over_a_change_of_parallelism(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for batch in range(2):
        job.run(batch, words_of(batch), 2)
    with open_new(job.ask(2, 3, 2), job.settings, job.clock) as opened:
        assert opened.newest_event_ms == 1_000


def test_left_behind_batch_of_a_batch_job_is_done_anew(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.run(0, words_of(0), 2)
    job.task(job.ask(0, 2, 1), ["other", "rows", "of", "a", "torn", "job"])
    epochs.begin_epoch(job.store, "counts", 1)
    assert job.run(1, words_of(1), 2) == expected(1)
    assert job.counts(2, 2) == model(2)
