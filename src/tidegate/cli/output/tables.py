"""Rows of statements as people read them: takes columns and rows, gives lines that fit the terminal. Pure.

Numbers stand to the right. NULL is dim and in capitals, an empty text is nothing at all. What would move the
cursor is written out (\\n, \\x1b). Where the columns do not fit side by side, each row becomes a few lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from tidegate.cli.show import cell_text

NUMBER_TYPES = ("TINYINT", "SMALLINT", "INT", "BIGINT", "UBIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")
NULL = "NULL"
NULL_STYLE = "dim italic"
GAP = "  "
# Columns of text give way down to this; narrower, nobody reads them.
COLUMN_CELLS_MIN = 8
# A terminal shows so many rows of an answer: more scroll away unread.
ROWS_SHOWN_MAX = 1000
# Rich keeps what it prints at once in memory, styled letter by letter.
LINES_PRINTED_AT_ONCE = 2000
# What is written on a line: texts and their styles.
Line = Sequence[tuple[str, str]]
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shown(value: Any) -> str:
    """Write one value of a row on one line."""
    return NULL if value is None else visible(cell_text(value))


def visible(text: str) -> str:
    """Write out what a terminal would obey rather than show."""
    return _CONTROL.sub(lambda match: _ESCAPES.get(match[0]) or f"\\x{ord(match[0]):02x}", text)


def is_number(column: dict[str, Any]) -> bool:
    """Say whether a column stands to the right."""
    kind = str(column["type"])
    return kind.startswith(NUMBER_TYPES) and not kind.endswith("]") and kind != "INTERVAL"


class Rows:
    """The rows of an answer, as a grid or row by row."""

    def __init__(
        self,
        columns: Sequence[dict[str, Any]],
        rows: Sequence[Sequence[Any]],
        *,
        rows_max: int | None = None,
        expanded: bool = False,
    ) -> None:
        self._names = [visible(str(column["name"])) for column in columns]
        self._right = [is_number(column) for column in columns]
        self._rows = rows if rows_max is None else rows[:rows_max]
        self._expanded = expanded

    def print(self, out: Console) -> None:
        """Print the rows, some at a time; a line that is longer than the terminal is broken, never cut."""
        lines = self.lines(out.width)
        while chunk := list(islice(lines, LINES_PRINTED_AT_ONCE)):
            if out.is_terminal:
                out.print(Text("\n").join(map(_styled, chunk)), soft_wrap=True)
            else:
                # Styles go nowhere here, and Rich takes its time over every letter.
                out.file.write("".join(f"{plain(line)}\n" for line in chunk))
        out.file.flush()

    def lines(self, room: int) -> Iterator[Line]:
        """Give the lines for a terminal of so many columns."""
        texts = [[shown(value) for value in row] for row in self._rows]
        widths = None if self._expanded else self._widths(texts, room)
        return self._stacked(texts) if widths is None else self._grid(texts, widths)

    def _widths(self, texts: Sequence[Sequence[str]], room: int) -> list[int] | None:
        """Give how wide each column is; None where they do not fit beside each other."""
        widths = [
            max([cell_len(name), *(cell_len(row[index]) for row in texts)])
            for index, name in enumerate(self._names)
        ]
        return fitting(widths, self._right, room - len(GAP) * (len(widths) - 1))

    def _grid(self, texts: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[Line]:
        yield _joined(
            [
                (fitted(name, width, right), "bold")
                for name, width, right in zip(self._names, widths, self._right, strict=True)
            ]
        )
        yield [("─" * (sum(widths) + len(GAP) * (len(widths) - 1)), "dim")]
        for values, row in zip(self._rows, texts, strict=True):
            yield _joined(
                [
                    (fitted(text, width, right), NULL_STYLE if value is None else "")
                    for value, text, width, right in zip(values, row, widths, self._right, strict=True)
                ]
            )

    def _stacked(self, texts: Sequence[Sequence[str]]) -> Iterator[Line]:
        margin = max(map(cell_len, self._names), default=0)
        for number, (values, row) in enumerate(zip(self._rows, texts, strict=True), start=1):
            yield [(f"── row {number}", "dim")]
            for name, value, text in zip(self._names, values, row, strict=True):
                style = NULL_STYLE if value is None else ""
                yield [(fitted(name, margin, False), "bold"), (GAP, ""), (text, style)]


def plain(line: Line) -> str:
    """Write a line without its styles."""
    return "".join(text for text, _ in line)


def fitting(widths: Sequence[int], right: Sequence[bool], room: int) -> list[int] | None:
    """Give how wide columns are in so much room, those to the right uncut; None where that is too little."""
    if sum(widths) <= room:
        return list(widths)
    # Text gives way, the longest first; a figure that is cut is another figure.
    for most in range(max(widths), COLUMN_CELLS_MIN - 1, -1):
        cut = [w if is_right else min(w, most) for w, is_right in zip(widths, right, strict=True)]
        if sum(cut) <= room:
            return cut
    return None


def fitted(text: str, width: int, right: bool) -> str:
    """Write a text in so many columns: filled up with blanks, or cut with …"""
    over = cell_len(text) - width
    if over > 0:
        return set_cell_size(text, width - 1) + "…"
    return " " * -over + text if right else text + " " * -over


def _joined(cells: Line) -> Line:
    """Set cells side by side, without blanks behind the last that has something."""
    line = [part for cell in cells for part in ((GAP, ""), cell)][1:]
    while line and not line[-1][0].rstrip():
        line.pop()
    if line:
        text, style = line.pop()
        line.append((text.rstrip(), style))
    return line


def _styled(line: Line) -> Text:
    return Text.assemble(*line)
