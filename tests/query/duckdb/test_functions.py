"""Statements call functions that compute, and no others: not by any way to write a call."""

from __future__ import annotations

import json

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.query.bench import Bench
from tidegate.errors import RequestRefused, SqlInvalid, SqlUnsupported
from tidegate.query.duckdb.engine import LakeQuery
from tidegate.query.duckdb.functions import (
    AGGREGATES,
    FUNCTIONS,
    REFUSED,
    REFUSED_FAMILIES,
    TABLE_FUNCTIONS,
)
from tidegate.query.duckdb.names import nodes


def all_functions() -> list[tuple[str, str, str | None]]:
    """Return name, kind and, of a macro, the definition of every function of DuckDB."""
    query = "SELECT function_name, function_type, macro_definition FROM duckdb_functions()"
    return [(name, kind, macro) for name, kind, macro in duckdb.connect().execute(query).fetchall()]


def is_refused(name: str) -> bool:
    return name in REFUSED or name.startswith(tuple(REFUSED_FAMILIES))


def test_every_function_of_duckdb_is_allowed_or_refused() -> None:
    """A new version of DuckDB has others: put each on one of the lists of functions.py."""
    undecided = set()
    for name, kind, _ in all_functions():
        lower = name.lower()
        if kind == "pragma":
            continue  # a statement of its own, never a part of a SELECT
        allowed = TABLE_FUNCTIONS if kind in ("table", "table_macro") else FUNCTIONS
        if lower not in allowed and lower not in FUNCTIONS and not is_refused(lower):
            undecided.add(f"{name} ({kind})")
    assert undecided == set()


def test_no_function_is_on_both_lists_or_on_none_of_duckdb() -> None:
    known = {name.lower() for name, _, _ in all_functions()}
    assert {name for name in FUNCTIONS | TABLE_FUNCTIONS if is_refused(name)} == set()
    assert (FUNCTIONS | TABLE_FUNCTIONS | set(REFUSED)) - known == {"->"}
    assert {start for start in REFUSED_FAMILIES if not any(name.startswith(start) for name in known)} == set()
    kinds = {(name.lower(), kind) for name, kind, _ in all_functions()}
    plain = {name for name in AGGREGATES if (name, "aggregate") not in kinds}
    assert {name for name in plain if (name, "macro") not in kinds and (name, "scalar") not in kinds} == set()


def test_allowed_macros_call_nothing_that_is_refused() -> None:
    cursor = duckdb.connect()
    called: dict[str, set[str]] = {}
    for name, kind, definition in all_functions():
        if definition is None or kind != "macro" or name.lower() not in FUNCTIONS:
            continue
        text = cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [f"SELECT {definition}"]).fetchall()
        tree = json.loads(text[0][0])
        assert not tree["error"], (name, tree)
        for node in nodes(tree):
            assert node.get("type") not in ("BASE_TABLE", "TABLE_FUNCTION"), name
            if "function_name" in node:
                called.setdefault(node["function_name"].lower(), set()).add(name)
    assert {name: by for name, by in called.items() if name not in FUNCTIONS} == {}


