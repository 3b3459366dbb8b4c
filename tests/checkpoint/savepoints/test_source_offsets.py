"""Savepoints say where the sources stood: exactly after their batch, or nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.checkpoints import OPERATOR, Job, Streaming
from tests.checkpoint.rescale_walk import words_of
from tidegate.checkpoint.savepoints import savepoint, source_offsets
from tidegate.checkpoint.savepoints.source_offsets import (
    OFFSETS_NAME,
    SourceOffsets,
    read_offsets,
    starting_offsets,
    starting_option,
)
from tidegate.errors import NotFound, StorageCorrupt
from tidegate.pipeline.stateful import spark_log, timer_source
from tidegate.pipeline.topic import offsets as topic_offsets


def topic_at(number: int) -> dict[str, int]:
    return {"topic": 7, "0": number * 10, "1": number}


def ran(tmp_path: Path, batches: int) -> Streaming:
    job = Streaming(tmp_path)
    for batch in range(batches):
        job.plan(batch, topic_at(batch + 1))
        job.run(batch, words_of(batch), 2)
    return job


def made(job: Job, name: str) -> Path:
    savepoint.make(job.checkpoint, OPERATOR, name, job.clock)
    return savepoint.path_of(job.checkpoint, OPERATOR, name)


def test_savepoint_says_where_its_batch_ended_also_when_spark_has_forgotten(tmp_path: Path) -> None:
    """The offsets of the next batch are written before it runs, and are not what the savepoint has."""
    job = ran(tmp_path, 3)
    text = (job.checkpoint / "offsets" / "2").read_text()
    job.plan(3, topic_at(9))
    job.task(job.ask(0, 2, 3), words_of(3))
    folder = made(job, "while-batch-3-runs")
    shutil.rmtree(job.checkpoint / "offsets")
    assert read_offsets(folder) == SourceOffsets(2, text)
    assert starting_offsets(folder) == '{"0": 30, "1": 3}'
    assert starting_offsets(f"file:{folder}") == '{"0": 30, "1": 3}'
    with pytest.raises(NotFound, match="source 1"):
        starting_offsets(folder, 1)


def test_offsets_that_are_not_those_of_the_batch_that_was_done_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody removed files of `offsets`, and Spark planned another batch under the same number."""
    job = ran(tmp_path, 2)
    job.plan(1, topic_at(5))
    folder = made(job, "planned-anew")
    assert read_offsets(folder) is None
    assert "offsets belong to another plan, not stored batch=1" in "\n".join(caplog.messages)
    with pytest.raises(NotFound, match="startingOffsets of source 0"):
        starting_offsets(folder)


def test_offsets_of_which_one_partition_knows_another_plan_are_left_out(tmp_path: Path) -> None:
    job = ran(tmp_path, 1)
    job.plan(1, topic_at(4))
    job.task(job.ask(0, 2, 1), words_of(1))
    job.plan(1, topic_at(5))
    job.task(job.ask(1, 2, 1), words_of(1))
    assert read_offsets(made(job, "torn")) is None


def test_savepoint_of_a_batch_job_and_one_made_before_have_none(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.run(0, words_of(0), 2)
    folder = made(job, "batch-job")
    assert read_offsets(folder) is None
    assert not (folder / OFFSETS_NAME).exists()


def test_savepoint_is_made_again_when_spark_removes_the_offsets_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query goes on between the look for the newest batch and the look at its offsets."""
    job = ran(tmp_path, 2)
    found = source_offsets.offsets_path
    moves = iter([2])

    def moved_meanwhile(store: Any, batch: int) -> Path:
        if (following := next(moves, None)) is not None:
            job.plan(following, topic_at(following + 1))
            job.run(following, words_of(following), 2)
            found(store, batch).unlink()
        return found(store, batch)

    monkeypatch.setattr(source_offsets, "offsets_path", moved_meanwhile)
    offsets = read_offsets(made(job, "moving"))
    assert offsets is not None
    assert (offsets.batch, offsets.sources) == (2, [topic_at(3)])


def test_damaged_offsets_are_named(tmp_path: Path) -> None:
    folder = made(ran(tmp_path, 1), "cut")
    path = folder / OFFSETS_NAME
    path.write_bytes(path.read_bytes().replace(b"10", b"90"))
    with pytest.raises(StorageCorrupt, match=r"offsets\.json"):
        starting_offsets(folder)


def test_every_source_is_there_but_ticks(tmp_path: Path) -> None:
    job = Streaming(tmp_path)
    tick = {timer_source.OPERATOR_MARK: OPERATOR, "after": 3}
    job.plan(0, tick, topic_at(1), {"logOffset": 4}, "-")
    job.run(0, words_of(0), 2)
    folder = made(job, "several")
    offsets = read_offsets(folder)
    assert offsets is not None
    assert offsets.sources == [topic_at(1), {"logOffset": 4}, None]
    assert starting_offsets(folder) == '{"0": 10, "1": 1}'
    with pytest.raises(NotFound, match="source 1"):
        starting_offsets(folder, 1)


@pytest.mark.parametrize(
    ("offset", "option"),
    [
        ({"topic": 7, "0": 11, "1": 0}, '{"0": 11, "1": 0}'),
        ({"orders": {"0": 11, "1": 0}}, '{"orders": {"0": 11, "1": 0}}'),
        ({"topic": {"0": 11}}, '{"topic": {"0": 11}}'),
        ({"logOffset": 4}, None),
        ({}, None),
        (12, None),
        ("not JSON", None),
        (None, None),
    ],
)
def test_offsets_of_topics_and_of_kafka_are_what_starting_offsets_takes(
    offset: Any, option: str | None
) -> None:
    assert starting_option(offset) == option


def test_marks_and_plan_ids_are_those_of_the_sources() -> None:
    """State knows no Spark, so it names them for itself."""
    assert source_offsets.TICKS_MARK == timer_source.OPERATOR_MARK
    assert source_offsets.TOPIC_MARK == topic_offsets.TOPIC_ID
    assert source_offsets.PLAN_ID_BYTES == spark_log.PLAN_ID_BYTES


def test_file_of_offsets_of_format_1_is_read_and_written_as_ever() -> None:
    """Case 14: a golden file."""
    golden = (
        b'{"format":1,"batch":41,"text":"v1\\n{}\\n{\\"topic\\": 7, \\"0\\": 11}",'
        b'"checksum":"941b0a145e9522e3"}\n'
    )
    offsets = SourceOffsets(41, 'v1\n{}\n{"topic": 7, "0": 11}')
    assert offsets.to_bytes() == golden
    assert SourceOffsets.from_bytes(golden, "golden") == offsets
