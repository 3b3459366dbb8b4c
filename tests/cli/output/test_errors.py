"""Sentences on a terminal: broken between words, coloured only where that is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.terminals import terminal
from tidegate.cli.output.errors import wrapped


def test_lines_end_between_words_and_long_words_stay_whole() -> None:
    assert wrapped("one two three", 9) == "one two\nthree"
    assert wrapped("one two three", 9, taken=4) == "one\ntwo three"
    assert wrapped("  one two three", 9, indent="  ") == "  one two\n  three"
    assert wrapped("a /very/long/path b", 6) == "a\n/very/long/path\nb"
    assert wrapped("日本 日本", 8) == "日本\n日本"


def test_lines_that_fit_keep_their_blanks() -> None:
    drawing = "  4 |   TABEL\n        ^"
    assert wrapped(drawing, 20) == drawing
    assert wrapped("one two three", None) == "one two three"


@pytest.mark.parametrize(
    ("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_errors_fit_the_terminal_and_have_colour_where_it_is_wanted(
    tmp_path: Path, environ: dict[str, str], coloured: bool
) -> None:
    with terminal("topic", "list", home=tmp_path, environ={"NO_COLOR": "", **environ}, columns=50) as screen:
        code, said = screen.wait_for_end()
        assert ("\x1b" in screen.raw) is coloured
    assert code == 1
    assert said.startswith("Error: ")
    words = set(said.split())
    assert {"server", "(--home", "TIDEGATE_HOME)"} <= words
    assert all(len(line) <= 50 for line in said.splitlines() if "/" not in line)
