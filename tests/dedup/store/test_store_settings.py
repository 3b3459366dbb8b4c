"""Other settings than those with which a copy of the keys was made: what is known, and what begins anew."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.dedup.store.copies import MINUTE_US, Job, segments, settings
from tidegate import Deduplicator
from tidegate.dedup.store.store import SegmentStoreFactory
from tidegate.testing.clock import ManualClock


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Return a job with a retention of 20 minutes, in segments of 10."""
    made = Job(tmp_path, settings(tmp_path))
    yield made
    made.stop()


def with_segments(job: Job, retention_minutes: int, interval_minutes: int = 10) -> Job:
    """Return the same job as it is started with another retention, in the same process."""
    changed = replace(
        segments(), retention_us=retention_minutes * MINUTE_US, interval_us=interval_minutes * MINUTE_US
    )
    return replace(job, settings=replace(job.settings, backend=SegmentStoreFactory(changed)))


def told(job: Job, batch: int, key: int, minute: int) -> str:
    (outcome,) = job.run(batch, [(key, minute * MINUTE_US)]).values()
    return outcome


def minute(number: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=number)


def test_copy_that_is_kept_open_is_not_used_under_another_retention(job: Job) -> None:
    assert job.settings.keep_open
    assert told(job, 0, key=1, minute=5) == "unique"
    assert told(job, 1, key=2, minute=50) == "unique"
    assert told(with_segments(job, 100), 2, key=1, minute=5) == "duplicate"
    # And back: what is older than 20 minutes is late again.
    assert told(job, 3, key=1, minute=5) == "late"


def test_longer_retention_remembers_in_segments_that_had_expired(tmp_path: Path) -> None:
    def opened(retention: str) -> Deduplicator:
        return Deduplicator("d", tmp_path, retention, interval="10 min", time_unit="us", clock=ManualClock())

    with opened("20 min") as dedup:
        for number in range(0, 101, 10):
            assert dedup.check([f"k{number}"], [minute(number)]).outcome == ["unique"]
        assert dedup.check(["late"], [minute(55)]).outcome == ["late"]
    with opened("60 min") as dedup:
        outcomes = [dedup.check(["x"], [minute(55)]).outcome for _ in range(3)]
    assert outcomes == [["unique"], ["duplicate"], ["duplicate"]]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_checkpoint_made_anew_under_its_path_may_have_another_interval(job: Job, is_stopped: bool) -> None:
    """The copy of the one before lies where that of the new one goes; it is not used, and not in the way."""
    assert told(job, 0, key=1, minute=5) == "unique"
    assert told(job, 1, key=1, minute=6) == "duplicate"
    if is_stopped:
        job.stop()
    shutil.rmtree(job.root / job.checkpoint)
    anew = with_segments(job, 20, interval_minutes=5)
    assert told(anew, 0, key=1, minute=5) == "unique"
    assert told(anew, 1, key=1, minute=6) == "duplicate"
