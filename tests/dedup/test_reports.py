"""What the worker tells the server of deduplication and of the disk, from a real checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tests.checkpoint.checkpoints import Job
from tests.dedup.counted_batches import NotedJob, notes, segment, two_partitions
from tidegate.checkpoint.commit_record import RunFacts
from tidegate.model.wire.status import DedupReport, OperatorReport, WorkerReport
from tidegate.pipeline.worker.reports import StateReports, state_disk


@pytest.fixture
def job(tmp_path: Path) -> NotedJob:
    return NotedJob(tmp_path / "checkpoint", tmp_path / "local")


def test_an_operator_that_deduplicates_reports_what_it_caught_and_stored(job: NotedJob) -> None:
    """Case 25: every figure of the runbook is in the worker's report, in the shape that the server reads."""
    two_partitions(job)
    reports = StateReports(job.checkpoint)
    reports.look(1)
    (found,) = reports.reports
    assert set(found["dedup"]) == set(DedupReport.__struct_encode_fields__)
    assert set(found) == set(OperatorReport.__struct_encode_fields__)
    dedup = msgspec.convert(found, OperatorReport, strict=True).dedup
    assert dedup is not None
    assert (dedup.unique, dedup.duplicates, dedup.late, dedup.keys) == (3_920, 80, 0, 2_640)
    assert (dedup.bytes, dedup.filter_bytes, dedup.segments) == (21_080, 1_360, 3)
    assert dedup.reads == 200
    assert dedup.lookup_seconds == pytest.approx(0.02)
    assert dedup.stream_time == "1970-05-01T00:00:00Z"


def test_other_operators_report_none(tmp_path: Path) -> None:
    plain = Job(tmp_path)
    plain.run(0, ["tide"], parallelism=1)
    reports = StateReports(plain.checkpoint)
    reports.look(1)
    assert [one["dedup"] for one in reports.reports] == [None]


def test_damaged_notes_leave_the_figures_of_a_moment_ago(job: NotedJob) -> None:
    two_partitions(job)
    reports = StateReports(job.checkpoint)
    reports.look(1)
    before = reports.reports
    job.batch(2, [RunFacts(notes={"kind": "dedup"}) for _ in range(2)])
    reports.look(2)
    assert reports.reports == before


def test_a_time_beyond_the_calendar_is_reported_as_none(job: NotedJob) -> None:
    job.batch(0, [RunFacts(newest_event_us=2**62, notes=notes(segment(0, 1)))])
    reports = StateReports(job.checkpoint)
    reports.look(1)
    assert reports.reports[0]["dedup"]["streamTime"] is None


def test_the_disk_of_the_state_is_read_before_its_folder_is_there(tmp_path: Path) -> None:
    """Case 25: 70 % is of what is used, and what only root may still take is used."""
    told = state_disk(tmp_path / "run" / "state")
    usage = os.statvfs(tmp_path)
    assert told["stateDiskSizeBytes"] == usage.f_blocks * usage.f_frsize
    used_bytes = told["stateDiskUsedBytes"]
    assert used_bytes is not None
    assert 0 < used_bytes <= usage.f_blocks * usage.f_frsize
    assert set(told) < set(WorkerReport.__struct_encode_fields__)
