"""Schemas: every type goes to Arrow and back unchanged; what Arrow cannot say without loss is refused."""

import datetime as dt
import decimal
import pickle
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import SchemaInvalid
from tidegate.model.schemas import (
    COLUMN_NAME_CHARS_MAX,
    COLUMNS_MAX,
    Column,
    ColumnType,
    Schema,
    parse_type,
)

T = ColumnType
PLAIN_TYPES = [
    *(T.BOOLEAN, T.INT, T.BIGINT, T.DOUBLE, T.TEXT, T.BYTES, T.JSON, T.UUID, T.DATE, T.TIMESTAMP),
]
decimals = st.integers(1, 38).flatmap(lambda p: st.builds(T.decimal, st.just(p), st.integers(0, p)))
types = st.sampled_from(PLAIN_TYPES) | decimals
names = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=30).filter(
    lambda name: name.strip() != ""
)
columns = st.builds(Column, names, types, st.booleans())
schemas = st.lists(columns, min_size=1, max_size=8, unique_by=lambda column: column.name.lower()).map(
    lambda found: Schema(tuple(found))
)


@given(schemas)
def test_a_schema_comes_back_from_arrow_unchanged(schema: Schema) -> None:
    arrow = schema.to_arrow()
    assert Schema.from_arrow(arrow) == schema
    assert Schema.from_arrow(arrow).to_arrow().equals(arrow, check_metadata=True)


@given(schemas)
def test_a_schema_survives_the_arrow_wire(schema: Schema) -> None:
    over_the_wire = pa.ipc.read_schema(pa.BufferReader(schema.to_arrow().serialize()))
    assert Schema.from_arrow(over_the_wire) == schema


@given(types)
def test_a_type_reads_back_from_its_text(column_type: ColumnType) -> None:
    assert parse_type(str(column_type)) == column_type
    assert parse_type(f" {str(column_type).lower()} ") == column_type
    assert pickle.loads(pickle.dumps(column_type)) == column_type


@pytest.mark.parametrize(
    ("column_type", "value"),
    [
        (T.BOOLEAN, True),
        (T.INT, -(2**31)),
        (T.BIGINT, 2**63 - 1),
        (T.DOUBLE, 0.1),
        (T.decimal(38, 38), decimal.Decimal("0." + "9" * 38)),
        (T.decimal(38), decimal.Decimal("9" * 38)),
        (T.TEXT, "größe 温度 🌊\x00"),
        (T.BYTES, b"\x00\xff"),
        (T.JSON, '{"a": [1, null]}'),
        (T.UUID, "018f3b1c-0000-7000-8000-000000000001"),
        (T.DATE, dt.date(9999, 12, 31)),
        (T.TIMESTAMP, dt.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)),
    ],
    ids=str,
)
def test_arrow_holds_the_extreme_values_of_each_type(column_type: ColumnType, value: Any) -> None:
    assert pa.array([value, None], column_type.to_arrow()).to_pylist() == [value, None]


@pytest.mark.parametrize(
    ("arrow", "column_type"),
    [
        (pa.int8(), T.INT),
        (pa.int16(), T.INT),
        (pa.uint16(), T.INT),
        (pa.uint32(), T.BIGINT),
        (pa.float32(), T.DOUBLE),
        (pa.large_string(), T.TEXT),
        (pa.string_view(), T.TEXT),
        (pa.large_binary(), T.BYTES),
        (pa.binary_view(), T.BYTES),
        (pa.decimal256(38, 2), T.decimal(38, 2)),
        (pa.timestamp("us"), T.TIMESTAMP),
        (pa.timestamp("us", tz="Europe/Vienna"), T.TIMESTAMP),
    ],
    ids=str,
)
def test_a_narrower_arrow_type_is_taken_as_ours(arrow: pa.DataType, column_type: ColumnType) -> None:
    schema = Schema.from_arrow(pa.schema([pa.field("a", arrow, metadata={"PARQUET:field_id": "1"})]))
    assert schema == Schema((Column("a", column_type),))


