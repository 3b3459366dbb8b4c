"""Planned batches: what is read of Spark's offset and commit logs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidegate.errors import CheckpointUnusable, StateInvalid, StateMismatch
from tidegate.pipeline.stateful.spark_log import (
    CommittedBatch,
    SparkTask,
    check_query,
    check_streaming_task,
    newest_committed,
    newest_offsets,
    read_planned_batch,
)


def write(folder: Path, number: int, facts: dict[str, int], *lines: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / str(number)).write_text("\n".join(["v1", json.dumps(facts), *lines]))
    (folder / f".{number}.crc").touch()


def test_batch_has_the_times_of_the_offset_log_and_an_id_of_its_offsets(tmp_path: Path) -> None:
    write(tmp_path / "offsets", 3, {"batchWatermarkMs": 0, "batchTimestampMs": 17}, '{"logOffset":3}')
    first = read_planned_batch(tmp_path, 3, "totals")
    assert (first.number, first.watermark_ms, first.batch_time_ms) == (3, None, 17)
    assert read_planned_batch(tmp_path, 3, "totals") == first
    write(tmp_path / "offsets", 3, {"batchWatermarkMs": 9, "batchTimestampMs": 17}, '{"logOffset":4}')
    second = read_planned_batch(tmp_path, 3, "totals")
    assert second.watermark_ms == 9
    assert second.plan_id != first.plan_id


def test_batch_that_is_not_in_the_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateMismatch, match="no offsets of batch 3"):
        read_planned_batch(tmp_path, 3, "totals")
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text("v1\n")
    with pytest.raises(CheckpointUnusable, match="not as Spark writes it"):
        read_planned_batch(tmp_path, 3, "totals")


def test_newest_batch_is_by_number_and_not_by_name(tmp_path: Path) -> None:
    assert newest_committed(tmp_path) is None
    assert newest_offsets(tmp_path) is None
    for number in (2, 10, 9):
        write(tmp_path / "commits", number, {"nextBatchWatermarkMs": number * 100})
        write(tmp_path / "offsets", number, {"batchTimestampMs": 1}, f'{{"logOffset":{number}}}', "-")
    assert newest_committed(tmp_path) == CommittedBatch(10, 1_000)
    assert newest_offsets(tmp_path) == ['{"logOffset":10}', "-"]


def test_checkpoint_of_another_query_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateMismatch, match="no query has begun there"):
        check_query(tmp_path, "mine", "totals")
    (tmp_path / "metadata").write_text('{"id":"theirs"}')
    with pytest.raises(StateMismatch, match="belongs to the query theirs, and this is mine"):
        check_query(tmp_path, "mine", "totals")
    check_query(tmp_path, "theirs", "totals")


def test_task_outside_a_query_is_refused() -> None:
    assert check_streaming_task(SparkTask(0, "a", 5, "mine"), "totals") == 5
    with pytest.raises(StateInvalid, match="outside its query"):
        check_streaming_task(SparkTask(0, "a", None, None), "totals")
