"""Rows for people: aligned, told apart, never obeyed by the terminal, never cut in silence."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from tidegate.cli.output.tables import RowGrid

COLUMNS = [
    {"name": "id", "type": "BIGINT"},
    {"name": "text", "type": "TEXT"},
    {"name": "price", "type": "DECIMAL(9,2)"},
]
ROWS: list[list[Any]] = [[1, "hello", "1.50"], [222, None, None], [3, "", "-20.25"]]


def drawn(rows: RowGrid, width: int) -> list[str]:
    out = io.StringIO()
    rows.print(Console(file=out, width=width))
    return out.getvalue().splitlines()


def test_numbers_stand_to_the_right_and_null_is_no_empty_text() -> None:
    assert drawn(RowGrid(COLUMNS, ROWS), 80) == [
        " id  text    price",
        "──────────────────",
        "  1  hello    1.50",
        "222  NULL     NULL",
        "  3         -20.25",
    ]


def test_long_text_gives_way_and_figures_stay_whole() -> None:
    lines = drawn(RowGrid(COLUMNS, [[123456789, "a long text that does not fit", "1.50"]]), 30)
    assert lines[2] == "123456789  a long text…   1.50"
    assert all(len(line) <= 30 for line in lines)


def test_two_long_texts_share_the_room() -> None:
    columns = [{"name": "a", "type": "TEXT"}, {"name": "b", "type": "TEXT"}]
    lines = drawn(RowGrid(columns, [["x" * 50, "y" * 50]]), 42)
    assert lines[2] == "x" * 19 + "…" + "  " + "y" * 19 + "…"


def test_what_does_not_fit_side_by_side_is_written_row_by_row_and_whole() -> None:
    long = "x" * 50
    assert drawn(RowGrid(COLUMNS, [[1234567890123, long, "1.50"]]), 20) == [
        "── row 1",
        "id     1234567890123",
        f"text   {long}",
        "price  1.50",
    ]
    assert drawn(RowGrid(COLUMNS, ROWS[:1], expanded=True), 80)[0] == "── row 1"


def test_a_terminal_shows_control_characters_and_obeys_none() -> None:
    lines = drawn(RowGrid(COLUMNS[1:2], [["a\nb\x1b[31m\u202e"]]), 80)
    assert lines[2] == "a\\nb\\x1b[31m\\x202e"


def test_wide_letters_keep_the_columns_straight() -> None:
    columns = [{"name": "a", "type": "TEXT"}, {"name": "b", "type": "TEXT"}]
    lines = drawn(RowGrid(columns, [["日本", "x"], ["abcd", "y"]]), 80)
    assert lines[2:] == ["日本  x", "abcd  y"]


def test_a_terminal_shows_what_a_file_gets() -> None:
    for rows in (RowGrid(COLUMNS, ROWS), RowGrid(COLUMNS, ROWS, expanded=True)):
        styled = Console(file=io.StringIO(), width=80, force_terminal=True, no_color=True, color_system=None)
        with styled.capture() as captured:
            rows.print(styled)
        assert captured.get().splitlines() == drawn(rows, 80)
    assert [len(line) for line in drawn(RowGrid(COLUMNS[1:2], [["a"], ["bcd"]]), 80)] == [4, 4, 1, 3]


def test_many_rows_are_printed_in_order_and_bounded_where_asked() -> None:
    columns, rows = [{"name": "n", "type": "INT"}], [[n] for n in range(5001)]
    assert [int(line) for line in drawn(RowGrid(columns, rows), 80)[2:]] == list(range(5001))
    assert len(drawn(RowGrid(columns, rows, rows_max=10), 80)) == 12
