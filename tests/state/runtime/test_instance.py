"""One operator on one partition for one batch: open and close, timers, times, old versions, both backends."""

# ruff: noqa: ARG002 - operators take what they are given, used or not
from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from tests.checkpoint.backends.opening import open_backend
from tests.checkpoint.keys.key_groups import instance_of
from tidegate.checkpoint.backend import Version
from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.checkpoint.commit_record import RunFacts
from tidegate.checkpoint.keys.codec import KeyType, StateKeyCodec
from tidegate.errors import InvariantBroken, RowFailed, StateInvalid, ValueInvalid
from tidegate.state.context import Context, OpenContext, Timer
from tidegate.state.kinds.list import ListState
from tidegate.state.kinds.map import MapState
from tidegate.state.kinds.operator_list import OperatorListState
from tidegate.state.kinds.value import ValueState
from tidegate.state.operator import KeyedOperator
from tidegate.state.operator_plan import plan_operator
from tidegate.state.runtime.chunks import GROUP_COLUMN
from tidegate.state.runtime.instance import BatchTimes, InstanceSettings, OperatorInstance
from tidegate.state.schema.migrations import Migration
from tidegate.state.schema.schema import OperatorSchema, plan_schema
from tidegate.state.write_batch import WriteBatch
from tidegate.testing.operators import MAX_PARALLELISM, OperatorHarness

MINUTE_MS = 60_000
GROUPS = 16


class Partition:
    """One partition with a backend of its own, fed batch by batch as a task does."""

    def __init__(self, backend: str, folder: Path, place: InstanceSettings) -> None:
        self.backend = open_backend(backend, folder, RocksSettings())
        self.place = place
        self.number = -1

    def feed(
        self, operator: KeyedOperator[Any, Any], table: pa.Table, step: int
    ) -> tuple[list[Any], RunFacts]:
        """Feed the rows of this partition, cut into pieces of `step` rows."""
        plan = plan_operator(operator, "op")
        key = KeyType.from_arrow(["user_id"], table.schema)
        groups = StateKeyCodec(key).groups_of([table["user_id"].combine_chunks()], GROUPS)
        rows = table.append_column(GROUP_COLUMN, pa.array(groups))
        mine = [instance_of(int(g), self.place.parallelism, GROUPS) == self.place.partition for g in groups]
        batches = rows.filter(pa.array(mine, pa.bool_())).to_batches(max_chunksize=step)
        self.number += 1
        schema: OperatorSchema = plan_schema(None, plan.schema_request(key, GROUPS))
        instance = OperatorInstance(plan, schema, self.place)
        stage = WriteBatch(self.backend)
        times = BatchTimes(self.number, None, 1_000 * self.number)
        made = [row for batch in instance.run(stage, batches, times) for row in batch.to_pylist()]
        self.backend.apply(stage.take(), Version(0, self.number, "test"))
        return made, instance.facts()


@dataclass
class Event:
    user_id: int
    word: str


class Words(KeyedOperator[Event, Any]):
    output = "user_id long, n long, last string, words map<string, long>"
    n = ValueState(int, default=0)
    all = ListState(str)
    counts = MapState(str, int)

    def process(self, event: Event, ctx: Context) -> Iterator[Any]:
        if event.word == "forget":
            self.n.clear()
            self.all.clear()
            self.counts.clear()
            return
        self.n.update(self.n.value() + 1)
        self.all.add(event.word)
        self.counts.put(event.word, (self.counts.get(event.word) or 0) + 1)
        yield ctx.key, self.n.value(), "".join(self.all.get()), dict(self.counts.entries())


def expected_words(rows: list[tuple[int, str]], known: dict[int, list[str]]) -> list[dict[str, Any]]:
    made = []
    for user, word in rows:
        if word == "forget":
            known.pop(user, None)
            continue
        words = known.setdefault(user, [])
        words.append(word)
        counts = sorted(Counter(words).items())
        made.append({"user_id": user, "n": len(words), "last": "".join(words), "words": counts})
    return made


