"""Steps behind an operator that move its partitions are refused, and cost nothing once the plan is mended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from tests.pipeline.stateful.keyed_jobs import Shop, Totals
from tidegate.checkpoint.epochs import NONE_SEEN, begin_epoch
from tidegate.checkpoint.keys.codec import KeyType
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.settings import StateSettings
from tidegate.checkpoint.store import operator_store
from tidegate.errors import StateInvalid, StateMismatch
from tidegate.model.clock import SystemClock
from tidegate.pipeline.stateful.keyed import process
from tidegate.pipeline.stateful.keyed_task import KeyedTask
from tidegate.pipeline.stateful.spark_log import PlannedBatch, SparkTask
from tidegate.pipeline.stateful.task_context import StatefulTaskContext
from tidegate.state.operator_plan import plan_operator
from tidegate.state.schema.schema import SchemaRequest


@pytest.fixture(autouse=True)
def closed_pool() -> Iterator[None]:
    yield
    pool().close()


def keyed_task(folder: Path) -> KeyedTask:
    key = KeyType.from_arrow(("user",), pa.schema([("user", pa.string())]), operator="totals")
    return KeyedTask(
        operator=Totals(),
        schema_request=SchemaRequest("totals", key, 128, plan_operator(Totals(), "totals").specs),
        context=StatefulTaskContext(
            operator="totals",
            parallelism=2,
            max_parallelism=128,
            settings=StateSettings(local_root=str(folder / "local")),
            checkpoint=str(folder / "checkpoint"),
            planned=PlannedBatch(0, "plan", None, 0),
        ),
    )


def test_task_that_comes_twice_is_refused_also_where_another_one_did_the_batch(tmp_path: Path) -> None:
    """A retry after a coalesce() would give out the same stored rows once for each of its partitions."""
    task = keyed_task(tmp_path)

    def run(attempt: str, partition: int = 0) -> list[pa.RecordBatch]:
        return list(task._output_rows(SparkTask(partition, attempt, None, None), iter(()), SystemClock()))

    run("app/run/1")
    run("app/run/2")
    with pytest.raises(StateInvalid, match="coalesce"):
        run("app/run/2")
    # What was published may be another partition's: nobody is given it.
    for partition in range(2):
        with pytest.raises(StateInvalid, match="coalesce"):
            run("app/run/3", partition)


def test_task_that_outlives_its_run_publishes_nothing_in_the_batch_done_anew(tmp_path: Path) -> None:
    """Spark gives up a run without waiting for its tasks: one of them comes when the next run has begun."""
    first = keyed_task(tmp_path)
    old = replace(first, context=replace(first.context, seen_epoch=NONE_SEEN))
    store = operator_store(str(old.context.checkpoint), "totals")

    def run(task: KeyedTask, partition: int, attempt: str) -> list[pa.RecordBatch]:
        return list(task._output_rows(SparkTask(partition, attempt, None, None), iter(()), SystemClock()))

    run(old, 0, "app/old/1")
    with pytest.raises(StateInvalid, match="coalesce"):
        run(old, 0, "app/old/1")
    new = replace(old, context=replace(old.context, seen_epoch=begin_epoch(store, "totals", 0).number))
    # The first attempt has not been here before, the second has, and would mark the batch.
    for attempt in ("app/old/2", "app/old/1"):
        with pytest.raises((StateMismatch, StateInvalid), match=r"replaced|coalesce"):
            run(old, 0, attempt)
    assert store.names("e1") == ["epoch.json"]
    for partition in range(2):
        run(new, partition, f"app/new/{partition}")
    assert store.exists("e1/0/v0.head")


def totals(shop: Shop, rows: Any = None) -> Any:
    return process(
        shop.stream() if rows is None else rows,
        name="totals",
        key="user",
        operator=Totals(),
        checkpoint=shop.checkpoint,
        partitions=4,
        local_dir=shop.folder / "local",
    )


@pytest.mark.spark
def test_rows_are_all_there_once_the_plan_is_mended(spark: Any, tmp_path: Path) -> None:
    """The second of two tasks has nothing to do and publishes it, under the number of another partition."""
    users = spark.range(60).selectExpr("concat('u', id) as user")
    user = users.where("cast(pmod(xxhash64(user), 128) * 4 div 128 as int) = 1").first().user
    shop = Shop(spark, tmp_path / "shop")
    shop.add((user, 5, 1))
    with pytest.raises(StreamingQueryException, match="coalesce"):
        shop.run(totals(shop).coalesce(2))
    shop.add((user, 5, 2))
    shop.run(totals(shop))
    assert shop.batches() == shop.expected()


@pytest.mark.spark
def test_every_instance_has_its_task_in_a_batch_that_spark_knows_to_be_empty(
    spark: Any, tmp_path: Path
) -> None:
    """Spark leaves out what stands behind a step that gave no rows; the next batch would miss this one."""
    shop = Shop(spark, tmp_path / "shop")
    for amount in (1, -1, 1):
        shop.add(("ada", amount, 1))
    shop.run(totals(shop, shop.stream().repartition(2).where("amount > 0")))
    assert shop.batches() == [[["ada", 1, 1]], [], [["ada", 2, 2]]]
    assert len(list(shop.checkpoint.glob("state/totals/e0/*/v1.head"))) == 4
