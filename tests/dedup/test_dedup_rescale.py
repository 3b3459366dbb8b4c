"""Segments move with their key groups: another number of partitions, savepoints, and starts from them.

Cases 10 and 11, for a deduplication.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.dedup.copies import OPERATOR, Job, Model, rows_of, settings
from tidegate.model.clock import SystemClock
from tidegate.state import savepoints
from tidegate.state.local import pool


@pytest.fixture(autouse=True)
def closed_pool() -> Iterator[None]:
    yield
    pool().close()


@pytest.mark.parametrize("numbers", [(2, 5, 3), (3, 1, 4)])
def test_another_number_of_partitions_remembers_the_same_keys(
    tmp_path: Path, numbers: tuple[int, ...]
) -> None:
    job, model = Job(tmp_path, settings(tmp_path)), Model()
    batch = 0
    for parallelism in numbers:
        job.parallelism = parallelism
        job.drive(range(batch, batch + 2), model)
        batch += 2
        assert job.stored(batch) == model.counted()
        # What every partition needs is in the checkpoint, and not in the copies of this machine.
        job.lose_copies()
    assert job.stored(batch) == model.counted()


def test_keys_that_moved_are_found_again(tmp_path: Path) -> None:
    """A filter that did not know a moved key would let its duplicate through."""
    job, model = Job(tmp_path, settings(tmp_path)), Model()
    job.drive([0], model)
    job.parallelism = 4
    again = [(key, at_us + 1) for key, at_us in rows_of(0)]
    told = job.run(1, again)
    assert told == model.take(again)
    assert set(told.values()) == {"duplicate"}


def test_a_savepoint_starts_a_new_checkpoint(tmp_path: Path) -> None:
    """Case 11."""
    job, model = Job(tmp_path, settings(tmp_path), parallelism=2), Model()
    job.drive(range(3), model)
    made = savepoints.make(tmp_path / "checkpoint", OPERATOR, "before", SystemClock())
    assert made.batch == 2
    folder = savepoints.path_of(tmp_path / "checkpoint", OPERATOR, "before")
    job.run(3, rows_of(3))  # the old one goes on by itself
    again = replace(job, checkpoint="other", savepoint=str(folder), parallelism=3, reports=[])
    batch = 0
    for number in (3, 4):
        assert again.run(batch, rows_of(number)) == model.take(rows_of(number))
        batch += 1
    assert again.stored(batch) == model.counted()
    again.lose_copies()
    assert again.stored(batch) == model.counted()
