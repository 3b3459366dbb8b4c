"""Values of columns: what each type takes, and that nothing is lost on the way to JSON and Arrow and back."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.column_values import KINDS, values_of
from tidegate.errors import ValueInvalid
from tidegate.model.schemas import ColumnType, parse_type
from tidegate.model.tables import Value
from tidegate.model.times import format_time, parse_time
from tidegate.model.values import coerce, coerce_column, from_arrow, from_json, json_column, to_arrow, to_json
from tidegate.query.duckdb.result import QueryAnswer

EAST = timezone(timedelta(hours=2))

TAKEN: list[tuple[str, object, Value]] = [
    ("BOOLEAN", True, True),
    ("INT", 7, 7),
    ("INT", 7.0, 7),
    ("INT", Decimal("7.00"), 7),
    ("INT", "-007", -7),
    ("INT", -(2**31), -(2**31)),
    ("BIGINT", str(2**63 - 1), 2**63 - 1),
    ("BIGINT", 1e15, 10**15),
    ("DOUBLE", 3, 3.0),
    ("DOUBLE", "1.5e3", 1500.0),
    ("DOUBLE", Decimal("0.1"), 0.1),
    ("DOUBLE", "-Infinity", -math.inf),
    ("DOUBLE", 2**60, float(2**60)),
    ("DECIMAL(12,2)", 5, Decimal("5.00")),
    ("DECIMAL(12,2)", 0.1, Decimal("0.10")),
    ("DECIMAL(12,2)", "1e3", Decimal("1000.00")),
    ("DECIMAL(12,2)", Decimal("-0"), Decimal("0.00")),
    ("DECIMAL(12,2)", Decimal("1.500000"), Decimal("1.50")),
    ("DECIMAL(38,0)", 10**38 - 1, Decimal(10**38 - 1)),
    ("TEXT", "naïve 🌊", "naïve 🌊"),
    ("BYTES", b"\x00\xff", b"\x00\xff"),
    ("BYTES", bytearray(b"ab"), b"ab"),
    ("BYTES", "AP8=", b"\x00\xff"),
    ("JSON", '{"a": 1}', '{"a": 1}'),
    ("JSON", {"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'),
    ("JSON", 5, "5"),
    ("JSON", False, "false"),
    ("JSON", '"text"', '"text"'),
    ("UUID", "019D2C3E-7F00-7ABC-8DEF-0123456789AB", "019d2c3e-7f00-7abc-8def-0123456789ab"),
    ("UUID", UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ("DATE", "1970-01-02", 1),
    ("DATE", date(1969, 12, 31), -1),
    ("DATE", datetime(1970, 1, 3, tzinfo=UTC), 2),
    ("TIMESTAMP", "1970-01-01T00:00:00.25Z", 250_000),
    ("TIMESTAMP", "1970-01-01 02:00:00+02:00", 0),
    ("TIMESTAMP", "1970-01-02", 86_400_000_000),
    ("TIMESTAMP", datetime(1970, 1, 1, 0, 0, 1), 1_000_000),
    ("TIMESTAMP", datetime(1970, 1, 1, 2, tzinfo=EAST), 0),
    ("TIMESTAMP", date(1970, 1, 2), 86_400_000_000),
]

REFUSED: list[tuple[str, object, str]] = [
    ("BOOLEAN", 1, "neither true nor false"),
    ("BOOLEAN", "true", "neither true nor false"),
    ("INT", True, "not an INT"),
    ("INT", 2**31, "outside"),
    ("INT", 1.5, "not a whole number"),
    ("INT", " 7", "not an INT"),
    ("INT", "9" * 5000, "not an INT"),
    ("BIGINT", math.inf, "not a BIGINT"),
    ("BIGINT", Decimal("1e30"), "not a BIGINT"),
    ("BIGINT", -(2**63) - 1, "outside"),
    ("DOUBLE", True, "not a number"),
    ("DOUBLE", "1e400", "too large"),
    ("DOUBLE", 10**400, "too large"),
    ("DOUBLE", 2**53 + 1, "more digits"),
    ("DOUBLE", str(2**53 + 1), "more digits"),
    ("DECIMAL(12,2)", "1.005", "more than 2 digits"),
    ("DECIMAL(12,2)", 10**10, "too large"),
    ("DECIMAL(12,2)", "1e999999", "too large"),
    ("DECIMAL(12,2)", math.nan, "not a number"),
    ("DECIMAL(12,2)", False, "not a number"),
    ("TEXT", 5, "not text"),
    ("TEXT", "a\ud800", "surrogate"),
    ("BYTES", "not base64", "not base64"),
    ("BYTES", 5, "neither bytes"),
    ("JSON", "{a: 1}", "not JSON"),
    ("JSON", "NaN", "not JSON"),
    ("JSON", {"a": math.nan}, "cannot be written"),
    ("JSON", b"{}", "cannot be written"),
    ("JSON", ["\ud800"], "surrogate"),
    ("JSON", "[" * 100_000, "not JSON"),
    ("UUID", "019d2c3e7f007abc8def0123456789ab", "not a UUID"),
    ("UUID", 1, "not a UUID"),
    ("DATE", "2026-02-30", "not a day"),
    ("DATE", "2026-1-1", "not a day"),
    ("DATE", 5, "not a day"),
    ("DATE", datetime(2026, 1, 1, 12), "within a day"),
    ("TIMESTAMP", "yesterday", "not an ISO 8601 time"),
    ("TIMESTAMP", "2026-01-01T00:00:00.1234567Z", "finer than a microsecond"),
    ("TIMESTAMP", 5, "not a time"),
    ("TIMESTAMP", datetime(1, 1, 1, tzinfo=EAST), "outside the years"),
]


@pytest.mark.parametrize(("kind", "given_value", "held"), TAKEN)
def test_what_fits_a_type_is_taken(kind: str, given_value: object, held: Value) -> None:
    found = coerce(given_value, parse_type(kind), "here")
    assert (found, type(found)) == (held, type(held))
    assert coerce_column([None, given_value], parse_type(kind), "here") == [None, held]
    if isinstance(held, Decimal):
        assert str(found) == str(held)


@pytest.mark.parametrize(("kind", "given_value", "reason"), REFUSED)
def test_what_does_not_fit_is_refused_with_its_place_and_its_row(
    kind: str, given_value: object, reason: str
) -> None:
    with pytest.raises(ValueInvalid, match=reason) as one:
        coerce(given_value, parse_type(kind), "Column 'x' (INT)")
    assert str(one.value).startswith("Column 'x' (INT): ")
    assert len(str(one.value)) < 400
    with pytest.raises(ValueInvalid, match=reason) as many:
        coerce_column([None, given_value, given_value], parse_type(kind), "Column 'x'")
    assert "in row 2" in str(many.value)


def test_times_that_cannot_be_are_refused_in_the_usual_form_too() -> None:
    for text in (
        "2026-02-30T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T23:60:00Z",
        "0000-01-01 00:00:00Z",
    ):
        with pytest.raises(ValueInvalid, match="is not a time"):
            coerce(text, ColumnType.TIMESTAMP, "here")


@settings(max_examples=100, deadline=None)
@given(values_of(ColumnType.TIMESTAMP), st.sampled_from([1, 1_000, 1_000_000]), st.sampled_from("T "))
def test_times_in_the_usual_form_are_read_as_in_any_form(moment: Value, step: int, between: str) -> None:
    assert isinstance(moment, int)
    text = format_time(moment // step * step if moment >= 0 else -(-moment // step) * step).replace(
        "T", between
    )
    assert coerce(text, ColumnType.TIMESTAMP, "here") == parse_time(text)


def test_nothing_is_null_in_every_type() -> None:
    for kind in KINDS:
        assert coerce(None, kind, "here") is None
        assert coerce_column([None, None], kind, "here") == [None, None]
        assert (to_json(None, kind), from_json(None, kind)) == (None, None)
        assert from_arrow(pa.nulls(2), kind, "here") == [None, None]


def test_what_json_cannot_say_is_null() -> None:
    assert json_column([math.nan, math.inf, -math.inf, 1.5, None], ColumnType.DOUBLE) == [
        *(None, None, None, 1.5, None)
    ]


# Types by name: hypothesis takes very long to print a ColumnType.
columns = st.sampled_from(KINDS).flatmap(
    lambda kind: st.tuples(st.just(str(kind)), st.lists(st.none() | values_of(kind), max_size=6))
)


@settings(max_examples=300, deadline=None)
@given(columns)
def test_values_come_back_the_same_from_json_and_from_arrow(column: tuple[str, list[Value]]) -> None:
    kind, values = parse_type(column[0]), column[1]
    written = json_column(values, kind)
    assert written == [to_json(value, kind) for value in values]
    finite = [value for value in values if not (isinstance(value, float) and math.isinf(value))]
    assert list(map(repr, finite)) == [repr(from_json(to_json(value, kind), kind)) for value in finite]
    array = to_arrow(values, kind)
    assert array.type == kind.to_arrow()
    for form in (array, pa.chunked_array([array, array[:0]])):
        assert list(map(repr, from_arrow(form, kind, "here"))) == list(map(repr, values))


@settings(max_examples=200, deadline=None)
@given(columns)
def test_the_json_of_a_value_is_the_json_of_an_answer(column: tuple[str, list[Value]]) -> None:
    kind, values = parse_type(column[0]), column[1]
    names = {"TEXT": "VARCHAR", "BYTES": "BLOB", "INT": "INTEGER"}
    answer = QueryAnswer(pa.table({"x": to_arrow(values, kind)}), [names.get(kind.name, str(kind))])
    assert [row[0] for row in answer.json_rows()] == json_column(values, kind)


@pytest.mark.parametrize(
    ("array", "kind", "held"),
    [
        (pa.array([1, None], pa.uint8()), "INT", [1, None]),
        (pa.array([1.0, None]), "BIGINT", [1, None]),
        (pa.array([Decimal(5)], pa.decimal128(38, 0)), "BIGINT", [5]),
        (pa.array([1, 2], pa.int32()), "DOUBLE", [1.0, 2.0]),
        (pa.array([1.5], pa.float32()), "DOUBLE", [1.5]),
        (pa.array([Decimal("1.5")]), "DECIMAL(12,2)", [Decimal("1.50")]),
        (pa.array(["a", None, "a"]).dictionary_encode(), "TEXT", ["a", None, "a"]),
        (pa.array(["a"], pa.large_string()), "TEXT", ["a"]),
        (pa.array(["a"], pa.string_view()), "TEXT", ["a"]),
        (pa.array([b"ab"], pa.binary(2)), "BYTES", [b"ab"]),
        (pa.array([1_000], pa.timestamp("ns")), "TIMESTAMP", [1]),
        (pa.array([1], pa.timestamp("s", tz="Europe/Vienna")), "TIMESTAMP", [1_000_000]),
        (pa.array([1], pa.date32()), "TIMESTAMP", [86_400_000_000]),
        (pa.array(["2026-01-01"]), "DATE", [20454]),
        (pa.array([None, None]), "TEXT", [None, None]),
    ],
)
def test_arrow_of_another_type_is_taken_where_every_value_fits(
    array: pa.Array, kind: str, held: list[Value]
) -> None:
    assert from_arrow(array, parse_type(kind), "here") == held
    assert from_arrow(pa.chunked_array([array]), parse_type(kind), "here") == held


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([2**31], pa.int64()), "INT"),
        (pa.array([2**63], pa.uint64()), "BIGINT"),
        (pa.array([1], pa.timestamp("ns")), "TIMESTAMP"),
        (pa.array([2**62], pa.timestamp("us")), "TIMESTAMP"),
        (pa.array([2**31 - 1], pa.date32()), "DATE"),
        (pa.array([5]), "TEXT"),
        (pa.array([1]), "BOOLEAN"),
        (pa.array(["{"]), "JSON"),
        (pa.array([2**53 + 1]), "DOUBLE"),
    ],
)
def test_arrow_that_would_lose_something_is_refused(array: pa.Array, kind: str) -> None:
    with pytest.raises(ValueInvalid):
        from_arrow(array, parse_type(kind), "Column 'x'")
