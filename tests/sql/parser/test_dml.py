"""Lists of values: what each is, both ways of reading them, and what is wrong with a list."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.sql.fuzz import check
from tidegate.errors import SqlInvalid
from tidegate.model.tables import DefaultKind
from tidegate.sql.parser.dml import ROWS_MAX
from tidegate.sql.parser.fragments import renumbered
from tidegate.sql.parser.parse import parse
from tidegate.sql.statements import USE_DEFAULT, Fragment, FunctionCall, Insert, Literal, Param


def insert(values: str) -> Insert:
    assert check(f"INSERT INTO a.b VALUES {values}")  # both ways give the same
    (statement,) = parse(f"INSERT INTO a.b VALUES {values}")
    assert isinstance(statement, Insert)
    return statement


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", Literal(1)),
        ("-1", Literal(-1)),
        ("+1", Literal(1)),
        ("007", Literal(7)),
        ("9223372036854775808", Literal(2**63)),
        ("1.50", Literal(Decimal("1.50"))),
        ("-.5", Literal(Decimal("-0.5"))),
        ("1e3", Literal(1000.0)),
        ("-1.5E-3", Literal(-0.0015)),
        ("'a'", Literal("a")),
        ("''", Literal("")),
        ("''''", Literal("'")),
        ("'it''s'", Literal("it's")),
        ("'a\nb;c), (--/*'", Literal("a\nb;c), (--/*")),
        ("'NULL'", Literal("NULL")),
        ("'😀'", Literal("😀")),
        ("$$it's$$", Literal("it's")),
        ("NULL", Literal(None)),
        ("null", Literal(None)),
        ("True", Literal(True)),
        ("fAlse", Literal(False)),
        ("DEFAULT", USE_DEFAULT),
        ("default", USE_DEFAULT),
        ("X'00fF'", Literal(b"\x00\xff")),
        ("x''", Literal(b"")),
        ("TIMESTAMP '2026-01-01 00:00:00'", Literal("2026-01-01 00:00:00")),
        ("timestamp\n'it''s'", Literal("it's")),
        ("DATE '2026-01-01'", Literal("2026-01-01")),
        ("?", Param(1)),
        ("$1", Param(1)),
        ("NOW()", FunctionCall(DefaultKind.NOW)),
        ("now( )", FunctionCall(DefaultKind.NOW)),
        ("SNOWFLAKE_ID()", FunctionCall(DefaultKind.SNOWFLAKE_ID)),
        ("uuid_v7 ()", FunctionCall(DefaultKind.UUID_V7)),
        ("/* one */ 1 -- two\n", Literal(1)),
    ],
)
def test_a_plain_value_is_read(text: str, expected: object) -> None:
    ((cell,),) = insert(f"({text})").rows or ()
    assert cell == expected
    if isinstance(cell, Literal) and isinstance(expected, Literal):
        assert type(cell.value) is type(expected.value)


@pytest.mark.parametrize(
    ("text", "sql", "params"),
    [
        ("1 + 1", "1 + 1", ()),
        ("- 1", "- 1", ()),
        ("upper('a,b')", "upper('a,b')", ()),
        ("? || 'x'", "$1 || 'x'", (1,)),
        ("[1, 2]", "[1, 2]", ()),
        ("{'a': 1, 'b': (2)}", "{'a': 1, 'b': (2)}", ()),
        ("CASE WHEN ? > ? THEN 1 ELSE 2 END", "CASE WHEN $1 > $2 THEN 1 ELSE 2 END", (1, 2)),
        ("(SELECT max(a) FROM a.b)", "(SELECT max(a) FROM a.b)", ()),
        ("E'\\n'", "E'\\n'", ()),
        ("1_000", "1_000", ()),
        ("x'0'", "x'0'", ()),
        ("'1'::int", "'1'::int", ()),
        ("'a'\n'b'", "'a'\n'b'", ()),
        ("now() + INTERVAL 1 DAY", "now() + INTERVAL 1 DAY", ()),
        ("NOT TRUE", "NOT TRUE", ()),
    ],
)
def test_anything_else_is_a_fragment(text: str, sql: str, params: tuple[int, ...]) -> None:
    statement = insert(f"({text})")
    assert statement.rows is None
    ((fragment,),) = statement.fragments or ()
    assert isinstance(fragment, Fragment)
    assert (fragment.sql, fragment.params, fragment.simple) == (sql, params, None)


def test_one_expression_makes_every_value_a_fragment() -> None:
    statement = insert("(1, DEFAULT, ?), (1 + 1, 'x', ?)")
    assert statement.rows is None
    first, second = statement.fragments or ((), ())
    assert [getattr(cell, "simple", cell) for cell in first] == [Literal(1), USE_DEFAULT, Param(1)]
    assert [getattr(cell, "simple", cell) for cell in second] == [None, Literal("x"), Param(2)]
    assert [getattr(cell, "sql", "") for cell in (*first, *second)] == ["1", "", "$1", "1 + 1", "'x'", "$2"]


def test_a_part_of_a_statement_gets_parameters_of_its_own() -> None:
    statement = insert("(?, upper(?), 'x'), (?, ? || '?' || ?, $$?$$)".replace("$$?$$", "lower('$1')"))
    parts = [cell for row in statement.fragments or () for cell in row if isinstance(cell, Fragment)]
    texts, numbers = renumbered([part for part in parts if part.simple is None])
    assert texts == ["upper($1)", "$2 || '?' || $3", "lower('$1')"]
    assert numbers == (2, 4, 5)


def test_question_marks_are_numbered_in_their_order() -> None:
    statement = insert("(?, 1, ?), (2, ?, ?)")
    assert statement.rows == (
        (Param(1), Literal(1), Param(2)),
        (Literal(2), Param(3), Param(4)),
    )
    assert statement.parameter_count == 4


def test_numbered_parameters_may_come_in_any_order_and_again() -> None:
    statement = insert("($2, $1), ($1, '$9 ?')")
    assert statement.rows == ((Param(2), Param(1)), (Param(1), Literal("$9 ?")))
    assert statement.parameter_count == 2


def test_columns_of_mixed_kinds_are_read() -> None:
    rows = insert("(1, 'a'), (NULL, NULL), (1.5, DEFAULT), (-3, 'b''c'), ('x', NOW())").rows
    assert rows == (
        (Literal(1), Literal("a")),
        (Literal(None), Literal(None)),
        (Literal(Decimal("1.5")), USE_DEFAULT),
        (Literal(-3), Literal("b'c")),
        (Literal("x"), FunctionCall(DefaultKind.NOW)),
    )


def test_a_list_goes_on_behind_a_comment() -> None:
    assert len(insert("(1) -- first\n, (2) /* second */, (3)").rows or ()) == 3


def test_many_rows_come_in_their_order() -> None:
    count = 3000  # more than the blocks in which they are matched
    statement = insert(",".join(f"({n}, '{n}')" for n in range(count)))
    assert statement.rows == tuple((Literal(n), Literal(str(n))) for n in range(count))


def test_many_columns_are_read() -> None:
    assert insert(f"({', '.join(map(str, range(500)))})").rows == (tuple(map(Literal, range(500))),)


@pytest.mark.parametrize(
    ("text", "reason", "column"),
    [
        ("(1, 2), (3)", "row 2 has 1 value, and 2 would be right", 9),
        ("(1), (2), (3, 4)", "row 3 has 2 values, and 1 would be right", 11),
        ("(1 2)", "expected ',' or an operator but found '2'", 4),
        ("('a' 1)", "expected ',' or an operator but found '1'", 6),
        ("(1,)", "expected a value but found ')'", 4),
        ("()", "expected a value but found ')'", 2),
        ("(1", "expected ',' or ')' but found the end of the text", 3),
        ("1", "expected '(' but found '1'", 1),
        ("(1),", "expected '(' but found the end of the text", 5),
        ("(1) (2)", "expected the end of the statement but found '('", 5),
        ("(1, (2)", "expected ',' or ')' but found the end of the text", 8),
        ("(1, [2)", "expected ']' but found ')'", 7),
        ("(1e999)", "the number '1e999' is too large", 2),
        ("(?, $1)", "? and $1 cannot both be used", 5),
        ("($1, $3)", "$3 is used, but not $2", 6),
        ("($0)", "parameters are numbered from 1 to 65535", 2),
        ("($65536)", "parameters are numbered from 1 to 65535", 2),
        ("(DEFAULT + 1)", "expected nothing behind DEFAULT but found '+'", 10),
        ("(1 + DEFAULT)", "expected an operator or the end of the expression but found 'DEFAULT'", 6),
        ("(1 FROM x)", "expected an operator or the end of the expression but found 'FROM'", 4),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, reason: str, column: int) -> None:
    front = "INSERT INTO a.b VALUES "
    with pytest.raises(SqlInvalid) as caught:
        parse(front + text)
    assert reason in caught.value.message
    assert caught.value.values["column"] == len(front) + column


def test_rows_of_another_length_than_the_columns_are_refused() -> None:
    with pytest.raises(SqlInvalid, match="row 1 has 3 values, and 2 would be right"):
        parse("INSERT INTO a.b (x, y) VALUES (1, 2, 3), (4, 5, 6)")


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(SqlInvalid, match=f"more than {ROWS_MAX} rows"):
        parse("INSERT INTO a.b VALUES " + ",".join(["(1)"] * (ROWS_MAX + 1)))


def test_too_many_parameters_are_refused() -> None:
    with pytest.raises(SqlInvalid, match="numbered from 1 to 65535"):
        parse("INSERT INTO a.b VALUES " + ",".join(["(?)"] * 65_536))
