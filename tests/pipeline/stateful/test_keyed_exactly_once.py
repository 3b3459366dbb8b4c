"""Keyed operators under faults: what comes out and what is remembered is as if nothing had happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.pipeline.stateful.keyed_jobs import Faulty, Shop, Torn, many_rows
from tidegate.pipeline.stateful.keyed import process

pytestmark = pytest.mark.spark


@pytest.fixture
def shop(spark: Any, tmp_path: Path) -> Shop:
    shop = Shop(spark, tmp_path / "shop")
    for seed in range(3):
        shop.add(*many_rows(seed, 200))
    return shop


def faulty(shop: Shop, how: str, **options: Any) -> Any:
    operator = Faulty(str(shop.folder / "mark"), how)
    given: dict[str, Any] = {"name": "totals", "key": "user", "operator": operator, "partitions": 2}
    given |= {"checkpoint": shop.checkpoint, "local_dir": shop.folder / "local"}
    return process(shop.stream(), **(given | options))


@pytest.mark.parametrize("how", ["exception", "kill"])
def test_attempt_that_fails_midway_is_done_again_from_the_state_before(shop: Shop, how: str) -> None:
    """Case 8: a task failed midway and retried; a Python worker killed."""
    shop.run(faulty(shop, how))
    assert (shop.folder / "mark").exists()
    assert shop.batches() == shop.expected()


def test_batch_evaluated_three_times_gives_the_same_rows_and_counts_once(shop: Shop) -> None:
    """Case 9: a count before a write, and two sinks; one attempt of the first evaluation fails."""
    seen: list[int] = []

    def write(df: Any, batch: int) -> None:
        seen.append(df.count())
        shop.write(df, batch)
        rows = [list(row) for row in df.collect()]
        (shop.folder / f"again-{batch}.json").write_text(json.dumps(rows))

    shop.run(faulty(shop, "exception"), write)
    assert shop.batches() == shop.expected()
    again = [json.loads((shop.folder / f"again-{batch}.json").read_text()) for batch in range(3)]
    assert [sorted(rows, key=repr) for rows in again] == shop.expected()
    assert seen == [200, 200, 200]


@pytest.mark.parametrize("partitions", [2, 3])
def test_batch_that_spark_did_not_commit_is_given_out_again(shop: Shop, partitions: int) -> None:
    """Case 8: the driver is killed between the state's commit and Spark's; also with another parallelism."""
    shop.run(faulty(shop, "none"))
    for name in ("2", ".2.crc"):
        (shop.checkpoint / "commits" / name).unlink()
    (shop.folder / "out" / "2.json").unlink()
    shop.add(*many_rows(3, 200))
    shop.run(faulty(shop, "none", partitions=partitions))
    assert shop.batches() == shop.expected()


def test_rows_that_fail_go_to_the_dead_letters_once(shop: Shop, spark: Any) -> None:
    """A poison row changes no state; the batch goes on, also when it is given out again."""
    letters = shop.folder / "letters"

    def write(df: Any, batch: int) -> None:
        df.count()
        shop.write(df, batch)

    shop.run(faulty(shop, "always", dead_letters=letters), write)
    kept = [[row for row in rows if row[0] != "user-7"] for rows in shop.expected()]
    assert shop.batches() == kept
    found = spark.read.format("delta").load(str(letters)).selectExpr("batch", "key", "reason").collect()
    failed = [sum(user == "user-7" for user, _, _ in rows) for rows in shop.rows]
    assert [sum(row.batch == batch for row in found) for batch in range(len(failed))] == failed
    assert {row.key for row in found} == {"user-7"}
    assert all(row.reason.startswith("RuntimeError: told to fail (") for row in found)
    assert all("keyed_jobs.py" in row.reason for row in found)


def test_dead_letters_of_a_batch_that_was_torn_and_done_by_others_are_there_once(
    shop: Shop, spark: Any
) -> None:
    letters = shop.folder / "letters"
    # 1. one of two partitions has published its part, with a dead letter in it, and the other fails
    place = "cast(pmod(xxhash64('user-7'), 128) * 2 div 128 as int)"
    bad = spark.sql(f"select {place} as place").first().place
    state = shop.checkpoint / "state" / "totals"
    failing = Torn(1 - bad, 2, after=str(state / f"e0/{bad}/v2.head"))
    with pytest.raises(StreamingQueryException, match="told to fail"):
        shop.run(torn(shop, failing, partitions=2, dead_letters=letters))
    assert [path.parent.name for path in state.glob("e0/*/v2.head")] == [str(bad)]
    # 2. three partitions do the batch anew
    shop.run(torn(shop, Torn(None, 2), partitions=3, dead_letters=letters))
    assert len(list(state.glob("e1/*/v2.head"))) == 3
    found = [row.batch for row in spark.read.format("delta").load(str(letters)).collect()]
    failed = [sum(user == "user-7" for user, _, _ in rows) for rows in shop.rows]
    assert [found.count(batch) for batch in range(len(failed))] == failed


def torn(shop: Shop, operator: Torn, **options: Any) -> Any:
    given: dict[str, Any] = {"name": "totals", "key": "user", "operator": operator}
    given |= {"checkpoint": shop.checkpoint, "local_dir": shop.folder / "local"}
    return process(shop.stream(), **(given | options))
