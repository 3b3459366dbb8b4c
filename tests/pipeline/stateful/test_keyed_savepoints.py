"""Savepoints of a query over a topic: a new query goes on where the source stood."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.stateful.keyed_jobs import Shop, Totals
from tests.pipeline.topic.topics import TopicClient
from tidegate import spark as tide
from tidegate.checkpoint.savepoints import savepoint as savepoints
from tidegate.checkpoint.savepoints.source_offsets import read_offsets
from tidegate.model.clock import SystemClock
from tidegate.pipeline.stateful.keyed import process
from tidegate.testing.server import running_server

pytestmark = pytest.mark.spark

TOPIC = "app.paid"
USERS = 5


@pytest.fixture
def topics(tmp_path: Path) -> Iterator[TopicClient]:
    """A server with a topic of two partitions."""
    with running_server(tmp_path / "home") as server:
        client = TopicClient(server)
        client.create(TOPIC, 2)
        yield client


def totals(shop: Shop, topics: TopicClient, *, savepoint: Path | None = None, **options: str) -> Any:
    """Return a row for each message: how many its user had so far."""
    usual = {"topic": TOPIC, "url": topics.server.url, "token": topics.server.token}
    source = shop.spark.readStream.format("tidegate.topic").options(**(usual | options))
    number = "CAST(get_json_object(payload, '$.n') AS long)"
    rows = source.load().selectExpr(
        f"concat('user-', {number} % {USERS}) AS user", "1L AS amount", "ts AS at"
    )
    return process(
        rows,
        name="totals",
        key="user",
        operator=Totals(),
        partitions=2,
        checkpoint=shop.checkpoint,
        local_dir=shop.folder / "local",
        savepoint=savepoint,
    )


def publish(topics: TopicClient, numbers: range) -> None:
    for partition in range(2):
        topics.publish(TOPIC, numbers[partition::2], partition)


def test_query_from_a_savepoint_with_its_offsets_takes_every_row_once(
    spark: Any, topics: TopicClient, tmp_path: Path
) -> None:
    """The savepoint has Spark's own text, and needs nothing else of the old checkpoint."""
    first, second = Shop(spark, tmp_path / "first"), Shop(spark, tmp_path / "second")
    publish(topics, range(30))
    first.run(totals(first, topics, maxMessagesPerBatch="20"))
    made = savepoints.make(first.checkpoint, "totals", "before", SystemClock())
    folder = savepoints.path_of(first.checkpoint, "totals", "before").rename(tmp_path / "kept")
    text = (first.checkpoint / "offsets" / "1").read_text()
    shutil.rmtree(first.checkpoint)
    offsets = read_offsets(folder)
    assert offsets is not None
    assert (made.batch, offsets.batch, offsets.text) == (1, 1, text)
    assert json.loads(tide.starting_offsets(folder)) == {"0": 15, "1": 15}

    publish(topics, range(30, 60))
    second.run(totals(second, topics, savepoint=folder, startingOffsets=tide.starting_offsets(folder)))
    assert [len(batch) for shop in (first, second) for batch in shop.batches()] == [20, 10, 30]
    given = [tuple(row) for shop in (first, second) for batch in shop.batches() for row in batch]
    wanted = [(f"user-{user}", n, n) for user in range(USERS) for n in range(1, 60 // USERS + 1)]
    assert sorted(given) == sorted(wanted)
