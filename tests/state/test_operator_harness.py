"""Operators are tested without Spark: rows and times go in, output and state can be looked at."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tidegate.errors import RowFailed, StateInvalid, ValueInvalid
from tidegate.state.context import Context, Timer
from tidegate.state.kinds.list import ListState
from tidegate.state.kinds.map import MapState
from tidegate.state.kinds.value import ValueState
from tidegate.state.operator import KeyedOperator
from tidegate.state.ttl import Ttl
from tidegate.testing import operators
from tidegate.testing.operators import OperatorHarness

GAP = timedelta(minutes=30)
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class UserSession:
    start_time: datetime
    event_count: int = 0
    total_duration_ms: int = 0


@dataclass
class SessionEvent:
    user_id: str
    feature: str
    timestamp: datetime


@dataclass
class SessionOutput:
    user_id: str
    session_duration_ms: int
    event_count: int
    top_features: list[tuple[str, int]]
    is_over: bool = False


class SessionTracker(KeyedOperator[SessionEvent, SessionOutput]):
    """Sums up a user's session every 100 events, and when nothing came for half an hour."""

    session = ValueState(UserSession, ttl=Ttl("24 h"))
    events = ListState(SessionEvent)
    features = MapState(str, int)

    def process(self, event: SessionEvent, ctx: Context) -> Iterator[SessionOutput]:
        session = self.session.value() or UserSession(start_time=event.timestamp)
        session.event_count += 1
        session.total_duration_ms = (event.timestamp - session.start_time) // timedelta(milliseconds=1)
        self.features.put(event.feature, (self.features.get(event.feature) or 0) + 1)
        self.events.add(event)
        self.session.update(session)
        ctx.timer(ctx.timestamp + GAP)
        if session.event_count % 100 == 0:
            yield self._summed_up(ctx.key, session)

    def on_timer(self, timer: Timer, ctx: Context) -> SessionOutput | None:
        session = self.session.value()
        if session is None or timer.at < self.events.get()[-1].timestamp + GAP:
            return None
        made = self._summed_up(ctx.key, session)
        made.is_over = True
        for state in (self.session, self.events, self.features):
            state.clear()
        return made

    def _summed_up(self, user_id: str, session: UserSession) -> SessionOutput:
        features = sorted(self.features.entries(), key=lambda entry: -entry[1])
        return SessionOutput(user_id, session.total_duration_ms, session.event_count, features[:5])


def visit(user: str, feature: str, second: int) -> SessionEvent:
    return SessionEvent(user, feature, START + timedelta(seconds=second))


def tracker() -> OperatorHarness:
    return OperatorHarness(SessionTracker(), key="user_id", event_time="timestamp")


def test_a_session_is_summed_up_every_hundred_events() -> None:
    harness = tracker()
    names = ["search", "view", "view", "cart"]
    events = [visit("ann", names[second % 4], second) for second in range(150)]
    assert harness.feed(events[:60]) == []
    (made,) = harness.feed([*events[60:], visit("bob", "view", 99)])
    assert made["event_count"] == 100
    assert made["session_duration_ms"] == 99_000
    assert [(top["_1"], top["_2"]) for top in made["top_features"]] == [
        ("view", 50),
        ("cart", 25),
        ("search", 25),
    ]
    assert harness.outputs == [made]


def test_a_session_ends_when_nothing_came_for_half_an_hour() -> None:
    harness = tracker()
    harness.feed([visit("ann", "search", 0), visit("bob", "view", 0), visit("ann", "cart", 600)])
    assert harness.advance(watermark=START + GAP) == [
        {
            "user_id": "bob",
            "session_duration_ms": 0,
            "event_count": 1,
            "top_features": [{"_1": "view", "_2": 1}],
            "is_over": True,
        }
    ]
    (ann,) = harness.advance(watermark=START + timedelta(minutes=40))
    assert (ann["user_id"], ann["event_count"], ann["session_duration_ms"]) == ("ann", 2, 600_000)
    assert harness.facts is not None
    assert harness.facts.next_event_timer_ms is None


