"""Tables that fit: takes headings and rows, gives a table in which names are cut and figures never.

Lists that fit: takes headings and rows, gives a table in which ids and names are whole at any width.

Where there is no room, columns that may go are left out, and named below; where that is not enough, every row
becomes a few lines of `heading  value`.

Rows of statements as people read them: takes columns and rows, gives lines that fit the terminal. Pure.

Numbers stand to the right. NULL is dim and in capitals, an empty text is nothing at all. What would move the
cursor is written out (\n, \x1b). Where the columns do not fit side by side, each row becomes a few lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tidegate.cli.output.format import cell_text

NAME_COLUMNS_MAX = 40  # a longer name is cut in its middle, where there is no room for all of it
NAME_COLUMNS_MIN = 8  # rather than cut names shorter, the rightmost figures go
GAP_COLUMNS = 2


class FittedTable:
    """A table whose first column gives way: figures are whole, or the rightmost columns are not there."""

    def __init__(self, headings: Sequence[str], rows: Sequence[Sequence[Text]], note: str = "") -> None:
        """Take the rows as texts; a column named `state` is set to the left, other figures to the right."""
        self.headings = headings
        self.rows = rows
        self.note = note

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept, name_columns = self._layout(options.max_width)
        table = Table(
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            collapse_padding=True,
            header_style="bold",
            border_style="dim",
            expand=True,
        )
        for index, heading in enumerate(self.headings[:kept]):
            table.add_column(
                heading,
                justify="right" if index and heading != "state" else "left",
                no_wrap=True,
                overflow="ellipsis",
            )
        for name, *figures in self.rows:
            shown = Text(middle_cut(name.plain, name_columns), name.style)
            table.add_row(shown, *figures[: kept - 1])
        if self.note:
            table.caption = self.note
            table.caption_justify = "left"
        yield table

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(NAME_COLUMNS_MIN, options.max_width), options.max_width)

    def _layout(self, width: int) -> tuple[int, int]:
        """Return how many columns are shown, and how wide a name may be."""
        widths = [
            max([len(heading), *(row[index].cell_len for row in self.rows if index < len(row))])
            for index, heading in enumerate(self.headings)
        ]
        cap = min(widths[0], max(NAME_COLUMNS_MAX, width // 3))
        kept = len(widths)
        while kept > 1 and _left_for_names(widths, kept, width) < min(cap, NAME_COLUMNS_MIN):
            kept -= 1
        return kept, max(1, min(cap, _left_for_names(widths, kept, width)))


def middle_cut(text: str, columns: int) -> str:
    """Shorten a name to so many columns by leaving out its middle: both ends tell names apart."""
    if len(text) <= columns:
        return text
    tail = (columns - 1) // 2
    return f"{text[: columns - 1 - tail]}…{text[len(text) - tail :]}"


def _left_for_names(widths: Sequence[int], kept: int, width: int) -> int:
    return width - sum(widths[1:kept]) - GAP_COLUMNS * (kept - 1)


LISTING_GAP_COLUMNS = 3  # between two columns, as the box sets them
FOLDED_COLUMNS_MIN = 16  # a long word in a column that may fold is not folded narrower


class Listing:
    """Rows for people. Columns in `whole` are never folded; those in `spare` go first, in that order."""

    def __init__(
        self,
        headings: Sequence[str],
        rows: Iterable[Sequence[str | Text]],
        *,
        right: Sequence[int] = (),
        whole: Sequence[int] = (0,),
        spare: Sequence[int] = (),
        note: str = "",
    ) -> None:
        self._headings = headings
        self._rows = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
        self._right = right
        self._whole = whole
        self._spare = spare
        self._note = note

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = self._kept(options.max_width)
        if kept is None:
            yield from self._stacked()
        else:
            yield self._table(kept)
            gone = [heading for index, heading in enumerate(self._headings) if index not in kept]
            if gone:
                yield Text(f"No room for: {', '.join(gone)}. --json has all.", style="dim")
        if self._note:
            yield Text(self._note, style="dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(FOLDED_COLUMNS_MIN, options.max_width), options.max_width)

    def _kept(self, width: int) -> list[int] | None:
        """Return the columns that fit into the width; None where even the least do not."""
        kept = list(range(len(self._headings)))
        for next_to_go in (*self._spare, None):
            if sum(map(self._least_columns, kept)) + LISTING_GAP_COLUMNS * (len(kept) - 1) <= width:
                return kept
            if next_to_go is not None:
                kept.remove(next_to_go)
        return None

    def _least_columns(self, index: int) -> int:
        cells = [row[index] for row in self._rows]
        words = [len(word) for word in self._headings[index].split()]
        if index in self._whole:
            return max([*words, *(cell.cell_len for cell in cells)])
        longest = max((len(word) for cell in cells for word in cell.plain.split()), default=0)
        return max([*words, min(longest, FOLDED_COLUMNS_MIN)])

    def _table(self, kept: Sequence[int]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
        for index in kept:
            table.add_column(
                self._headings[index],
                justify="right" if index in self._right else "left",
                overflow="fold",
                # A figure or an id that is folded cannot be read, let alone copied.
                min_width=self._least_columns(index),
            )
        for row in self._rows:
            table.add_row(*(row[index] for index in kept))
        return table

    def _stacked(self) -> RenderResult:
        margin = max(map(len, self._headings)) + 2
        for number, row in enumerate(self._rows):
            if number:
                yield Text("")
            for heading, cell in zip(self._headings, row, strict=True):
                if cell.plain:
                    line = Text.assemble((heading.ljust(margin), "bold"), cell)
                    # The terminal breaks a line that is too long: copied, it is one word still.
                    line.no_wrap, line.overflow = True, "ignore"
                    yield line


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
    """Return whether a column stands to the right."""
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
        """Return the lines for a terminal of so many columns."""
        texts = [[shown(value) for value in row] for row in self._rows]
        widths = None if self._expanded else self._widths(texts, room)
        return self._stacked(texts) if widths is None else self._grid(texts, widths)

    def _widths(self, texts: Sequence[Sequence[str]], room: int) -> list[int] | None:
        """Return how wide each column is; None where they do not fit beside each other."""
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
    """Return how wide columns are in so much room, those to the right uncut.

    None where that is too little.
    """
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
