"""Tables for a terminal: lists of the commands, tables of the console view, and rows of statements.

`Listing` draws lists. Each column has a policy for the case that there is no room: it stays whole, is folded
between words, or loses the middle of its names. Then spare columns are left out; where that is not enough,
every row becomes a few lines of `heading  value`.

`RowGrid` draws the rows of statements line by line, since Rich's table would keep a hundred thousand of them
in memory and style them letter by letter. Numbers are right-aligned. NULL is dim and in capitals, an empty
text is empty. Control characters are escaped (\n, \x1b). Where the columns do not fit side by side, each row
becomes a few lines.
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

# Between two columns, as Rich draws them with this padding.
GAP_COLUMNS, COMPACT_GAP_COLUMNS = 3, 2
FOLDED_COLUMNS_MIN = 16  # a long word in a column that may fold is not folded narrower
NAME_COLUMNS_MAX = 40  # a longer name is cut in its middle, where there is no room for all of it
NAME_COLUMNS_MIN = 8  # rather than cut names shorter, spare columns are left out


class Listing:
    """Rows for people, in a table that fits the terminal.

    Columns in `whole` are never folded, others are folded between words. Those in `spare` are left out first,
    in that order. In a `compact` table each row is one line, so that it keeps its place on a screen: there
    the names in the first column lose their middle.
    """

    def __init__(
        self,
        headings: Sequence[str],
        rows: Iterable[Sequence[str | Text]],
        *,
        right: Sequence[int] = (),
        whole: Sequence[int] = (0,),
        spare: Sequence[int] = (),
        note: str = "",
        compact: bool = False,
    ) -> None:
        self._headings = headings
        self._rows = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
        self._right = right
        self._whole = whole
        self._spare = spare
        self._note = note
        self._compact = compact
        self._gap_columns = COMPACT_GAP_COLUMNS if compact else GAP_COLUMNS

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self._shown(options.max_width)
        if shown is None:
            yield from self._stacked()
        else:
            yield self._table(shown, options.max_width)
            missing = [heading for index, heading in enumerate(self._headings) if index not in shown]
            if missing and not self._compact:
                yield Text(f"No room for: {', '.join(missing)}. --json has all.", style="dim")
        if self._note:
            yield Text(self._note, style="table.caption" if self._compact else "dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        least = NAME_COLUMNS_MIN if self._compact else FOLDED_COLUMNS_MIN
        return Measurement(min(least, options.max_width), options.max_width)

    def _shown(self, width: int) -> list[int] | None:
        """Return the columns that fit into the width; None where the rows must be stacked."""
        shown = list(range(len(self._headings)))
        for next_to_go in (*self._spare, None):
            if self._least_width(shown) <= width:
                return shown
            if next_to_go is not None:
                shown.remove(next_to_go)
        return shown if self._compact else None

    def _least_width(self, shown: Sequence[int]) -> int:
        return sum(map(self._least_columns, shown)) + self._gap_columns * (len(shown) - 1)

    def _least_columns(self, index: int) -> int:
        cells = [row[index] for row in self._rows if index < len(row)]
        heading = self._headings[index]
        words = [len(word) for word in ([heading] if self._compact else heading.split())]
        longest = max([*words, *(cell.cell_len for cell in cells)])
        if self._compact and index == 0:
            return min(longest, NAME_COLUMNS_MIN)
        if index in self._whole:
            return longest
        longest_word = max((len(word) for cell in cells for word in cell.plain.split()), default=0)
        return max([*words, min(longest_word, FOLDED_COLUMNS_MIN)])

    def _table(self, shown: Sequence[int], width: int) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            header_style="bold",
            border_style="dim" if self._compact else None,
            collapse_padding=self._compact,
            expand=self._compact,
        )
        for index in shown:
            table.add_column(
                self._headings[index],
                justify="right" if index in self._right else "left",
                no_wrap=self._compact,
                overflow="ellipsis" if self._compact else "fold",
                # A figure or an id that is folded cannot be read, let alone copied.
                min_width=None if self._compact else self._least_columns(index),
            )
        room = self._least_columns(0) + width - self._least_width(shown)
        name_columns = max(1, min(room, max(NAME_COLUMNS_MAX, width // 3)))
        for row in self._rows:
            cells = [row[index] for index in shown if index < len(row)]
            if self._compact:
                cells[0] = Text(cut_middle(cells[0].plain, name_columns), cells[0].style)
            table.add_row(*cells)
        return table

    def _stacked(self) -> RenderResult:
        margin = max(map(len, self._headings)) + 2
        for number, row in enumerate(self._rows):
            if number:
                yield Text("")
            for heading, cell in zip(self._headings, row, strict=True):
                if cell.plain:
                    line = Text.assemble((heading.ljust(margin), "bold"), cell)
                    # The terminal breaks a line that is too long: copied, it is still one word.
                    line.no_wrap, line.overflow = True, "ignore"
                    yield line


def cut_middle(text: str, columns: int) -> str:
    """Shorten a name to so many columns by leaving out its middle: both ends tell names apart."""
    if len(text) <= columns:
        return text
    tail = (columns - 1) // 2
    return f"{text[: columns - 1 - tail]}…{text[len(text) - tail :]}"


NUMBER_TYPES = ("TINYINT", "SMALLINT", "INT", "BIGINT", "UBIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")
NULL = "NULL"
NULL_STYLE = "dim italic"
GAP = "  "
# Columns of text are cut down to this; narrower, nobody reads them.
COLUMN_CELLS_MIN = 8
# A terminal shows so many rows of an answer: more scroll away unread.
ROWS_SHOWN_MAX = 1000
# Rich keeps what it prints at once in memory, styled letter by letter.
LINES_PRINTED_AT_ONCE = 2000
# The texts of a line, each with its style.
Line = Sequence[tuple[str, str]]
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shown(value: Any) -> str:
    """Return one value of a row as text without line breaks."""
    return NULL if value is None else visible(cell_text(value))


def visible(text: str) -> str:
    """Return the text with its control characters escaped: a terminal would obey them."""
    return _CONTROL.sub(lambda match: _ESCAPES.get(match[0]) or f"\\x{ord(match[0]):02x}", text)


def is_number(column: dict[str, Any]) -> bool:
    """True if a column is right-aligned."""
    kind = str(column["type"])
    return kind.startswith(NUMBER_TYPES) and not kind.endswith("]") and kind != "INTERVAL"


class RowGrid:
    """The rows of a statement's result, as a grid or row by row."""

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
        """Print the rows, some at a time; a line that is longer than the terminal is wrapped, never cut."""
        lines = self.lines(out.width)
        while chunk := list(islice(lines, LINES_PRINTED_AT_ONCE)):
            if out.is_terminal:
                out.print(Text("\n").join(map(_styled, chunk)), soft_wrap=True)
            else:
                # Styles are not shown here, and Rich is slow.
                out.file.write("".join(f"{plain(line)}\n" for line in chunk))
        out.file.flush()

    def lines(self, room: int) -> Iterator[Line]:
        """Yield the lines for a terminal of so many columns."""
        texts = [[shown(value) for value in row] for row in self._rows]
        widths = None if self._expanded else self._widths(texts, room)
        return self._stacked(texts) if widths is None else self._grid(texts, widths)

    def _widths(self, texts: Sequence[Sequence[str]], room: int) -> list[int] | None:
        """Return how wide each column is; None where they do not fit side by side."""
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
    """Return a line without its styles."""
    return "".join(text for text, _ in line)


def fitting(widths: Sequence[int], right: Sequence[bool], room: int) -> list[int] | None:
    """Return the widths of columns that fit into the room; None where it is too little.

    Text is cut, the longest first; numbers, which are right-aligned, are never cut.
    """
    if sum(widths) <= room:
        return list(widths)
    for most in range(max(widths), COLUMN_CELLS_MIN - 1, -1):
        cut = [w if is_right else min(w, most) for w, is_right in zip(widths, right, strict=True)]
        if sum(cut) <= room:
            return cut
    return None


def fitted(text: str, width: int, right: bool) -> str:
    """Return a text in so many columns: padded with blanks, or cut with …"""
    over = cell_len(text) - width
    if over > 0:
        return set_cell_size(text, width - 1) + "…"
    return " " * -over + text if right else text + " " * -over


def _joined(cells: Line) -> Line:
    """Return cells side by side, without trailing blanks."""
    line = [part for cell in cells for part in ((GAP, ""), cell)][1:]
    while line and not line[-1][0].rstrip():
        line.pop()
    if line:
        text, style = line.pop()
        line.append((text.rstrip(), style))
    return line


def _styled(line: Line) -> Text:
    return Text.assemble(*line)
