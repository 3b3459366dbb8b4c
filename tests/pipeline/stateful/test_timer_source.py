"""Ticks: the offset moves when a timer is due, once for each committed batch, and stands still otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tidegate.checkpoint.commit_record import (
    CommitRecord,
    StoredFile,
    commit_record_name,
    encode_commit_record,
)
from tidegate.checkpoint.epochs import resolve
from tidegate.checkpoint.settings import BatchRequest
from tidegate.checkpoint.store import operator_store
from tidegate.pipeline.stateful.timer_source import TickReader, TickSettings, has_ticks, parse_tick_options
from tidegate.testing.clock import START_US, ManualClock

NOW_MS = START_US // 1000
LIMIT = ReadAllAvailable()


class Pipeline:
    """A checkpoint with two partitions, written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = operator_store(str(folder), "idle")

    def commit(self, number: int, *partitions: dict[str, Any], watermark_ms: int = 0) -> None:
        """Write what a batch leaves behind: a head for each partition, and Spark's commit."""
        for partition, times in enumerate(partitions):
            asked = BatchRequest(str(self.folder), "idle", partition, 2, 128, number, "plan", "attempt")
            epoch = resolve(self.store, asked).epoch.number
            self.store.put_new(
                commit_record_name(epoch, partition, number),
                encode_commit_record(head(partition, number, times)),
            )
        (self.folder / "commits").mkdir(exist_ok=True)
        text = "v1\n" + json.dumps({"nextBatchWatermarkMs": watermark_ms})
        (self.folder / "commits" / str(number)).write_text(text)

    def reader(self, lateness_ms: int | None = 0, every_ms: int = 100) -> tuple[TickReader, ManualClock]:
        clock = ManualClock()
        return TickReader(TickSettings(str(self.folder), "idle", lateness_ms, every_ms), clock), clock


def head(partition: int, batch: int, times: dict[str, Any]) -> CommitRecord:
    whole: dict[str, Any] = {
        "epoch": 0,
        "partition": partition,
        "batch": batch,
        "commit_id": "id",
        "plan_id": "plan",
        "attempt": "attempt",
        "changes": StoredFile("changes", 0, "", 0),
        "out": None,
        "dead": None,
        "newest_event_ms": None,
        "next_event_timer_ms": None,
        "next_processing_timer_ms": None,
        "watermark_ms": None,
    }
    numbers = ("rows_in", "rows_out", "dead_rows", "batch_time_ms", "schema", "size_bytes", "entry_count")
    rest = dict.fromkeys((*numbers, "log_bytes", "published_at_ms", "took_ms"), 0)
    return CommitRecord(**(whole | rest | times))


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path)


def after(reader: TickReader, start: dict[str, Any] | None = None) -> int:
    number: int = reader.latestOffset(start or reader.initialOffset(), LIMIT)["after"]
    return number


def test_nothing_is_new_before_the_first_commit_and_without_timers(pipeline: Pipeline) -> None:
    reader, clock = pipeline.reader()
    assert after(reader) == -1
    pipeline.commit(0, {"newest_event_ms": 5}, {})
    clock.advance(1)
    assert after(reader) == -1


def test_processing_timer_of_any_partition_ticks_when_its_time_has_come(pipeline: Pipeline) -> None:
    pipeline.commit(4, {}, {"next_processing_timer_ms": NOW_MS + 2_000})
    reader, clock = pipeline.reader()
    assert after(reader) == -1
    clock.advance(1.999)
    assert after(reader) == -1
    clock.advance(0.5)
    assert after(reader) == 4


def test_event_timer_ticks_by_the_watermark_that_the_next_batch_will_have(pipeline: Pipeline) -> None:
    pipeline.commit(0, {"next_event_timer_ms": 1_000, "newest_event_ms": 900}, {"newest_event_ms": 1_000})
    assert after(pipeline.reader(lateness_ms=0)[0]) == 0
    assert after(pipeline.reader(lateness_ms=1)[0]) == -1
    # Spark keeps the watermark: what it wrote counts, and not what the operator saw.
    assert after(pipeline.reader(lateness_ms=None)[0]) == -1
    pipeline.commit(1, {"next_event_timer_ms": 1_000}, {}, watermark_ms=1_000)
    assert after(pipeline.reader(lateness_ms=None)[0]) == 1


def test_one_commit_gives_one_tick(pipeline: Pipeline) -> None:
    pipeline.commit(7, {"next_processing_timer_ms": 1}, {})
    reader, clock = pipeline.reader()
    offset = reader.latestOffset(reader.initialOffset(), LIMIT)
    clock.advance(1)
    assert reader.latestOffset(offset, LIMIT) == offset
    pipeline.commit(8, {"next_processing_timer_ms": 1}, {})
    clock.advance(1)
    assert after(reader, offset) == 8


def test_batch_that_a_partition_has_not_done_gives_no_tick(pipeline: Pipeline) -> None:
    pipeline.commit(0, {"next_processing_timer_ms": 1})
    assert after(pipeline.reader()[0]) == -1


def test_folders_are_looked_at_no_more_often_than_told_unless_a_run_has_an_end(pipeline: Pipeline) -> None:
    reader, clock = pipeline.reader(every_ms=1_000)
    assert after(reader) == -1
    pipeline.commit(0, {"next_processing_timer_ms": 1}, {})
    clock.advance(0.5)
    assert after(reader) == -1
    reader.prepareForTriggerAvailableNow()
    assert after(reader) == 0


def test_sleeping_ticks_stand_in_the_checkpoint_and_never_move(pipeline: Pipeline) -> None:
    pipeline.commit(0, {"next_processing_timer_ms": 1}, {})
    asleep = TickSettings(str(pipeline.folder), "idle", None, is_awake=False)
    assert parse_tick_options(asleep.to_options()) == asleep
    assert after(TickReader(asleep, ManualClock())) == -1


def test_checkpoint_says_whose_ticks_it_has(pipeline: Pipeline) -> None:
    assert has_ticks(str(pipeline.folder), "idle") is None
    offsets = pipeline.folder / "offsets"
    offsets.mkdir()
    (offsets / "0").write_text('v1\n{}\n{"logOffset":0}\n' + json.dumps({"after": -1, "ticksOf": "other"}))
    assert has_ticks(str(pipeline.folder), "idle") is False
    assert has_ticks(str(pipeline.folder), "other") is True
