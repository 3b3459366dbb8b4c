"""What cannot be used in a live query is refused when it is compiled, with a message that names it."""

from __future__ import annotations

import pytest

from tests.sql.expressions.test_compile import SHAPE
from tidegate.errors import SqlInvalid, SqlUnsupported
from tidegate.sql.expressions.compile import compile_filter, compile_select

PLAIN = "plain query"


@pytest.mark.parametrize(
    ("sql", "message", "hint"),
    [
        ("SELECT n FROM chat.m ORDER BY n", "ORDER BY is not part of it", PLAIN),
        ("SELECT n FROM chat.m LIMIT 5", "LIMIT is not part of it", PLAIN),
        ("SELECT n FROM chat.m LIMIT 5 OFFSET 2", "LIMIT is not part of it", PLAIN),
        ("SELECT n FROM chat.m GROUP BY n", "GROUP BY is not part of it", PLAIN),
        ("SELECT DISTINCT n FROM chat.m", "DISTINCT is not part of it", PLAIN),
        ("SELECT n FROM chat.m QUALIFY true", "QUALIFY is not part of it", PLAIN),
        ("SELECT n FROM chat.m, chat.k", "JOIN is not part of it", PLAIN),
        ("SELECT n FROM chat.m JOIN chat.k USING (n)", "JOIN is not part of it", PLAIN),
        ("WITH a AS (SELECT 1) SELECT n FROM chat.m", "WITH is not part of it", PLAIN),
        ("SELECT n FROM chat.m UNION SELECT n FROM chat.m", "UNION is not part of it", PLAIN),
        ("SELECT n FROM (SELECT 1 AS n)", "a subquery or a function in FROM", PLAIN),
        ("SELECT n FROM range(3)", "a subquery or a function in FROM", PLAIN),
        ("SELECT n FROM m", "<namespace>.<table>", "live"),
        ("SELECT 1", "names no table", "live"),
        ("DELETE FROM chat.m", "DELETE is not part of it", PLAIN),
        ("SELECT n FROM chat.m; SELECT n FROM chat.m", "one SELECT, not 2", "live"),
        ("SELECT * EXCLUDE (n) FROM chat.m", "EXCLUDE", "List the columns"),
        ("SELECT INTERVAL 1 DAY FROM chat.m", "INTERVAL cannot be shown", "Add it"),
    ],
)
def test_clauses_that_are_not_live_are_named(sql: str, message: str, hint: str) -> None:
    with pytest.raises(SqlUnsupported) as refused:
        compile_select(sql, SHAPE, [])
    assert message in str(refused.value)
    assert hint in str(refused.value.hint)


