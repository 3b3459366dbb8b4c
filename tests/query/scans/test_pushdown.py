"""What of a table a statement reads, as EXPLAIN tells it: keys, indexes, times, columns."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.query.bench import Bench
from tidegate.errors import RequestInvalid, SqlInvalid, SqlUnsupported, TableNotFound
from tidegate.model.tables import TableKind

TAG = "7f0e6f0c-0000-4000-8000-000000000001"
KEYED = {
    **{"whole": "BIGINT", "small": "INT", "number": "DOUBLE", "price": "DECIMAL(10,2)", "text": "TEXT"},
    **{"bytes": "BYTES", "tag": "UUID", "day": "DATE", "moment": "TIMESTAMP", "yes": "BOOLEAN"},
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("home"))
    made.create("app.one", TableKind.SHARED, {"id": "BIGINT", "a": "TEXT", "b": "INT", "doc": "JSON"}, ["id"])
    made.create("app.two", TableKind.USER, {"n": "INT", "room": "TEXT", "id": "BIGINT"}, ["room", "id"])
    indexed = {"id": "BIGINT", "room": "TEXT", "at": "TIMESTAMP", "x": "INT"}
    table = made.create("app.indexed", TableKind.SHARED, indexed, ["id"])
    table = made.index(table, "by_room", ["room", "at"])
    made.index(table, "unfilled", ["x"], fill=False)
    made.create("app.typing", TableKind.STREAM, {"room": "TEXT"})
    for name, kind in KEYED.items():
        made.create(f"keyed.{name}", TableKind.SHARED, {"k": kind, "v": "INT"}, ["k"])
    write_deltalake(made.root / "files", pa.table({"a": [1], "b": [2]}))
    write_deltalake(made.root / "files", pa.table({"a": [5], "b": [2]}), mode="append")
    yield made
    made.close()


def access(bench: Bench, sql: str, *params: Any) -> str:
    (row,) = bench.explain(sql, *params)
    return str(row["access"])


@pytest.mark.parametrize(
    ("where", "params", "words"),
    [
        ("", (), "whole table"),
        ("WHERE id = 5", (), "point read (id)"),
        ("WHERE 5 = id AND a = 'x'", (), "point read (id)"),
        ("WHERE id = ?", (5,), "point read (id)"),
        ("WHERE id IN (5, ?, 5)", (7,), "point read (id), 2 keys"),
        ("WHERE id > 5", (), "key range (id > 5)"),
        ("WHERE id >= 5 AND id > 7 AND id < 100 AND id <= 9", (), "key range (id > 7, id ≤ 9)"),
        ("WHERE id BETWEEN ? AND 9", (2,), "key range (id ≥ 2, id ≤ 9)"),
        ("WHERE id > 5 AND id < 3", (), "nothing (the comparisons exclude each other)"),
        ("WHERE id > 5 OR id = 1", (), "whole table"),
        ("WHERE NOT id = 5", (), "whole table"),
        ("WHERE id + 0 = 5", (), "whole table"),
        ("WHERE id = 5.0", (), "whole table"),
        ("WHERE id = '5'", (), "whole table"),
        ("WHERE id = 99999999999999999999", (), "whole table"),
        ("WHERE id = NULL", (), "whole table"),
        ("WHERE id IS NOT NULL", (), "whole table"),
        ("WHERE a = 'x'", (), "whole table"),
    ],
)
def test_the_primary_key_is_used(bench: Bench, where: str, params: tuple[Any, ...], words: str) -> None:
    assert access(bench, f"SELECT * FROM app.one {where}", *params) == words


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("room = 'a' AND id = 1", "point read (room, id)"),
        ("room IN ('a', 'b') AND id IN (1, 2)", "point read (room, id), 4 keys"),
        ("room = 'a'", "key range (room = 'a')"),
        ("room = 'a' AND id > 1", "key range (room = 'a', id > 1)"),
        ("room = 'a' AND id IN (3, 1)", "point read (room, id), 2 keys"),
        ("room IN ('a', 'c') AND n = 1", "key range (room ≥ 'a', room ≤ 'c')"),
        ("id = 1", "whole table"),
    ],
)
def test_leading_columns_of_a_key_are_used(bench: Bench, where: str, words: str) -> None:
    assert access(bench, f"SELECT * FROM app.two WHERE {where}") == words


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("room = 'a'", "index by_room (room = 'a')"),
        ("room = 'a' AND \"at\" >= '2026-01-01'", "index by_room (room = 'a', at ≥ '2026-01-01T00:00:00Z')"),
        ("room = 'a' AND id > 5", "index by_room (room = 'a')"),
        ("room = 'a' AND id = 5", "point read (id)"),
        ("room > 'a'", "whole table"),
        ("x = 5", "whole table"),
    ],
)
def test_an_index_is_used_once_it_is_ready(bench: Bench, where: str, words: str) -> None:
    assert access(bench, f"SELECT * FROM app.indexed WHERE {where}") == words


@pytest.mark.parametrize(
    ("column", "constant", "params", "is_used"),
    [
        ("whole", "-5", (), True),
        ("whole", "?", (2.0,), False),
        ("whole", "CAST('5' AS BIGINT)", (), True),
        ("small", "5", (), True),
        ("small", "?", (2**31,), False),
        ("number", "1", (), True),
        ("number", "1.5", (), True),
        ("number", "'nan'::DOUBLE", (), False),
        ("price", "1.5", (), True),
        ("price", "?", (Decimal("1.25"),), True),
        ("price", "3", (), True),
        ("price", "1.255", (), False),
        ("price", "?", (1.5,), False),
        ("price", "?", (Decimal("1.00000000000000000000000000000000000"),), False),
        ("text", "'a'", (), True),
        ("text", "?", ("a",), True),
        ("bytes", "?", (b"a",), True),
        ("tag", f"'{TAG}'", (), True),
        ("tag", f"'{TAG.upper()}'", (), False),
        ("day", "'2026-01-02'", (), True),
        ("day", "?", (date(2026, 1, 2),), True),
        ("day", "TIMESTAMP '2026-01-02'", (), False),
        ("moment", "'2026-01-02T03:04:05Z'", (), True),
        ("moment", "TIMESTAMP '2026-01-02'", (), True),
        ("moment", "?", (datetime(2026, 1, 2, tzinfo=UTC),), True),
        ("moment", "'infinity'::TIMESTAMPTZ", (), False),
        ("moment", "now()", (), False),
        ("yes", "true", (), True),
        ("yes", "1", (), False),
    ],
)
def test_only_what_means_the_same_is_used(
    bench: Bench, column: str, constant: str, params: tuple[Any, ...], is_used: bool
) -> None:
    sql = f"SELECT * FROM keyed.{column} WHERE k = {constant}"
    assert access(bench, sql, *params) == ("point read (k)" if is_used else "whole table")


def test_a_comparison_with_a_fraction_leaves_no_whole_number_out(bench: Bench) -> None:
    table = bench.create("keyed.rounding", TableKind.SHARED, {"k": "BIGINT"}, ["k"])
    bench.insert(table, [(number,) for number in range(4)])
    assert bench.rows("SELECT max(k), count(*) FROM keyed.rounding WHERE k < 2.5") == [[2, 3]]
    assert bench.rows("SELECT min(k), count(*) FROM keyed.rounding WHERE k > ?", 0.5) == [[1, 3]]


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("_time >= '2026-01-01' AND room = 'x'", "time range (from 2026-01-01T00:00:00Z)"),
        ("_time > '2026-01-01'", "time range (from 2026-01-01T00:00:00.000001Z)"),
        ("_time <= '2026-01-01'", "time range (before 2026-01-01T00:00:00.000001Z)"),
        ("_time < '2026-01-01'", "time range (before 2026-01-01T00:00:00Z)"),
        (
            "_time = DATE '2026-01-01'",
            "time range (from 2026-01-01T00:00:00Z before 2026-01-01T00:00:00.000001Z)",
        ),
        ("_time > '2026-01-02' AND _time < '2026-01-01'", "nothing (the comparisons exclude each other)"),
        ("_time <= '9999-12-31T23:59:59.999999Z'", "time range (before 9999-12-31T23:59:59.999999Z)"),
        ("_time < now()", "whole table"),
        ("room = 'x'", "whole table"),
    ],
)
def test_times_of_a_stream_are_used(bench: Bench, where: str, words: str) -> None:
    sql = f"SELECT * FROM app.typing WHERE {where}"
    assert access(bench, sql) == words
    assert bench.rows(sql) == []


def test_a_lower_bound_by_the_clock_is_used(bench: Bench) -> None:
    found = access(bench, "SELECT * FROM app.typing WHERE _time > now() - INTERVAL 1 HOUR")
    assert found.startswith("time range (from ")


def test_the_last_rows_of_a_stream_are_read_alone(bench: Bench) -> None:
    sql = 'SELECT room FROM app.typing ORDER BY "_time" DESC, "_seq" DESC LIMIT 5'
    (row,) = bench.explain(sql, last=5)
    assert (row["access"], row["columns"]) == ("last 5", "room, _seq, _time")
    (row,) = bench.explain("SELECT room FROM app.typing WHERE _time > '2026-01-01'", last=5)
    assert row["access"].startswith("time range"), "the newest rows are not the newest that match"
    assert {r["access"] for r in bench.explain("FROM app.typing a JOIN app.one b ON true", last=5)} == {
        "whole table"
    }


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT * FROM app.one", "id, a, b, doc"),
        ("SELECT a FROM app.one", "a"),
        ("SELECT count(*) FROM app.one", "id"),
        ("SELECT upper(A) FROM app.one WHERE b > 1 ORDER BY id", "id, a, b"),
        ("SELECT q.x FROM (SELECT a AS x FROM app.one) q", "a"),
        ("SELECT doc->>'a' FROM app.one", "a, doc"),
        ("SELECT one.* FROM app.one", "id, a, b, doc"),
        ("SELECT one FROM app.one", "id, a, b, doc"),
        ("SELECT x FROM app.one x", "id, a, b, doc"),
        ("SELECT app.one.a FROM app.one", "a"),
        ("SELECT to_json(one) FROM app.one", "id, a, b, doc"),
        ("SELECT #2 FROM app.one", "id, a, b, doc"),
        ("SELECT y FROM app.one x(z, y)", "id, a, b, doc"),
        ("SELECT COLUMNS('a|b') FROM app.one", "id, a, b, doc"),
        ("SELECT a FROM app.one NATURAL JOIN (SELECT 1 AS id)", "id, a, b, doc"),
        ("SELECT a FROM app.one JOIN (SELECT 1 AS id) q USING (id)", "id, a"),
        ("SELECT column_name FROM (DESCRIBE app.one)", "id, a, b, doc"),
        ("SELECT 1 FROM app.one WHERE EXISTS (SELECT * FROM range(2))", "id, a, b, doc"),
        ("SELECT sum(b) FILTER (WHERE a = 'x') OVER (PARTITION BY id) FROM app.one", "id, a, b"),
        ("SELECT list_transform([1], lambda i: i + b) FROM app.one", "b"),
    ],
)
def test_only_columns_that_are_used_are_read(bench: Bench, sql: str, columns: str) -> None:
    (row,) = bench.explain(sql)
    assert row["columns"] == columns
    bench.rows(sql)


def test_a_table_that_is_named_twice_is_read_whole_and_once(bench: Bench) -> None:
    (row,) = bench.explain("SELECT x.a FROM app.one x JOIN app.one y USING (id) WHERE x.id = 1")
    assert (row["access"], row["columns"]) == ("whole table", "id, a")


def test_each_table_of_a_join_is_explained(bench: Bench) -> None:
    sql = """
        WITH f AS (SELECT a, b FROM lake.files WHERE a = 5)
        SELECT o.a FROM app.one o JOIN app.indexed i ON o.id = i.id JOIN f ON f.b = o.b
        JOIN system.tables s ON true WHERE i.id = 7 AND o.b > 1
    """
    assert bench.explain(sql) == [
        _told("lake.files", "LAKE", "1 of 2 files", "a, b", "a = 5"),
        _told("app.one", "SHARED", "whole table", "id, a, b", "i.id = 7 AND o.b > 1"),
        _told("app.indexed", "SHARED", "point read (id)", "id", "i.id = 7 AND o.b > 1"),
        _told("system.tables", "SYSTEM", "whole table", "namespace", ""),
    ]


def _told(*values: str) -> dict[str, str]:
    return dict(zip(["table", "kind", "access", "columns", "filters"], values, strict=True))


def test_explain_of_what_cannot_run_says_why(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(SqlInvalid):
        bench.explain("SELECT nope FROM app.one")
    with pytest.raises(TableNotFound):
        bench.explain("SELECT 1 FROM app.nope")
    with pytest.raises(SqlUnsupported):
        bench.explain("DELETE FROM app.one")

    def refuse(names: frozenset[tuple[str, str]]) -> None:
        raise RequestInvalid(reason=f"not {sorted(names)}")

    with pytest.raises(RequestInvalid, match="app"):
        bench.query.explain("SELECT 1 FROM app.one", source=bench.source(), check=refuse)


def test_a_statement_without_tables_explains_nothing(bench: Bench) -> None:
    assert bench.explain("SELECT 1") == []
