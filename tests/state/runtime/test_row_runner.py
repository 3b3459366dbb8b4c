"""The row form: events in order, output of every shape, poison rows undone, errors with the line."""

# ruff: noqa: ARG002 - operators take what they are given, used or not
from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from tidegate.errors import RowFailed, StateInvalid, StorageFull
from tidegate.state.context import BatchContext, Context, Timer
from tidegate.state.kinds.list import ListState
from tidegate.state.kinds.map import MapState
from tidegate.state.kinds.value import ValueState
from tidegate.state.operator import KeyedOperator
from tidegate.testing.operators import OperatorHarness

HERE = __file__


@dataclass
class Click:
    user_id: str
    feature: str
    ts: int
    weight: float | None = None

    def __post_init__(self) -> None:
        if self.feature == "refused":
            raise ValueError("no such feature")


@dataclass
class Total:
    user_id: str
    n: int


class Count(KeyedOperator[Click, Total]):
    n = ValueState(int, default=0)

    def process(self, event: Click, ctx: Context) -> Iterator[Total]:
        n = self.n.value() + 1
        self.n.update(n)
        yield Total(ctx.key, n)


def clicks(text: str, feature: str = "view") -> list[Click]:
    return [Click(user, feature, number) for number, user in enumerate(text)]


def test_each_event_sees_what_the_ones_before_left_for_its_key() -> None:
    """Case 1: the state of one key is never seen while another key is worked on."""
    harness = OperatorHarness(Count(), key="user_id")
    made = harness.feed(clicks("abab"))
    assert [(row["user_id"], row["n"]) for row in made] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert [(row["user_id"], row["n"]) for row in harness.feed(clicks("ca"))] == [("c", 1), ("a", 3)]


def test_without_an_input_type_events_have_their_columns_as_attributes() -> None:
    class Seen(KeyedOperator):
        output = "seen string"

        def process(self, event: Any, ctx: Context) -> Any:
            return (f"{event.user_id} {event._id} {event['odd name']} {event.count} {ctx.timestamp}",)

    rows = [{"user_id": "a", "_id": 7, "odd name": "x", "count": 5}]
    harness = OperatorHarness(Seen(), key="user_id")
    assert harness.feed(rows) == [{"seen": f"a 7 x 5 {harness.now}"}]


def test_a_column_that_is_not_there_is_named() -> None:
    class Wrong(KeyedOperator):
        output = "n long"

        def process(self, event: Any, ctx: Context) -> Any:
            return (event.amount,)

    with pytest.raises(RowFailed, match=r"no column 'amount'; it has user_id, n"):
        OperatorHarness(Wrong(), key="user_id").feed([{"user_id": "a", "n": 1}])


def test_events_may_be_dicts() -> None:
    class Echo(KeyedOperator[dict[str, Any], Any]):
        output = "user_id string, n long"

        def process(self, event: dict[str, Any], ctx: Context) -> Any:
            return event

    rows = [{"user_id": "a", "n": 1}]
    assert OperatorHarness(Echo(), key="user_id").feed(rows) == rows


def test_plain_functions_return_nothing_one_row_or_a_list() -> None:
    class Shapes(KeyedOperator):
        output = "feature string"

        def process(self, event: Any, ctx: Context) -> Any:
            shapes = {
                "none": None,
                "one": ("one",),
                "dict": {"feature": "dict"},
                "list": [("x",), ("y",)],
                "empty": [],
            }
            return shapes[event.feature]

    rows = [{"user_id": "a", "feature": name} for name in ("none", "one", "dict", "list", "empty")]
    made = OperatorHarness(Shapes(), key="user_id").feed(rows)
    assert [row["feature"] for row in made] == ["one", "dict", "x", "y"]


def test_several_key_columns_come_as_a_tuple_and_null_is_a_key() -> None:
    class Keys(KeyedOperator):
        output = "shown string, n long"
        n = ValueState(int, default=0)

        def process(self, event: Any, ctx: Context) -> Any:
            self.n.update(self.n.value() + 1)
            return (repr(ctx.key), self.n.value())

    harness = OperatorHarness(Keys(), key=["user_id", "day"], columns="user_id string, day int")
    rows = [("a", 1), ("a", 2), (None, 1), ("a", None), ("a", 1), (None, 1)]
    made = harness.feed([{"user_id": user, "day": day} for user, day in rows])
    assert [(row["shown"], row["n"]) for row in made] == [
        ("('a', 1)", 1),
        ("('a', 2)", 1),
        ("(None, 1)", 1),
        ("('a', None)", 1),
        ("('a', 1)", 2),
        ("(None, 1)", 2),
    ]


