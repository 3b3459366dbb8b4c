"""A task opens a batch once, and a batch whose partitions were moved is opened by nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.checkpoint.batches import OPERATOR, Job, open_new, settings
from tidegate.checkpoint import epochs
from tidegate.checkpoint.coalesce_guard import mark_moved, moved_batches
from tidegate.checkpoint.keys.codec import KeyType, StateKeyColumn
from tidegate.checkpoint.local.attempts import MARKS_MAX, forget_unused, is_first_time
from tidegate.checkpoint.store import CheckpointStore, operator_store
from tidegate.errors import StateInvalid
from tidegate.model.clock import SystemClock
from tidegate.state.schema.schema import SchemaRequest
from tidegate.state.schema.start_check import check_start


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, settings(tmp_path, keep_open=False))


@pytest.fixture
def store(job: Job) -> CheckpointStore:
    return operator_store(str(job.root / "checkpoint"), OPERATOR)


def test_an_attempt_is_there_for_the_first_time_once(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "counts"
    assert is_first_time(folder, 0, "app/run/1")
    assert not is_first_time(folder, 0, "app/run/1")
    assert is_first_time(folder, 1, "app/run/1")
    assert is_first_time(folder, 0, "app/run/2")
    assert not is_first_time(folder, 0, "app/run/1")


def test_marks_of_attempts_take_no_more_room_with_time_and_go_when_unused(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "counts"
    for number in range(3 * MARKS_MAX):
        assert is_first_time(folder, 0, f"app/run/{number}")
    (file,) = folder.iterdir()
    assert file.stat().st_size == 8 * MARKS_MAX
    assert not is_first_time(folder, 0, f"app/run/{2 * MARKS_MAX}")
    os.utime(file, (100, 100))
    forget_unused(tmp_path, 100_000_000)
    assert file.exists()
    forget_unused(tmp_path, 100_000_001)
    assert not file.exists()


def test_a_batch_with_moved_partitions_is_refused_until_an_epoch_begins_with_it(
    job: Job, store: CheckpointStore
) -> None:
    job.drive(2)
    job.do(2, 1)
    mark_moved(store, job.request(2, 0))
    for partition in range(2):
        with pytest.raises(StateInvalid, match=r"put \.repartition\(n\) between them"):
            job.do(2, partition)
    key = KeyType((StateKeyColumn("key", "bigint"),))
    start = check_start(str(job.root / "checkpoint"), SchemaRequest(OPERATOR, key, 8, ()), None)
    assert start.moved == (2,)
    epoch = epochs.begin_epoch(store, OPERATOR, 2)
    assert moved_batches(store, epoch) == ()
    rows = job.do(2, 0) + job.do(2, 1)
    assert len(rows) == len(dict(rows))
    assert store.exists("e1/1/v2.head")


def test_a_whole_batch_of_another_run_is_not_marked(job: Job, store: CheckpointStore) -> None:
    """Spark may have it: the wrong plan of a later run found it done, and published nothing."""
    for partition in range(2):
        publish(job, f"app/right/{partition}", partition)
    mark_moved(store, job.request(0, 0, attempt="app/wrong/7"))
    assert moved_batches(store, epochs.list_epochs(store)[0]) == ()
    mark_moved(store, job.request(0, 0, attempt="app/right/8"))
    assert moved_batches(store, epochs.list_epochs(store)[0]) == (0,)


def publish(job: Job, attempt: str, partition: int) -> None:
    asked = job.request(0, partition, attempt=attempt)
    with open_new(asked, job.settings, SystemClock()) as opened:
        job.work(opened, 0, partition)
