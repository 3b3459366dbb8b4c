"""Ordered bytes sort as their values do, come back, and stay what is on disks."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.storage import ordered_bytes as ob

longs = st.integers(-(2**63), 2**63 - 1)
texts = st.binary() | st.lists(st.sampled_from([b"\x00", b"\xff", b"\x01", b"a"])).map(b"".join)


def order(one: Any, other: Any) -> int:
    """Return -1, 0 or 1."""
    return int(one > other) - int(one < other)


@given(longs, longs)
def test_integers_sort_and_come_back(one: int, other: int) -> None:
    assert order(ob.put_long(one), ob.put_long(other)) == order(one, other)
    assert ob.take_long(b"?" + ob.put_long(one), 1) == one == ob.take_number(ob.put_long(one), 0, 8)


@given(longs)
def test_the_quick_forms_are_the_plain_one(number: int) -> None:
    assert ob.put_long(number) == ob.PACK_LONG(number + ob.SIGN_64) == ob.put_number(number, 8)
    assert ob.put_int(number >> 32) == ob.put_number(number >> 32, 4)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_doubles_sort_and_come_back(one: float, other: float) -> None:
    assert order(ob.put_double(one), ob.put_double(other)) == order(one, other)
    assert ob.take_double(ob.put_double(one), 0) == one
    assert ob.put_double(one) < ob.put_double(math.nan)


@given(texts, texts, st.binary())
def test_texts_sort_say_where_they_end_and_none_begins_another(one: bytes, other: bytes, tail: bytes) -> None:
    first, second = ob.put_text(one), ob.put_text(other)
    assert order(first, second) == order(one, other)
    assert one == other or not first.startswith(second)
    assert ob.take_text(first + tail, 0) == (one, len(first))
    assert ob.end_of_text(first + tail, 0) == len(first)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (ob.put_int(-1), "7fffffff"),
        (ob.put_long(1), "8000000000000001"),
        (ob.put_number(-2, 16), "7f" + "ff" * 14 + "fe"),
        (ob.put_double(-0.0), "8000000000000000"),
        (ob.put_double(-1.5), "4007ffffffffffff"),
        (ob.put_double(math.nan), "fff8000000000000"),
        (ob.put_text(b"a\x00\xff"), "6100ffff0000"),
    ],
)
def test_the_bytes_stay_what_is_on_disks(stored: bytes, expected: str) -> None:
    assert stored.hex() == expected


@pytest.mark.parametrize("wrong", [2**63, -(2**63) - 1, 1.5, "1"])
def test_what_is_no_long_is_refused(wrong: int) -> None:
    with pytest.raises((struct.error, TypeError)):
        ob.put_long(wrong)
