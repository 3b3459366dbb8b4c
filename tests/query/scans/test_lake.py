"""Pruning: it drops files, and it never drops a row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import TidegateError
from tidegate.query.duckdb.engine import LakeQuery
from tidegate.query.duckdb.session import LakeDatabase, QueryLimits
from tidegate.query.scans.lake import bound_table, choose_files, find_file_tests
from tidegate.query.scans.pushdown import find_bounds
from tidegate.storage.lake.tables import Lake

START = datetime(2026, 1, 1, 0, 0, 0, 999_500, UTC)
NAN, INFINITY = float("nan"), float("inf")
TEXTS = [
    "",
    "a",
    "b",
    "a" * 31,
    "a" * 32,
    "a" * 33,
    "a" * 64,
    "a" * 65,
    "a" * 100 + "z",
    "é" * 40,
    "😀" * 20,
    "\uffff" * 30,
]
TEXTS += ["a" * 64 + "\U0010ffff" * 3, "\U0010ffff" * 40, "it's", "x$1", "?", "zz", "a" * 63 + "é" * 9]
DOUBLES = [0.0, -0.0, 1.5, -1.5, 1e300, NAN, INFINITY, -INFINITY, None]
WHOLE = [0, 1, -1, 2**31 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), None]

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("small", pa.int8()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("s", pa.string()),
        ("moment", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("wide", pa.decimal128(30, 4)),
        ("on", pa.bool_()),
        ("part", pa.string()),
        ("seq", pa.int64()),
    ]
)


def one_row(number: int) -> dict[str, Any]:
    moment = START + timedelta(microseconds=371 * number)
    return {
        "n": WHOLE[number % len(WHOLE)],
        "small": number % 256 - 128,
        "d": DOUBLES[number % len(DOUBLES)],
        "f": [0.1, NAN, -2.5, None, 1e30][number % 5],
        "s": TEXTS[number % len(TEXTS)] if number % 7 else None,
        "moment": moment if number % 11 else None,
        "local": moment.replace(tzinfo=None),
        "day": date(2026, 1, 1) + timedelta(days=number % 5),
        "price": Decimal(number) / 4,
        "wide": Decimal("12345678901234567890.0001") + number,
        "on": [True, False, None][number % 3],
        "part": ["a", "b", None][number % 3],
        "seq": number,
    }


@pytest.fixture(scope="module")
def query(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeQuery]:
    """Return a table of 60 files of 1 to 3 rows, and one file for each partition."""
    root = tmp_path_factory.mktemp("lake")
    number = 0
    for file in range(40):
        count = file % 3 + 1
        table = pa.Table.from_pylist([one_row(number + i) for i in range(count)], schema=SCHEMA)
        write_deltalake(root / "t", table, mode="append", partition_by=["part"])
        number += count
    opened = LakeQuery(Lake(root), QueryLimits(rows_max=10_000))
    yield opened
    opened.close()


def literals(column: str) -> st.SearchStrategy[Any]:
    """Return constants as (SQL text, bound values)."""
    moments = st.integers(-3, 90).map(lambda n: START + timedelta(microseconds=371 * n))
    found: dict[str, list[Any]] = {
        "n": WHOLE,
        "small": [-128, -1, 0, 5, 100, 127, 300, 2.5],
        "d": [value for value in DOUBLES if value != INFINITY],
        "f": [0.1, -2.5, 1e30, NAN, 0, 1],
        "s": TEXTS,
        "price": [0, 1, 2.25, Decimal("3.75"), 5.125, 19],
        "wide": [
            Decimal("12345678901234567890.0001"),
            Decimal("12345678901234567895.5"),
            1.2345678901234567e19,
        ],
        "on": [True, False],
        "part": ["a", "b", "c", ""],
        "seq": [0, 7, 40, 79, 2.5],
    }
    if column in found:
        value: st.SearchStrategy[Any] = st.sampled_from(found[column])
    elif column == "day":
        value = st.sampled_from([date(2026, 1, 2), date(2026, 1, 5), datetime(2026, 1, 3, 12), "2026-01-04"])
    else:
        value = moments | moments.map(lambda m: m.replace(tzinfo=None)) | moments.map(str)
    return value.flatmap(lambda v: st.sampled_from(written(v)))


def written(value: Any) -> list[tuple[str, list[Any]]]:
    """Return the ways to write a constant."""
    forms: list[tuple[str, list[Any]]] = [("?", [value])]
    if isinstance(value, str):
        forms.append(("'" + value.replace("'", "''") + "'", []))
    elif isinstance(value, bool):
        forms.append((str(value), []))
    elif isinstance(value, int | Decimal):
        forms += [(str(value), []), (f"({value})", [])]
    elif isinstance(value, float) and abs(value) < 1e9:
        forms += [(repr(value), []), (f"{value!r}::DOUBLE", [])]
    elif isinstance(value, datetime):
        kind = "TIMESTAMPTZ" if value.tzinfo else "TIMESTAMP"
        forms += [(f"{kind} '{value}'", []), (f"'{value}'::{kind}", []), (f"'{value}'", [])]
        forms.append((f"({kind} '{value}' - INTERVAL 1 SECOND)", []))
    elif isinstance(value, date):
        forms += [(f"DATE '{value}'", []), (f"'{value}'", []), (f"DATE '{value}' + INTERVAL '1' DAY", [])]
    return forms


@st.composite
def comparisons(draw: st.DrawFn) -> tuple[str, list[Any]]:
    column = draw(st.sampled_from(SCHEMA.names))
    name = draw(st.sampled_from([column, f'"{column}"', column.upper(), f"t.{column}"]))
    shape = draw(st.sampled_from(["=", "<", "<=", ">", ">=", "flip", "between", "in", "<>", "not", "or"]))
    first, second = draw(literals(column)), draw(literals(column))
    values = first[1] + second[1]
    if shape == "between":
        return f"{name} BETWEEN {first[0]} AND {second[0]}", values
    if shape == "in":
        return f"{name} IN ({first[0]}, {second[0]})", values
    if shape == "or":
        return f"({name} = {first[0]} OR {name} > {second[0]})", values
    if shape == "not":
        return f"NOT {name} = {first[0]}", first[1]
    if shape == "flip":
        return f"{first[0]} < {name}", first[1]
    return f"{name} {shape} {first[0]}", first[1]


def answer(query: LakeQuery, sql: str, params: list[Any], *, pruning: bool) -> Any:
    try:
        return query.run(sql, params, pruning=pruning).json_rows()
    except TidegateError as error:
        return type(error)


@given(
    st.lists(comparisons(), min_size=1, max_size=3), st.sampled_from(["", " x LEFT JOIN range(2) r ON true"])
)
def test_pruned_answers_equal_answers_from_all_files(
    query: LakeQuery, parts: list[tuple[str, list[Any]]], join: str
) -> None:
    where = " AND ".join(text for text, _ in parts)
    if join:
        where = where.replace("t.", "x.")
    sql = f"SELECT seq, s FROM lake.t{join} WHERE {where} ORDER BY seq, s"
    params = [value for _, values in parts for value in values]
    assert answer(query, sql, params, pruning=True) == answer(query, sql, params, pruning=False)


def chosen(query: LakeQuery, sql: str, *params: Any) -> int:
    """Count the files that are read."""
    view, database = query._lake.view("t"), LakeDatabase()
    with database.session() as cursor:
        tests = find_file_tests(cursor, "t", view.columns, sql, params)
        if tests is None:
            return view.file_count
        files = choose_files(cursor, view.files.select(tests.columns), tests.tests, params)
    return view.file_count if files is None else len(files)


@pytest.mark.parametrize(
    ("where", "params", "files_max"),
    [
        ("seq = 7", (), 1),
        ("seq = ?", (7,), 1),
        ("seq = $1 AND seq <= $1", (7,), 1),
        ("7 >= seq", (), 8),
        ("seq BETWEEN 5 AND 8", (), 4),
        ("seq IN (3, 50, ?)", (70,), 3),
        ("part = 'a' AND seq < 30", (), 26),
        ("(seq > 70) AND (s = s OR n > 1)", (), 10),
        ("moment < TIMESTAMPTZ '2026-01-01 00:00:00.999Z'", (), 10),
        ("moment < ?", ("2026-01-01T00:00:00.999Z",), 10),
        ("moment > now() - INTERVAL 1 HOUR AND moment < '2027-01-01'", (), 10),
        ("price <= 1.5", (), 10),
        ("t.seq = 7 AND lower(s) = 'x'", (), 1),
    ],
)
def test_comparisons_that_drop_files(
    query: LakeQuery, where: str, params: tuple[Any, ...], files_max: int
) -> None:
    assert chosen(query, f"SELECT * FROM lake.t WHERE {where}", *params) <= files_max


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM lake.t WHERE seq = 7 OR n = 1",
        "SELECT * FROM lake.t WHERE NOT seq = 7",
        "SELECT * FROM lake.t WHERE seq + 0 = 7",
        "SELECT * FROM lake.t WHERE seq = n",
        "SELECT * FROM lake.t WHERE seq = (SELECT 7)",
        "SELECT * FROM lake.t WHERE seq BETWEEN SYMMETRIC 9 AND 5",
        "SELECT * FROM lake.t WHERE wide = 1",
        "SELECT n + 1 AS seq FROM lake.t WHERE seq = 7",
        "SELECT * REPLACE (n AS seq) FROM lake.t WHERE seq = 7",
        "SELECT * FROM lake.t x(seq, n) WHERE seq = 7",
        "SELECT * FROM lake.t TABLESAMPLE 5 ROWS WHERE seq = 7",
        "SELECT * FROM lake.t WHERE seq = 7 USING SAMPLE 5 ROWS",
        "SELECT * FROM lake.t POSITIONAL JOIN range(9) r WHERE t.seq = 7",
        "SELECT * FROM range(9) r ASOF JOIN lake.t ON r.range >= t.seq WHERE t.seq = 7",
        "SELECT * FROM lake.t, range(9) r(seq) WHERE seq = 7",
        "SELECT * FROM range(9) LEFT JOIN lake.t x ON x.seq = 7",
        "SELECT * FROM lake.t a JOIN lake.t b USING (seq) WHERE a.seq = 7",
        "SELECT * FROM lake.t WHERE moment < now()",
        "SELECT * FROM lake.t WHERE s COLLATE NOCASE = 'a'",
        "SELECT * FROM lake.t WHERE s = 'a' COLLATE NOCASE",
        "SELECT * FROM lake.t WHERE d > 1e18::DOUBLE",
        "SELECT count(*) FILTER (WHERE seq = 7) FROM lake.t",
        "SELECT sum(seq) FROM lake.t HAVING sum(seq) = 7",
    ],
)
def test_what_is_odd_reads_all_files(query: LakeQuery, sql: str) -> None:
    view = query._lake.view("t")
    assert chosen(query, sql) == view.file_count


def test_the_order_of_question_marks_is_that_of_the_text(query: LakeQuery) -> None:
    sql = "SELECT ? AS x, * FROM lake.t WHERE s <> ? AND seq = ? AND '?' <> ? LIMIT ?"
    bounds = find_bounds(sql, bound_table("t", query._lake.view("t").columns), 5)
    assert [(b.column, b.constants[0].sql) for b in bounds] == [("seq", "$3")]
    found = query.run(sql, ["first", "none", 8, "x", 10]).json_rows()
    assert [row[-1] for row in found] == [8]


def test_a_file_without_statistics_is_read(tmp_path: Path) -> None:
    query = LakeQuery(Lake(tmp_path))
    configuration = {"delta.dataSkippingNumIndexedCols": "0"}
    for number in range(3):
        write_deltalake(tmp_path / "t", pa.table({"a": [number]}), mode="append", configuration=configuration)
    assert query.run("SELECT a FROM lake.t WHERE a = 1").json_rows() == [[1]]
    view = query._lake.view("t")
    assert set(view.files["min.a"].to_pylist()) == {None}
