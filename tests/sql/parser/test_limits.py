"""What is too much for DuckDB is refused by the parser, in every statement that has a part for DuckDB."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidegate.errors import SqlInvalid
from tidegate.sql.parser.cursor import NESTING_MAX, STATEMENT_TOKENS_MAX
from tidegate.sql.parser.limits import COLUMNS_MAX, QUERY_CHARS_MAX, SET_OPERATIONS_MAX
from tidegate.sql.parser.parse import parse

# Each with an expression in it.
DOORS = [
    "SELECT {}",
    "WITH a AS (SELECT {}) SELECT * FROM a",
    "EXPLAIN SELECT {}",
    "EXECUTE AS 'alice' (SELECT {})",
    "EXECUTE AS 'alice' (UPDATE chat.t SET a = {})",
    "INSERT INTO chat.t SELECT {}",
    "INSERT INTO chat.t VALUES ({})",
    "UPDATE chat.t SET a = {}",
    "UPDATE chat.t SET a = 1 WHERE {}",
    "EXPLAIN UPDATE chat.t SET a = 1 WHERE {}",
    "DELETE FROM chat.t WHERE {}",
    "ALTER TOPIC app.t ADD SOURCE chat.t ON INSERT WHERE {}",
    "SELECT 1; SELECT {}",
    "DESCRIBE SELECT {}",
]

# What is just allowed, and how many more of it are not.
LIMITS: list[tuple[Callable[[int], str], int, str]] = [
    (lambda n: "1" + "+1" * (n // 2 - 20), STATEMENT_TOKENS_MAX, f"more than {STATEMENT_TOKENS_MAX} words"),
    (lambda n: "'" + "x" * (n - 100) + "'||''", QUERY_CHARS_MAX, f"longer than {QUERY_CHARS_MAX} char"),
    (lambda n: "(" * (n - 2) + "1" + ")" * (n - 2) + "+1", NESTING_MAX, f"deeper than {NESTING_MAX}"),
    (lambda n: ".".join(["a"] * n) + "+1", NESTING_MAX, f"name has more than {NESTING_MAX} parts"),
    (lambda n: f"(SELECT {', '.join(['1'] * n)})", COLUMNS_MAX, f"columns has more than {COLUMNS_MAX}"),
    (lambda n: f"(FROM {', '.join(['a.b'] * n)})", COLUMNS_MAX, f"columns has more than {COLUMNS_MAX}"),
    (
        lambda n: f'(SELECT 1 AS "select" GROUP BY {", ".join(["1"] * n)})',
        COLUMNS_MAX,
        f"columns has more than {COLUMNS_MAX}",
    ),
    (
        lambda n: f"(SELECT 1 FROM (VALUES (1), ({', '.join(['1'] * n)})))",
        COLUMNS_MAX,
        f"columns has more than {COLUMNS_MAX}",
    ),
    (
        lambda n: f"(SELECT 1{' UNION SELECT 1' * n})",
        SET_OPERATIONS_MAX,
        f"more than {SET_OPERATIONS_MAX} UNION",
    ),
]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("limit", LIMITS, ids=[message for _, _, message in LIMITS])
def test_what_is_too_much_is_refused_at_every_door(
    door: str, limit: tuple[Callable[[int], str], int, str]
) -> None:
    write, most, message = limit
    assert parse(door.format(write(most)))
    with pytest.raises(SqlInvalid, match=message) as caught:
        parse(door.format(write(most + 200)))
    assert {"line", "column", "statement"} <= set(caught.value.values)


def test_a_text_of_half_a_million_columns_is_not_read_to_its_end() -> None:
    text = "SELECT " + "1," * 499_999 + "1"
    with pytest.raises(SqlInvalid, match=f"more than {STATEMENT_TOKENS_MAX} words") as caught:
        parse(text)
    assert caught.value.values["column"] < 2 * STATEMENT_TOKENS_MAX


def test_the_columns_of_a_query_are_counted_by_themselves() -> None:
    half = ", ".join(["1"] * (COLUMNS_MAX // 2 + 1))
    assert parse(f"SELECT {half} UNION SELECT {half}")
    assert parse(f"SELECT {half}, (SELECT max(a) FROM (SELECT {half})) FROM a.b GROUP BY {half} ORDER BY 1")
    many = ", ".join(["1"] * (COLUMNS_MAX + 1))
    assert parse(f"SELECT 1 IN ({many})")
    assert parse(f"SELECT [{many}]")
    assert parse("SELECT * FROM (VALUES " + ", ".join(["(1, 2)"] * 3_000) + ")")
    # Words that are names do not begin another list.
    for name in ("a.from", "1 AS order, 2 AS by", "1 AS from", "a IS DISTINCT FROM b", '1 AS "select"'):
        with pytest.raises(SqlInvalid, match=f"columns has more than {COLUMNS_MAX}"):
            parse(f"SELECT {half}, {name}, {half}")


def test_plain_values_are_not_counted() -> None:
    rows = ", ".join(["(1, 'a', -2, NULL)"] * 10_000)
    (quick,) = parse(f"INSERT INTO chat.t VALUES {rows}")
    (slow,) = parse(f"INSERT INTO chat.t VALUES /* read token by token */ {rows}")
    assert quick.rows == slow.rows  # type: ignore[attr-defined]
    (computed,) = parse(f"INSERT INTO chat.t VALUES {rows}, (1 + 1, 'a', -2, NULL)")
    assert len(computed.fragments) == 10_001  # type: ignore[attr-defined]
    assert parse("PUBLISH INTO app.t VALUES " + ", ".join(["('1')"] * 10_000))


def test_values_that_are_computed_are_counted() -> None:
    row = "(1 + 1)"
    assert parse("INSERT INTO chat.t VALUES " + ", ".join([row] * COLUMNS_MAX))
    with pytest.raises(SqlInvalid, match=f"more than {COLUMNS_MAX} values that have to be computed"):
        parse("INSERT INTO chat.t VALUES " + ", ".join([row] * (COLUMNS_MAX + 1)))
    long = "1" + " + 1" * 10
    with pytest.raises(SqlInvalid, match=f"more than {STATEMENT_TOKENS_MAX} words"):
        parse("INSERT INTO chat.t VALUES " + ", ".join([f"({long})"] * 1_000))


def test_each_statement_of_a_script_has_its_own_room() -> None:
    one = "SELECT " + "+".join(["1"] * (STATEMENT_TOKENS_MAX // 2 - 10))
    assert len(parse(";".join([one] * 3))) == 3
    expression = "+".join(["1"] * 4_000)
    assignments = ", ".join(f"c{number} = {expression}" for number in range(3))
    with pytest.raises(SqlInvalid, match=f"more than {STATEMENT_TOKENS_MAX} words"):
        parse(f"UPDATE chat.t SET {assignments}")
