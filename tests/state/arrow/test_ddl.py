"""DDL text becomes an Arrow schema, as Spark reads it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate.errors import SchemaInvalid
from tidegate.state.arrow.ddl import schema_of_ddl


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
    ],
)
def test_what_cannot_be_read_is_refused_with_the_place(ddl: str, words: str) -> None:
    with pytest.raises(SchemaInvalid, match=words.replace("(", r"\(")):
        schema_of_ddl(ddl)