REFUSED_CALLS = [
    "SELECT pg_get_viewdef(1)",
    "SELECT pg_get_viewdef(i) FROM range(0, 4000) t(i)",
    "SELECT Pg_Get_ViewDef(1)",
    'SELECT "PG_GET_VIEWDEF"(1)',
    "SELECT pg_catalog.pg_get_viewdef(1)",
    "SELECT system.pg_catalog.pg_get_viewdef(1)",
    "SELECT (1).pg_get_viewdef()",
    "SELECT list_transform([1, 2], lambda x: pg_get_viewdef(x))",
    "SELECT [pg_get_viewdef(x) FOR x IN [1, 2]]",
    "SELECT [x FOR x IN [1, 2] IF pg_get_viewdef(x) IS NULL]",
    "SELECT CASE WHEN true THEN pg_get_viewdef(1) END",
    "SELECT 1 ORDER BY pg_get_viewdef(1)",
    "SELECT 1 LIMIT (SELECT length(pg_get_viewdef(1)))",
    "SELECT max(i) FILTER (WHERE pg_get_viewdef(i) IS NULL) FROM range(3) t(i)",
    "SELECT max(i ORDER BY pg_get_viewdef(i)) FROM range(3) t(i)",
    "SELECT sum(i) OVER (PARTITION BY pg_get_viewdef(i)) FROM range(3) t(i)",
    "SELECT sum(i) OVER w FROM range(3) t(i) WINDOW w AS (ORDER BY pg_get_viewdef(i))",
    "SELECT * REPLACE (pg_get_viewdef(i) AS i) FROM range(3) t(i)",
    "SELECT COLUMNS(lambda c: current_database() = c) FROM range(3) t(i)",
    "SELECT * FROM range(length(current_database()))",
    "SELECT * FROM range(3) t(i) JOIN range(3) u(j) ON pg_get_viewdef(i) IS NULL",
    "SELECT * FROM (PIVOT range(3) ON range IN (1, 2) USING max(pg_get_viewdef(range)))",
    "VALUES (pg_get_viewdef(1))",
    "WITH v AS (SELECT pg_get_viewdef(1)) SELECT * FROM v",
    "SELECT {'a': pg_get_viewdef(1)}",
    "SELECT EXISTS (SELECT pg_get_viewdef(1))",
    "SELECT try_cast(pg_get_viewdef(1) AS INT)",
    "SELECT has_table_privilege('x', 'select')",
    "SELECT get_block_size('memory')",
    "SELECT stats(1)",
    "SELECT vector_type(1)",
    "SELECT sum(i) EXPORT_STATE FROM range(3) t(i)",
    "SELECT finalize(1)",
    "SELECT combine(1, 2)",
    "SELECT current_query()",
    "SELECT current_query_id()",
    "SELECT current_schemas(true)",
    "SELECT current_schema()",
    "SELECT current_schema",
    "SELECT current_catalog",
    "SELECT Current_Catalog",
    "SELECT current_database()",
    "SELECT txid_current()",
    "SELECT current_setting('threads')",
    "SELECT version()",
    "SELECT getvariable('x')",
    "SELECT getenv('HOME')",
    "SELECT sleep_ms(1)",
    "SELECT pg_sleep(1)",
    "SELECT write_log('x')",
    "SELECT nextval('s')",
    "SELECT json_serialize_sql('SELECT 1')",
    "SELECT json_serialize_plan('SELECT 1')",
    "SELECT json_deserialize_sql('{}')",
    "SELECT list_aggregate([1, 2], 'sum_no_overflow')",
    "SELECT list_aggr([1, 2], lower('SUM_NO_OVERFLOW'))",
    "SELECT [1, 2].list_aggregate('sum_no_overflow')",
    "SELECT array_aggr([1, 2], 'combine_aggr')",
    "SELECT main.list_aggregate('sum', lower('SUM_NO_OVERFLOW'))",
    "SELECT main.list_aggregate([1, 2], 'sum_no_overflow')",
    "SELECT list_aggregate([1, 2], $$sum_no_overflow$$)",
    "SELECT aggregate([1, 2], 's' || 'um')",
    "SELECT sum_no_overflow(1)",
    'SELECT "IS DISTINCT FROM"(1, 2)',
    "SELECT * FROM pg_timezone_names()",
    "SELECT * FROM duckdb_views()",
    "SELECT * FROM main.duckdb_views()",
    "FROM v: duckdb_views()",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM histogram('x', y)",
    "SELECT * FROM duckdb_functions",
    "SELECT * FROM duckdb_settings",
    "SELECT * FROM pg_catalog.pg_class",
    "SELECT * FROM information_schema.columns",
    "FROM (DESCRIBE duckdb_settings)",
    "FROM (SUMMARIZE duckdb_tables)",
    "FROM (SHOW DATABASES)",
    "FROM (SHOW ALL TABLES)",
    "SELECT nosuchfunction(1)",
]


@pytest.mark.parametrize("sql", REFUSED_CALLS)
def test_calls_of_other_functions_are_refused(query: LakeQuery, sql: str) -> None:
    with pytest.raises(RequestRefused):
        query.run(sql)


def test_the_files_of_a_lake_table_are_not_shown(query: LakeQuery, root: object) -> None:
    """The numbers of views are small, so that a range finds them all."""
    write_deltalake(f"{root}/secret", pa.table({"a": [1]}))
    sql = "SELECT pg_get_viewdef(i) FROM lake.secret, range(0, 400000) t(i)"
    with pytest.raises(SqlUnsupported, match="pg_get_viewdef"):
        query.run(sql)


