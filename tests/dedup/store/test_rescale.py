"""Segments move with their key groups: another number of partitions, savepoints, and starts from them.

Cases 10 and 11, for a deduplication.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.dedup.store.copies import OPERATOR, Job, Model, rows_of, segments, settings
from tidegate.checkpoint.savepoints import savepoint
from tidegate.checkpoint.store import CheckpointStore
from tidegate.dedup.identity import DedupIdentity, check_identity, read_identity
from tidegate.model.clock import SystemClock


@pytest.mark.parametrize("numbers", [(2, 5, 3), (3, 1, 4)])
def test_another_number_of_partitions_remembers_the_same_keys(room: Path, numbers: tuple[int, ...]) -> None:
    job, model = Job(room, settings(room)), Model()
    batch = 0
    for parallelism in numbers:
        job.parallelism = parallelism
        job.drive(range(batch, batch + 2), model)
        batch += 2
        assert job.stored(batch) == model.counted()
        # What every partition needs is in the checkpoint, and not in the copies of this machine.
        job.lose_copies()
    assert job.stored(batch) == model.counted()


def test_keys_that_moved_are_found_again(room: Path) -> None:
    """A filter that did not know a moved key would let its duplicate through."""
    job, model = Job(room, settings(room)), Model()
    job.drive([0], model)
    job.parallelism = 4
    again = [(key, at_us + 1) for key, at_us in rows_of(0)]
    told = job.run(1, again)
    assert told == model.take(again)
    assert set(told.values()) == {"duplicate"}


def test_a_savepoint_says_by_which_columns_its_keys_are_stored(room: Path) -> None:
    """Without that a start from it under another key would take every key for a new one."""
    job, model = Job(room, settings(room)), Model()
    job.drive([0], model)
    rule = segments().rule
    columns = (("site", "string"), ("number", "bigint"))
    identity = DedupIdentity(rule.retention_us, rule.interval_us, False, False, columns)
    check_identity(job.checkpoint_store, identity, OPERATOR)
    savepoint.make(room / "checkpoint", OPERATOR, "before", SystemClock())
    kept = CheckpointStore(savepoint.path_of(room / "checkpoint", OPERATOR, "before"))
    assert read_identity(kept, OPERATOR) == identity


def test_a_savepoint_starts_a_new_checkpoint(room: Path) -> None:
    """Case 11."""
    job, model = Job(room, settings(room), parallelism=2), Model()
    job.drive(range(3), model)
    made = savepoint.make(room / "checkpoint", OPERATOR, "before", SystemClock())
    assert made.batch == 2
    folder = savepoint.path_of(room / "checkpoint", OPERATOR, "before")
    job.run(3, rows_of(3))  # the old one goes on by itself
    again = replace(job, checkpoint="other", savepoint=str(folder), parallelism=3, reports=[])
    batch = 0
    for number in (3, 4):
        assert again.run(batch, rows_of(number)) == model.take(rows_of(number))
        batch += 1
    assert again.stored(batch) == model.counted()
    again.lose_copies()
    assert again.stored(batch) == model.counted()
