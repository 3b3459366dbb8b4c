"""JSON values of an answer: exact, and in one form for each type."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tidegate.model.times import format_time
from tidegate.query.duckdb.engine import LakeQuery
from tidegate.query.duckdb.result import QueryAnswer


@pytest.mark.parametrize(
    ("sql", "kind", "value"),
    [
        ("1::INT", "INT", 1),
        ("9007199254740993::BIGINT", "BIGINT", 9007199254740993),
        ("7::UTINYINT", "UTINYINT", 7),
        ("18446744073709551614::HUGEINT", "HUGEINT", 18446744073709551614),
        ("1.5::DOUBLE", "DOUBLE", 1.5),
        ("'NaN'::DOUBLE", "DOUBLE", None),
        ("'-inf'::FLOAT", "FLOAT", None),
        ("1.50::DECIMAL(10,2)", "DECIMAL(10,2)", "1.50"),
        ("'1e-7'::DECIMAL(38,10)", "DECIMAL(38,10)", "0.0000001000"),
        ("12::DECIMAL(38,0)", "DECIMAL(38,0)", "12"),
        ("true", "BOOLEAN", True),
        ("'é'", "TEXT", "é"),
        ("'\\x00\\xFF'::BLOB", "BYTES", "AP8="),
        ("DATE '2026-01-02'", "DATE", "2026-01-02"),
        ("TIME '10:00:01.5'", "TIME", "10:00:01.500000"),
        ("TIMESTAMPTZ '2026-01-02 03:04:05+02'", "TIMESTAMP", "2026-01-02T01:04:05Z"),
        ("TIMESTAMP '2026-01-02 03:04:05.25'", "TIMESTAMP", "2026-01-02T03:04:05.250Z"),
        ("TIMESTAMP '1969-12-31 23:59:59.000001'", "TIMESTAMP", "1969-12-31T23:59:59.000001Z"),
        ("INTERVAL '1 month 2 days 3.5 seconds'", "INTERVAL", "P1M2DT3.5S"),
        ("INTERVAL '10 seconds'", "INTERVAL", "P0M0DT10S"),
        ("'7f0e6f0c-0000-4000-8000-000000000001'::UUID", "UUID", "7f0e6f0c-0000-4000-8000-000000000001"),
        ("'{\"a\": 1}'::JSON", "JSON", '{"a": 1}'),
        ("NULL", "NULL", None),
        ("'a'::ENUM('a', 'b')", "ENUM('a', 'b')", "a"),
        ("[1, NULL, 3]", "INTEGER[]", [1, None, 3]),
        ("[1.5::DECIMAL(3,1), NULL]", "DECIMAL(3,1)[]", ["1.5", None]),
        ("['NaN'::DOUBLE, 1]", "DOUBLE[]", [None, 1.0]),
        ("[TIMESTAMPTZ '2026-01-01']", "TIMESTAMP WITH TIME ZONE[]", ["2026-01-01T00:00:00Z"]),
        (
            "{'a': 1, 'b': ['x'], 'c': NULL}",
            'STRUCT(a INTEGER, b VARCHAR[], c "NULL")',
            {"a": 1, "b": ["x"], "c": None},
        ),
        ("MAP {'k': 1.5::DOUBLE}", "MAP(VARCHAR, DOUBLE)", {"k": 1.5}),
        ("[18446744073709551614::HUGEINT]", "HUGEINT[]", [18446744073709551614]),
        ("MAP {1: 'x'}", "MAP(INTEGER, VARCHAR)", {"1": "x"}),
        ("[{'b': 'x'::BLOB}]", "STRUCT(b BLOB)[]", [{"b": "eA=="}]),
        ("DATE '99999-01-01'", "DATE", "99999-01-01"),
        ("DATE 'infinity'", "DATE", "infinity"),
        ("DATE '-infinity'", "DATE", "-infinity"),
        ("DATE '0001-01-01 (BC)'", "DATE", "0000-01-01"),
        ("make_date(-10000, 1, 1)", "DATE", "-10000-01-01"),
        ("TIMESTAMP 'infinity'", "TIMESTAMP", "infinity"),
        ("TIMESTAMPTZ '-infinity'", "TIMESTAMP", "-infinity"),
        ("TIMESTAMP '290000-01-01 00:00:00.25'", "TIMESTAMP", "290000-01-01T00:00:00.250Z"),
        ("TIMESTAMP '0002-01-01 (BC) 00:00:00.000001'", "TIMESTAMP", "-0001-01-01T00:00:00.000001Z"),
        ("TIMESTAMP_S '99999-01-01'", "TIMESTAMP_S", "99999-01-01T00:00:00Z"),
        ("[TIMESTAMP 'infinity', NULL]", "TIMESTAMP[]", ["infinity", None]),
        ("{'a': DATE '99999-01-01'}", "STRUCT(a DATE)", {"a": "99999-01-01"}),
        ("MAP {DATE 'infinity': [DATE '2026-01-02']}", "MAP(DATE, DATE[])", {"infinity": ["2026-01-02"]}),
        ("union_value(k := DATE 'infinity')", "UNION(k DATE)", "infinity"),
        ("[DATE '99999-01-01']::DATE[1]", "DATE[1]", ["99999-01-01"]),
        ("['a'::ENUM('a', 'b')]", "ENUM('a', 'b')[]", ["a"]),
    ],
)
def test_each_type_has_one_form(query: LakeQuery, sql: str, kind: str, value: Any) -> None:
    answer = query.run(f"SELECT {sql}")
    assert answer.columns[0]["type"] == kind
    assert answer.json_rows() == [[value]]
    assert json.loads(json.dumps(answer.json_rows(), allow_nan=False)) == [[value]]
    again = query.run(f"SELECT x FROM (SELECT {sql} AS x) UNION ALL SELECT NULL").json_rows()
    assert sorted(again, key=str) == sorted([[value], [None]], key=str)


def test_times_are_written_as_everywhere_else() -> None:
    moments = [
        0,
        1,
        1_000,
        1_000_000,
        -1,
        1_767_225_600_123_456,
        1_767_225_600_120_000,
        253_402_300_799_999_999,
    ]
    column = pa.array(moments, pa.timestamp("us", tz="UTC"))
    answer = QueryAnswer(pa.table({"at": column}), ["TIMESTAMP WITH TIME ZONE"])
    assert [row[0] for row in answer.json_rows()] == [format_time(moment) for moment in moments]


def test_nested_values_stay_with_their_rows(query: LakeQuery) -> None:
    answer = query.run("""
        SELECT CASE i % 3 WHEN 0 THEN [i, NULL] WHEN 1 THEN [] END,
               CASE i % 3 WHEN 0 THEN MAP {i: [i]} WHEN 1 THEN MAP {} END,
               CASE WHEN i % 2 = 0 THEN {'a': [{'b': i}]} END
        FROM range(5000) AS t(i) ORDER BY i LIMIT 700 OFFSET 2500
    """)
    expected = [
        [
            [i, None] if i % 3 == 0 else [] if i % 3 == 1 else None,
            {str(i): [i]} if i % 3 == 0 else {} if i % 3 == 1 else None,
            {"a": [{"b": i}]} if i % 2 == 0 else None,
        ]
        for i in range(2500, 3200)
    ]
    assert answer.json_rows() == expected
    sliced = QueryAnswer(answer.arrow().slice(100, 50), ["BIGINT[]", "MAP", "STRUCT"])
    assert sliced.json_rows() == expected[100:150]


def test_columns_of_the_same_name_stay_apart(query: LakeQuery) -> None:
    answer = query.run("SELECT 1 AS a, 2 AS a")
    assert ([c["name"] for c in answer.columns], answer.json_rows()) == (["a", "a"], [[1, 2]])


def test_an_answer_without_rows_has_its_columns(query: LakeQuery) -> None:
    answer = query.run("SELECT 1 AS a, 'x' AS b WHERE false")
    assert (answer.row_count, answer.json_rows(), len(answer.columns)) == (0, [], 2)
    assert answer.arrow().schema.names == ["a", "b"]


def test_arrow_times_are_utc(query: LakeQuery) -> None:
    found = query.run("SELECT TIMESTAMPTZ '2026-01-01 00:00:00+01' AS t").arrow()["t"][0].as_py()
    assert found == datetime(2026, 1, 1, tzinfo=UTC) - timedelta(hours=1)
