"""Keys of map states as bytes: they sort as Python sorts them, say where they end, and come back."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import StateInvalid, StorageCorrupt, ValueInvalid
from tidegate.state.kinds.map_keys import SubKeyCodec

TEXTS = st.text(st.sampled_from("\x00\x01aé"), max_size=6) | st.text(max_size=40)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False) | st.decimals(-1000, 1000, places=3)
TYPES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
    str: TEXTS,
    bytes: st.lists(st.sampled_from([0, 1, 0xFF]), max_size=6).map(bytes) | st.binary(max_size=40),
    float: st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 5e-324, -5e-324, math.inf, -math.inf]),
    dt.date: st.dates(),
    dt.datetime: st.datetimes(timezones=st.just(dt.UTC)),
    Decimal: DECIMALS,
    tuple[str, int]: st.tuples(TEXTS, st.integers(-10, 10)),
    tuple[Decimal, bytes, float]: st.tuples(DECIMALS, st.binary(max_size=3), st.floats(allow_nan=False)),
}

Pairs = tuple[Any, list[Any]]


@st.composite
def typed_values(draw: st.DrawFn) -> Pairs:
    kind = draw(st.sampled_from(list(TYPES)))
    return kind, draw(st.lists(TYPES[kind], min_size=1, max_size=10))


def order_of(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(order_of, value))
    return value.encode() if isinstance(value, str) else value


@given(typed_values())
def test_keys_come_back_and_end_where_they_end(pairs: Pairs) -> None:
    kind, values = pairs
    codec = SubKeyCodec(kind)
    for value in values:
        stored = codec.encode(value)
        assert codec.decode(stored) == value
        assert codec._take(b"before" + stored + b"\x00\xff", 6) == (value, 6 + len(stored))
    assert codec.encode_many(values) == [codec.encode(value) for value in values]


@given(typed_values())
def test_bytes_sort_as_keys_do_and_none_begins_another(pairs: Pairs) -> None:
    kind, values = pairs
    codec = SubKeyCodec(kind)
    for one in values:
        for other in values:
            left, right = codec.encode(one), codec.encode(other)
            assert (left < right) == (order_of(one) < order_of(other))
            assert (left == right) == (one == other)
            assert left == right or not right.startswith(left)


def test_none_sorts_first_and_naive_times_keep_to_themselves() -> None:
    codec = SubKeyCodec(int | None)
    assert codec.encode(None) < codec.encode(-(2**63))
    assert [codec.decode(codec.encode(value)) for value in (None, 5)] == [None, 5]
    times = SubKeyCodec(dt.datetime)
    naive, there = dt.datetime(2024, 1, 1), dt.timezone(dt.timedelta(hours=2))
    assert times.decode(times.encode(naive)) == naive
    assert times.encode(dt.datetime(2024, 1, 1, 2, tzinfo=there)) == times.encode(
        naive.replace(tzinfo=dt.UTC)
    )


def test_keys_that_python_takes_for_one_are_one() -> None:
    numbers = SubKeyCodec(Decimal)
    same = [Decimal("1.00"), Decimal("1.0"), Decimal(1), Decimal("10E-1")]
    assert len({numbers.encode(number) for number in same}) == 1
    assert numbers.encode(Decimal("-0.0")) == numbers.encode(Decimal(0))
    assert SubKeyCodec(float).encode(-0.0) == SubKeyCodec(float).encode(0.0) == SubKeyCodec(float).encode(0)


def test_nan_is_one_key_and_sorts_last() -> None:
    codec = SubKeyCodec(float)
    assert math.isnan(codec.decode(codec.encode(math.nan)))
    assert codec.encode(-math.nan) == codec.encode(math.nan) > codec.encode(math.inf)


def test_numpy_arrays_are_keys_too() -> None:
    assert SubKeyCodec(int).encode_many(np.array([3, -3])) == SubKeyCodec(int).encode_many([3, -3])
    assert SubKeyCodec(str).encode_many(np.array(["a", "b"])) == SubKeyCodec(str).encode_many(["a", "b"])


@dataclass(frozen=True)
class Place:
    x: int


@pytest.mark.parametrize("kind", [list[int], Place, dict[str, int], object, tuple[list[int], int]])
def test_types_without_an_order_are_refused(kind: Any) -> None:
    with pytest.raises(StateInvalid, match="is no key of a map state; use str, int"):
        SubKeyCodec(kind, operator="count")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 2**63),
        (int, "1"),
        (str, 1),
        (str, "\ud800"),
        (bytes, "a"),
        (bool, 1),
        (float, "1"),
        (dt.date, dt.datetime(2024, 1, 1)),
        (dt.datetime, dt.date(2024, 1, 1)),
        (Decimal, Decimal("NaN")),
        (Decimal, 1),
        (tuple[str, int], ("a",)),
        (tuple[str, int], ["a", 1]),
        (int, None),
    ],
)
def test_a_value_of_another_type_is_no_key(kind: Any, value: Any) -> None:
    codec = SubKeyCodec(kind)
    with pytest.raises(ValueInvalid, match="as a key of type"):
        codec.encode(value)
    with pytest.raises(ValueInvalid, match="as a key of type"):
        codec.encode_many([value])


@given(typed_values(), st.binary(max_size=30))
def test_damaged_bytes_are_said_to_be_damaged(pairs: Pairs, junk: bytes) -> None:
    kind, values = pairs
    codec = SubKeyCodec(kind)
    stored = codec.encode(values[0])
    for cut in range(len(stored)):
        with pytest.raises(StorageCorrupt):
            codec.decode(stored[:cut])
    with pytest.raises(StorageCorrupt):
        codec.decode(stored + b"\x00")
    try:
        codec.decode(junk)
    except StorageCorrupt:
        pass
