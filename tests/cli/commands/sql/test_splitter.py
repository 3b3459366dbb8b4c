from __future__ import annotations

import pytest

from tidegate.cli.commands.sql.prompt import is_whole
from tidegate.cli.commands.sql.splitter import (
    Placed,
    excerpt,
    is_statement,
    placed_statements,
    split_statements,
)


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"], ""),
        ("SELECT 1; SELECT", ["SELECT 1"], " SELECT"),
        ("SELECT ';'; SELECT 2;", ["SELECT ';'", "SELECT 2"], ""),
        ("SELECT 'it''s;'; ", ["SELECT 'it''s;'"], " "),
        ('SELECT "a;b" FROM t;', ['SELECT "a;b" FROM t'], ""),
        ("SELECT 1 -- no; end\n;", ["SELECT 1 -- no; end"], ""),
        ("SELECT /* ; */ 1;", ["SELECT /* ; */ 1"], ""),
        ("SELECT 'open; SELECT 2;", [], "SELECT 'open; SELECT 2;"),
        ("SELECT 1; /* open ;", ["SELECT 1"], " /* open ;"),
        (";; ;", [], ""),
        ("", [], ""),
    ],
)
def test_a_semicolon_ends_a_statement_unless_it_is_quoted(
    text: str, statements: list[str], rest: str
) -> None:
    assert split_statements(text) == (statements, rest)


def test_comments_alone_are_no_statement() -> None:
    assert not is_statement(" -- nothing\n /* here */ ")
    assert is_statement("SELECT 1 -- one")


def test_lines_typed_one_by_one_give_the_same_statements() -> None:
    text, found = "", []
    for line in ["SELECT 'a;", "b'", "; SELECT 2", ";"]:
        done, text = split_statements(f"{text}{line}\n")
        found.extend(done)
    assert found == ["SELECT 'a;\nb'", "SELECT 2"]


def test_a_statement_knows_where_it_stands_in_the_text() -> None:
    found = placed_statements("SELECT 1;\n\n  SELECT\n 2; -- end\nSELECT 3 -- three\n")
    assert found == [
        Placed("SELECT 1", 1, 1),
        Placed("SELECT\n 2", 3, 3),
        Placed("-- end\nSELECT 3 -- three", 4, 5),
    ]
    assert placed_statements(" ; -- nothing\n") == []


def test_the_place_of_a_mistake_is_marked_below_its_line() -> None:
    statement = Placed("SELECT *\nFORM x", 4, 1)
    assert excerpt(statement, 2, 1) == "5 | FORM x\n    ^"
    assert excerpt(statement, 1, 8) == "4 | SELECT *\n           ^"
    assert excerpt(Placed("SELECT '日本' FORM"), 1, 13).endswith("\n" + " " * 18 + "^")
    assert excerpt(statement, 3, 1) == ""


def test_of_a_long_line_the_part_with_the_mistake_is_shown() -> None:
    text = "SELECT " + "a, " * 100 + "WRONG " + "b, " * 100
    line, mark = excerpt(Placed(text), 1, text.index("WRONG") + 1).split("\n")
    assert line[mark.index("^") :].startswith("WRONG")
    assert len(line) < 80


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("SELECT 1;", True),
        ("SELECT 1", False),
        ("SELECT ';", False),
        ("SELECT 1; SELECT", False),
        ("SELECT 1; -- done", True),
        ("SELECT $$;$$", False),
        ("\\d chat.messages", True),
        ("exit", True),
        ("", True),
        ("-- only a comment", False),
    ],
)
def test_enter_runs_what_is_whole(text: str, whole: bool) -> None:
    assert is_whole(text) is whole
