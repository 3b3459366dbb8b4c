"""The format of stored values, and what is made of older versions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoint.bench import Bench
from tidegate.errors import StorageCorrupt
from tidegate.state.kinds.declaration import State, StateBinding
from tidegate.state.kinds.entry_format import plain_header, split_value, time_of, timed_header
from tidegate.state.kinds.list import ListState
from tidegate.state.kinds.map import MapState
from tidegate.state.kinds.value import ValueState
from tidegate.state.schema.migrations import Migration, StateRef, StoredForm, Upgrader
from tidegate.state.ttl import Ttl


@given(st.integers(1, 255), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=20))
def test_a_stored_value_comes_back_in_its_parts(version: int, time_ms: int, payload: bytes) -> None:
    plain, timed = plain_header(version) + payload, timed_header(version, time_ms) + payload
    assert split_value(plain) == (version, None, payload)
    assert split_value(timed) == (version, time_ms, payload)
    assert (time_of(plain), time_of(timed)) == (None, time_ms)


def test_the_format_is_what_its_description_says() -> None:
    assert plain_header(3) + b"x" == bytes.fromhex("03 00 78")
    assert timed_header(3, 258) + b"x" == bytes.fromhex("03 01 0000000000000102 78")
    assert timed_header(1, -1) == bytes.fromhex("01 01 ffffffffffffffff")


@pytest.mark.parametrize("stored", ["", "01", "0000", "0102", "0101 00", "01ff 0000000000000102"])
def test_what_is_no_stored_value_is_damaged(stored: str) -> None:
    with pytest.raises(StorageCorrupt):
        split_value(bytes.fromhex(stored))
    with pytest.raises(StorageCorrupt):
        time_of(bytes.fromhex(stored))


@dataclass
class First:
    count: int


@dataclass
class Second:
    total: int
    mail: str = ""


STEPS = (Migration(1, 2, lambda old: {"total": old["count"], "mail": "?"}),)


@pytest.mark.parametrize("ttl", [None, Ttl("10 s", update="OnReadAndWrite")])
def test_older_values_are_brought_up_when_read_and_written_new(ttl: Ttl | None, tmp_path: Path) -> None:
    """Case 14: read lazily, migrated on write, in every kind of state."""
    bench = Bench("heap", tmp_path / "copy").batch()
    value = bench.bind(ValueState(First, ttl=ttl), 1)
    elements = bench.bind(ListState(First, ttl=ttl), 2)
    entries = bench.bind(MapState(str, First, ttl=ttl), 3)
    bench.on("ann")
    value.update(First(1))
    elements.add(First(2))
    entries.put("a", First(3))
    bench.commit()
    bench.batch(5)

    def bind(state: State, number: int) -> State:
        signature = {"record": "First", "fields": [["count", "int"]]}
        forms = {1: StoredForm(signature, "msgpack"), 2: StoredForm(signature, "msgpack")}
        ref = StateRef("sessions", state.name)
        upgrader = Upgrader(Second, forms, STEPS, serializer=state.serializer, ref=ref)
        return state.bind(StateBinding(number, bench.stage, bench.cursor, upgrader))

    newer = bind(ValueState(Second, ttl=ttl, version=2), 1)
    assert isinstance(newer, ValueState)
    bench.on("ann")
    assert newer.value() == Second(1, "?")
    newer.update(Second(7))
    assert newer.value() == Second(7)
    newer_list = bind(ListState(Second, ttl=ttl, version=2), 2)
    assert isinstance(newer_list, ListState)
    newer_list.add(Second(8))
    assert newer_list.get() == newer_list.get() == [Second(2, "?"), Second(8)]
    newer_map = bind(MapState(str, Second, ttl=ttl, version=2), 3)
    assert isinstance(newer_map, MapState)
    assert newer_map.entries() == [("a", Second(3, "?"))]
    many = bench.on_all(["ann", "bob"])
    assert newer.get_many(many) == [Second(7), None]
    assert newer_map.get_many(many, ["a", "a"]) == [Second(3, "?"), None]
