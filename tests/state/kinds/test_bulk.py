"""States for whole batches: one entry for each of many keys, as numpy or Arrow, beside the row form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.checkpoint.bench import Bench
from tests.state.kinds.test_declaration import Average
from tidegate.errors import ValueInvalid
from tidegate.state.cursor import KeyBatch
from tidegate.state.kinds.list import ListState
from tidegate.state.kinds.map import MapState
from tidegate.state.kinds.reducing import AggregatingState, ReducingState
from tidegate.state.kinds.value import ValueState
from tidegate.state.ttl import Ttl

KEYS = ["ann", "bob", "cid"]


@dataclass
class Point:
    x: int
    y: int = 0


@pytest.fixture(params=["heap", "rocksdb"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(request.param, tmp_path / "copy")
    yield bench.batch()
    bench.backend.close()


@pytest.mark.parametrize("ttl", [None, Ttl("1 min")])
def test_numbers_with_a_default_are_numpy(bench: Bench, ttl: Ttl | None) -> None:
    declared = ValueState(int, default=5, ttl=ttl)
    state = bench.bind(declared)
    keys = bench.on_all(KEYS)
    found = state.get_many(keys)
    assert (found.dtype, found.tolist()) == (np.dtype("i8"), [5, 5, 5])
    state.put_many(pa.array(["bob", "ann"]), np.array([-2, 2**62]))
    assert state.get_many(keys).tolist() == [2**62, -2, 5]
    bench.commit()
    state = bench.batch().bind(declared)
    keys = bench.on_all(KEYS)
    assert state.get_many(keys).tolist() == [2**62, -2, 5]
    assert state.get_many(np.array(["cid", "bob", "bob"])).tolist() == [5, -2, -2]
    bench.cursor.leave()
    bench.on("bob")
    assert state.value() == -2


@pytest.mark.parametrize(
    ("kind", "values"),
    [(int, [1, -2]), (float, [0.5, -1.0]), (bool, [True, False]), (str, ["x", ""]), (list[int], [[1], []])],
)
def test_without_a_default_nulls_say_where_nothing_is(bench: Bench, kind: Any, values: list[Any]) -> None:
    state = bench.bind(ValueState(kind))
    keys = bench.on_all(KEYS)
    state.put_many(keys, [*values, None])
    found = state.get_many(keys)
    assert isinstance(found, pa.Array)
    assert found.to_pylist() == [*values, None]
    state.put_many(keys, pa.array([None, *values], found.type))
    assert state.get_many(keys).to_pylist() == [None, *values]


def test_records_stay_what_they_are(bench: Bench) -> None:
    state = bench.bind(ValueState(Point, default=Point(9)))
    keys = bench.on_all(KEYS)
    state.put_many(keys.slice(0, 2), [Point(1, 2), Point(3)])
    found = state.get_many(keys)
    assert found == [Point(1, 2), Point(3), Point(9)]
    found[2].x = 0
    assert state.get_many(keys)[2] == Point(9)


def test_keys_that_are_not_in_the_batch_are_refused(bench: Bench) -> None:
    state = bench.bind(ValueState(int, name="n"))
    bench.on_all(KEYS)
    with pytest.raises(ValueInvalid, match="'n': 'eve' is not among the keys"):
        state.get_many(pa.array(["ann", "eve"]))
    with pytest.raises(ValueInvalid, match="not of the key's type"):
        state.get_many(pa.array([b"\xff"]))


def test_values_that_do_not_fit_are_refused(bench: Bench) -> None:
    state = bench.bind(ValueState(int, default=0))
    keys = bench.on_all(KEYS)
    for values in (np.array([0.5, 1, 2]), np.array([1, 2]), np.array([2**63, 1, 1], "u8"), ["a", "b", "c"]):
        with pytest.raises(ValueInvalid):
            state.put_many(keys, values)
    assert state.get_many(keys).tolist() == [0, 0, 0]


def test_null_is_a_key_and_several_columns_are_structs(bench: Bench) -> None:
    state = bench.bind(ValueState(int, default=0))
    keys = bench.on_all(["ann", None])
    state.put_many(pa.array([None], pa.string()), [7])
    assert state.get_many(keys).tolist() == [0, 7]
    pairs = pa.array([{"a": 1, "b": "x"}, {"a": 1, "b": "y"}])
    bench.cursor.enter_keys(KeyBatch(pairs, [0, 1], [b"1x", b"1y"]))
    state.put_many(pairs.take(pa.array([1])), [8])
    assert state.get_many(pairs).tolist() == [0, 8]


def test_elements_are_added_in_order_for_repeated_keys(bench: Bench) -> None:
    state = bench.bind(ListState(int))
    bench.on("bob")
    state.add(0)
    bench.on_all(KEYS)
    state.add_many(pa.array(["bob", "ann", "bob"]), [1, 2, 3])
    with pytest.raises(ValueInvalid, match="null"):
        state.add_many(pa.array(["bob"]), [None])
    bench.on("bob")
    state.add(4)
    assert state.get() == [0, 1, 3, 4]


def test_entries_of_maps_are_read_and_written_beside_the_row_form(bench: Bench) -> None:
    state = bench.bind(MapState(str, int))
    keys = bench.on_all(KEYS)
    state.put_many(keys, ["a", "b", "a"], [1, 2, 3])
    state.put_many(pa.array(["ann", "ann"]), pa.array(["c", "a"]), [4, None])
    assert state.get_many(keys, ["c", "b", "b"]).to_pylist() == [4, 2, None]
    bench.on("ann")
    assert state.entries() == [("c", 4)]
    with pytest.raises(ValueInvalid, match="2 keys of maps for 3 keys"):
        state.get_many(keys, ["a", "b"])


@pytest.mark.parametrize("reducer", [np.add, lambda a, b: a + b])
def test_reducing_folds_repeated_keys(bench: Bench, reducer: Any) -> None:
    state = bench.bind(ReducingState(int, reducer))
    bench.on("bob")
    state.add(100)
    keys = bench.on_all(KEYS)
    state.add_many(pa.array(["bob", "ann", "bob"]), np.array([1, 2, 3]))
    assert state.get_many(keys).to_pylist() == [2, 104, None]
    state.add_many(keys, pa.array([1, 1, 1]))
    assert state.get_many(keys).to_pylist() == [3, 105, 1]
    state.add_many(pa.array([], pa.string()), np.array([], "i8"))


def test_a_sum_beyond_64_bits_is_refused_not_wrapped(bench: Bench) -> None:
    state = bench.bind(ReducingState(int, np.add))
    keys = bench.on_all(["ann"])
    state.add_many(keys, np.array([2**63 - 2]))
    state.add_many(keys, np.array([1]))
    with pytest.raises(ValueInvalid, match="64 bits"):
        state.add_many(keys, np.array([1]))
    assert state.get_many(keys).to_pylist() == [2**63 - 1]


def test_order_matters_to_reducers_that_are_not_symmetric(bench: Bench) -> None:
    state = bench.bind(ReducingState(float, np.subtract))
    bench.on_all(KEYS)
    state.add_many(pa.array(["ann", "bob", "ann", "ann"]), np.array([10.0, 1.0, 3.0, 2.0]))
    assert state.get_many(pa.array(["ann", "bob"])).to_pylist() == [5.0, 1.0]


def test_aggregates_fold_many(bench: Bench) -> None:
    state = bench.bind(AggregatingState(Average()))
    keys = bench.on_all(KEYS)
    state.add_many(pa.array(["bob", "bob", "ann"]), np.array([1.0, 2.0, 5.0]))
    assert state.get_many(keys) == [5.0, 1.5, None]


def test_event_time_of_a_key_is_that_of_its_newest_row(bench: Bench) -> None:
    state = bench.bind(ValueState(int, default=0, ttl=Ttl("10 ms", clock="event")))
    keys = pa.array(KEYS)
    stored = [bench.codec.encode(key) for key in KEYS]

    def at(*times_ms: int) -> None:
        bench.cursor.enter_keys(KeyBatch(keys, [0, 0, 0], stored, lambda: np.array(times_ms)))

    at(100, 105, 90)
    state.put_many(keys, np.array([1, 2, 3]))
    at(110, 116, 101)
    assert state.get_many(keys).tolist() == [1, 0, 0]
    # A late row does not shorten what a later one made longer.
    at(50, 50, 50)
    state.put_many(keys, np.array([4, 5, 6]))
    at(110, 110, 100)
    assert state.get_many(keys).tolist() == [4, 5, 6]


@pytest.mark.parametrize("ttl", [None, Ttl("10 s"), Ttl("10 s", update="OnReadAndWrite")])
def test_no_keys_are_fine_too(bench: Bench, ttl: Ttl | None) -> None:
    none = pa.array([], pa.string())
    bench.on_all(KEYS)
    numbers = bench.bind(ValueState(int, default=0, ttl=ttl), 1)
    texts = bench.bind(ValueState(str, ttl=ttl), 2)
    numbers.put_many(none, np.array([], "i8"))
    numbers.put_many(none, pa.array([], pa.int64()))
    texts.put_many(none, [])
    assert numbers.get_many(none).tolist() == []
    assert texts.get_many(none).to_pylist() == []
    elements = bench.bind(ListState(int, ttl=ttl), 3)
    elements.add_many(none, [])
    entries = bench.bind(MapState(str, int, ttl=ttl), 4)
    entries.put_many(none, [], [])
    assert entries.get_many(none, []).to_pylist() == []
    total = bench.bind(ReducingState(int, lambda a, b: a + b, ttl=ttl), 5)
    total.add_many(none, [])
    assert total.get_many(none).to_pylist() == []
    assert not bench.stage.take()
