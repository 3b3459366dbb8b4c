from __future__ import annotations

import pytest

from tidegate.cli.statements import is_statement, split_statements


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