@pytest.mark.parametrize(
    ("expression", "message", "hint"),
    [
        ("n IN (SELECT 1)", "no subqueries", PLAIN),
        ("n = (SELECT 1)", "no subqueries", PLAIN),
        ("EXISTS (SELECT 1)", "no subqueries", PLAIN),
        ("sum(n) > 1", "no aggregate sum()", PLAIN),
        ("count(*) > 1", "no aggregate count()", PLAIN),
        ("max(n) > 1", "no aggregate max()", PLAIN),
        ("row_number() OVER () > 1", "no window functions", PLAIN),
        ("sum(n) FILTER (WHERE ok) > 1", "no window functions and aggregates", PLAIN),
        ("at > now()", "now() would change while the query lives", "as a parameter"),
        ("at > current_timestamp", "current_timestamp() would change", "as a parameter"),
        ("Day > current_date", "current_date() would change", "as a parameter"),
        ("random() > 0.5", "random() gives another value each time", "live-filters.md"),
        ("u = uuid()", "uuid() gives another value each time", "live-filters.md"),
        ("lenght(room) > 1", "no function lenght(). Did you mean length", "lists the functions"),
        ("room SIMILAR TO 'a'", "SIMILAR TO", "regexp_matches"),
        ("room GLOB 'a*'", "cannot be used in a live query", "LIKE"),
        ("room COLLATE nocase = 'a'", "cannot be used in a live query", "lower(x)"),
        ("room = E'a'", "A text with E before it cannot be used", "parameter"),
        ("room ~* 'a'", "cannot be used in a live query", "(?i)"),
        ("room ^@ 'a'", "cannot be used in a live query", "starts_with"),
        ("room ~ 'a' || 'b'", "needs parentheses", "live-filters.md"),
        ("regexp_matches(room, room)", "a text constant as its pattern", "live-filters.md"),
        ("regexp_matches(room, '(')", "no regular expression of RE2", "live-filters.md"),
        ("at AT TIME ZONE 'UTC' > '2020-01-01'", "cannot be used in a live query", "UTC"),
        ("room = n", "'=' cannot mix TEXT and BIGINT", "Cast one side"),
        ("coalesce(room, n) = 'a'", "COALESCE cannot mix TEXT and BIGINT", "Cast one side"),
        ("CASE WHEN ok THEN room ELSE n END = 'a'", "CASE cannot mix TEXT and BIGINT", "Cast one side"),
        ("n IN (1, room)", "IN cannot mix BIGINT and TEXT", "Cast one side"),
        ("n = 'x'", "'x' is no BIGINT", "live-filters.md"),
        ("at > 'yesterday'", "'yesterday' is no TIMESTAMP like", "live-filters.md"),
        ("u = 'x'", "'x' is no UUID", "live-filters.md"),
        ("room + 1 > 1", "'+' takes numbers, dates and intervals", "CAST(x AS DOUBLE)"),
        ("n + NULL > 1", "not BIGINT and NULL", "CAST(x AS DOUBLE)"),
        ("at - at > INTERVAL 1 DAY", "cannot calculate TIMESTAMP - TIMESTAMP", "epoch(x)"),
        ("at + INTERVAL '1.5 days' > '2020-01-01'", "INTERVAL '1.5 DAYS'", "whole numbers"),
        ("at + INTERVAL (n) DAY > '2020-01-01'", "INTERVAL must be a constant", "INTERVAL 3 DAY"),
        ("lower(n) = 'a'", "lower() takes TEXT, not BIGINT", "CAST(x AS TEXT)"),
        ("length(u) = 36", "length() takes TEXT, not UUID", "CAST(x AS TEXT)"),
        ("sqrt(room) > 1", "sqrt() takes a number, not TEXT", "CAST(x AS DOUBLE)"),
        ("year(room) = 1", "year() takes a DATE or a TIMESTAMP, not TEXT", "CAST(x AS TIMESTAMP)"),
        ("date_part('fortnight', at) = 1", "no part 'fortnight'", "There are: year"),
        ("date_trunc('decade', at) = at", "no unit 'decade'", "There are: year"),
        ("round(d, n) = 1", "as a constant", "live-filters.md"),
        ("round(d, -9) = 1", "round() has nothing to keep of DECIMAL(10,2)", "live-filters.md"),
        ("lower(room, room) = 'a'", "lower() takes 1 arguments", "live-filters.md"),
        ("substring(room, 'a') = 'a'", "substring() takes a whole number", "CAST(x AS BIGINT)"),
        ("CAST(n AS FLOAT) > 1", "cannot cast to REAL", "DOUBLE"),
        ("CAST(n AS DATE) > '2020-01-01'", "cannot cast BIGINT to DATE", "TEXT"),
        ("CAST(room AS INT[]) IS NULL", "cannot cast to INT[]", "BOOLEAN, INT"),
        ("room LIKE 'a' ESCAPE 'xx'", "ESCAPE takes one character", "live-filters.md"),
        ("room LIKE 'a!' ESCAPE '!'", "must not end with its escape character", "live-filters.md"),
        ("n BETWEEN SYMMETRIC 1 AND 2", "BETWEEN SYMMETRIC", "smaller value first"),
        ("1 < n < 5", "'1 < n' needs parentheses in '1 < n < 5'", "AND"),
        ("ok = NOT ok", "'NOT ok' needs parentheses", "AND"),
        ("ok IS DISTINCT FROM ok NOT BETWEEN ok AND ok", "needs parentheses", "AND"),
        ("n IN ?", "IN takes a list", "live-filters.md"),
        ("(j ->> room) = 'a'", "JSON path must be a constant", "Paths: 'key'"),
        ("(j ->> '$.*') = 'a'", "'$.*' is not taken", "Paths: 'key'"),
        ("(n ->> 'a') = 'a'", "->> takes JSON, not BIGINT", "live-filters.md"),
        ("j -> 'a' IS NULL", "needs parentheses", "live-filters.md"),
        ("(j -> 'a' ->> 'b') = 'x' OR j -> 'a' ->> 'b' = 'x'", "needs parentheses", "live-filters.md"),
        ("j ->> 'a'::INT = 1", "A cast after an arrow needs parentheses", "live-filters.md"),
        ("json_extract(j -> 'a', 'b') IS NULL", "needs parentheses", "live-filters.md"),
        ("d = .5", "Write 0.5 in a live query", "live-filters.md"),
        ("n = 9223372036854775808", "does not fit BIGINT", "DECIMAL"),
        ("d", "WHERE needs a BOOLEAN, and this is DECIMAL(10,2)", "comparison"),
        ("n = {'a': 1}", "cannot be used in a live query", "live-filters.md"),
        ("room[1] = 'a'", "cannot be used in a live query", "live-filters.md"),
        ("2147483647 + 1 > n", "addition overflows INT", "live-filters.md"),
        ("n = $1", "a list: a live query takes null", "live-filters.md"),
    ],
)
def test_pieces_that_are_not_live_are_named(expression: str, message: str, hint: str) -> None:
    params = [[1]] if "$1" in expression or "?" in expression else []
    with pytest.raises(SqlUnsupported) as refused:
        compile_select(f"SELECT * FROM chat.m WHERE {expression}", SHAPE, params)
    assert message in str(refused.value)
    assert hint in str(refused.value.hint)


