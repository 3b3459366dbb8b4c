"""Tokens: where strings, names, comments and parameters begin and end, as DuckDB has it."""

from __future__ import annotations

import random
from decimal import Decimal

import duckdb
import pytest

from tests.sql.fuzz import tokens_of
from tidegate.errors import SqlInvalid
from tidegate.sql.parser.lexer import (
    NUMBER_CHARS_MAX,
    SourceText,
    fold,
    line_and_column,
    number_of,
    scan,
    string_of,
)
from tidegate.sql.parser.parse import parse

PIECES = [
    "'a'",
    "'it''s'",
    "'a;b'",
    "''",
    "';'",
    "E'\\''",
    "E'a\\\\'",
    "E';'",
    "e'x''y'",
    "X'00'",
    "B'1'",
    "N'q'",
]
PIECES += ["$$a$$", "$$;$$", "$t$ $$ ; $t$", "$é$;$é$", '"a;b"', '"a""b"', "-- c ; \n", "-- '\n", "--'\r"]
PIECES += [
    "/* ; */",
    "/* /* ; */ ' */",
    ";",
    ";",
    "1",
    "1.5",
    "a$1",
    "a",
    "é;",
    "\u00a0",
    "\u200b",
    "\ufeff",
    "\x85",
]
PIECES += [
    ",",
    "+",
    "(",
    ")",
    "SELECT",
    "SELECT 1",
    "1e5",
    "::text",
    "->>",
    "[1]",
    "{'a':1}",
    "\x0b",
    "\u2028",
]
PIECES += ["; SELECT 1", "; SELECT ';'", ";SELECT/**/2", ";-- '\nSELECT 3"] * 2


def kinds(text: str) -> list[tuple[str, str]]:
    return [(token.kind, text[token.start : token.stop]) for token in tokens_of(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b", [("word", "a"), ("sign", "."), ("word", "b")]),
        ("a::int", [("word", "a"), ("sign", "::"), ("word", "int")]),
        ("a=-1", [("word", "a"), ("sign", "="), ("sign", "-"), ("number", "1")]),
        ("id=$1", [("word", "id"), ("sign", "="), ("param", "$1")]),
        ("id$1", [("word", "id$1")]),
        ("x ? y", [("word", "x"), ("param", "?"), ("word", "y")]),
        ("'it''s'", [("string", "'it''s'")]),
        ("'a''", []),
        ("E'it\\'s'", [("string", "E'it\\'s'")]),
        ("X'00' xx'00'", [("string", "X'00'"), ("word", "xx"), ("string", "'00'")]),
        ("$$a ' b$$ $t$ $$ $t$", [("string", "$$a ' b$$"), ("string", "$t$ $$ $t$")]),
        ('"a""b"', [("quoted", '"a""b"')]),
        ("a -- b ' \n c", [("word", "a"), ("word", "c")]),
        ("a /* ' /* \" */ ; */ c", [("word", "a"), ("word", "c")]),
        ("1.5e-3 .5 1. 1..2", [("number", x) for x in ("1.5e-3", ".5", "1.", "1.", ".2")]),
        ("größe", [("word", "größe")]),
        ("a\u00a0b", [("word", "a"), ("word", "b")]),
        ("->>->", [("sign", "->>"), ("sign", "->")]),
    ],
)
def test_a_text_falls_into_its_tokens(text: str, expected: list[tuple[str, str]]) -> None:
    if not expected:
        with pytest.raises(SqlInvalid):
            kinds(text)
        return
    assert kinds(text) == expected


@pytest.mark.parametrize(
    ("text", "reason", "line", "column"),
    [
        ("SELECT 'a", "the string that begins here is not closed", 1, 8),
        ("SELECT E'a\\' ", "the string that begins here is not closed", 1, 8),
        ("SELECT\n  'a''", "the string that begins here is not closed", 2, 3),
        ('SELECT "a', "the name that begins here is not closed", 1, 8),
        ("SELECT /* a /* b */", "the comment that begins with /* is not closed", 1, 8),
        ("SELECT $$a", "neither a parameter nor a string between dollar signs", 1, 8),
        ("SELECT $name", "neither a parameter nor a string between dollar signs", 1, 8),
        ("SELECT `a`", "` begins nothing here", 1, 8),
        ("SELECT \x01", "the character '\\x01' is not allowed here", 1, 8),
        ("SELECT\r\n1,\r\n\x01", "the character '\\x01' is not allowed here", 3, 1),
        ("SELECT " + "/*" * 100 + "*/" * 100, "comments nest deeper than 64", 1, 136),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(text: str, reason: str, line: int, column: int) -> None:
    with pytest.raises(SqlInvalid) as caught:
        kinds(text)
    assert reason in caught.value.message
    assert (caught.value.values["line"], caught.value.values["column"]) == (line, column)


def test_texts_are_cut_into_statements_where_duckdb_cuts_them() -> None:
    """Whatever both read as statements, they read as the same number of statements."""
    chance, database = random.Random(7), duckdb.connect()
    compared = several = 0
    for _ in range(8000):
        text = "SELECT " + chance.choice(["", " "]).join(chance.choices(PIECES, k=chance.randrange(1, 7)))
        try:
            wanted = len(database.extract_statements(text))
        except duckdb.Error:
            continue
        assert len(parse(text)) == wanted, text
        compared, several = compared + 1, several + (wanted > 1)
    assert compared > 1000
    assert several > 50


def test_lines_and_columns_count_from_one() -> None:
    assert line_and_column("ab\ncd", 0) == (1, 1)
    assert line_and_column("ab\ncd", 2) == (1, 3)
    assert line_and_column("ab\ncd", 3) == (2, 1)
    assert line_and_column("ab\ncd", 5) == (2, 3)


def test_numbers_have_the_type_that_their_writing_says() -> None:
    assert [type(number_of(text)) for text in ("1", "-1", "1.", ".5", "1e3", "1.5E-3")] == [
        *(int, int, Decimal, Decimal, float, float)
    ]
    assert number_of("-1.50") == Decimal("-1.50")
    assert str(number_of("1.50")) == "1.50"


def test_numbers_that_no_column_holds_are_none() -> None:
    assert number_of("1e999") is None
    assert number_of("9" * (NUMBER_CHARS_MAX + 1)) is None
    assert number_of("9" * NUMBER_CHARS_MAX) == int("9" * NUMBER_CHARS_MAX)


def test_strings_have_the_value_that_duckdb_gives_them() -> None:
    for text in ("'a'", "''", "'it''s'", "'a\nb;'", "X'00fF'", "x''", "$$a''b$$", "$t$ $$ $t$", "'é😀'"):
        (row,) = duckdb.execute(f"SELECT {text}").fetchall()
        assert (string_of(text),) == row


def test_strings_whose_meaning_is_left_to_duckdb_are_none() -> None:
    assert [string_of(text) for text in ("E'a\\n'", "B'1'", "N'a'", "X'0'", "X'0 0'", "X'zz'")] == [None] * 6


def test_only_ascii_is_folded() -> None:
    assert [fold(name) for name in ("Chat", "ÉA", "\u212aA")] == ["chat", "Éa", "\u212aa"]


def test_scanning_starts_anywhere() -> None:
    assert scan(SourceText("SELECT 1", 1), 6).start == 7
    assert scan(SourceText("SELECT 1", 1), 8).kind == "end"
