"""Timers of keyed operators: for idle keys and idle partitions, by both clocks, woken by ticks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.pipeline.stateful.keyed_jobs import Idle, Shop
from tidegate.errors import StateMismatch
from tidegate.pipeline.stateful.keyed import process

pytestmark = pytest.mark.spark

# Far more than a batch takes on a loaded machine; a test waits no longer than it must.
WAIT_SECONDS_MAX = 60


@pytest.fixture
def shop(spark: Any, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path / "shop")


def idle(
    shop: Shop, clock: Literal["event", "processing"], *, watermark: str | None = None, **options: Any
) -> Any:
    given: dict[str, Any] = {
        "name": "idle",
        "key": "user",
        "operator": Idle(clock),
        "event_time": "at",
        "partitions": 4,
    }
    given |= {"checkpoint": shop.checkpoint, "local_dir": shop.folder / "local"}
    return process(shop.stream(watermark), **(given | options))


def fired(shop: Shop) -> list[list[Any]]:
    return [row for batch in shop.batches() for row in batch]


@pytest.mark.parametrize("watermark", [None, "0 seconds"])
def test_event_timers_of_idle_keys_fire_when_the_watermark_passes_them(
    shop: Shop, watermark: str | None
) -> None:
    """Case 11: event time; the keys that wait have no rows any more, nor have most partitions."""
    shop.add(*((f"user-{n}", 5_000, 100) for n in range(8)))
    shop.add(("late", 1_000_000, 104))
    shop.add(("late", 1_000_000, 105))
    shop.run(idle(shop, "event", watermark=watermark))
    # By the rows alone the last batch begins with the watermark 104; the tick after it sees 105.
    assert fired(shop) == [[f"user-{n}", 1, 105_000] for n in range(8)]
    assert [len(batch) for batch in shop.batches()] == [0, 0, 0, 8]


def test_without_ticks_timers_wait_for_the_next_rows(shop: Shop) -> None:
    shop.add(("a", 1_000, 100))
    shop.add(("b", 1_000_000, 200))
    shop.run(idle(shop, "event", ticks=None))
    assert fired(shop) == []
    shop.add(("b", 1_000_000, 201))
    shop.run(idle(shop, "event", ticks=None))
    assert fired(shop) == [["a", 1, 101_000]]
    # Spark adds no source to a checkpoint.
    with pytest.raises(StateMismatch, match="began without ticks"):
        idle(shop, "event")


def test_processing_timers_fire_while_no_rows_come_and_idle_pipelines_run_no_batches(shop: Shop) -> None:
    """Case 11: processing time."""
    shop.add(*((f"user-{n}", 1_500, 100) for n in range(8)))
    query = shop.start(idle(shop, "processing"))
    try:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while len(fired(shop)) < 8 and time.monotonic() < deadline and query.isActive:
            time.sleep(0.1)
        assert sorted(row[:2] for row in fired(shop)) == [[f"user-{n}", 1] for n in range(8)]
        batches = len(shop.batches())
        time.sleep(1.5)
        assert len(shop.batches()) == batches
    finally:
        query.stop()
    assert query.exception() is None


def test_timers_survive_a_restart_with_another_parallelism(shop: Shop) -> None:
    shop.add(*((f"user-{n}", 5_000, 100) for n in range(8)))
    shop.run(idle(shop, "event", partitions=2))
    assert fired(shop) == []
    shop.add(("late", 1_000_000, 105))
    shop.run(idle(shop, "event", partitions=3))
    assert sorted(fired(shop)) == [[f"user-{n}", 1, 105_000] for n in range(8)]
    # Nor does Spark take one away: ticks that are not wanted any more stay, asleep.
    shop.add(("late", 1_000_000, 106))
    shop.run(idle(shop, "event", ticks=None))
    assert shop.batches()[-1] == []
