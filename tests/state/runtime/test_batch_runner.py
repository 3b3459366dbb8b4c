"""The vectorised form: whole batches with their distinct keys; poison rows are found by halving."""

# ruff: noqa: ARG002 - operators take what they are given, used or not
from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.errors import RowFailed
from tidegate.state.context import BatchContext, Context, Timer
from tidegate.state.kinds.list import ListState
from tidegate.state.kinds.value import ValueState
from tidegate.state.operator import KeyedOperator
from tidegate.testing.operators import OperatorHarness


class Count(KeyedOperator):
    output = "user_id string, n long"
    n = ValueState(int, default=0)
    seen = ListState(int)

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Iterator[pa.RecordBatch]:
        totals = self.n.get_many(ctx.keys) + np.bincount(ctx.key_index, minlength=len(ctx.keys))
        self.n.put_many(ctx.keys, totals)
        self.seen.add_many(ctx.row_keys, batch["amount"])
        yield pa.record_batch({"user_id": ctx.keys, "n": totals})
        if pc.any(pc.less(batch["amount"], 0)).as_py():
            raise ValueError("an amount below zero")


def rows(text: str, amounts: list[int] | None = None) -> pa.Table:
    return pa.table({"user_id": list(text), "amount": amounts or list(range(len(text)))})


def totals(made: list[dict[str, Any]]) -> dict[str, int]:
    return {row["user_id"]: row["n"] for row in made}


def test_distinct_keys_are_counted_at_once() -> None:
    harness = OperatorHarness(Count(), key="user_id")
    assert totals(harness.feed(rows("abcab"))) == {"a": 2, "b": 2, "c": 1}
    assert totals(harness.feed(rows("cad"))) == {"a": 3, "c": 2, "d": 1}
    with harness.on("a") as operator:
        assert operator.seen.get() == [0, 3, 1]


def test_poison_rows_are_found_undone_and_set_aside() -> None:
    harness = OperatorHarness(Count(), key="user_id", sets_aside=True)
    amounts = [0, 1, -2, 3, 4, 5, -6, 7, 8]
    made = harness.feed(rows("abababaab", amounts))
    assert totals(made) == {"a": 3, "b": 4}
    assert [(dead["key"], dead["reason"]) for dead in harness.dead] == [
        ("a", "an amount below zero"),
        ("a", "an amount below zero"),
    ]
    assert f"{__file__}:{Count.process_batch.__code__.co_firstlineno + 6}" in harness.dead[0]["place"]
    assert '"amount":-2' in harness.dead[0]["row"]
    with harness.on("a") as operator:
        assert operator.seen.get() == [0, 4, 7]
    assert harness.facts is not None
    assert (harness.facts.rows_in, harness.facts.dead_rows) == (9, 2)


def test_a_batch_that_fails_ends_the_run_with_the_users_line_where_none_are_set_aside() -> None:
    harness = OperatorHarness(Count(), key="user_id")
    with pytest.raises(RowFailed, match="ValueError: an amount below zero") as caught:
        harness.feed(rows("ab", [1, -1]))
    assert f"{__file__}:{Count.process_batch.__code__.co_firstlineno + 6}" in str(caught.value)
    assert totals(harness.feed(rows("ab"))) == {"a": 1, "b": 1}


def test_columns_of_a_wrong_shape_name_the_line_of_the_yield() -> None:
    class Wrong(KeyedOperator):
        output = "n long"

        def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
            yield {"n": [1]}
            yield {"m": [batch.num_rows]}

    with pytest.raises(RowFailed, match="n missing and m unknown") as caught:
        OperatorHarness(Wrong(), key="user_id").feed(rows("a"))
    assert f"{__file__}:{Wrong.process_batch.__code__.co_firstlineno + 2}" in str(caught.value)


