"""Progress: each batch counts once, through repeats, idle reports and restarts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tidegate.pipeline.worker.progress import ProgressCounter, committed_offsets, offsets_of, rows_of
from tidegate.testing.clock import ManualClock


def report(batch: int, rows: int, *, end: str = '{"0": 5}', idle: bool = False) -> dict[str, Any]:
    steps = {"triggerExecution": 250} if idle else {"triggerExecution": 250, "addBatch": 200}
    return {"batchId": batch, "numInputRows": rows, "durationMs": steps, "sources": [{"endOffset": end}]}


def query(*reports: dict[str, Any]) -> Any:
    return SimpleNamespace(lastProgress=reports[-1] if reports else None, recentProgress=list(reports))


def test_repeated_report_counts_once() -> None:
    counter = ProgressCounter(ManualClock(now_us=0))
    for _ in range(3):
        counter.look(query(report(0, 10)))
    totals = counter.totals()
    assert (totals.batches, totals.rows, totals.last_batch_seconds) == (1, 10, 0.25)


def test_batches_between_two_looks_are_not_missed() -> None:
    counter = ProgressCounter(ManualClock(now_us=0))
    counter.look(query(report(0, 10)))
    counter.look(query(report(0, 10), report(1, 20), report(2, 30)))
    assert (counter.totals().batches, counter.totals().rows) == (3, 60)


def test_idle_report_does_not_use_up_the_number_of_the_next_batch() -> None:
    counter = ProgressCounter(ManualClock(now_us=0))
    counter.look(query(report(0, 10), report(1, 0, idle=True)))
    counter.look(query(report(1, 20)))
    assert (counter.totals().batches, counter.totals().rows) == (2, 30)


def test_totals_survive_a_restart_of_the_query() -> None:
    counter = ProgressCounter(ManualClock(now_us=0))
    counter.look(query(report(41, 10)))
    counter.begin([{"0": 10}])
    assert counter.offsets == [{"0": 10}]
    counter.look(query())
    counter.look(query(report(0, 5)))
    assert (counter.totals().batches, counter.totals().rows) == (2, 15)


def test_rate_falls_to_nothing_when_batches_stop() -> None:
    clock = ManualClock(now_us=0)
    counter = ProgressCounter(clock)
    counter.look(query(report(0, 1000)))
    assert counter.totals().rows_per_second == 100
    clock.advance(11)
    assert counter.totals().rows_per_second == 0


def test_checkpoint_tells_where_it_stands(tmp_path: Path) -> None:
    assert committed_offsets(tmp_path) == []
    for folder in ("commits", "offsets"):
        (tmp_path / folder).mkdir()
    (tmp_path / "commits" / "9").write_text('v1\n{"nextBatchWatermarkMs":0}')
    (tmp_path / "commits" / "10").write_text('v1\n{"nextBatchWatermarkMs":0}')
    (tmp_path / "offsets" / "10").write_text('v1\n{"batchWatermarkMs":0}\n{"0": 7, "1": 9}\n-')
    (tmp_path / "offsets" / "11").write_text('v1\n{}\n{"0": 8, "1": 9}')
    assert committed_offsets(tmp_path) == [{"0": 7, "1": 9}, {}]
    (tmp_path / "offsets" / "10").write_text("torn")
    assert committed_offsets(tmp_path) == []


def test_offsets_of_other_sources_are_left_out() -> None:
    assert offsets_of('{"0": 7}') == {"0": 7}
    assert offsets_of({"0": 7}) == {"0": 7}
    assert offsets_of('{"topic-a": {"0": 1}}') == {}
    assert offsets_of("12") == {}
    assert offsets_of(None) == {}


def test_rows_are_counted_by_offsets_where_spark_counts_none_or_twice() -> None:
    ours = {"startOffset": '{"topic": 7, "0": 10}', "endOffset": '{"topic": 7, "0": 15, "1": 3}'}
    for told in (0, 8, 16):
        assert rows_of({"numInputRows": told, "sources": [{**ours, "numInputRows": told}]}) == 8
    other = {"startOffset": "3", "endOffset": "4", "numInputRows": 5}
    assert rows_of({"numInputRows": 21, "sources": [{**ours, "numInputRows": 16}, other]}) == 13
    first = {"startOffset": None, "endOffset": '{"topic": 7, "0": 9}', "numInputRows": 4}
    assert rows_of({"numInputRows": 4, "sources": [first]}) == 4