@pytest.mark.parametrize(
    "arrow",
    [
        *(pa.uint64(), pa.timestamp("ns", tz="UTC"), pa.timestamp("s"), pa.date64(), pa.list_(pa.int32())),
        *(pa.struct([("x", pa.int32())]), pa.null(), pa.decimal256(39, 0), pa.decimal128(5, -2), pa.uuid()),
        *(pa.decimal128(3, 5), pa.binary(16), pa.time64("us"), pa.dictionary(pa.int32(), pa.string())),
    ],
    ids=str,
)
def test_an_arrow_type_that_could_lose_values_is_refused(arrow: pa.DataType) -> None:
    with pytest.raises(SchemaInvalid):
        Schema.from_arrow(pa.schema([pa.field("a", arrow)]))


@pytest.mark.parametrize(
    ("arrow", "mark"),
    [(pa.int32(), b"UUID"), (pa.string(), b"GEO"), (pa.string(), b"\xff"), (pa.string(), b"INT")],
)
def test_a_mark_that_does_not_fit_its_field_is_refused(arrow: pa.DataType, mark: bytes) -> None:
    with pytest.raises(SchemaInvalid, match="is marked"):
        Schema.from_arrow(pa.schema([pa.field("a", arrow, metadata={b"tidegate.type": mark})]))


def test_other_spellings_of_types_are_read() -> None:
    assert parse_type("integer") == T.INT
    assert parse_type("Decimal ( 10 , 2 )") == T.decimal(10, 2)
    assert parse_type("DECIMAL(10)") == T.decimal(10, 0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there is no type ''"),
        ("VARCHAR", "there is no type 'VARCHAR'"),
        ("TEXT(5)", "there is no type 'TEXT(5)'"),
        ("DECIMAL", "DECIMAL needs its digits, such as DECIMAL(10,2)"),
        ("DECIMAL(0,0)", "DECIMAL(0,0) needs a precision from 1 to 38"),
        ("DECIMAL(39,0)", "DECIMAL(39,0) needs a precision from 1 to 38"),
        ("DECIMAL(5,6)", "DECIMAL(5,6) needs a scale from 0 to its precision"),
        ("DECIMAL(5,-1)", "there is no type 'DECIMAL(5,-1)'"),
        ("DECIMAL(\u0665,0)", "there is no type 'DECIMAL(\u0665,0)'"),
    ],
)
def test_a_text_that_is_no_type_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(SchemaInvalid) as caught:
        parse_type(text)
    assert caught.value.values["reason"] == reason


def test_only_decimal_takes_a_precision() -> None:
    with pytest.raises(SchemaInvalid, match="INT takes no precision"):
        ColumnType("INT", 5)


@pytest.mark.parametrize(
    "name", ["", "  ", "a\x00", "a\nb", "\x7f", "\ud800", "n" * (COLUMN_NAME_CHARS_MAX + 1)]
)
def test_a_column_name_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(SchemaInvalid) as caught:
        Column(name, T.INT)
    assert str(caught.value).encode(), "the refusal itself can be sent as UTF-8"


def test_the_longest_column_name_goes_both_ways() -> None:
    schema = Schema((Column("温" * COLUMN_NAME_CHARS_MAX, T.UUID, required=True),))
    assert Schema.from_arrow(schema.to_arrow()) == schema


def test_two_columns_that_differ_only_in_case_are_refused() -> None:
    with pytest.raises(SchemaInvalid, match="'größe' is named 2 times"):
        Schema((Column("größe", T.INT), Column("x", T.INT), Column("GRÖßE", T.INT)))


def test_a_schema_has_columns_but_not_too_many() -> None:
    many = tuple(Column(f"c{n}", T.INT) for n in range(COLUMNS_MAX + 1))
    assert Schema(many[1:]).names[-1] == f"c{COLUMNS_MAX}"
    for wrong in ((), many):
        with pytest.raises(SchemaInvalid):
            Schema(wrong)


def test_importing_the_model_loads_neither_arrow_nor_numpy() -> None:
    modules = "clock, durations, epoch, ids, names, schemas, times"
    code = (
        f"import sys; from tidegate.model import {modules}; print({{'pyarrow', 'numpy'}} & set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"
