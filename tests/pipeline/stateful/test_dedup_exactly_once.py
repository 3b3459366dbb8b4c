"""Deduplication under faults: what comes out and what is remembered is as if nothing had happened."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.pipeline.stateful.dedup_jobs import Bench, Struck, expected_outcomes, failing_once, random_rows
from tests.pipeline.stateful.keyed_jobs import Shop
from tidegate.checkpoint.commit_record import read_commit_record
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.savepoints import savepoint
from tidegate.checkpoint.store import operator_store
from tidegate.dedup.describe import describe as dedup_states
from tidegate.dedup.sizing import ENTRY_BYTES
from tidegate.errors import StateInvalid, StateMismatch
from tidegate.model.clock import SystemClock
from tidegate.pipeline.stateful import deduplicate as module
from tidegate.pipeline.stateful.dedup_columns import RowLayout
from tidegate.pipeline.stateful.deduplicate import deduplicate

RETENTION_S = 100


@pytest.fixture(autouse=True)
def closed_pool() -> Iterator[None]:
    yield
    pool().close()


BATCHES = [random_rows(seed, 150) for seed in range(4)]
EXPECTED = expected_outcomes(BATCHES, RETENTION_S)


def test_batch_that_comes_again_gives_the_same_rows_whatever_their_order(tmp_path: Path) -> None:
    """Case 20: a retried or replayed batch does not see its own keys as duplicates."""
    bench = Bench(tmp_path, RETENTION_S)
    for number, rows in enumerate(BATCHES):
        assert bench.run(number, rows) == EXPECTED[number]
        shuffled = random.Random(number).sample(rows, len(rows))
        assert bench.run(number, shuffled, pieces=7) == EXPECTED[number]
    head = read_commit_record(operator_store(str(tmp_path / "checkpoint"), "d"), 0, 0, 3)
    other = read_commit_record(operator_store(str(tmp_path / "checkpoint"), "d"), 0, 1, 3)
    assert head is not None
    assert other is not None
    outcomes = [row[3] for rows in EXPECTED for row in rows]
    for name in ("unique", "duplicate", "late"):
        assert head.totals[name] + other.totals[name] == outcomes.count(name)
    assert head.notes["kind"] == "dedup"
    assert head.notes["stream_us"] == max(at for _, _, at in BATCHES[2] + BATCHES[1]) * 1_000_000
    assert head.counts["filter_probes"] > 0


def test_rows_that_are_too_many_are_worked_on_in_parts(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RETENTION_S, part_rows_max=20)
    for number, rows in enumerate(BATCHES):
        assert bench.run(number, rows) == EXPECTED[number]
        assert bench.run(number, rows[::-1], pieces=1) == EXPECTED[number]
        if number == 0:
            assert_noted(tmp_path / "checkpoint", [row[2] for row in EXPECTED[0] if row[3] == "unique"])


def assert_noted(checkpoint: Path, times_s: list[int]) -> None:
    """The head of the first batch tells of the segments as they are after it, with what all parts put."""
    (found,) = dedup_states(checkpoint)
    by_segment = {one.start_us // 1_000_000: one for one in found.segments}
    assert sorted(by_segment) == sorted({at - at % RETENTION_S for at in times_s})
    for start_s, one in by_segment.items():
        there = [at for at in times_s if at - at % RETENTION_S == start_s]
        assert (one.keys, one.size_bytes) == (len(there), len(there) * ENTRY_BYTES)
        assert (one.oldest_us, one.newest_us) == (min(there) * 1_000_000, max(there) * 1_000_000)
    assert found.keys == len(times_s)


def test_batch_that_was_done_by_another_number_of_instances_is_given_again(tmp_path: Path) -> None:
    """Every new instance reads the heads of all old ones that had its keys."""
    bench = Bench(tmp_path, RETENTION_S)
    for number, (before, after) in enumerate(((2, 3), (3, 1), (1, 8), (8, 2))):
        assert bench.run(number, BATCHES[number], before) == EXPECTED[number]
        assert bench.run(number, BATCHES[number], after) == EXPECTED[number]


def test_rows_that_tie_are_told_apart_by_what_stands_in_them(tmp_path: Path) -> None:
    rows = [(f"k{number % 20}", number, 5) for number in range(100)]
    bench = Bench(tmp_path, RETENTION_S)
    given = bench.run(0, rows)
    assert sum(row[3] == "unique" for row in given) == 20
    assert bench.run(0, rows[::-1], pieces=11) == given
    assert bench.run(0, rows, 3) == given


@pytest.mark.parametrize("change", ["one is another", "one is missing", "one is more"])
def test_other_rows_than_the_first_time_are_refused(tmp_path: Path, change: str) -> None:
    bench = Bench(tmp_path, RETENTION_S)
    bench.run(0, BATCHES[0])
    rows = list(BATCHES[0])
    if change == "one is another":
        rows[0] = ("another", *rows[0][1:])
    rows = rows[1:] if change == "one is missing" else rows
    rows = [*rows, ("k1", 77, 3)] if change == "one is more" else rows
    with pytest.raises(StateMismatch, match="the first time"):
        bench.run(0, rows)


def test_attempt_that_loses_the_race_gives_what_the_first_one_accepted(tmp_path: Path) -> None:
    """Both see the batch as new; the other one publishes while this one decides."""
    rows = [("a", number, 5) for number in range(10)]
    other = Bench(tmp_path, RETENTION_S, mark="other")
    given: list[Any] = []
    bench = Bench(tmp_path, RETENTION_S, before=lambda: given.extend(other.run(0, rows[::-1], 1)))
    assert bench.run(0, rows, 1) == given
    assert [row[3] for row in given].count("unique") == 1
    assert bench.run(1, [("a", 99, 6)], 1) == [["a", 99, 6, "duplicate", 5]]


def test_task_that_comes_twice_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RETENTION_S)
    bench.run(0, BATCHES[0])
    bench._attempts -= 1
    with pytest.raises(StateInvalid, match="coalesce"):
        bench.run(0, [], 1)


def test_rows_without_a_time_stop_the_batch_before_anything_is_stored(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RETENTION_S)
    timeless: Any = [("a", 1, 5), ("b", 2, None), ("c", 3, 5)]
    with pytest.raises(StateInvalid, match=r"'at' is null in 1 rows of \d.*coalesce\(at"):
        bench.run(0, timeless, 1)
    layout = RowLayout("d", 1, 0, "ms")
    with pytest.raises(StateInvalid, match="a bigint is milliseconds"):
        layout.check(pa.RecordBatch.from_pydict({"ms": pa.array([1, 1 << 60])}))
    assert bench.run(0, BATCHES[0], 1) == EXPECTED[0]


@pytest.fixture
def shop(spark: Any, tmp_path: Path) -> Shop:
    shop = Shop(spark, tmp_path / "shop")
    for rows in BATCHES:
        shop.add(*rows)
    return shop


def marked(shop: Shop, **options: Any) -> Any:
    given: dict[str, Any] = {"name": "d", "on": "user", "event_time": "at", "retention": f"{RETENTION_S} s"}
    given |= {"checkpoint": shop.checkpoint, "partitions": 2, "outcome": "o"}
    given |= {"local_dir": shop.folder / "local"}
    return deduplicate(shop.stream(), **(given | options))


def plain(df: Any) -> Any:
    return df.selectExpr("user", "amount", "unix_seconds(at)", "o", "unix_seconds(o_first_time)")


@pytest.mark.spark
def test_workers_that_are_killed_lose_and_repeat_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker dies at another point of each batch; the retried task goes on from what is published."""
    points = ("restored", "changes-written", "head-linked", "applied")

    def struck(*task: Any) -> Struck:
        return replace(Struck(*task), folder=str(shop.folder), points=points)

    monkeypatch.setattr(module, "DedupTask", struck)
    shop.run(plain(marked(shop)))
    assert len(list(shop.folder.glob("struck.*"))) == len(points)
    assert shop.batches() == EXPECTED


