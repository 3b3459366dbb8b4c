"""Keys: the order of the bytes is the order of the values, for every type and for several columns."""

from __future__ import annotations

import math
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.column_values import KEY_KINDS, values_of
from tidegate.errors import InvariantBroken
from tidegate.model.schemas import ColumnType, parse_type
from tidegate.model.tables import Value
from tidegate.tables import keys
from tidegate.tables.access_paths import KeySpan
from tidegate.tables.key_codec import TableKeyCodec
from tidegate.tables.scan import span_of

kinds = st.sampled_from([str(kind) for kind in KEY_KINDS])
near_texts = st.text("a\x00\x01ÿ\U0010ffff", max_size=4)
near_bytes = st.binary(max_size=4) | st.lists(st.sampled_from([0, 1, 254, 255]), max_size=4).map(bytes)


@cache
def values(kind: str) -> st.SearchStrategy[Value]:
    """Any values, and many that are near each other."""
    more: dict[str, st.SearchStrategy[Value]] = {
        "TEXT": near_texts,
        "BYTES": near_bytes,
        "DOUBLE": st.sampled_from([0.0, -0.0, math.inf, -math.inf, 5e-324, -5e-324]),
    }
    return more.get(kind, st.nothing()) | values_of(parse_type(kind))


def two_rows(nullable: bool) -> st.SearchStrategy[tuple[list[str], list[Value], list[Value]]]:
    def rows(chosen: list[str]) -> st.SearchStrategy[Any]:
        cells = [st.none() | values(kind) if nullable else values(kind) for kind in chosen]
        first, second = st.tuples(*cells).map(list), st.tuples(*cells).map(list)
        # Half of the second rows share the beginning of the first.
        shared = st.tuples(first, second, st.integers(0, len(chosen))).map(
            lambda three: (three[0], three[0][: three[2]] + three[1][three[2] :])
        )
        return shared.map(lambda two: (chosen, *two))

    return st.lists(kinds, min_size=1, max_size=3).flatmap(rows)


def sort_key(row: list[Any]) -> list[tuple[bool, Any]]:
    """Order by value, NULL first; text by its code points, which is how UTF-8 sorts."""
    return [(value is not None, 0 if value is None else value) for value in row]


def check_order(case: tuple[list[str], list[Value], list[Value]], *, nullable: bool) -> None:
    chosen, first, second = case
    codec = TableKeyCodec([parse_type(kind) for kind in chosen], nullable=nullable)
    one, two = codec.encode(first), codec.encode(second)
    if first == second:
        assert one == two
    else:
        assert (one < two) == (sort_key(first) < sort_key(second))
        assert not one.startswith(two)
        assert not two.startswith(one)
    assert codec.end_of(b"head" + one + two, 4) == 4 + len(one)
    columns = list(zip(first, second, strict=True))
    assert codec.encode_columns(b"p", columns) == [b"p" + one, b"p" + two]
    assert not codec.is_fixed or len(one) == len(two)


@settings(max_examples=200, deadline=None)
@given(two_rows(nullable=False))
def test_keys_sort_like_their_values_and_none_begins_another(
    case: tuple[list[str], list[Value], list[Value]],
) -> None:
    check_order(case, nullable=False)


@settings(max_examples=120, deadline=None)
@given(two_rows(nullable=True))
def test_index_columns_sort_like_their_values_with_null_first(
    case: tuple[list[str], list[Value], list[Value]],
) -> None:
    check_order(case, nullable=True)


@settings(max_examples=80, deadline=None)
@given(two_rows(nullable=False), st.booleans(), st.booleans())
def test_a_span_holds_exactly_the_values_between_its_bounds(
    case: tuple[list[str], list[Value], list[Value]], low_in: bool, high_in: bool
) -> None:
    chosen, low, high = case[0][:1], case[1][0], case[2][0]
    codec = TableKeyCodec([parse_type(kind) for kind in chosen], nullable=False)
    span = span_of(b"p", codec, KeySpan((), low, low_in, high, high_in), nullable=False)
    for value in (low, high):
        above = value >= low if low_in else value > low  # type: ignore[operator]
        below = value <= high if high_in else value < high  # type: ignore[operator]
        key = b"p" + codec.encode([value]) + b"more"
        assert (span is not None and span.start <= key < span.stop) == (above and below)


def test_the_layout_stays_what_is_on_disks() -> None:
    cases: list[tuple[str, Value, str]] = [
        ("BOOLEAN", True, "01"),
        ("INT", -1, "7fffffff"),
        ("DATE", 1, "80000001"),
        ("BIGINT", 1, "8000000000000001"),
        ("TIMESTAMP", -2, "7ffffffffffffffe"),
        ("DOUBLE", 1.0, "bff0000000000000"),
        ("DOUBLE", -1.0, "400fffffffffffff"),
        ("DOUBLE", -0.0, "8000000000000000"),
        ("DOUBLE", math.nan, "fff8000000000000"),
        ("TEXT", "a\x00é", "6100ffc3a90000"),
        ("BYTES", b"\x00\x00", "00ff00ff0000"),
        ("UUID", "019d2c3e-7f00-7abc-8def-0123456789ab", "019d2c3e7f007abc8def0123456789ab"),
    ]
    for kind, value, written in cases:
        assert TableKeyCodec([parse_type(kind)], nullable=False).encode([value]).hex() == written
        assert TableKeyCodec([parse_type(kind)], nullable=True).encode([value]).hex() == "01" + written
    decimal = ColumnType.decimal(38, 2)
    assert TableKeyCodec([decimal], nullable=False).encode([Decimal("-0.01")]).hex() == "7f" + "ff" * 15
    assert keys.row_prefix(7).hex() == "2100000007"
    assert keys.index_prefix(7, 9).hex() == "220000000700000009"
    assert keys.scope_of("alice", is_scoped=True) == b"alice\x00"
    assert keys.namespace_key("default", "app") == b"\x24default\x00app"


def test_nan_comes_last_in_an_index() -> None:
    codec = TableKeyCodec([ColumnType.DOUBLE], nullable=True)
    ordered: list[Value] = [None, -math.inf, 0.0, math.inf, math.nan]
    assert sorted(codec.encode([value]) for value in ordered) == [codec.encode([value]) for value in ordered]


def test_json_is_no_part_of_a_key() -> None:
    with pytest.raises(InvariantBroken, match="JSON"):
        TableKeyCodec([ColumnType.JSON], nullable=True)


def test_rows_have_an_owner_exactly_where_the_table_has_users() -> None:
    for user, is_scoped in (("", True), ("alice", False), ("a\x00b", True)):
        with pytest.raises(InvariantBroken, match="cannot own rows"):
            keys.scope_of(user, is_scoped=is_scoped)
