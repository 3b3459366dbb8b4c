"""The vectorised calls beside the row form: with each TTL both see the same and leave the same bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.checkpoint.bench import Bench
from tests.state.kinds.test_declaration import Average
from tidegate.checkpoint.backend import StateChanges
from tidegate.errors import StateCorrupt
from tidegate.state.cursor import KeyBatch
from tidegate.state.kinds import entry as cells_module
from tidegate.state.kinds.declaration import StateBinding
from tidegate.state.kinds.list import ListState
from tidegate.state.kinds.map import MapState
from tidegate.state.kinds.reducing import AggregatingState, ReducingState
from tidegate.state.kinds.value import ValueState
from tidegate.state.schema.migrations import Migration, StateRef, StoredForm, Upgrader
from tidegate.state.serializers.registry import serializer_for
from tidegate.state.serializers.signatures import signature_of
from tidegate.state.ttl import Ttl
from tidegate.state.write_batch import WriteBatch

KEYS = ["", "ann", "bob", "a\x00b", "a", "cid"]
SUBS = ["", "x", "y\x00"]
# Small enough that a walk spills many times.
SPILLING_BYTES = 3_000

TTLS: dict[str, Ttl | None] = {
    "none": None,
    "write": Ttl("4 s"),
    "read": Ttl("4 s", update="OnReadAndWrite", cleanup="FullSnapshot"),
    "incremental": Ttl("4 s", cleanup="IncrementalCleanup", update="OnReadAndWrite"),
    "shown": Ttl("4 s", update="OnReadAndWrite", visibility="ReturnExpiredIfNotCleanedUp"),
    "event": Ttl("4 s", clock="event"),
    "event read": Ttl("4 s", clock="event", update="OnReadAndWrite"),
}


class Side:
    """One of two benches to which the same is done: `is_many` tells in which form."""

    def __init__(self, kind: str, folder: Path, ttl: Ttl | None, *, is_many: bool, is_spilling: bool) -> None:
        self.bench = Bench(kind, folder)
        self.ttl, self.is_many, self.is_spilling = ttl, is_many, is_spilling

    def begin(self, now_ms: int, times_ms: list[int]) -> None:
        """Begin a batch whose keys have event times."""
        bench, ttl = self.bench.batch(now_ms, now_ms), self.ttl
        if self.is_spilling:
            bench.stage = WriteBatch(bench.backend, stage_bytes_max=SPILLING_BYTES, spill=lambda _: None)
        self.times_ms = dict(zip(KEYS, times_ms, strict=True))
        self.states: dict[str, Any] = {
            "number": bench.bind(ValueState(int, default=-1, ttl=ttl), 1),
            "text": bench.bind(ValueState(str, ttl=ttl), 2),
            "list": bench.bind(ListState(int, ttl=ttl), 3),
            "words": bench.bind(ListState(str, ttl=ttl), 4),
            "map": bench.bind(MapState(str, int, ttl=ttl), 5),
            "total": bench.bind(ReducingState(int, np.add, ttl=ttl), 6),
            "longest": bench.bind(ReducingState(str, max, ttl=ttl), 7),
            "mean": bench.bind(AggregatingState(Average(), ttl=ttl), 8),
        }
        array, codec = pa.array(KEYS), bench.codec
        groups = codec.groups_of([array], 8).tolist()
        self.many = KeyBatch(array, groups, [*map(codec.encode, KEYS)], lambda: np.array(times_ms))
        bench.cursor.enter_keys(self.many)

    def call(self, name: str, call: str, keys: pa.Array, *columns: list[Any]) -> list[Any]:
        """Do one thing to many keys, at once or row by row; give what is said of each."""
        state = self.states[name]
        if self.is_many:
            self.bench.cursor.enter_keys(self.many)
            known = self.many.keys if keys.equals(self.many.keys) else keys
            said = getattr(state, f"{call}_many")(known, *columns)
            said = said.to_pylist() if isinstance(said, pa.Array) else said
            return [None] * len(keys) if said is None else [*said]
        return [self.on_row(name, call, *row) for row in zip(keys.to_pylist(), *columns, strict=True)]

    def on_row(self, name: str, call: str, key: str, *values: Any) -> Any:
        """Do one thing to one key, in the row form."""
        state = self.states[name]
        self.bench.on(key, self.times_ms[key])
        if call == "put" and values[-1] is None:
            return state.remove(values[0]) if name == "map" else state.clear()
        by_name = {"number": {"get": "value", "put": "update"}, "text": {"get": "value", "put": "update"}}
        return getattr(state, by_name.get(name, {}).get(call, call))(*values)

    def end(self, now_ms: int, *, snapshot: bool) -> list[tuple[bytes, bytes]]:
        """Clean and commit; give everything that is stored."""
        for state in self.bench.states:
            state.cells.accesses = 10_000
        self.bench.clean(now_ms, watermark_ms=now_ms, snapshot=snapshot)
        self.bench.commit()
        return [*self.bench.backend.scan(b"", b"\xff\xfe")]


def columns_of(rng: random.Random, name: str, call: str, count: int) -> list[list[Any]]:
    subs = [[rng.choice(SUBS) for _ in range(count)]] if name == "map" else []
    if call == "get":
        return subs
    nulls = call == "put" and rng.random() < 0.3
    numbers: list[Any] = [rng.randrange(100) for _ in range(count)]
    if name in ("text", "words", "longest"):
        numbers = [str(number) * (number % 3) for number in numbers]
    if nulls:
        numbers = [None if rng.random() < 0.3 else number for number in numbers]
    return [*subs, numbers]


CALLS = [
    *[(name, call) for name in ("number", "text", "map") for call in ("get", "put")],
    *[("list", "add"), ("words", "add")],
    *[(name, call) for name in ("total", "longest", "mean") for call in ("get", "add")],
]

ROW_CALLS = [
    *[("list", "get"), ("words", "get"), ("map", "entries"), ("map", "keys"), ("map", "is_empty")],
    *[(name, "clear") for name in ("list", "map", "number", "total")],
]


@pytest.mark.parametrize("ttl", TTLS)
@pytest.mark.parametrize("kind", ["heap", "rocksdb"])
def test_both_forms_see_the_same_and_leave_the_same_bytes(kind: str, ttl: str, tmp_path: Path) -> None:
    """Case 6: the vectorised calls under TTL mean what the row form means."""
    for seed in range(3):
        rng = random.Random(seed)
        folders = (tmp_path / f"many{seed}", tmp_path / f"rows{seed}")
        sides = [
            Side(kind, folder, TTLS[ttl], is_many=not place, is_spilling=bool(seed % 2))
            for place, folder in enumerate(folders)
        ]
        now_ms = 10_000
        for _ in range(12):
            now_ms += rng.choice([0, 1, 900, 4_000, 9_000])
            times_ms = [now_ms + rng.randrange(-3_000, 6_000) for _ in KEYS]
            for side in sides:
                side.begin(now_ms, times_ms)
            walk(rng, sides)
            is_due = rng.random() < 0.5
            stored = [side.end(now_ms, snapshot=is_due) for side in sides]
            assert stored[0] == stored[1]
        for side in sides:
            side.bench.backend.close()


def walk(rng: random.Random, sides: list[Side]) -> None:
    """Do the same to both sides, many keys at once and now and then row by row, and compare what they say."""
    keys = pa.array(KEYS)
    for _ in range(rng.randrange(1, 14)):
        name, call = rng.choice(CALLS)
        if rng.random() < 0.5:
            keys = pa.array([rng.choice(KEYS) for _ in range(rng.randrange(8))], pa.string())
        elif rng.random() < 0.5:
            keys = pa.array(KEYS)
        columns = columns_of(rng, name, call, len(keys))
        said = [side.call(name, call, keys, *columns) for side in sides]
        assert said[0] == said[1], (name, call)
        if rng.random() < 0.4:
            name, call = rng.choice(ROW_CALLS)
            key, is_undone = rng.choice(KEYS), rng.random() < 0.3
            for side in sides:
                if is_undone:
                    side.bench.stage.begin_row()
            said = [side.on_row(name, call, key) for side in sides]
            for side in sides:
                if is_undone:
                    side.bench.stage.undo_row()
                    side.many = KeyBatch(
                        side.many.keys, side.many.groups, side.many.stored, side.many.newest_event_ms
                    )
            assert said[0] == said[1], (name, call)


@pytest.fixture(params=["heap", "rocksdb"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(request.param, tmp_path / "copy")
    yield bench.batch(1_000)
    bench.backend.close()


@pytest.mark.parametrize(("kind", "values"), [(int, [1, 2, 3]), (str, ["x", "", "yy"])])
def test_entries_from_before_the_ttl_are_seen_beside_the_others(
    bench: Bench, kind: Any, values: list[Any]
) -> None:
    keys = bench.on_all(["ann", "bob", "cid"])
    bench.bind(ValueState(kind)).put_many(keys, values)
    bench.commit()
    ttl = Ttl("10 ms", update="OnReadAndWrite")
    timed = bench.batch(1_000).bind(ValueState(kind, ttl=ttl))
    keys = bench.on_all(["ann", "bob", "cid"])
    assert timed.get_many(keys).to_pylist() == values
    timed.put_many(pa.array(["bob"]), values[:1])
    bench.commit()
    timed = bench.batch(1_010).bind(ValueState(kind, ttl=ttl))
    keys = bench.on_all(["ann", "bob", "cid"])
    assert timed.get_many(keys).to_pylist() == [values[0], values[0], values[2]]
    bench.cursor.batch_ms = 1_020
    assert timed.get_many(keys).to_pylist() == [values[0], values[0], values[2]]
    bench.cursor.batch_ms = 1_031
    assert timed.get_many(keys).to_pylist() == [values[0], None, values[2]]
    bench.commit()
    plain = bench.batch(9_000).bind(ValueState(kind))
    assert plain.get_many(bench.on_all(["ann", "bob", "cid"])).to_pylist() == [values[0], *values[::2]]


def test_values_of_older_versions_are_read_and_live_longer_as_they_are(bench: Bench) -> None:
    ttl = Ttl("10 ms", update="OnReadAndWrite")
    keys = bench.on_all(["ann", "bob"])
    bench.bind(ValueState(str, ttl=ttl, name="n")).put_many(keys, ["7", "12345678"])
    bench.commit()
    declared = ValueState(int, ttl=ttl, name="n", version=2, migrations=[Migration(1, 2, int)])
    forms = {
        version: StoredForm(signature_of(kind), serializer_for(kind).name)
        for version, kind in ((1, str), (2, int))
    }
    upgrader = Upgrader(
        int,
        forms,
        declared.options.migrations,
        serializer=declared.serializer,
        ref=StateRef("sessions", "n"),
    )

    def bound() -> Any:
        return declared.bind(StateBinding(1, bench.stage, bench.cursor, upgrader))

    bench.batch(1_008)
    keys, state = bench.on_all(["ann", "bob"]), bound()
    assert state.get_many(keys).to_pylist() == [7, 12345678]
    bench.commit()
    assert {stored[0] for key, stored in bench.backend.scan(b"", b"\xff\xfe") if key[2] == 1} == {1}
    bench.batch(1_018)
    keys, state = bench.on_all(["ann", "bob"]), bound()
    state.put_many(pa.array(["ann"]), np.array([8]))
    assert state.get_many(keys).to_pylist() == [8, 12345678]
    bench.cursor.batch_ms = 1_029
    assert state.get_many(keys).to_pylist() == [None, None]


@pytest.mark.parametrize("kind", [int, str])
@pytest.mark.parametrize("damaged", [b"", b"\x00\x01" + bytes(16), b"\x01\x02" + bytes(16), b"\x01\x01short"])
def test_damaged_bytes_name_their_key(bench: Bench, kind: Any, damaged: bytes) -> None:
    declared = ValueState(kind, ttl=Ttl("1 h"))
    keys = bench.on_all(["ann", "bob", "cid"])
    state = bench.bind(declared)
    state.put_many(keys.slice(0, 2), [kind(1), kind(2)])
    entry = state.cells.many_entries[1]
    bench.commit()
    bench.backend.write_partly(StateChanges(entries={entry: damaged}))
    state = bench.batch(2_000).bind(declared)
    keys = bench.on_all(["ann", "bob", "cid"])
    with pytest.raises(StateCorrupt, match="bob"):
        state.get_many(keys)
    with pytest.raises(StateCorrupt, match="bob"):
        state.put_many(keys, [kind(1)] * 3)


def test_elements_beyond_those_that_are_remembered_are_found_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells_module, "UNGROUPED_MAX", 4)
    state = bench.bind(ListState(int, ttl=Ttl("1 h")))
    for number in range(4):
        keys = bench.on_all(["ann", "bob", "cid"])
        state.add_many(keys, np.array([number, 10 + number, 20 + number]))
    bench.on("bob")
    assert state.get() == [10, 11, 12, 13]
    state.clear()
    assert state.get() == []


def test_numbers_of_a_single_key_are_ones_own(bench: Bench) -> None:
    state = bench.bind(ValueState(int, default=5, ttl=Ttl("10 ms")))
    keys = bench.on_all(["ann"])
    state.put_many(keys, np.array([1]))
    found = state.get_many(keys)
    found += 1
    assert (found.tolist(), state.get_many(keys).tolist()) == ([2], [1])
    bench.cursor.batch_ms = 9_000
    assert state.get_many(keys).tolist() == [5]


def test_a_value_after_a_null_is_named_in_the_index(bench: Bench) -> None:
    declared = ValueState(int, default=0, ttl=Ttl("10 ms"))
    state = bench.bind(declared)
    keys = bench.on_all(["ann", "bob"])
    state.put_many(keys, [None, 1])
    state.put_many(keys, np.array([2, 2]))
    bench.commit()
    bench.batch(9_000).bind(declared)
    assert bench.clean(9_000).removed_count == 2
    bench.commit()
    assert bench.entry_count() == 0


def test_rows_that_read_a_map_see_what_was_put_for_many_keys(bench: Bench) -> None:
    declared = MapState(str, int, ttl=Ttl("1 h"))
    state = bench.bind(declared)
    state.put_many(bench.on_all(["ann", "ann"]), ["a", "b"], [1, 2])
    bench.commit()
    state = bench.batch(2_000).bind(declared)
    bench.on("ann")
    assert (state.get("a"), state.get("b")) == (1, 2)
    state.put_many(bench.on_all(["ann"]), ["b"], [3])
    bench.on("ann")
    assert (state.get("a"), state.get("b"), state.values()) == (1, 3, [1, 3])


def test_what_a_row_cleared_has_no_time_left_that_counts(bench: Bench) -> None:
    state = bench.bind(ValueState(int, default=0, ttl=Ttl("10 ms", clock="event")))
    keys = pa.array(["ann"])
    times_ms = np.array([105])
    bench.cursor.enter_keys(KeyBatch(keys, [0], [bench.codec.encode("ann")], lambda: times_ms))
    state.put_many(keys, np.array([1]))
    assert state.get_many(keys).tolist() == [1]
    bench.cursor.enter(b"\x00\x00", bench.codec.encode("ann"), "ann", 105)
    state.clear()
    times_ms[0] = 100
    state.put_many(keys, np.array([2]))
    times_ms[0] = 111
    assert state.get_many(keys).tolist() == [0]
