"""The shape of a SELECT: point reads, LAST, and the tables it names."""

from __future__ import annotations

import subprocess
import sys

import duckdb
import pytest

from tidegate.errors import SqlInvalid
from tidegate.sql.parser.parse import parse
from tidegate.sql.statements import Literal, Param, Point, Select, Simple, TableName

ORDER = 'ORDER BY "_time" DESC, "_seq" DESC LIMIT'
T = TableName("ns", "t")


def select(text: str) -> Select:
    (statement,) = parse(text)
    assert isinstance(statement, Select)
    return statement


@pytest.mark.parametrize(
    ("text", "columns", "equals"),
    [
        ("SELECT * FROM ns.t WHERE id = ?", None, {"id": Param(1)}),
        ("select\n*\nfrom NS . T /* c */ where ID=-1", None, {"id": Literal(-1)}),
        ("SELECT a, b FROM ns.t WHERE a = $1 AND b = 'x'", ("a", "b"), {"a": Param(1), "b": Literal("x")}),
        ('SELECT "A", b FROM "ns"."t" WHERE "A" = TRUE', ("A", "b"), {"A": Literal(True)}),
        ("SELECT at FROM ns.t WHERE last = 5", ("at",), {"last": Literal(5)}),
    ],
)
def test_a_point_read_is_recognised(
    text: str, columns: tuple[str, ...] | None, equals: dict[str, Simple]
) -> None:
    found = select(text)
    assert found.point == Point(T, columns, equals)
    assert found.last is None
    assert found.tables == (T,)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM ns.t",
        "SELECT * FROM ns.t WHERE id > 1",
        "SELECT * FROM ns.t WHERE id == 1",
        "SELECT * FROM ns.t WHERE id = 1 OR id = 2",
        "SELECT * FROM ns.t WHERE id = 1 AND id = 2",
        "SELECT * FROM ns.t WHERE id = NULL",
        "SELECT * FROM ns.t WHERE id = 1 + 1",
        "SELECT * FROM ns.t WHERE id = 1::int",
        "SELECT * FROM ns.t WHERE id = - 1",
        "SELECT * FROM ns.t WHERE (id = 1)",
        "SELECT * FROM ns.t WHERE NOT id = 1",
        "SELECT * FROM ns.t WHERE 1 = id",
        "SELECT * FROM ns.t WHERE true = 1",
        "SELECT * FROM ns.t WHERE t.id = 1",
        "SELECT * FROM ns.t x WHERE id = 1",
        "SELECT * FROM ns.t, ns.u WHERE id = 1",
        "SELECT * FROM a.ns.t WHERE id = 1",
        "SELECT * FROM t WHERE id = 1",
        "SELECT * FROM ns.t(1) WHERE id = 1",
        "SELECT * FROM ns.t WHERE id = 1 LIMIT 1",
        "SELECT * FROM ns.t WHERE id = 1 AND",
        "SELECT *, a FROM ns.t WHERE id = 1",
        "SELECT a, a FROM ns.t WHERE id = 1",
        "SELECT a b FROM ns.t WHERE id = 1",
        "SELECT a + 1 FROM ns.t WHERE id = 1",
        "SELECT current_date FROM ns.t WHERE id = 1",
        "SELECT DISTINCT a FROM ns.t WHERE id = 1",
        "SELECT a, FROM ns.t WHERE id = 1",
        "SELECT FROM ns.t WHERE id = 1",
        "FROM ns.t WHERE id = 1",
        "SELECT id = 1",
        "(SELECT * FROM ns.t WHERE id = 1)",
    ],
)
def test_anything_more_is_no_point_read(text: str) -> None:
    found = select(text)
    assert found.point is None
    assert found.query.sql == text


