"""Runs of batch jobs: which are done is known for long after their heads are pruned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.checkpoints import OPERATOR, Job
from tests.checkpoint.rescale_walk import words_of
from tidegate.checkpoint.commit_record import commit_record_name, committed_batches
from tidegate.errors import StateMismatch, StorageCorrupt
from tidegate.pipeline.stateful.completed_runs import RUNS_MAX, check_is_new, runs_before, store_runs


def planned(job: Job, batch: int) -> dict[int, str]:
    """Look at the runs before a batch and write them down, as its planning does."""
    runs = runs_before(job.store, batch)
    store_runs(job.store, runs)
    return runs


def names(job: Job) -> list[str]:
    return [name for name in job.store.names() if name.startswith("runs.")]


def test_runs_are_known_after_their_heads_are_pruned_and_over_rescaling(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert planned(job, 0) == {}
    assert names(job) == []
    for batch in range(12):
        planned(job, batch)
        job.run(batch, words_of(batch), 1 + batch // 6)
    assert 0 not in committed_batches(job.store, 1, 0)
    assert runs_before(job.store, 12) == {batch: f"plan-{batch}" for batch in range(12)}
    assert names(job) == ["runs.10.json", "runs.9.json"]


def test_checkpoint_without_the_list_knows_the_runs_of_its_heads(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for batch in range(12):
        job.run(batch, words_of(batch), 1)
    heads = committed_batches(job.store, 0, 0)
    assert 0 < len(heads) < 12
    assert planned(job, 12) == {batch: f"plan-{batch}" for batch in heads}


def test_run_before_the_last_is_refused_and_a_new_one_is_not(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for batch in range(3):
        job.run(batch, words_of(batch), 1)
    runs = planned(job, 3)
    with pytest.raises(StateMismatch, match="run 'one' is done, and 2 other runs were done after it"):
        check_is_new(OPERATOR, "one", "plan-0", runs)
    with pytest.raises(StateMismatch, match="run 'two' is done, and another run was done after it"):
        check_is_new(OPERATOR, "two", "plan-1", runs)
    check_is_new(OPERATOR, "four", "plan-3", runs)


def test_heads_go_before_the_list_which_may_speak_of_what_was_left_behind(tmp_path: Path) -> None:
    job = Job(tmp_path)
    store_runs(job.store, {0: "left behind", 1: "never came"})
    job.run(0, words_of(0), 1)
    assert planned(job, 1) == {0: "plan-0"}


def test_list_has_an_end(tmp_path: Path) -> None:
    job = Job(tmp_path)
    store_runs(job.store, {batch: f"old-{batch}" for batch in range(RUNS_MAX + 5)})
    found = runs_before(job.store, RUNS_MAX + 5)
    assert len(found) == RUNS_MAX
    assert min(found) == 5


def test_damage_is_said(tmp_path: Path) -> None:
    """An old head that is damaged is done without; the newest one and the list are not."""
    job = Job(tmp_path)
    for batch in range(2):
        planned(job, batch)
        job.run(batch, words_of(batch), 1)
    job.store.path(commit_record_name(0, 0, 0)).write_bytes(b"x")
    assert planned(job, 2) == {0: "plan-0", 1: "plan-1"}
    job.store.path(commit_record_name(0, 0, 1)).write_bytes(b"x")
    with pytest.raises(StorageCorrupt, match=r"v1\.head"):
        runs_before(job.store, 2)
    job.store.path("runs.1.json").write_bytes(b"x")
    with pytest.raises(StorageCorrupt, match=r"runs\.1\.json"):
        runs_before(job.store, 2)