class Everything(KeyedOperator[Click, Total]):
    """Writes every kind of state, then fails on the feature `poison`."""

    n = ValueState(int, default=0)
    seen = ListState(str)
    features = MapState(str, int)

    def process(self, event: Click, ctx: Context) -> Iterator[Total]:
        try:
            self.n.update(self.n.value() + 1)
            yield Total(ctx.key, self.n.value())
            if event.feature == "poison":
                self.seen.clear()
                self.features.clear()
            self.seen.add(event.feature)
            self.features.put(event.feature, (self.features.get(event.feature) or 0) + 1)
            ctx.timer(ctx.timestamp + 1_000)
            if event.feature == "poison":
                raise KeyError(event.feature)
        finally:
            if event.feature == "poison":
                self.n.update(1_000)

    def on_timer(self, timer: Timer, ctx: Context) -> Total:
        return Total(f"timer {ctx.key} {int(timer.at)}", self.n.value())


def remembered(harness: OperatorHarness, key: str) -> tuple[int, list[str], dict[str, int]]:
    with harness.on(key) as operator:
        return operator.n.value(), list(operator.seen.get()), dict(operator.features.entries())


def test_a_poison_row_is_undone_exactly_and_set_aside() -> None:
    good = [Click("a", "view", 1), Click("b", "view", 2), Click("a", "cart", 3)]
    poisoned = [good[0], Click("a", "poison", 50), good[1], Click("c", "poison", 60), good[2]]
    clean = OperatorHarness(Everything(), key="user_id", event_time="ts", sets_aside=True)
    dirty = OperatorHarness(Everything(), key="user_id", event_time="ts", sets_aside=True)
    assert dirty.feed(poisoned) == clean.feed(good)
    for key in "abc":
        assert remembered(dirty, key) == remembered(clean, key)
    assert dirty.advance(watermark=10_000) == clean.advance(watermark=10_000)
    assert (clean.dead, len(dirty.dead)) == ([], 2)
    first = dirty.dead[0]
    assert (first["key"], first["source"], first["error"], first["reason"]) == (
        "a",
        "row",
        "KeyError",
        "'poison'",
    )
    assert json.loads(first["row"]) == {"user_id": "a", "feature": "poison", "ts": 50, "weight": None}


def test_a_row_that_fails_ends_the_batch_with_key_line_and_row_where_none_are_set_aside() -> None:
    harness = OperatorHarness(Everything(), key="user_id", event_time="ts")
    harness.feed([Click("a", "view", 1)])
    before = remembered(harness, "a")
    with pytest.raises(RowFailed) as caught:
        harness.feed([Click("a", "view", 2), Click("a", "poison", 3)])
    line = Everything.process.__code__.co_firstlineno + 11
    message = str(caught.value)
    assert "Operator 'Everything' failed on key a: KeyError: 'poison'" in message
    assert f"{HERE}:{line} in process" in message
    assert '"feature":"poison"' in message
    assert remembered(harness, "a") == before


def test_an_error_whose_text_no_table_can_hold_is_a_dead_letter_all_the_same() -> None:
    class Surrogates(KeyedOperator):
        output = "user_id string"

        def process(self, event: Any, ctx: Context) -> Any:
            raise ValueError(f"half a character: {json.loads(event['text'])}")

    harness = OperatorHarness(Surrogates(), key="user_id", sets_aside=True)
    assert harness.feed([{"user_id": "a", "text": '"\\ud800"'}]) == []
    assert [row["reason"] for row in harness.dead] == ["half a character: \\ud800"]


@pytest.mark.parametrize("sets_aside", [False, True])
def test_a_yield_of_a_wrong_shape_names_its_line(sets_aside: bool) -> None:
    class Wrong(KeyedOperator):
        output = "user_id string, n long"
        n = ValueState(int, default=0)

        def process(self, event: Any, ctx: Context) -> Any:
            self.n.update(1)
            yield ("fine", 1)
            yield ("too short",)

    harness = OperatorHarness(Wrong(), key="user_id", sets_aside=sets_aside)
    place = f"{HERE}:{Wrong.process.__code__.co_firstlineno + 3} in process"
    words = "a tuple of 1 values, where the output has user_id string, n long"
    if not sets_aside:
        with pytest.raises(RowFailed) as caught:
            harness.feed([{"user_id": "a"}])
        assert f"{words} ({place})" in str(caught.value)
        return
    assert harness.feed([{"user_id": "a"}]) == []
    assert (harness.dead[0]["reason"], harness.dead[0]["place"]) == (words, place)
    with harness.on("a") as operator:
        assert operator.n.value() == 0


