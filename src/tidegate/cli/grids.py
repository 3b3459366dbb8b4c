"""Tables that fit: takes headings and rows, gives a table in which names are cut and figures never."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

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
        """Give how many columns are shown, and how wide a name may be."""
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