@pytest.mark.spark
def test_batch_that_is_evaluated_again_gives_the_same_rows(shop: Shop) -> None:
    """A step behind fails once, after the batch was published; then a count before the write."""

    def write(df: Any, batch: int) -> None:
        counts.append(df.count())
        shop.write(df, batch)

    counts: list[int] = []
    out = marked(shop)
    shop.run(plain(out.mapInArrow(failing_once(str(shop.folder / "mark")), out.schema)), write)
    assert (shop.folder / "mark").exists()
    assert shop.batches() == EXPECTED
    assert counts == [len(rows) for rows in BATCHES]


@pytest.mark.spark
@pytest.mark.parametrize("partitions", [2, 3])
def test_batch_that_spark_did_not_commit_is_given_out_again(shop: Shop, partitions: int) -> None:
    """The driver is killed between the commit of the keys and Spark's; also with another parallelism."""
    shop.run(plain(marked(shop)))
    for name in ("3", ".3.crc"):
        (shop.checkpoint / "commits" / name).unlink()
    (shop.folder / "out" / "3.json").unlink()
    more = random_rows(4, 150)
    shop.add(*more)
    shop.run(plain(marked(shop, partitions=partitions)))
    assert shop.batches() == expected_outcomes([*BATCHES, more], RETENTION_S)


@pytest.mark.spark
def test_savepoint_goes_on_with_the_keys_and_the_time_of_the_stream(shop: Shop, tmp_path: Path) -> None:
    shop.run(plain(marked(shop)))
    made = savepoint.make(shop.checkpoint, "d", "friday", SystemClock())
    place = savepoint.path_of(shop.checkpoint, "d", made.name)
    new = Shop(shop.spark, tmp_path / "new")
    more = [random_rows(4, 150), random_rows(5, 100)]
    for rows in more:
        new.add(*rows)
    with pytest.raises(StateMismatch, match="key is"):
        marked(new, savepoint=place, on="amount")
    new.run(plain(marked(new, savepoint=place, partitions=3)))
    assert new.batches() == expected_outcomes([*BATCHES, *more], RETENTION_S)[len(BATCHES) :]
