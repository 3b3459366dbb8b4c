"""Serializers: values come back as they were, wrong ones are refused, damaged bytes are named."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state.plain_values import plain_decode
from tidegate.errors import StorageCorrupt, ValueInvalid
from tidegate.state.serializers.registry import (
    JsonSerializer,
    serializer_for,
    stored_serializer,
)
from tidegate.state.serializers.signatures import signature_of

UTC = dt.UTC


@dataclass
class Point:
    x: int
    y: float


@dataclass(slots=True)
class Session:
    start: int
    name: str
    score: float
    open: bool
    raw: bytes
    price: Decimal
    at: dt.datetime
    day: dt.date
    points: list[Point]
    counts: dict[str, int]
    pair: tuple[str, int]
    maybe: Point | None = None
    grid: np.ndarray[Any, Any] | None = field(default=None, compare=False)


TIMES = st.datetimes(timezones=st.sampled_from([UTC, dt.timezone(dt.timedelta(hours=-5))])) | st.datetimes()
INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
POINTS = st.builds(Point, INTS, FLOATS)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: INTS,
    float: FLOATS,
    bool: st.booleans(),
    str: st.text(),
    bytes: st.binary(),
    dt.datetime: TIMES,
    dt.date: st.dates(),
    Decimal: st.decimals(allow_nan=False),
    Point: POINTS,
    list[int]: st.lists(INTS),
    dict[tuple[str, int], float]: st.dictionaries(st.tuples(st.text(), INTS), FLOATS),
    tuple[str, int | None]: st.tuples(st.text(), st.none() | INTS),
    str | None: st.none() | st.text(),
    Session: st.builds(
        Session,
        INTS,
        st.text(),
        FLOATS,
        st.booleans(),
        st.binary(),
        st.decimals(allow_nan=False, allow_infinity=False),
        TIMES,
        st.dates(),
        st.lists(POINTS, max_size=3),
        st.dictionaries(st.text(), INTS, max_size=3),
        st.tuples(st.text(), INTS),
        st.none() | POINTS,
        st.none(),
    ),
}

Pair = tuple[Any, list[Any]]


@st.composite
def typed_values(draw: st.DrawFn) -> Pair:
    kind = draw(st.sampled_from(list(VALUES)))
    return kind, draw(st.lists(VALUES[kind], max_size=5))


@given(typed_values())
def test_values_come_back_as_they_were(pair: Pair) -> None:
    """Case 4: binary for typed values, one by one and many at once."""
    kind, values = pair
    serializer = serializer_for(kind)
    payloads = [serializer.encode(value) for value in values]
    assert [serializer.decode(payload) for payload in payloads] == values
    assert serializer.encode_many(values) == payloads
    assert list(serializer.decode_many(payloads)) == values
    for value, payload in zip(values, payloads, strict=True):
        assert type(serializer.decode(payload)) is type(value)
        json.dumps(plain_decode(signature_of(kind), payload))


@given(typed_values())
def test_json_keeps_the_same_values(pair: Pair) -> None:
    kind, values = pair
    if kind == dict[tuple[str, int], float]:
        return  # keys of JSON are text
    serializer: JsonSerializer[Any] = JsonSerializer(kind)
    for value in values:
        if isinstance(value, float | Session | Point | Decimal) and "inf" in repr(value).lower():
            continue
        payload = serializer.encode(value)
        assert serializer.decode(payload) == value
        json.loads(payload)


@given(typed_values(), st.binary(max_size=40), st.integers(0, 1000))
def test_damaged_bytes_are_said_to_be_damaged_or_are_another_value(
    pair: Pair, junk: bytes, place: int
) -> None:
    """Case 4: corrupt bytes are an error."""
    kind, values = pair
    serializer = serializer_for(kind)
    payload = bytearray(serializer.encode(values[0]) if values else b"")
    if payload:
        payload[place % len(payload)] ^= 0x41
    for damaged in (junk, bytes(payload)):
        try:
            serializer.decode(damaged)
        except StorageCorrupt as error:
            assert "bytes:" in str(error)


@pytest.mark.parametrize(
    "kind", [int, float, bool, dt.datetime, dt.date, Decimal, Point, list[int], np.ndarray]
)
def test_bytes_of_no_value_are_corrupt(kind: Any) -> None:
    serializer = serializer_for(kind)
    for damaged in (b"", b"\xc1" * 7, b"\x07"):
        with pytest.raises(StorageCorrupt):
            list(serializer.decode_many([damaged]))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 2**63),
        (int, 1.5),
        (int, None),
        (float, "1"),
        (bool, 1),
        (str, b"a"),
        (str, "\ud800"),
        (bytes, "a"),
        (dt.datetime, dt.date(2024, 1, 1)),
        (dt.date, dt.datetime(2024, 1, 1)),
        (Decimal, 1.5),
        (Point, (1, 2.0)),
        (Point, Point("1", 2.0)),  # type: ignore[arg-type]
        (Point, Point(2**65, 2.0)),
        (Point, Point(True, 2.0)),
        (Point, None),
        (list[int], [1, "2"]),
        (list[Point], [{"x": 1}]),
        (dict[str, int], {"a": None}),
        (dict[str, int], {1: 1}),
        (tuple[str, int], ("a",)),
        (int | None, "a"),
        (np.ndarray, [1, 2]),
        (np.ndarray, np.array([object()])),
        (pa.Table, pa.record_batch({"a": [1]})),
    ],
)
def test_a_value_that_the_type_does_not_take_is_refused_when_it_is_written(kind: Any, value: Any) -> None:
    with pytest.raises(ValueInvalid):
        serializer_for(kind).encode(value)
    with pytest.raises(ValueInvalid):
        serializer_for(kind).encode_many([value])


def test_json_refuses_what_it_would_lose() -> None:
    with pytest.raises(ValueInvalid):
        JsonSerializer(float).encode(float("nan"))
    with pytest.raises(ValueInvalid):
        JsonSerializer(Point).encode(Point(1, float("inf")))


class Millis(int):
    """An int with more methods, as times of a batch are."""


def test_numbers_of_other_libraries_and_subclasses_are_plain_numbers() -> None:
    point = serializer_for(Point)
    plain = point.encode(Point(5, 2.5))
    assert point.encode(Point(Millis(5), 2.5)) == plain
    assert point.encode(Point(np.int64(5), np.float64(2.5))) == plain  # type: ignore[arg-type]
    assert point.encode(Point(5, 2)) != plain
    assert point.decode(point.encode(Point(5, 2))) == Point(5, 2.0)
    assert serializer_for(int).encode(np.int32(5)) == serializer_for(int).encode(Millis(5))


def test_many_numbers_are_numpy_arrays() -> None:
    ints: Any = serializer_for(int)
    floats: Any = serializer_for(float)
    assert ints.dtype == np.dtype("<i8")
    numbers: Any = ints.decode_many(ints.encode_many(np.array([1, -1], np.int32)))
    assert isinstance(numbers, np.ndarray)
    assert numbers.tolist() == [1, -1]
    numbers += 1
    assert floats.encode_many(np.array([1, 2])) == [floats.encode(1.0), floats.encode(2.0)]
    for wrong in (np.array([1.5]), np.array([2**63], np.uint64), ["a"], np.array(["a"]), [2**63], [None]):
        with pytest.raises(ValueInvalid):
            ints.encode_many(wrong)
    with pytest.raises(StorageCorrupt):
        ints.decode_many([b"12345678", b"1234567"])
    with pytest.raises(StorageCorrupt):
        ints.decode_many([b"1234567", b"123456789"])
    none: Any = ints.decode_many([])
    assert none.tolist() == []


def test_arrays_and_batches_come_back_with_type_and_shape() -> None:
    arrays = serializer_for(np.ndarray)
    for array in (
        np.arange(6).reshape(2, 3).T,
        np.array([], np.float32),
        np.array(1.5),
        np.array(["a", "bb"]),
        np.array(["2024-01-01"], "datetime64[ms]"),
    ):
        found = arrays.decode(arrays.encode(array))
        assert found.dtype == array.dtype
        assert found.shape == array.shape
        assert (found == array).all()
    batch = pa.record_batch({"a": [1, None], "b": [["x"], []]})
    batches, tables = serializer_for(pa.RecordBatch), serializer_for(pa.Table)
    assert batches.decode(batches.encode(batch)) == batch
    assert batches.decode(batches.encode(batch.slice(0, 0))) == batch.slice(0, 0)
    table = pa.Table.from_batches([batch, batch])
    assert tables.decode(tables.encode(table)) == table
    with pytest.raises(StorageCorrupt):
        tables.decode(tables.encode(table)[:50])
    assert plain_decode("arrow", batches.encode(batch)) == [{"a": 1, "b": ["x"]}, {"a": None, "b": []}]


def test_an_array_may_be_a_field() -> None:
    at = dt.datetime(2024, 1, 1)
    session = Session(1, "", 0.5, True, b"", Decimal(1), at, at.date(), [], {}, ("", 1))
    session.grid = np.arange(4).reshape(2, 2)
    serializer = serializer_for(Session)
    assert serializer.decode(serializer.encode(session)).grid.tolist() == [[0, 1], [2, 3]]


def test_tools_read_values_without_the_class() -> None:
    value = {(1, "a"): [Point(1, 2.0)]}
    kind = dict[tuple[int, str], list[Point]]
    payload = serializer_for(kind).encode(value)
    assert plain_decode(signature_of(kind), payload) == [[[1, "a"], [{"x": 1, "y": 2.0}]]]
    times = plain_decode("datetime", serializer_for(dt.datetime).encode(dt.datetime(2024, 1, 1, tzinfo=UTC)))
    assert times == "2024-01-01T00:00:00Z"
    assert plain_decode("int", JsonSerializer(int).encode(5), serializer="json") == 5
    assert plain_decode("bytes", b"\x00\x01") == "AAE="
    with pytest.raises(StorageCorrupt):
        plain_decode(signature_of(Point), b"\x81\xa1x\x01")


def test_a_serializer_that_is_not_ours_is_not_guessed() -> None:
    assert stored_serializer("int", "theirs") is None
    assert stored_serializer("int", "msgpack") is None
    assert stored_serializer(signature_of(Point), "int64") is None