@pytest.mark.parametrize(
    "made", [None, [], {"n": [1]}, [{"n": [1]}, {"n": [2]}], pa.table({"n": pa.array([1], pa.int8())})]
)
def test_a_plain_function_may_return_nothing_one_or_a_list(made: Any) -> None:
    class Returns(KeyedOperator):
        output = "n long"

        def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
            return made

    found = OperatorHarness(Returns(), key="user_id").feed(rows("a"))
    parts = made if isinstance(made, list) else [made] if made is not None else []
    assert len(found) == len(parts)


def test_several_key_columns_come_as_structs_and_rows_know_their_key() -> None:
    class Keys(KeyedOperator):
        output = "user_id string, day long, n long"
        n = ValueState(int, default=0)

        def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
            assert ctx.row_keys.to_pylist() == batch.select(["user_id", "day"]).to_pylist()
            totals = self.n.get_many(ctx.keys) + np.bincount(ctx.key_index, minlength=len(ctx.keys))
            self.n.put_many(ctx.keys, totals)
            return {"user_id": ctx.keys.field("user_id"), "day": ctx.keys.field("day"), "n": totals}

    harness = OperatorHarness(Keys(), key=["user_id", "day"])
    table = pa.table({"user_id": ["a", "a", None, "a"], "day": [1, 2, 1, 1]})
    harness.feed(table)
    found = {(row["user_id"], row["day"]): row["n"] for row in harness.feed(table)}
    assert found == {("a", 1): 4, ("a", 2): 2, (None, 1): 2}


class Alarms(KeyedOperator):
    output = "user_id string, at long, newest long"
    newest = ValueState(int, default=0)

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> None:
        assert ctx.timestamps is not None
        newest = self.newest.get_many(ctx.keys)
        np.maximum.at(newest, ctx.key_index, ctx.timestamps)
        self.newest.put_many(ctx.keys, newest)
        ctx.timer_many(ctx.keys, newest + 1_000)
        ctx.timer_many(ctx.row_keys, batch["ts"])
        ctx.timer_many(ctx.keys.slice(0, 1), datetime(2026, 1, 1, tzinfo=UTC))

    def on_timer(self, timer: Timer, ctx: Context) -> Any:
        return ctx.key, timer.at, self.newest.value()


def test_timers_are_set_for_many_keys_and_fire_one_by_one() -> None:
    harness = OperatorHarness(
        Alarms(), key="user_id", event_time="ts", columns="user_id string, ts timestamp"
    )
    at = [datetime.fromtimestamp(second, UTC) for second in (1, 2, 3)]
    harness.feed([{"user_id": user, "ts": one} for user, one in zip("aba", at, strict=True)])
    made = harness.advance(watermark=4_000)
    assert [(row["user_id"], row["at"], row["newest"]) for row in made] == [
        ("a", 1_000, 3_000),
        ("b", 2_000, 2_000),
        ("a", 3_000, 3_000),
        ("b", 3_000, 2_000),
        ("a", 4_000, 3_000),
    ]
    assert len(harness.advance(watermark=datetime(2026, 1, 1, tzinfo=UTC))) == 1


@pytest.mark.parametrize(
    ("keys", "ats", "words"),
    [(["nobody"], 5, "'nobody' is not among the keys"), (["a"], [1, 2], "2 times for 1 keys")],
)
def test_wrong_timers_are_refused(keys: list[str], ats: Any, words: str) -> None:
    class Wrong(Alarms):
        def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> None:
            ctx.timer_many(keys, ats)

    with pytest.raises(RowFailed, match=words):
        OperatorHarness(Wrong(), key="user_id").feed(rows("a"))


def test_rows_without_an_event_time_are_set_aside_and_the_others_go_on() -> None:
    harness = OperatorHarness(
        Alarms(), key="user_id", event_time="ts", columns="user_id string, ts timestamp", sets_aside=True
    )
    at = datetime.fromtimestamp(1, UTC)
    harness.feed([{"user_id": "a", "ts": None}, {"user_id": "b", "ts": at}, {"user_id": "c", "ts": None}])
    assert [(dead["key"], dead["event_time"]) for dead in harness.dead] == [("a", None), ("c", None)]
    assert {row["user_id"] for row in harness.advance(watermark=5_000)} == {"b"}
