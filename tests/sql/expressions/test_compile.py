"""Live queries: what a compiled SELECT shows and matches, and what it says of itself."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.paths import ROOT
from tidegate.errors import SqlInvalid
from tidegate.model.schemas import ColumnType
from tidegate.sql.expressions.compile import LiveSelect, RowColumns, compile_filter, compile_select
from tidegate.sql.expressions.functions import every_function
from tidegate.sql.expressions.functions_text import compile_like, lower, upper

SHAPE = RowColumns(
    (
        ("room", ColumnType.TEXT),
        ("n", ColumnType.BIGINT),
        ("x", ColumnType.DOUBLE),
        ("d", ColumnType.decimal(10, 2)),
        ("j", ColumnType.JSON),
        ("u", ColumnType.UUID),
        ("Day", ColumnType.DATE),
        ("at", ColumnType.TIMESTAMP),
        ("ok", ColumnType.BOOLEAN),
    )
)
ROW = (
    "a",
    6,
    1.5,
    Decimal("2.50"),
    '{"k": [1, "v"]}',
    "a0000000-0000-4000-8000-000000000001",
    18_262,
    0,
    True,
)
EMPTY = (None,) * len(SHAPE.columns)


def select(text: str, *params: object) -> LiveSelect:
    return compile_select(text, SHAPE, params)


def value(expression: str, row: Any = ROW, *params: object) -> Any:
    return select(f"SELECT {expression} AS v FROM chat.m", *params).project(row)[0]


def test_a_select_shows_its_columns_and_matches_its_where() -> None:
    live = select("SELECT room, n + 1 AS more FROM chat.m WHERE room = ? AND n > 5", "a")
    assert (live.namespace, live.table, live.last) == ("chat", "m", None)
    assert live.columns == [("room", ColumnType.TEXT), ("more", ColumnType.BIGINT)]
    assert live.project(ROW) == ("a", 7)
    assert live.matches(ROW)
    assert not live.matches(("b", *ROW[1:]))
    assert not live.matches(("a", 5, *ROW[2:]))


def test_a_star_shows_every_column_under_its_own_name() -> None:
    live = select("SELECT * FROM chat.m")
    assert live.columns == list(SHAPE.columns)
    assert live.project(ROW) == ROW
    assert select("SELECT m.*, 1 AS one FROM chat.m").project(ROW) == (*ROW, 1)
    assert select("SELECT DAY FROM chat.m").columns == [("Day", ColumnType.DATE)]


def test_columns_answer_to_the_alias_of_the_table_alone() -> None:
    assert select("SELECT x.n FROM chat.m AS x WHERE x.room = 'a'").project(ROW) == (6,)
    assert select("SELECT chat.m.n FROM chat.m").project(ROW) == (6,)
    with pytest.raises(SqlInvalid, match=r"'m' in 'm\.n' is not the table"):
        select("SELECT m.n FROM chat.m AS x")


def test_a_where_that_is_null_does_not_match() -> None:
    live = select("SELECT * FROM chat.m WHERE n > 5 OR room = 'a'")
    assert not live.matches(EMPTY)
    assert live.matches((None, 6, *EMPTY[2:]))
    assert not select("SELECT * FROM chat.m WHERE NOT n > 5").matches(EMPTY)
    assert not select("SELECT * FROM chat.m WHERE n NOT IN (1, NULL)").matches(ROW)


def test_last_and_the_semicolon_are_cut_off() -> None:
    assert select("SELECT * FROM chat.m WHERE n > 1 LAST 20;").last == 20
    assert select("SELECT * FROM chat.m WHERE n > ? LAST ?", 1, 30).last == 30
    assert select("SELECT * FROM chat.m WHERE n > $2 LAST $1", 40, 1).last == 40
    for wrong in (0, "x", True, None):
        with pytest.raises(SqlInvalid, match="LAST takes a whole number"):
            select("SELECT * FROM chat.m LAST ?", wrong)


def test_names_are_folded_unless_quoted() -> None:
    folded, quoted = select("SELECT n FROM Chat.M"), select('SELECT n FROM "Chat"."M"')
    assert (folded.namespace, folded.table) == ("chat", "m")
    assert (quoted.namespace, quoted.table) == ("Chat", "M")


def test_equal_filters_have_equal_keys_however_they_are_bound() -> None:
    written = select("SELECT n FROM chat.m WHERE room = 'a' AND n > 5")
    bound = select("SELECT d FROM chat.m AS q WHERE q.ROOM = $1 and ((n > ?))".replace("?", "$2"), "a", 5)
    assert written.filter_key == bound.filter_key
    assert written.shape_key != bound.shape_key
    assert written.shape_key == select("SELECT n FROM chat.m").shape_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("n > 5", "n > 6"),
        ("n > 5", "x > 5"),
        ("room = '5'", "room = 'x'"),
        ("CAST(room AS TIMESTAMP) > '2020-01-01'", "CAST(room AS TIMESTAMPTZ) > '2020-01-01'"),
        ("room LIKE 'a!%'", "room LIKE 'a!%' ESCAPE '!'"),
        ("room LIKE 'a'", "room ILIKE 'a'"),
        ("round(d, 1) = 1", "round(d, 0) = 1"),
        ("at + INTERVAL 1 DAY > '2020-01-01'", "at + INTERVAL 24 HOUR > '2020-01-01'"),
        ("(j ->> 'k') = '1'", "(j ->> '$.k[0]') = '1'"),
        ("TRY_CAST(room AS INT) = 1", "CAST(room AS INT) = 1"),
        ("year(at) = 1", "month(at) = 1"),
    ],
)
def test_different_filters_have_different_keys(one: str, other: str) -> None:
    assert (
        select(f"SELECT n FROM chat.m WHERE {one}").filter_key
        != select(f"SELECT n FROM chat.m WHERE {other}").filter_key
    )


@pytest.mark.parametrize(
    ("where", "equality"),
    [
        ("room = 'a' AND n > 5", (0, "a")),
        ("n > 5 AND 'a' = room", (0, "a")),
        ("n = 5", (1, 5)),
        ("n = '5'", (1, 5)),
        ("d = '2.5'", (3, Decimal("2.50"))),
        ("u = 'A0000000-0000-4000-8000-000000000001'", (5, "a0000000-0000-4000-8000-000000000001")),
        ("Day = '2020-01-01'", (6, 18_262)),
        ("at = '1970-01-01T00:00:01Z'", (7, 1_000_000)),
        ("ok = true", (8, True)),
        ("x = 1.5", None),
        ("n = 5.5", None),
        ("room = 'a' OR n = 5", None),
        ("room <> 'a'", None),
        ("NOT room = 'a'", None),
        ("room = NULL", None),
        ("lower(room) = 'a'", None),
    ],
)
def test_a_filter_names_the_value_that_every_match_has(where: str, equality: Any) -> None:
    assert select(f"SELECT * FROM chat.m WHERE {where}").equality == equality


def test_a_fault_in_the_filter_is_no_match_and_is_counted() -> None:
    live = select("SELECT * FROM chat.m WHERE CAST(room AS INT) > 0")
    assert not live.matches(ROW)
    assert not live.matches(("b", *ROW[1:]))
    assert live.matches(("7", *ROW[1:]))
    assert (live.faults, live.first_fault) == (2, "'a' is no INT")


def test_a_fault_in_a_column_is_null_and_is_counted() -> None:
    live = select("SELECT n, n * 9223372036854775807 AS big, room FROM chat.m")
    assert live.project(ROW) == (6, None, "a")
    assert (live.faults, live.first_fault) == (1, "multiplication overflows BIGINT")


def test_a_filter_alone_counts_its_faults_too() -> None:
    live = compile_filter("CAST(room AS INT) > $1 AND ok", SHAPE, [0])
    assert not live(ROW)
    assert live(("7", *ROW[1:]))
    assert (live.faults, live.first_fault) == (1, "'a' is no INT")


def test_parameters_have_the_types_of_their_values() -> None:
    assert value("$1", ROW, "a") == "a"
    assert value("n = ?", ROW, "6") is True
    assert value("n + ?", ROW, 1) == 7
    assert value("d + ?", ROW, 0.5) == 3.0
    assert value("? IS NULL", ROW, None) is True
    assert value("ok = ?", ROW, True) is True


def test_parameters_may_touch_signs_and_each_other() -> None:
    assert value("$1+$2", ROW, 1, 2) == 3
    assert value("?+?", ROW, 1, 2) == 3
    assert value("$1||$2||''", ROW, "a", "$3") == "a$3"
    assert value("$1 = ''", ROW, "") is True
    assert value("'?' || '$1' || $$it's$$") == "?$1it's"
    assert select("SELECT $1 + n FROM chat.m", 1).columns == [("$1 + n", ColumnType.BIGINT)]


def test_comments_do_not_count() -> None:
    live = select("SELECT n -- a ? and a 'quote\nFROM chat.m /* WHERE /* n = ? */ */ WHERE room = ?", "a")
    assert live.matches(ROW)


def test_short_circuits_hide_faults_as_in_a_duckdb_filter() -> None:
    live = select("SELECT * FROM chat.m WHERE n < 0 AND CAST(room AS INT) > 0")
    assert not live.matches(ROW)
    assert live.faults == 0
    assert value("CASE WHEN room = 'a' THEN 1 ELSE CAST(room AS INT) END") == 1
    assert value("coalesce(n, CAST(room AS INT))") == 6


def test_a_text_that_would_grow_without_bounds_is_a_fault() -> None:
    live = select("SELECT replace(room, 'a', $1) AS v, room || room AS w FROM chat.m", "b" * 50_000)
    assert live.project(("a" * 1_000_000, *ROW[1:])) == (None, "a" * 2_000_000)
    assert live.first_fault == "the text would have more than 67,108,864 characters"


def test_every_function_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "live-filters.md").read_text(encoding="utf-8")
    assert [name for name in every_function() if f"`{name}`" not in page] == []


def test_long_chains_of_and_and_or_compile() -> None:
    wide = " OR ".join(f"n = {number}" for number in range(800))
    assert select(f"SELECT * FROM chat.m WHERE {wide}").matches(ROW)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("a%b%c", "aXbYc", True),
        ("a%b%c", "acb", False),
        ("%_b_%", "abc", True),
        ("%ab%ab", "ab", False),
        ("a%a", "a", False),
        ("%%", "", True),
        ("_", "é", True),
        ("a\nb", "a\nb", True),
        ("%" + "a%" * 30 + "b", "a" * 5_000, False),
    ],
)
def test_like_patterns_never_look_back(pattern: str, text: str, matches: bool) -> None:
    assert compile_like(pattern, "")(text) is matches


def test_every_letter_has_the_case_that_duckdb_gives_it() -> None:
    # Scripts with cases end far below this code point.
    letters = [chr(code) for code in range(1, 0x1F000) if not 0xD800 <= code <= 0xDFFF]
    held = pa.table({"c": letters})
    connection = duckdb.connect(":memory:")
    connection.register("held", held)
    theirs = connection.sql("SELECT lower(c), upper(c) FROM held").to_arrow_table()
    assert theirs.column(0).to_pylist() == [lower(letter) for letter in letters]
    assert theirs.column(1).to_pylist() == [upper(letter) for letter in letters]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("7 // 2", 3),
        ("n / 0", float("inf")),
        ("-7 % 3", -1),
        ("round(2.5)", Decimal("3")),
        ("d * 2", Decimal("5.00")),
        ("room || n", "a6"),
        ("substring('hello', -3, 2)", "ll"),
        ("j ->> '$.k[1]'", "v"),
        ("j -> 'k'", '[1,"v"]'),
        ("at + INTERVAL '1 day 2 hours'", 93_600_000_000),
        ("Day + INTERVAL 1 MONTH", 1_580_515_200_000_000),
        ("date_trunc('month', at)", 0),
        ("extract(year FROM Day)", 2020),
        ("CAST(at AS TEXT)", "1970-01-01 00:00:00+00"),
        ("greatest(n, NULL, 9)", 9),
        ("regexp_matches(room, '^[a-c]$')", True),
        ("upper('straße')", "STRAẞE"),
        ("n BETWEEN 6 AND 7", True),
        ("u = 'A0000000-0000-4000-8000-000000000001'", True),
    ],
)
def test_expressions_have_duckdbs_values(expression: str, expected: Any) -> None:
    assert value(expression) == expected
