"""DDL text becomes an Arrow schema, as Spark reads it."""

from __future__ import annotations

import re
import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import SchemaInvalid
from tidegate.state.arrow.ddl import NESTING_MAX, SHOWN_CHARS_MAX, schema_of_ddl


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("user_id string, n long", [("user_id", pa.string()), ("n", pa.int64())]),
        ("n: BIGINT", [("n", pa.int64())]),
        (
            "a tinyint, b short, c int, d real",
            [("a", pa.int8()), ("b", pa.int16()), ("c", pa.int32()), ("d", pa.float32())],
        ),
        ("t timestamp", [("t", pa.timestamp("us", tz="UTC"))]),
        ("t timestamp_ntz, d date", [("t", pa.timestamp("us")), ("d", pa.date32())]),
        (
            "p decimal(12, 2), q decimal(5), r decimal",
            [("p", pa.decimal128(12, 2)), ("q", pa.decimal128(5, 0)), ("r", pa.decimal128(10, 0))],
        ),
        ("v varchar(10), b binary, o boolean", [("v", pa.string()), ("b", pa.binary()), ("o", pa.bool_())]),
        ("a array<int>", [("a", pa.list_(pa.int32()))]),
        ("m map<string, double>", [("m", pa.map_(pa.string(), pa.float64()))]),
        (
            "s struct<x: int, y: array<struct<z string>>>",
            [("s", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.struct([("z", pa.string())])))]))],
        ),
        ("`odd ``name` string comment 'it''s'", None),
    ],
)
def test_columns_are_read_as_spark_reads_them(
    ddl: str, expected: list[tuple[str, pa.DataType]] | None
) -> None:
    if expected is None:
        with pytest.raises(SchemaInvalid):
            schema_of_ddl(ddl)
    else:
        assert schema_of_ddl(ddl) == pa.schema(expected)


def test_not_null_comments_and_quoted_names_are_understood() -> None:
    found = schema_of_ddl("n long not null comment 'how many, <so far>', `odd ``name` string")
    assert found == pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("odd `name", pa.string())])


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("", "a column's name"),
        ("n", "a type"),
        ("n strin", "'strin' where a type"),
        ("n int,", "a column's name"),
        ("n int m", "a comma"),
        ("n array<int", "'>'"),
        ("n map<int>", "','"),
        ("n decimal(40, 2)", "38 digits"),
        ("n decimal(x)", "a number"),
        ("n int, n long", "twice: n"),
        ("n int; drop", "cannot be read from '; drop'"),
        ("n int not", "NULL after NOT"),
        ("n long null", "'null' where a comma"),
        ("n int comment much", "'much' where the comment"),
        ("'n' int", "'n'' where a column's name"),
        ("n struct<>", "'>' where a column's name"),
        ("n array<int not null>", "'not' where '>'"),
        ("n decimal(5, 2, 1)", "',' where ')'"),
        ("n decimal(3, 4)", "38 digits"),
        ("n decimal(\N{SUPERSCRIPT TWO})", "a number"),
        (f"n decimal({'9' * 5_000})", "a number"),
        ("n varchar", "'('"),
        ("n int[]", "cannot be read from '[]'"),
        ("n text", "'text' where a type that Spark knows"),
        ("n `int`", "'`int`' where a type that Spark knows"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_place(ddl: str, words: str) -> None:
    with pytest.raises(SchemaInvalid, match=re.escape(words)):
        schema_of_ddl(ddl)


@pytest.mark.parametrize("opening", ["array<", "map<string, ", "struct<a: "])
def test_types_nest_up_to_a_limit_and_beyond_it_are_refused(opening: str) -> None:
    def nested(levels: int) -> str:
        return f"n {opening * levels}int{'>' * levels}"

    assert len(schema_of_ddl(nested(NESTING_MAX))) == 1
    for levels in (NESTING_MAX + 1, 100_000):
        with pytest.raises(SchemaInvalid, match=f"at most {NESTING_MAX} levels"):
            schema_of_ddl(nested(levels))


@pytest.mark.parametrize(
    "ddl", ["n struct<a: " * 50_000, "`" * 100_001, "n int comment '" + "''" * 50_000, "n " * 100_000]
)
def test_long_garbage_is_refused_at_once_and_repeated_in_part(ddl: str) -> None:
    began = time.monotonic()
    with pytest.raises(SchemaInvalid) as caught:
        schema_of_ddl(ddl)
    assert time.monotonic() - began < 5
    assert len(str(caught.value)) < 3 * SHOWN_CHARS_MAX


def test_many_columns_cost_as_much_each_as_a_few() -> None:
    began = time.monotonic()
    assert len(schema_of_ddl(", ".join(f"c{number} array<int>" for number in range(20_000)))) == 20_000
    assert time.monotonic() - began < 10


@given(st.text(alphabet="ab1`'\\ <>(),:\n²é") | st.text())
def test_any_text_is_a_schema_or_refused(ddl: str) -> None:
    try:
        assert isinstance(schema_of_ddl(ddl), pa.Schema)
    except SchemaInvalid:
        pass
