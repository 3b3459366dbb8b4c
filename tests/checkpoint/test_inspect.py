"""What lies in a checkpoint, as tools see it; and the check before a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.checkpoints import MAX, OPERATOR, Job
from tests.checkpoint.rescale_walk import words_of
from tests.checkpoint.savepoints.test_savepoint import COUNT, wanted
from tidegate.checkpoint import epochs, inspect
from tidegate.checkpoint.savepoints import savepoint
from tidegate.errors import StateInvalid, StateMismatch
from tidegate.state.schema.schema import resolve_schema
from tidegate.state.schema.start_check import check_start


def test_checkpoint_without_state_has_no_operators(tmp_path: Path) -> None:
    assert inspect.describe(tmp_path) == []


def test_operator_is_described_as_of_its_last_complete_batch(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for batch in range(3):
        job.run(batch, words_of(batch), 2)
    job.task(job.ask(0, 2, 3), words_of(3))
    savepoint.make(job.checkpoint, OPERATOR, "v1", job.clock)
    (found,) = inspect.describe(f"file:{job.checkpoint}")
    assert (found.operator, found.last_batch, found.savepoints) == (OPERATOR, 2, ("v1",))
    assert (found.epoch.parallelism, found.epoch.max_parallelism) == (2, MAX)
    assert [one.commit.batch for one in found.partitions if one.commit] == [2, 2]
    assert [one.snapshot_batch for one in found.partitions] == [3, 1]
    assert all(one.snapshot_made_at_ms == job.clock.now_us() // 1_000 for one in found.partitions)
    assert found.entry_count > 0
    files = [path for path in job.store.root.glob("[!s]*/**/*") if path.is_file()]
    assert found.checkpoint_bytes == sum(path.stat().st_size for path in files)
    assert sum(one.checkpoint_bytes for one in found.partitions) < found.checkpoint_bytes


def test_new_epoch_without_a_batch_is_described_by_its_beginning(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.run(0, words_of(0), 2)
    epochs.resolve(job.store, job.ask(0, 3, 1))
    (found,) = inspect.describe(job.checkpoint)
    assert (found.last_batch, [one.commit for one in found.partitions]) == (0, [None] * 3)


def test_start_of_a_new_checkpoint_is_planned_without_writing(tmp_path: Path) -> None:
    plan = check_start(tmp_path / "new", wanted(COUNT), None)
    assert (plan.parallelism, plan.next_batch, plan.seen_epoch, plan.changes) == (None, 0, -1, ())
    assert not (tmp_path / "new").exists()


def test_start_goes_on_after_the_last_complete_batch(tmp_path: Path) -> None:
    """Case 10: as many instances as before unless the code says otherwise; a torn batch is told."""
    job = Job(tmp_path)
    for batch in range(2):
        job.run(batch, words_of(batch), 2)
    resolve_schema(job.store, wanted(COUNT))
    plan = check_start(job.checkpoint, wanted(COUNT), None)
    assert (plan.parallelism, plan.next_batch, plan.seen_epoch) == (2, 2, 0)
    assert (plan.torn, plan.changes) == (False, ())
    job.task(job.ask(1, 2, 2), words_of(2))
    plan = check_start(job.checkpoint, wanted(COUNT), 3)
    assert (plan.parallelism, plan.next_batch, plan.torn) == (3, 2, True)


def test_start_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """Case 10: max_parallelism is fixed; no more instances than key groups."""
    job = Job(tmp_path)
    job.run(0, words_of(0), 2)
    with pytest.raises(StateInvalid, match=f"share {MAX} key groups"):
        check_start(job.checkpoint, wanted(COUNT), MAX + 1)
    code = wanted(COUNT)
    other = type(code)(code.operator, code.key, MAX // 2, code.specs)
    with pytest.raises(StateMismatch, match=f"max_parallelism was {MAX}"):
        check_start(job.checkpoint, other, None)