def test_the_watermark_follows_the_events_of_the_batches_before() -> None:
    harness = OperatorHarness(SessionTracker(), key="user_id", event_time="timestamp", lateness="1 min")
    harness.feed([visit("ann", "search", 100)])
    assert harness.watermark is None
    harness.feed([visit("ann", "search", 50)])
    assert harness.watermark == START + timedelta(seconds=40)
    harness.advance()
    assert harness.watermark == START + timedelta(seconds=40)


def test_state_is_looked_at_and_prepared_by_key() -> None:
    harness = tracker()
    harness.feed([visit("ann", "search", 0)])
    with harness.on("ann") as operator:
        assert operator.session.value() == UserSession(START, 1, 0)
        assert list(operator.features.entries()) == [("search", 1)]
        operator.session.update(UserSession(START, 99, 0))
    assert [made["event_count"] for made in harness.feed([visit("ann", "cart", 5)])] == [100]


def test_time_passes_for_ttl_when_it_is_told_to() -> None:
    """Case 6: at exactly the TTL still there, after it gone."""
    harness = tracker()
    harness.feed([visit("ann", "search", 0)])
    harness.advance(now=harness.now + timedelta(hours=24))
    with harness.on("ann") as operator:
        assert operator.session.value() is not None
    harness.advance(now=harness.now + 1)
    with harness.on("ann") as operator:
        assert operator.session.value() is None


def test_a_batch_that_fails_leaves_everything_as_it_was() -> None:
    class Picky(KeyedOperator):
        output = "n long"
        n = ValueState(int, default=0)

        def process(self, event: Any, ctx: Context) -> Any:  # noqa: ARG002 - nothing is asked of it
            self.n.update(self.n.value() + event.n)
            return (10 // self.n.value(),)

    harness = OperatorHarness(Picky(), key="user_id")
    assert harness.feed([{"user_id": "a", "n": 5}]) == [{"n": 2}]
    with pytest.raises(RowFailed, match="ZeroDivisionError"):
        harness.feed([{"user_id": "a", "n": 1}, {"user_id": "a", "n": -6}])
    assert harness.feed(pa.record_batch({"user_id": ["a"], "n": [5]})) == [{"n": 1}]


class Counting(KeyedOperator):
    output = "n long"
    n = ValueState(int, default=0)

    def process(self, event: Any, ctx: Context) -> Any:  # noqa: ARG002 - nothing is asked of it
        self.n.update(self.n.value() + 1)
        return (self.n.value(),)


@pytest.mark.parametrize(
    "columns", ["user_id int, n int", pa.schema({"user_id": pa.int32(), "n": pa.int32()})]
)
def test_columns_say_the_type_of_the_key_before_the_first_batch(columns: Any) -> None:
    harness = OperatorHarness(Counting(), key="user_id", columns=columns)
    with harness.on(7) as operator:
        operator.n.update(10)
    assert harness.feed([{"user_id": 7, "n": 1}, {"user_id": 8, "n": 1}]) == [{"n": 11}, {"n": 1}]


def test_input_dataclass_says_the_type_of_the_key_too() -> None:
    harness = tracker()
    with harness.on("ann") as operator:
        operator.features.put("search", 5)
    harness.feed([visit("ann", "search", 0)])
    with harness.on("ann") as operator:
        assert operator.features.get("search") == 6


def test_what_cannot_be_asked_yet_is_said() -> None:
    harness = tracker()
    with pytest.raises(ValueInvalid, match="nothing was fed yet"):
        harness.advance()
    nothing_known = OperatorHarness(Counting(), key="user_id")
    with pytest.raises(ValueInvalid, match="nothing was fed yet"), nothing_known.on("ann"):
        pass
    with pytest.raises(StateInvalid, match="the key 'nobody' is no column"):
        OperatorHarness(SessionTracker(), key="nobody").feed([visit("ann", "search", 0)])


def test_the_example_in_the_docstring_runs() -> None:
    runner = doctest.DocTestRunner()
    finder = doctest.DocTestFinder(recurse=False)
    for example in finder.find(OperatorHarness, "OperatorHarness", globs=vars(operators).copy()):
        runner.run(example)
    assert runner.summarize(verbose=False) == (0, 6)
