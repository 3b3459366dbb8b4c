"""Lists that fit: takes headings and rows, gives a table in which ids and names are whole at any width.

Where there is no room, columns that may go are left out, and named below; where that is not enough, every row
becomes a few lines of `heading  value`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

GAP_COLUMNS = 3  # between two columns, as the box sets them
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
        """Give the columns that fit into the width; None where even the least do not."""
        kept = list(range(len(self._headings)))
        for next_to_go in (*self._spare, None):
            if sum(map(self._least_columns, kept)) + GAP_COLUMNS * (len(kept) - 1) <= width:
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