@pytest.mark.parametrize(
    ("expression", "params", "message"),
    [
        ("rom = 'a'", [], "no column 'rom' in this table; near: room"),
        ('room = "a"', [], "no column 'a'"),
        ("k.room = 'a'", [], "'k' in 'k.room' is not the table"),
        ("room = $2", ["a"], "parameter $2 has no value"),
        ("room = ? AND n = ?", ["a"], "2 parameters, and 1 values"),
        ("room = 'a'", ["a"], "nothing in it takes $1"),
        ("room = ", [], "cannot be read"),
        ("room = 'a", [], "the string that begins here is not closed (line 1, column 35)"),
    ],
)
def test_mistakes_are_named(expression: str, params: list[object], message: str) -> None:
    with pytest.raises(SqlInvalid) as refused:
        compile_select(f"SELECT * FROM chat.m WHERE {expression}", SHAPE, params)
    assert message in str(refused.value)


def test_a_filter_takes_nothing_but_an_expression() -> None:
    with pytest.raises(SqlUnsupported, match="LIMIT"):
        compile_filter("n > 1 LIMIT 5", SHAPE, [])
    with pytest.raises(SqlUnsupported, match="LAST"):
        compile_filter("n > 1 LAST 5", SHAPE, [])
    with pytest.raises(SqlUnsupported, match="UNION"):
        compile_filter("n > 1 UNION SELECT 1", SHAPE, [])


def test_deep_nesting_is_refused_and_does_not_crash() -> None:
    deep = "(" * 1_000 + "n" + ")" * 1_000 + " = 1"
    with pytest.raises((SqlUnsupported, SqlInvalid)):
        compile_select(f"SELECT * FROM chat.m WHERE {deep}", SHAPE, [])
    with pytest.raises(SqlUnsupported, match="too deeply"):
        compile_select("SELECT * FROM chat.m WHERE " + "n + " * 1_500 + "n = 1", SHAPE, [])


def test_a_very_long_query_is_refused() -> None:
    with pytest.raises(SqlUnsupported, match="longer than 100,000"):
        compile_select("SELECT * FROM chat.m WHERE room = '" + "a" * 100_000 + "'", SHAPE, [])
