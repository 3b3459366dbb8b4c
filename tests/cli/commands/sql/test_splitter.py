from __future__ import annotations

import random
import time

import pytest

from tests.sql.parser.test_lexer import PIECES
from tidegate.cli.commands.sql.prompt import is_whole
from tidegate.cli.commands.sql.splitter import (
    TextSpan,
    excerpt,
    is_statement,
    locate_statements,
    script_parts,
    split_statements,
)
from tidegate.errors import SqlInvalid
from tidegate.sql.parser.parse import parse


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
        (
            "/* old /* note */; DROP TABLE a.b; */ SELECT 1;",
            ["/* old /* note */; DROP TABLE a.b; */ SELECT 1"],
            "",
        ),
        ("/* /* ; */ ; SELECT 1;", [], "/* /* ; */ ; SELECT 1;"),
        ("SELECT $$;$$; SELECT $t$;$$;$t$;", ["SELECT $$;$$", "SELECT $t$;$$;$t$"], ""),
        ("SELECT $$;", [], "SELECT $$;"),
        ("SELECT $1;", ["SELECT $1"], ""),
        ("SELECT E'\\';'; SELECT E'open\\';", ["SELECT E'\\';'"], " SELECT E'open\\';"),
        ('SELECT "a"";"; --', ['SELECT "a"";"'], " --"),
        ("SELECT 1; -- end ;", ["SELECT 1"], " -- end ;"),
        ("SELECT 1 -- a;\r; SELECT 2;", ["SELECT 1 -- a;", "SELECT 2"], ""),
        ("SELECT\r\n1;\r\nSELECT '\r\n;';\r\n", ["SELECT\r\n1", "SELECT '\r\n;'"], "\r\n"),
        ("SELECT `;", ["SELECT `"], ""),
        (";; ;", [], ""),
        ("", [], ""),
    ],
)
def test_a_semicolon_ends_a_statement_unless_it_is_quoted(
    text: str, statements: list[str], rest: str
) -> None:
    assert split_statements(text) == (statements, rest)


@pytest.mark.parametrize(
    "text",
    [
        "/* " * 70 + "; DROP TABLE a.b; " + " */" * 70,
        "-- x\n" * 10_001 + "; DROP TABLE a.b;",
        "/* never closed ; DROP TABLE a.b;",
        "'never closed ; DROP TABLE a.b;",
    ],
)
def test_what_the_server_refuses_whole_is_not_cut(text: str) -> None:
    with pytest.raises(SqlInvalid):
        parse(text)
    assert split_statements(text) == ([], text)
    assert len(locate_statements(text)) == 1
    assert script_parts(text) == [TextSpan(text)]


def test_a_text_is_cut_where_the_server_cuts_it() -> None:
    """Whatever the server reads, the client cuts into the same statements."""
    chance = random.Random(11)
    several = 0
    for _ in range(4000):
        text = "SELECT " + chance.choice(["", " ", "\n", "\r\n"]).join(
            chance.choices(PIECES, k=chance.randrange(1, 7))
        )
        try:
            wanted = [one.text for one in parse(text)]
        except SqlInvalid:
            continue
        found = locate_statements(text)
        assert [one.text for each in found for one in parse(each.text)] == wanted, text
        assert len(found) == len(wanted)
        several += len(found) > 1
    assert several > 50


@pytest.mark.parametrize(
    "part",
    [
        "SELECT 1;",
        "a ",
        "/* ",
        "/**/",
        "-- x\n",
        "'a''",
        '"',
        "$a",
        "$$",
        "E'\\'",
        "\\ ",
        "\n\\d\n",
        " ",
        "(",
        "\r\n;",
    ],
)
def test_a_million_characters_take_linear_time(part: str) -> None:
    text = part * (1_000_000 // len(part))
    start = time.monotonic()
    locate_statements(text)
    script_parts(text)
    is_whole(text)
    # About two seconds at most; what is quadratic takes minutes.
    assert time.monotonic() - start < 30


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
    found = locate_statements("SELECT 1;\n\n  SELECT\n 2; -- end\nSELECT 3 -- three\n")
    assert found == [
        TextSpan("SELECT 1", 1, 1),
        TextSpan("SELECT\n 2", 3, 3),
        TextSpan("-- end\nSELECT 3 -- three", 4, 5),
    ]
    assert locate_statements(" ; -- nothing\n") == []


def test_the_place_of_a_mistake_is_marked_below_its_line() -> None:
    statement = TextSpan("SELECT *\nFORM x", 4, 1)
    assert excerpt(statement, 2, 1) == "5 | FORM x\n    ^"
    assert excerpt(statement, 1, 8) == "4 | SELECT *\n           ^"
    assert excerpt(TextSpan("SELECT '日本' FORM"), 1, 13).endswith("\n" + " " * 18 + "^")
    assert excerpt(statement, 3, 1) == ""


def test_of_a_long_line_the_part_with_the_mistake_is_shown() -> None:
    text = "SELECT " + "a, " * 100 + "WRONG " + "b, " * 100
    line, mark = excerpt(TextSpan(text), 1, text.index("WRONG") + 1).split("\n")
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


def test_a_line_that_begins_with_a_backslash_stands_alone() -> None:
    text = "SELECT 1;\n  \\d a.b\r\nSELECT '\n\\d';\n/* \n\\d */ SELECT 2 \\d\n\\dn"
    assert script_parts(text) == [
        TextSpan("SELECT 1;\n", 1, 1),
        TextSpan("\\d a.b\r", 2, 3),
        TextSpan("SELECT '\n\\d';\n/* \n\\d */ SELECT 2 \\d\n", 3, 1),
        TextSpan("\\dn", 7, 1),
    ]