@pytest.mark.parametrize(
    ("text", "last", "alone", "sql"),
    [
        ("SELECT * FROM ns.t LAST 100", Literal(100), True, f"SELECT * FROM ns.t {ORDER} 100"),
        ("SELECT a FROM ns.t x last ?", Param(1), True, f"SELECT a FROM ns.t x {ORDER} $1"),
        ("FROM ns.t AS x LAST 0", Literal(0), True, f"FROM ns.t AS x {ORDER} 0"),
        (
            "SELECT upper(a) || 'x' FROM ns.t LAST 5",
            Literal(5),
            True,
            f"SELECT upper(a) || 'x' FROM ns.t {ORDER} 5",
        ),
        (
            "SELECT a FROM ns.t WHERE b > 1 LAST 5",
            Literal(5),
            False,
            f"SELECT a FROM ns.t WHERE b > 1 {ORDER} 5",
        ),
        ("SELECT a FROM ns.t last LAST 5", Literal(5), True, f"SELECT a FROM ns.t last {ORDER} 5"),
        (
            "SELECT row_number() OVER () FROM ns.t LAST 5",
            Literal(5),
            False,
            f"SELECT row_number() OVER () FROM ns.t {ORDER} 5",
        ),
        (
            "SELECT max(a) OVER () FROM ns.t LAST 5",
            Literal(5),
            False,
            f"SELECT max(a) OVER () FROM ns.t {ORDER} 5",
        ),
        ("SELECT unnest(a) FROM ns.t LAST 5", Literal(5), False, f"SELECT unnest(a) FROM ns.t {ORDER} 5"),
        ("SELECT (SELECT 1) FROM ns.t LAST 5", Literal(5), False, f"SELECT (SELECT 1) FROM ns.t {ORDER} 5"),
        (
            "SELECT a FROM ns.t JOIN ns.u USING (a) LAST 5",
            Literal(5),
            False,
            f"SELECT a FROM ns.t JOIN ns.u USING (a) {ORDER} 5",
        ),
        (
            "WITH c AS (SELECT 1) SELECT a FROM ns.t LAST 5",
            Literal(5),
            False,
            f"WITH c AS (SELECT 1) SELECT a FROM ns.t {ORDER} 5",
        ),
        (
            "SELECT a FROM ns.t WHERE a IS DISTINCT FROM 1 LAST 5",
            Literal(5),
            False,
            f"SELECT a FROM ns.t WHERE a IS DISTINCT FROM 1 {ORDER} 5",
        ),
    ],
)
def test_last_becomes_order_and_limit(text: str, last: Simple, alone: bool, sql: str) -> None:
    found = select(text)
    assert (found.last, found.last_alone, found.query.sql) == (last, alone, sql)
    assert found.text == text


def test_last_with_plain_columns_and_equalities_is_a_point_read() -> None:
    assert select("SELECT * FROM ns.t LAST 5").point == Point(T, None, {})
    assert select("SELECT a FROM ns.t WHERE b = ? LAST ?").point == Point(T, ("a",), {"b": Param(1)})
    assert select("SELECT a FROM ns.t WHERE b = ? LAST ?").last == Param(2)


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        (
            "SELECT count(*) FROM (SELECT * FROM ns.t LAST 10) GROUP BY ALL",
            f"SELECT count(*) FROM (SELECT * FROM ns.t {ORDER} 10) GROUP BY ALL",
        ),
        (
            "WITH a AS (SELECT * FROM ns.t LAST $1) SELECT * FROM a WHERE x = $2",
            f"WITH a AS (SELECT * FROM ns.t {ORDER} $1) SELECT * FROM a WHERE x = $2",
        ),
        (
            "SELECT 1 WHERE 1 IN (SELECT a FROM (FROM ns.t LAST 3) LIMIT 2)",
            f"SELECT 1 WHERE 1 IN (SELECT a FROM (FROM ns.t {ORDER} 3) LIMIT 2)",
        ),
        ("(SELECT * FROM ns.t LAST 3) LIMIT 2", f"(SELECT * FROM ns.t {ORDER} 3) LIMIT 2"),
    ],
)
def test_last_in_parentheses_is_rewritten_there(text: str, sql: str) -> None:
    found = select(text)
    assert found.query.sql == sql
    assert (found.last, found.last_alone, found.point) == (None, False, None)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT last(a) FROM ns.t",
        "SELECT last(a ORDER BY b NULLS LAST) FROM ns.t",
        "SELECT last FROM ns.t",
        "SELECT last FROM ns.t AS last ORDER BY last NULLS LAST",
        "SELECT a AS last FROM ns.t ORDER BY a NULLS LAST LIMIT 5",
        "SELECT a last FROM ns.t last",
        "SELECT last - 5, last + 5, (last) FROM ns.t WHERE last > 5",
        "SELECT t.last FROM ns.t WHERE (last = 5)",
        'SELECT "last" FROM ns.t WHERE b = last',
        "SELECT a FROM ns.t -- LAST 5",
        "SELECT 'LAST 5'",
        "SELECT a FROM ns.t WHERE b = $$ LAST 5$$",
    ],
)
def test_last_as_a_name_is_left_alone(text: str) -> None:
    found = select(text)
    assert found.last is None
    assert found.query.sql == text.partition(" --")[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT a FROM ns.t GROUP BY a LAST 5", "combined with GROUP BY"),
        ("SELECT DISTINCT a FROM ns.t LAST 5", "combined with DISTINCT"),
        ("SELECT a FROM ns.t ORDER BY a LAST 5", "combined with ORDER BY"),
        ("SELECT a FROM ns.t LIMIT 3 LAST 5", "combined with LIMIT"),
        ("SELECT a FROM ns.t UNION ALL SELECT a FROM ns.u LAST 5", "combined with UNION"),
        ("SELECT count(*) FROM ns.t LAST 5", r"combined with count\(\)"),
        ("SELECT sum(a) FILTER (WHERE b) FROM ns.t LAST 5", r"combined with sum\(\)"),
        ("SELECT * FROM (SELECT max(a) FROM ns.t LAST 5)", r"combined with max\(\)"),
        ("SELECT a FROM ns.t LAST 1.5", "LAST takes a whole number"),
        ("SELECT a FROM ns.t LAST 9223372036854775808", "LAST takes a whole number"),
        (
            "SELECT a FROM ns.t LAST 5 WHERE b = 1",
            "expected the end of the query behind LAST but found 'WHERE'",
        ),
        (
            "SELECT a FROM ns.t LAST 5 ORDER BY a",
            "expected the end of the query behind LAST but found 'ORDER'",
        ),
    ],
)
def test_last_beside_what_gives_other_rows_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SqlInvalid, match=reason) as caught:
        select(text)
    assert "LAST 100" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SELECT 1", []),
        ("SELECT * FROM t, a.b.c, f(1), g.h(2)", []),
        ("SELECT * FROM A.b, c.D x JOIN e.f ON b.x = d.y, g.h", ["a.b", "c.d", "e.f", "g.h"]),
        ("SELECT extract(year FROM x.y), a IS DISTINCT FROM x.y FROM a.b", ["a.b"]),
        ("SELECT * FROM a.b WHERE c IN (SELECT d FROM c.d) AND x.y, z.z", ["a.b", "c.d"]),
        ("WITH q AS (FROM a.b) SELECT * FROM q UNION SELECT * FROM c.d", ["a.b", "c.d"]),
        ("SELECT * FROM (a.b CROSS JOIN c.d)", ["a.b", "c.d"]),
        ("SELECT * FROM ((SELECT * FROM a.b))", ["a.b"]),
        ("TABLE a.b", ["a.b"]),
        ("SUMMARIZE a.b", ["a.b"]),
        ("SELECT * FROM a.b b1, a.b b2", ["a.b"]),
        ("SELECT 'FROM x.y' FROM \"A\".b -- FROM c.d", ["A.b"]),
    ],
)
def test_tables_are_found(text: str, names: list[str]) -> None:
    assert [table.full_name for table in select(text).tables] == names