def test_a_returned_row_of_a_wrong_type_names_the_function() -> None:
    class Wrong(KeyedOperator):
        output = "n int"

        def process(self, event: Any, ctx: Context) -> Any:
            return (2**31,)

    with pytest.raises(RowFailed, match="column 'n' takes int, not 2147483648") as caught:
        OperatorHarness(Wrong(), key="user_id").feed([{"user_id": "a"}])
    assert f"{HERE}:{Wrong.process.__code__.co_firstlineno} in process" in str(caught.value)


def test_rows_that_are_no_event_are_set_aside_and_the_others_go_on() -> None:
    harness = OperatorHarness(Count(), key="user_id", event_time="ts", sets_aside=True)
    rows = [
        {"user_id": "a", "feature": "view", "ts": 1},
        {"user_id": "a", "feature": None, "ts": 2},
        {"user_id": "a", "feature": "refused", "ts": 3},
        {"user_id": "a", "feature": "view", "ts": None},
        {"user_id": "a", "feature": "view", "ts": 5},
    ]
    assert [row["n"] for row in harness.feed(rows)] == [1, 2]
    reasons = [row["reason"] for row in harness.dead]
    assert "feature" in reasons[0]
    assert "no such feature" in reasons[1]
    assert "ts" in reasons[2]
    assert harness.facts is not None
    assert (harness.facts.rows_in, harness.facts.rows_out, harness.facts.dead_rows) == (5, 2, 3)
    assert harness.facts.newest_event_ms == 5


def test_a_null_event_time_is_said_for_events_without_a_type() -> None:
    class Nothing(KeyedOperator):
        output = "n long"

        def process(self, event: Any, ctx: Context) -> Any:
            return None

    harness = OperatorHarness(
        Nothing(), key="user_id", event_time="ts", columns="user_id string, ts timestamp"
    )
    with pytest.raises(RowFailed, match="the event time 'ts' is null"):
        harness.feed([{"user_id": "a", "ts": None}])


def test_a_column_that_does_not_fit_the_event_is_refused_before_any_row() -> None:
    harness = OperatorHarness(Count(), key="user_id", columns="user_id string, feature string, ts string")
    with pytest.raises(StateInvalid, match="field 'ts' of Click is int, but the column is string"):
        harness.feed([{"user_id": "a", "feature": "view", "ts": "1"}])


def test_a_full_disk_is_not_the_rows_fault() -> None:
    class Full(KeyedOperator):
        output = "n long"

        def process(self, event: Any, ctx: Context) -> Any:
            raise StorageFull(place="the state")

    harness = OperatorHarness(Full(), key="user_id", sets_aside=True)
    with pytest.raises(StorageFull):
        harness.feed([{"user_id": "a"}])
    assert harness.dead == []


class SetsTimer(KeyedOperator):
    """Sets a timer that nobody waits for."""

    output = "n long"

    def process(self, event: Any, ctx: Context) -> Any:
        ctx.timer(1, "processing")
        yield (1,)


class SetsTimers(KeyedOperator):
    """The same for a batch of rows."""

    output = "n long"

    def process_batch(self, batch: Any, ctx: BatchContext) -> Any:
        ctx.timer_many(ctx.keys, 1, "processing")
        yield {"n": [1]}


@pytest.mark.parametrize("operator", [SetsTimer(), SetsTimers()])
def test_an_operator_that_is_wrong_on_every_row_ends_the_batch_and_sets_none_aside(
    operator: KeyedOperator[Any, Any],
) -> None:
    harness = OperatorHarness(operator, key="user_id", sets_aside=True)
    with pytest.raises(StateInvalid, match="it sets a timer and has no on_timer"):
        harness.feed([{"user_id": "a"}, {"user_id": "b"}])
    assert not harness.dead


def test_more_rows_than_one_batch_of_output_come_out_in_order() -> None:
    class Many(KeyedOperator):
        output = "n long"

        def process(self, event: Any, ctx: Context) -> Any:
            return [(event.n * 1_000 + number,) for number in range(1_000)]

    made = OperatorHarness(Many(), key="user_id").feed(pa.table({"user_id": ["a"] * 150, "n": range(150)}))
    assert [row["n"] for row in made] == list(range(150_000))
