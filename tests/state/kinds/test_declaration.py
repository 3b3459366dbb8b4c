"""The kinds of state: what each method gives, in the row form and for batches, on both backends."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.checkpoint.bench import Bench
from tidegate.errors import StateCorrupt, StateOutsideKey, ValueInvalid
from tidegate.state.kinds.declaration import State
from tidegate.state.kinds.list import ListState
from tidegate.state.kinds.map import MapState
from tidegate.state.kinds.operator_list import OperatorListState
from tidegate.state.kinds.reducing import AggregateFunction, AggregatingState, ReducingState
from tidegate.state.kinds.value import ValueState


@dataclass
class Session:
    start_time: int
    pages: list[str] = field(default_factory=list)


@dataclass
class Mean:
    total: float = 0.0
    count: int = 0


class Average(AggregateFunction[float, Mean, float]):
    accumulator = Mean

    def create(self) -> Mean:
        return Mean()

    def add(self, accumulator: Mean, value: float) -> Mean:
        return Mean(accumulator.total + value, accumulator.count + 1)

    def result(self, accumulator: Mean) -> float:
        return accumulator.total / accumulator.count


@pytest.fixture(params=["heap", "rocksdb"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(request.param, tmp_path / "copy")
    yield bench.batch()
    bench.backend.close()


def test_a_value_belongs_to_its_key_alone(bench: Bench) -> None:
    """Case 1: state of one key is never seen while another key is worked on."""
    state = bench.bind(ValueState(int))
    bench.on("ann")
    state.update(1)
    bench.on("bob")
    assert state.value() is None
    bench.on("ann")
    assert state.value() == 1
    state.clear()
    assert state.value() is None


def test_values_outlive_the_batch(bench: Bench) -> None:
    declared = ValueState(Session)
    state = bench.bind(declared)
    bench.on("ann")
    state.update(Session(7, ["home"]))
    bench.commit()
    state = bench.batch().bind(declared)
    bench.on("ann")
    assert state.value() == Session(7, ["home"])


def test_what_is_changed_in_place_is_not_kept_without_update(bench: Bench) -> None:
    state = bench.bind(ValueState(Session))
    bench.on("ann")
    mine = Session(1)
    state.update(mine)
    mine.pages.append("late")
    found = state.value()
    assert found == Session(1)
    found.pages.append("later")
    assert state.value() == Session(1)


def test_a_default_that_can_be_changed_is_never_shared(bench: Bench) -> None:
    default = Session(0)
    state = bench.bind(ValueState(Session, default=default))
    bench.on("ann")
    state.value().pages.append("home")
    bench.on("bob")
    assert state.value() == Session(0)
    assert default.pages == []


@pytest.mark.parametrize(
    "use",
    [
        lambda bench: bench.bind(ValueState(int)).value(),
        lambda bench: bench.bind(ValueState(int)).update(1),
        lambda bench: bench.bind(ValueState(int)).get_many(pa.array(["ann"])),
        lambda bench: bench.bind(ListState(int)).add(1),
        lambda bench: bench.bind(MapState(str, int)).is_empty(),
        lambda bench: bench.bind(ReducingState(int, max)).get(),
        lambda bench: bench.bind(AggregatingState(Average())).add(1.0),
        lambda _: ValueState(int).value(),
        lambda _: ListState(int).get(),
        lambda _: MapState(str, int).put("a", 1),
        lambda _: ReducingState(int, max).add(1),
        lambda _: OperatorListState(int).get(),
    ],
)
def test_state_outside_a_key_is_an_error(bench: Bench, use: Any) -> None:
    """Case 1: reading it outside a key is an error."""
    with pytest.raises(StateOutsideKey):
        use(bench)


@pytest.mark.parametrize(
    "use",
    [
        lambda state: state.value.update(1),
        lambda state: state.value.clear(),
        lambda state: state.value.put_many([], []),
        lambda state: state.elements.add_all([]),
        lambda state: state.elements.update([]),
        lambda state: state.elements.add_many([], []),
        lambda state: state.entries.put_all({}),
        lambda state: state.entries.clear(),
        lambda state: state.entries.entries(),
        lambda state: state.entries.get_many([], []),
        lambda state: state.most.get_many([]),
        lambda state: state.mean.add_many([], []),
        lambda state: state.instance.update([]),
        lambda state: state.instance.clear(),
    ],
)
def test_a_declared_state_names_itself_in_the_error_also_after_a_copy(bench: Bench, use: Any) -> None:
    class Operator:
        value = ValueState(int)
        elements = ListState(int)
        entries = MapState(str, int)
        most = ReducingState(int, max)
        mean = AggregatingState(Average())
        instance = OperatorListState(int)

    for number, state in enumerate(list(vars(Operator).values())):
        if isinstance(state, State):
            bench.bind(state, number)  # what is bound is a copy
    with pytest.raises(StateOutsideKey, match=r"'(value|elements|entries|most|mean|instance)'"):
        use(Operator)
    with pytest.raises(StateOutsideKey, match=r"'(value|elements|entries|most|mean|instance)'"):
        use(copy.deepcopy(Operator()))
    copied = copy.deepcopy(Operator.value)
    assert copied.spec() == Operator.value.spec()
    assert bench.bind(copied).get_many(bench.on_all(["ann"])).to_pylist() == [None]


def test_leaving_a_key_ends_its_state(bench: Bench) -> None:
    state = bench.bind(ValueState(int, name="n"))
    bench.on("ann")
    state.update(1)
    bench.cursor.leave()
    with pytest.raises(StateOutsideKey, match="'n'"):
        state.value()


def test_a_list_keeps_the_order_over_batches(bench: Bench) -> None:
    declared = ListState(str)
    state = bench.bind(declared)
    bench.on("ann")
    state.add("a")
    bench.on("bob")
    state.add("x")
    bench.on("ann")
    state.add_all(["b", "c"])
    bench.commit()
    state = bench.batch().bind(declared)
    bench.on("ann")
    state.add("d")
    assert state.get() == ["a", "b", "c", "d"]
    state.update(reversed(state.get()))
    assert state.get() == ["d", "c", "b", "a"]
    bench.commit()
    state = bench.batch().bind(declared)
    bench.on("ann")
    assert state.get() == ["d", "c", "b", "a"]
    state.clear()
    state.add("e")
    assert state.get() == ["e"]
    bench.on("bob")
    assert state.get() == ["x"]


def test_adding_to_a_list_reads_nothing_and_puts_one_entry(bench: Bench) -> None:
    """Case 1: adding to a long list costs one put."""
    declared = ListState(int)
    state = bench.bind(declared)
    bench.on("ann")
    state.add_all(range(10_000))
    bench.commit()
    state = bench.batch().bind(declared)
    bench.on("ann")
    bench.backend.close()  # a read would fail from here on
    state.add(1)
    changes = bench.stage.take()
    assert len(changes.entries) == 1
    assert not changes.ranges


def test_a_map_answers_as_a_dict_does_in_key_order(bench: Bench) -> None:
    declared = MapState(int, str)
    state = bench.bind(declared)
    bench.on("ann")
    assert state.is_empty()
    state.put_all({3: "c", -1: "z", 20: "t"})
    bench.commit()
    state = bench.batch().bind(declared)
    bench.on("ann")
    state.put(1, "a")
    state.remove(20)
    state.remove(99)
    assert state.keys() == [-1, 1, 3]
    assert state.values() == ["z", "a", "c"]
    assert state.entries() == [(-1, "z"), (1, "a"), (3, "c")]
    assert (state.get(3), state.get(20), state.contains(1), state.contains(20)) == ("c", None, True, False)
    assert not state.is_empty()
    bench.on("bob")
    assert state.is_empty()
    assert state.get(3) is None
    bench.on("ann")
    state.clear()
    assert state.is_empty()
    assert state.get(3) is None
    state.put(5, "e")
    assert state.entries() == [(5, "e")]


@pytest.mark.parametrize("key", [True, b"\x00\xff", 1.5, date(2024, 2, 29), ("a", 1)])
def test_maps_take_keys_of_every_plain_type(bench: Bench, key: Any) -> None:
    kind: Any = tuple[str, int] if isinstance(key, tuple) else type(key)
    state = bench.bind(MapState(kind, int))
    bench.on("ann")
    state.put(key, 1)
    assert state.entries() == [(key, 1)]


def test_reducing_and_aggregating_fold_what_is_added(bench: Bench) -> None:
    longest = bench.bind(ReducingState(int, np.maximum), 1)
    words = bench.bind(ReducingState(str, lambda a, b: a + b), 2)
    average = bench.bind(AggregatingState(Average()), 3)
    bench.on("ann")
    assert (longest.get(), words.get(), average.get()) == (None, None, None)
    for number, word in ((3, "a"), (9, "b"), (4, "c")):
        longest.add(number)
        words.add(word)
        average.add(float(number))
    assert (longest.get(), words.get(), average.get()) == (9, "abc", 16 / 3)
    assert type(longest.get()) is int
    average.clear()
    assert average.get() is None


def test_operator_state_needs_no_key(bench: Bench) -> None:
    """Case 2: operator state beside keyed state."""
    declared = OperatorListState(str, redistribute="union")
    state = bench.bind(declared)
    state.add_all(["a", "b"])
    bench.commit()
    state = bench.batch().bind(declared)
    bench.on("ann")
    state.add("c")
    assert state.get() == ["a", "b", "c"]
    state.update(["d"])
    assert state.get() == ["d"]
    assert state.redistribute == "union"
    with pytest.raises(ValueInvalid, match="split, union"):
        OperatorListState(str, redistribute="scatter")  # type: ignore[arg-type]


def test_damaged_bytes_name_operator_state_and_key(bench: Bench) -> None:
    """Case 4: corrupt bytes are an error with operator, state and key."""
    state = bench.bind(ValueState(Session, name="session"))
    numbers = bench.bind(ValueState(int, name="number", default=0), 2)
    bench.on("ann")
    state.update(Session(1))
    numbers.update(1)
    entries = list(bench.stage.take().entries)
    for damaged in (b"\x01\x00\xc1 rubbish", b"", b"\x01", b"\x01\x01short", b"\x09\x00abc", b"\x00\x00"):
        bench.stage.put(entries[0], damaged)
        bench.stage.put(entries[1], damaged)
        with pytest.raises(StateCorrupt, match="'sessions', state 'session', key 'ann'"):
            state.value()
        with pytest.raises(StateCorrupt, match="'sessions', state 'number', key 'ann'"):
            numbers.value()
        keys = bench.on_all(["ann"])
        with pytest.raises(StateCorrupt, match="'sessions', state 'session', key 'ann'"):
            state.get_many(keys)
        with pytest.raises(StateCorrupt, match="'sessions', state 'number', key 'ann'"):
            numbers.get_many(keys)


def test_values_that_the_type_does_not_take_are_refused_and_change_nothing(bench: Bench) -> None:
    state = bench.bind(ValueState(int))
    bench.on("ann")
    with pytest.raises(ValueInvalid):
        state.update("one")  # type: ignore[arg-type]
    with pytest.raises(ValueInvalid):
        state.update(2**63)
    assert state.value() is None


def test_the_name_is_that_of_the_attribute_unless_told() -> None:
    class Operator:
        count = ValueState(int)
        other = ValueState(int, name="kept")

    assert (Operator.count.name, Operator.other.name) == ("count", "kept")
    spec = Operator.count.spec()
    assert (spec.name, spec.kind, spec.types, spec.version) == ("count", "value", ("int",), 1)


def test_a_default_of_another_type_is_refused_before_any_row() -> None:
    with pytest.raises(ValueInvalid, match="default of state 'count'"):
        ValueState(int, default="none", name="count").spec()


@pytest.mark.parametrize("version", [0, 256])
def test_versions_fit_a_byte(version: int) -> None:
    with pytest.raises(ValueInvalid, match="between 1 and 255"):
        ValueState(int, version=version)