EVENTS = st.lists(st.tuples(st.integers(-3, 3), st.sampled_from(["a", "b", "forget"])), max_size=30)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(EVENTS, min_size=1, max_size=4), step=st.integers(1, 9), parallelism=st.integers(1, 3)
)
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_output_is_that_of_plain_dicts_whatever_the_pieces_and_the_partitions(
    backend: str, batches: list[list[tuple[int, str]]], step: int, parallelism: int, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("state")
    partitions = [
        Partition(backend, folder / str(n), InstanceSettings(n, parallelism)) for n in range(parallelism)
    ]
    known: dict[int, list[str]] = {}
    for rows in batches:
        table = pa.table(
            {
                "user_id": pa.array([r[0] for r in rows], pa.int64()),
                "word": pa.array([r[1] for r in rows], pa.string()),
            }
        )
        made = [row for one in partitions for row in one.feed(Words(), table, step)[0]]
        expected = expected_words(rows, known)
        for user in range(-3, 4):
            assert [r for r in made if r["user_id"] == user] == [r for r in expected if r["user_id"] == user]
    for one in partitions:
        one.backend.close()


class Traced(KeyedOperator):
    output = "n long"
    n = ValueState(int, default=0)
    opened = OperatorListState(int)

    def __init__(self, fails_in: str = "") -> None:
        self.fails_in = fails_in
        self.calls: list[str] = []

    def open(self, ctx: OpenContext) -> None:
        self.calls.append(f"open {ctx.partition}/{ctx.parallelism} batch {ctx.batch}")
        self.opened.add(ctx.batch)
        self._fail("open")

    def process(self, event: Any, ctx: Context) -> Any:
        self._fail("process")
        return (len(list(self.opened.get())),)

    def close(self) -> None:
        self.calls.append("close")
        self._fail("close")

    def _fail(self, where: str) -> None:
        if self.fails_in == where:
            raise RuntimeError(f"no {where}")


def test_open_and_close_are_called_once_a_batch_and_the_operator_itself_stays_unbound() -> None:
    """Case 2: operator state is there beside keyed state, in open too."""
    operator = Traced()
    harness = OperatorHarness(operator, key="user_id")
    assert harness.feed([{"user_id": "a"}, {"user_id": "b"}]) == [{"n": 1}, {"n": 1}]
    assert harness.feed([{"user_id": "a"}]) == [{"n": 2}]
    assert operator.calls == ["open 0/1 batch 0", "close", "open 0/1 batch 1", "close"]
    assert "n" not in vars(operator)


@pytest.mark.parametrize(
    ("where", "error", "words", "calls"),
    [
        ("open", StateInvalid, "its open failed: RuntimeError: no open", ["open 0/1 batch 0"]),
        ("process", RowFailed, "RuntimeError: no process", ["open 0/1 batch 0", "close"]),
        ("close", StateInvalid, "its close failed: RuntimeError: no close", ["open 0/1 batch 0", "close"]),
    ],
)
def test_an_error_names_the_users_line_and_keeps_nothing(
    where: str, error: type[Exception], words: str, calls: list[str]
) -> None:
    operator = Traced(where)
    harness = OperatorHarness(operator, key="user_id")
    with pytest.raises(error, match=words) as caught:
        harness.feed([{"user_id": "a"}])
    assert f"{__file__}:{Traced._fail.__code__.co_firstlineno + 2} in _fail" in str(caught.value)
    assert operator.calls == calls
    operator.fails_in = ""
    assert harness.feed([{"user_id": "a"}]) == [{"n": 1}]


def test_keyed_state_in_open_is_refused() -> None:
    class Early(Traced):
        def open(self, ctx: OpenContext) -> None:
            self.n.value()

    with pytest.raises(StateInvalid, match="State 'n' was used while no key is being worked on"):
        OperatorHarness(Early(), key="user_id").feed([{"user_id": "a"}])


def test_output_that_is_not_read_to_its_end_closes_the_operator_and_has_no_facts() -> None:
    operator = Traced()
    plan = plan_operator(operator, "op")
    batch = pa.record_batch({"user_id": ["a"], GROUP_COLUMN: pa.array([0], pa.int32())})
    schema = plan_schema(None, plan.schema_request(KeyType.from_arrow(["user_id"], batch.schema), GROUPS))
    instance = OperatorInstance(plan, schema, InstanceSettings(0, 1))
    harness = OperatorHarness(operator, key="user_id")
    made = instance.run(WriteBatch(harness._backend), [batch], BatchTimes(0, None, 0))
    next(made)
    made.close()  # type: ignore[attr-defined]
    assert operator.calls[-1] == "close"
    with pytest.raises(InvariantBroken):
        instance.facts()


class Sleeper(KeyedOperator):
    """Sets a timer for each event; a timer of a `chain` sets the next, a minute later, twice."""

    output = "key string, at long, clock string, n long"
    n = ValueState(int, default=0)

    def process(self, event: Any, ctx: Context) -> Any:
        if event.word == "cancel":
            ctx.cancel_timer(event.ts)
        elif event.word == "processing":
            ctx.timer(ctx.now + timedelta(minutes=1), clock="processing")
        elif event.word == "twice":
            ctx.timer(event.ts)
            ctx.timer((ctx.timestamp).datetime())
        else:
            ctx.timer(ctx.timestamp + MINUTE_MS)
        self.n.update(1)

    def on_timer(self, timer: Timer, ctx: Context) -> Any:
        n = self.n.value()
        yield ctx.key, int(timer.at), timer.clock, n
        if ctx.key == "poison":
            raise ValueError("timer")
        if ctx.key == "again":
            ctx.timer(timer.at)
        if ctx.key == "chain" and n < 3:
            self.n.update(n + 1)
            ctx.timer(ctx.timestamp + MINUTE_MS)


def slept(made: list[dict[str, Any]]) -> list[tuple[str, int, str, int]]:
    return [(row["key"], row["at"], row["clock"], row["n"]) for row in made]


def sleeper(**options: Any) -> OperatorHarness:
    return OperatorHarness(
        Sleeper(), key="user_id", event_time="ts", columns="user_id string, word string, ts long", **options
    )


def event(user: str, word: str, ts: int) -> dict[str, Any]:
    return {"user_id": user, "word": word, "ts": ts}


def test_timers_fire_for_keys_without_rows_in_order_of_time() -> None:
    """Case 11: keys with no rows in a batch still get their timers."""
    harness = sleeper()
    assert harness.feed([event("late", "x", 5_000), event("early", "x", 1_000)]) == []
    assert harness.advance(watermark=MINUTE_MS) == []
    assert harness.facts is not None
    assert harness.facts.next_event_timer_ms == MINUTE_MS + 1_000
    assert slept(harness.advance(watermark=10 * MINUTE_MS)) == [
        ("early", MINUTE_MS + 1_000, "event", 1),
        ("late", MINUTE_MS + 5_000, "event", 1),
    ]
    assert harness.advance(watermark=20 * MINUTE_MS) == []
    assert harness.facts.next_event_timer_ms is None


def test_a_timer_that_is_due_already_fires_after_the_rows_and_once() -> None:
    harness = sleeper()
    made = harness.feed([event("a", "twice", 1_000), event("b", "x", 0)], watermark=5_000)
    assert slept(made) == [("a", 1_000, "event", 1)]


def test_timers_set_by_timers_fire_in_the_same_batch_when_due() -> None:
    harness = sleeper()
    harness.feed([event("chain", "x", 0)])
    assert [row[1] for row in slept(harness.advance(watermark=2 * MINUTE_MS))] == [MINUTE_MS, 2 * MINUTE_MS]
    assert slept(harness.advance(watermark=9 * MINUTE_MS)) == [("chain", 3 * MINUTE_MS, "event", 3)]


def test_processing_timers_go_by_the_batchs_time() -> None:
    harness = sleeper()
    harness.feed([event("a", "processing", 0)])
    start = harness.now
    assert harness.facts is not None
    assert harness.facts.next_processing_timer_ms == start + MINUTE_MS
    assert harness.advance(now=start + MINUTE_MS - 1) == []
    assert slept(harness.advance(now=start + MINUTE_MS)) == [("a", start + MINUTE_MS, "processing", 1)]


def test_a_timer_that_asks_for_its_own_time_again_is_refused() -> None:
    harness = sleeper()
    harness.feed([event("again", "x", 0)])
    with pytest.raises(RowFailed, match=r"is not after .*; it was a timer") as caught:
        harness.advance(watermark=2 * MINUTE_MS)
    assert isinstance(caught.value.__cause__, ValueInvalid)


def test_a_timer_that_fails_is_set_aside_and_does_not_fire_again() -> None:
    harness = sleeper(sets_aside=True)
    harness.feed([event("poison", "x", 0), event("fine", "x", 0)])
    assert [row[0] for row in slept(harness.advance(watermark=2 * MINUTE_MS))] == ["fine"]
    (dead,) = harness.dead
    assert (dead["key"], dead["source"], dead["reason"], dead["row"]) == ("poison", "timer", "timer", None)
    assert harness.advance(watermark=3 * MINUTE_MS) == []


def test_a_cancelled_timer_does_not_fire() -> None:
    harness = sleeper()
    harness.feed([event("a", "x", 0), event("b", "x", 0)])
    harness.feed([event("a", "cancel", MINUTE_MS)])
    assert [row[0] for row in slept(harness.advance(watermark=2 * MINUTE_MS))] == ["b"]


def test_a_timer_without_on_timer_is_refused() -> None:
    class Deaf(KeyedOperator):
        output = "n long"

        def process(self, event: Any, ctx: Context) -> Any:
            ctx.timer(5)

    with pytest.raises(RowFailed, match="has no on_timer"):
        OperatorHarness(Deaf(), key="user_id").feed([{"user_id": "a"}])


@dataclass
class Old:
    clicks: int


@dataclass
class New:
    count: int
    name: str = "?"


class First(KeyedOperator):
    output = "n long"
    seen = ValueState(Old)

    def process(self, event: Any, ctx: Context) -> Any:
        self.seen.update(Old(5))


class Second(KeyedOperator):
    output = "n long, name string"
    seen = ValueState(New, version=2, migrations=[Migration(1, 2, lambda old: {"count": old["clicks"]})])

    def process(self, event: Any, ctx: Context) -> Any:
        found = self.seen.value()
        return None if found is None else (found.count, found.name)


def test_values_of_an_older_version_are_brought_up_when_they_are_read() -> None:
    """Case 14: read lazily, through the migrations."""
    first, second = OperatorHarness(First(), key="user_id"), OperatorHarness(Second(), key="user_id")
    first.feed([{"user_id": "a"}])
    key = KeyType.from_arrow(["user_id"], pa.schema([("user_id", pa.string())]))
    wanted = replace(second.plan.schema_request(key, MAX_PARALLELISM), operator="First")
    second._backend = first._backend
    second._schema = plan_schema(first._schema, wanted)
    assert second.feed([{"user_id": "a"}, {"user_id": "b"}]) == [{"n": 5, "name": "?"}]


def test_an_operator_travels_to_a_process_that_does_not_have_its_module(tmp_path: Path) -> None:
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        (tmp_path / "operator").write_bytes(cloudpickle.dumps((Words(), plan_operator(Words(), "words"))))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    code = """
import sys
from pyspark import cloudpickle
operator, plan = cloudpickle.load(open("operator", "rb"))
from tidegate.testing.operators import OperatorHarness
harness = OperatorHarness(operator, key="user_id")
rows = [{"user_id": 1, "word": "a"}, {"user_id": 1, "word": "b"}]
print([row["last"] for row in harness.feed(rows)], plan.out_schema.names, "tests.state" in sys.modules)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.stdout.strip() == "['a', 'ab'] ['user_id', 'n', 'last', 'words'] False", ran.stderr
