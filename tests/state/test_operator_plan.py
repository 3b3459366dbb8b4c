"""States that cannot be kept are refused with the names of operator and state, before any row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tidegate.errors import StateInvalid, ValueInvalid
from tidegate.state.kinds.declaration import State
from tidegate.state.kinds.map import MapState
from tidegate.state.kinds.value import ValueState
from tidegate.state.operator import KeyedOperator
from tidegate.state.operator_plan import check_declared
from tidegate.state.schema.migrations import Migration
from tidegate.state.ttl import Ttl
from tidegate.testing.operators import OperatorHarness


def operator_with(state: State) -> KeyedOperator[Any, Any]:
    kind: type[KeyedOperator[Any, Any]] = type("Visits", (KeyedOperator,), {"seen": state})
    longer: type[KeyedOperator[Any, Any]] = type("Longer", (kind,), {})
    return longer()


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (lambda: ValueState(int, name=""), "the name is ''"),
        (lambda: ValueState(int, name=5), "the name is 5"),  # type: ignore[call-overload]
        (lambda: ValueState(int, ttl="1 h"), r"write tide\.Ttl"),  # type: ignore[call-overload]
        (lambda: ValueState(int, migrations=5), "the migrations are 5"),  # type: ignore[call-overload]
        (lambda: ValueState(int, migrations=["1"]), "a list of tide.Migration"),  # type: ignore[list-item]
        (lambda: ValueState(set[int]), "use dict"),
        (lambda: MapState(list[int], int), "is no key of a map state"),
    ],
)
def test_states_that_cannot_be_kept_are_named(state: Any, reason: str) -> None:
    """Case 3: refused before any row is touched."""
    with pytest.raises(StateInvalid, match=f"'visits' cannot run: of its state 'seen' .*{reason}"):
        check_declared(operator_with(state()), "visits")


@pytest.mark.parametrize("version", [0, "2", True, None, 1.0])
def test_a_version_is_a_whole_number_from_one_on(version: Any) -> None:
    with pytest.raises(ValueInvalid, match="whole number between 1 and"):
        ValueState(int, version=version)


@pytest.mark.parametrize("given", [5, None, b"1 h"])
def test_a_ttl_is_a_duration(given: Any) -> None:
    with pytest.raises(ValueInvalid, match="is no duration"):
        Ttl(given)


@pytest.mark.parametrize("count", ["x", 0, True, 2.0])
def test_entries_per_access_are_a_whole_number(count: Any) -> None:
    with pytest.raises(ValueInvalid, match="whole number between 1 and"):
        Ttl("1 h", entries_per_access=count)


class NumberSets:
    """A serializer of one's own, of a type that Tidegate does not keep by itself."""

    name = "number-sets"
    dtype = None

    def encode(self, value: set[int]) -> bytes:
        return " ".join(map(str, sorted(value))).encode()

    def decode(self, payload: bytes) -> set[int]:
        return set(map(int, payload.split()))

    def encode_many(self, values: Sequence[set[int]]) -> list[bytes]:
        return [self.encode(value) for value in values]

    def decode_many(self, payloads: Sequence[bytes]) -> list[set[int]]:
        return [self.decode(payload) for payload in payloads]


class Collected(KeyedOperator[Any, Any]):
    """Keeps every number of a key."""

    output = "key string, numbers long"
    seen = ValueState(set[int], serializer=NumberSets())

    def process(self, event: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        seen = (self.seen.value() or set()) | {event.number}
        self.seen.update(seen)
        yield ctx.key, len(seen)


def test_a_serializer_of_ones_own_keeps_a_type_that_we_do_not_know() -> None:
    harness = OperatorHarness(Collected(), key="key")
    harness.feed([{"key": "a", "number": 1}, {"key": "a", "number": 2}, {"key": "b", "number": 1}])
    assert harness.feed([{"key": "a", "number": 2}, {"key": "a", "number": 9}]) == [
        {"key": "a", "numbers": 2},
        {"key": "a", "numbers": 3},
    ]


def test_the_harness_names_operator_and_state_too() -> None:
    with pytest.raises(StateInvalid, match="of its state 'seen' the ttl is 'x'"):
        OperatorHarness(operator_with(ValueState(int, ttl="x")), key="key")  # type: ignore[call-overload]


def test_states_with_all_options_are_taken() -> None:
    steps = [Migration(1, 2)]
    check_declared(
        operator_with(ValueState(float, ttl=Ttl("1 h"), name="n", version=2, migrations=steps)), "v"
    )
    check_declared(operator_with(MapState(tuple[str, int], dict[str, int])), "v")