ALLOWED_CALLS = [
    ("SELECT 'abc'.upper()", "ABC"),
    ("SELECT t.x.upper() FROM (SELECT 'a' AS x) t", "A"),
    ("SELECT t.x.upper().lower().length() FROM (SELECT 'a' AS x) t", 1),
    ('SELECT ABS(-1) + "Abs"(-1)', 2),
    ("SELECT 5 // 2 + 5 % 2 + 2 ** 3 - -1 + 2 ^ 2", 16.0),
    ("SELECT 'abc' LIKE 'a%' AND 'abc' NOT LIKE 'b%' AND 'ABC' ILIKE 'a%'", True),
    ("SELECT 'a%' LIKE 'a!%' ESCAPE '!'", True),
    ("SELECT 'abc' SIMILAR TO 'a.c' AND 'abc' GLOB 'a*' AND 'abc' ~ 'abc' AND NOT 'x' ^@ 'y'", True),
    ("SELECT '{\"a\": {\"b\": 1}}'::JSON -> 'a' ->> 'b'", "1"),
    ("SELECT json_extract_string('{\"a\": 1}', '$.a')", "1"),
    ("SELECT sum(value::INT) FROM json_each('[1, 2]')", 3),
    ("SELECT list_sum(list_transform([1, 2, 3], lambda x: x + 1))", 9),
    ("SELECT list_aggregate([1, 2], 'sum') + [1, 2].list_aggregate('max')", 5),
    ("SELECT list_reduce([1, 2], lambda a, b: a + b)", 3),
    ("SELECT len([x * 2 FOR x IN [1, 2, 3] IF x > 1])", 2),
    ("SELECT ([1, 2, 3])[2:][1] + {'a': 4}.a + MAP {'k': 5}['k']", 11),
    ("SELECT regexp_replace('abc', 'b', 'x') || split_part('a-b', '-', 2)", "axcb"),
    ("SELECT date_trunc('day', TIMESTAMP '2026-01-02 03:04:05')::VARCHAR", "2026-01-02 00:00:00"),
    ("SELECT extract(year FROM DATE '2026-01-02')", 2026),
    ("SELECT date_diff('day', DATE '2026-01-01', DATE '2026-01-03')", 2),
    ("SELECT (TIMESTAMP '2026-01-01' AT TIME ZONE 'UTC' + INTERVAL 1 DAY)::DATE::VARCHAR", "2026-01-02"),
    ("SELECT strftime(DATE '2026-01-02', '%d.%m.%Y')", "02.01.2026"),
    ("SELECT coalesce(NULL, nullif(1, 1), ifnull(NULL, 3)) + greatest(1, 2)", 5),
    ("SELECT trim(BOTH ' ' FROM ' a ') || substring('abc' FROM 2 FOR 1) || position('b' IN 'abc')", "ab2"),
    ("SELECT quantile_cont(i, 0.5) FROM range(3) t(i)", 1.0),
    ("SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY i) FROM range(3) t(i)", 1.0),
    ("SELECT string_agg(i, ',' ORDER BY i DESC) FILTER (WHERE i > 0) FROM range(3) t(i)", "2,1"),
    ("SELECT row_number() OVER (ORDER BY i) + lag(i, 1, 0) OVER (ORDER BY i) FROM range(1) t(i)", 1),
    ("SELECT count(*) + count(DISTINCT i) FROM range(3) t(i)", 6),
    ("SELECT x.list_aggregate('sum') FROM (SELECT [1, 2] AS x)", 3),
    ("SELECT list_aggregate(['a', 'b'], 'string_agg', '-')", "a-b"),
    ("SELECT grouping(i) FROM range(3) t(i) GROUP BY ROLLUP (i) ORDER BY 1 DESC LIMIT 1", 1),
    ('SELECT max("1") FROM (PIVOT range(3) ON range IN (1, 2) USING count(*))', 1),
    ("SELECT count(*) FROM (UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b)", 2),
    ("SELECT 1 = ANY ([1, 2]) AND EXISTS (SELECT 1) AND 1 IS DISTINCT FROM 2 AND 1 BETWEEN 0 AND 2", True),
    ("SELECT md5('a') = md5('a') AND hash(1) = hash(1)", True),
    ("SELECT 'a' COLLATE NOCASE = 'A'", True),
    ("SELECT length(uuid()::VARCHAR) + try_cast('x' AS INT) IS NULL", True),
    ("SELECT t.current_schema FROM (SELECT 1 AS current_schema) t", 1),
]


@pytest.mark.parametrize(("sql", "value"), ALLOWED_CALLS)
def test_functions_that_compute_are_there_in_every_way_to_write_them(
    query: LakeQuery, sql: str, value: object
) -> None:
    assert query.run(sql).json_rows() == [[value]]


def test_a_name_that_is_no_function_is_answered_with_near_ones(query: LakeQuery) -> None:
    with pytest.raises(SqlInvalid, match=r"there is no function uper\(\)\. Did you mean upper") as caught:
        query.run("SELECT 'é',\n  uper('a')")
    assert (caught.value.values["line"], caught.value.values["column"]) == (2, 3)


def test_nothing_stays_for_another_statement(bench: Bench) -> None:
    for sql in (
        "SET VARIABLE x = 1",
        "CREATE TEMP MACRO m() AS 1",
        "CREATE MACRO lake.m() AS 1",
        "CREATE TEMP TABLE t (a INT)",
        "CREATE SEQUENCE s",
        "CREATE TYPE t AS INT",
        "PREPARE p AS SELECT 1",
    ):
        with pytest.raises(RequestRefused):
            bench.rows(sql)
    for sql in ("SELECT getvariable('x')", "SELECT m()", "SELECT lake.m()", "FROM t", "SELECT nextval('s')"):
        with pytest.raises(RequestRefused):
            bench.rows(sql)
