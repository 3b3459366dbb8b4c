"""What deduplication has stored, read from heads alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.checkpoints import Job
from tests.dedup.counted_batches import COUNTS, DAY_US, OPERATOR, NotedJob, notes, segment, two_partitions
from tidegate.checkpoint import epochs
from tidegate.checkpoint.commit_record import RunFacts
from tidegate.checkpoint.settings import BatchRequest
from tidegate.checkpoint.store import operator_store
from tidegate.dedup.describe import AFTER, FilterTally, describe
from tidegate.errors import StorageCorrupt


@pytest.fixture
def job(tmp_path: Path) -> NotedJob:
    return NotedJob(tmp_path / "checkpoint", tmp_path / "local")


def test_partitions_are_added_up_and_counts_over_batches(job: NotedJob) -> None:
    two_partitions(job)
    (found,) = describe(job.checkpoint)
    assert (found.operator, found.partitions, found.batch) == (OPERATOR, 2, 1)
    assert [(one.keys, one.size_bytes, one.filter_bytes) for one in found.segments] == [
        (200, 6_200, 400),
        (400, 12_400, 800),
        (80, 2_480, 160),
    ]
    # These notes are of an older head: what the last batch added is in none of the segments.
    assert (found.keys, found.added_keys) == (680 + 2 * 980, 2 * 980)
    assert (found.size_bytes, found.filter_bytes) == (21_080, 1_360)
    assert (found.unique, found.duplicates, found.late) == (4 * 980, 4 * 20, 0)
    assert found.duplicate_rate == pytest.approx(0.02)
    assert found.filters == FilterTally(8_000, 200, 120)
    assert found.lookup_seconds == pytest.approx(0.0001)
    assert found.checkpoint_bytes > 0


def test_what_the_last_batch_added_is_counted_once(job: NotedJob) -> None:
    said = notes(segment(0, 980)) | {AFTER: True}
    job.batch(0, [RunFacts(counts=COUNTS, notes=said)])
    (found,) = describe(job.checkpoint)
    assert (found.keys, found.added_keys) == (980, 980)


def test_stream_time_is_that_of_the_partition_furthest_on(job: NotedJob) -> None:
    two_partitions(job)
    (found,) = describe(job.checkpoint)
    assert found.stream_us == 120 * DAY_US


def test_a_segment_expires_when_the_stream_is_a_retention_past_its_end(job: NotedJob) -> None:
    """Case 19 as it is shown: live until stream time reaches its end and the retention, then expired."""
    noted = notes(segment(0, 1), segment(1, 1), segment(2, 1), segment(3, 1))
    for batch, (day_us, live) in enumerate(
        [(149 * DAY_US, [0, 1, 2, 3]), (150 * DAY_US - 1, [0, 1, 2, 3]), (150 * DAY_US, [1, 2, 3])]
    ):
        job.batch(batch, [RunFacts(newest_event_us=day_us, notes=noted)])
        (found,) = describe(job.checkpoint)
        assert [number for number, one in enumerate(found.segments) if one.is_live] == live
        assert [one.expires_us for one in found.segments] == [(150 + 50 * n) * DAY_US for n in range(4)]
        assert [one.is_active for one in found.segments] == [day_us // (50 * DAY_US) == n for n in range(4)]


def test_a_segment_of_which_partitions_know_different_parts_has_the_widest_times(job: NotedJob) -> None:
    empty = segment(0, 0)
    early = segment(0, 3, oldest_us=5, newest_us=9)
    before_1970 = segment(-1, 1, oldest_us=-7, newest_us=-7)
    said = [notes(empty), notes(early), notes(before_1970, segment(0, 1, oldest_us=8, newest_us=30))]
    job.batch(0, [RunFacts(notes=one) for one in said])
    (found,) = describe(job.checkpoint)
    assert [(one.start_us, one.oldest_us, one.newest_us) for one in found.segments] == [
        (-50 * DAY_US, -7, -7),
        (0, 5, 30),
    ]
    assert found.stream_us is None
    assert all(one.is_live and not one.is_active for one in found.segments)


def test_a_batch_without_rows_has_no_rates(job: NotedJob) -> None:
    job.batch(0, [RunFacts(notes=notes())])
    (found,) = describe(job.checkpoint)
    assert (found.duplicate_rate, found.lookup_seconds, found.filters.false_rate) == (None, None, None)
    assert found.segments == ()


def test_the_false_rate_is_of_keys_that_are_not_there() -> None:
    """Case 22: 1,000 absent keys of which 16 came through, beside 500 that are there."""
    assert FilterTally(probes=1_500, maybe=516, false=16).false_rate == pytest.approx(0.016)
    assert FilterTally(probes=5, maybe=5, false=0).false_rate is None


def test_after_a_change_of_partitions_it_tells_of_the_batch_before(job: NotedJob) -> None:
    two_partitions(job)
    asked = BatchRequest(str(job.checkpoint), OPERATOR, 0, 3, 64, 2, "plan-2", "a")
    epochs.resolve(operator_store(str(job.checkpoint), OPERATOR), asked)
    (found,) = describe(job.checkpoint)
    assert (found.batch, found.partitions, found.keys) == (1, 2, 2_640)


def test_operators_of_other_kinds_are_left_out(job: NotedJob, tmp_path: Path) -> None:
    Job(tmp_path).run(0, ["tide", "gate"], parallelism=1)
    assert describe(job.checkpoint) == []
    job.batch(0, [RunFacts(notes=notes(), counts=COUNTS)])
    assert [one.operator for one in describe(job.checkpoint)] == [OPERATOR]
    assert describe(tmp_path / "nowhere") == []


def test_notes_that_lack_a_part_are_named(job: NotedJob) -> None:
    job.batch(0, [RunFacts(notes={"kind": "dedup", "retention_us": 1})])
    with pytest.raises(StorageCorrupt, match=r"orders, batch 0.*lacks a part"):
        describe(job.checkpoint)