@pytest.mark.parametrize(
    "text",
    [
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "VALUES (1), (2)",
        "FROM ns.t",
        "TABLE ns.t",
        "(SELECT 1)",
        "((SELECT 1) UNION (SELECT 2))",
        "SUMMARIZE lake.x",
        "DESCRIBE SELECT 1",
        "PIVOT ns.t ON a USING sum(b)",
        "SELECT a::int, b -> '$.x', [1, 2][1], {'k': 1}, x -> x + 1 FROM ns.t",
    ],
)
def test_whatever_gives_rows_is_a_select(text: str) -> None:
    found = select(f" {text} ; ")
    assert (found.text, found.query.sql, found.position) == (text, text, 1)


def test_parameters_are_written_with_their_numbers() -> None:
    found = select("SELECT ? /* ? */, '?', \"?\", $$?$$ FROM ns.t WHERE a > ? -- ?\n AND b = ?")
    assert found.query.sql == "SELECT $1 /* ? */, '?', \"?\", $$?$$ FROM ns.t WHERE a > $2 -- ?\n AND b = $3"
    assert found.query.params == (1, 2, 3)
    assert found.parameter_count == 3


def test_a_column_named_at_is_quoted_for_duckdb() -> None:
    found = select("SELECT at, m.At, x AT TIME ZONE 'UTC' FROM ns.m m WHERE at > 1 ORDER BY at")
    wanted = 'SELECT "at", m."at", x AT TIME ZONE \'UTC\' FROM ns.m m WHERE "at" > 1 ORDER BY "at"'
    assert found.query.sql == wanted
    database = duckdb.connect()
    database.execute(
        "CREATE SCHEMA ns; CREATE TABLE ns.m AS SELECT 2 AS \"at\", TIMESTAMPTZ '2026-01-01' AS x"
    )
    assert len(database.execute(found.query.sql).fetchall()) == 1


def test_statements_of_every_day_load_neither_sqlglot_nor_duckdb() -> None:
    code = (
        "import sys; from tidegate.sql.parser.parse import parse\n"
        "parse('INSERT INTO a.b VALUES (?, 1); SELECT * FROM a.b WHERE c = ?; SELECT 1 + 1 LAST 5')\n"
        "print(*[name for name in ('sqlglot', 'duckdb', 'pyarrow', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
