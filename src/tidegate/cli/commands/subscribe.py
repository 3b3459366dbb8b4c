"""`tidegate subscribe`: the rows of a SELECT, then every change of them, live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.commands.sql.splitter import TextSpan
from tidegate.cli.commands.sql.sql import ParamOption, parse_param, pointed
from tidegate.cli.invocation import Invocation, command, console
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from tidegate.sdk.client import RowChange

MARKS = {"snapshot": " ", "insert": "+", "update": "~", "delete": "-"}
STYLES = {"snapshot": "", "insert": "green", "update": "yellow", "delete": "red"}
# The first width of a column. Values of these types are cut only where cutting texts is not enough.
FIRST_CELLS = {"BOOLEAN": 5, "TIMESTAMP": 27, "BIGINT": 6, "INT": 6, "DOUBLE": 8}
FIRST_CELLS_OTHERS = 12
# A column of text widens up to this for good; a longer text widens only its own line.
WIDENED_CELLS_MAX = 24
ARROW = " → "


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "subscribe", tenant=True)(subscribe)


def subscribe(
    call: Invocation,
    statement: Annotated[str, typer.Argument(help="A SELECT over one table.")],
    params: ParamOption = None,
    from_seq: Annotated[
        int | None,
        typer.Option(
            "--from-seq", metavar="N", min=0, help="Continue after this change, without a snapshot."
        ),
    ] = None,
    no_snapshot: Annotated[bool, typer.Option("--no-snapshot", help="Leave out the existing rows.")] = False,
) -> None:
    """Show the rows of a SELECT, then every change of them, until Ctrl-C; with --json one a line."""
    printer = ChangePrinter(call, snapshot=not no_snapshot)
    with call.client() as client:
        changes = client.subscribe(
            statement,
            [parse_param(text) for text in params or ()],
            from_seq=from_seq,
            snapshot=not no_snapshot,
            on_lost=printer.lost,
        )
        try:
            changes.open()
            printer.begin()
            for change in changes:
                printer.show(change, changes.columns)
        except KeyboardInterrupt:
            return  # the usual end
        except TidegateError as error:
            raise pointed(error, TextSpan(statement), as_json=call.as_json) from error
        finally:
            changes.close()


@dataclass(frozen=True, slots=True)
class Cell:
    """A value, or the old and the new one."""

    texts: tuple[str, ...]
    style: str

    @property
    def width(self) -> int:
        """Its width in columns of the terminal, uncut."""
        from rich.cells import cell_len

        return cell_len(ARROW.join(self.texts))

    def fitted(self, width: int, *, right: bool) -> str:
        """Return it in so many columns; of a change both sides are cut, so that each shows something."""
        from tidegate.cli.output.tables import fitted

        texts = self.texts
        if len(texts) > 1 and self.width > width:
            texts = _both_cut(texts[0], texts[1], width - len(ARROW))
        return fitted(ARROW.join(texts), width, right)


def _both_cut(before: str, after: str, room: int) -> tuple[str, str]:
    from rich.cells import cell_len

    from tidegate.cli.output.tables import fitted

    widths = cell_len(before), cell_len(after)
    half = room // 2
    left = max(half, room - widths[1])
    left = min(left, widths[0])
    return fitted(before, left, False), fitted(after, min(room - left, widths[1]), False)


class ChangePrinter:
    """Prints changes, one a line, in columns that keep their position."""

    def __init__(self, call: Invocation, *, snapshot: bool = True, out: Console | None = None) -> None:
        self._call = call
        self._snapshot = snapshot
        self._out = out
        self._columns: list[dict[str, Any]] = []
        self._widths: list[int] = []
        self._right: list[bool] = []

    def begin(self) -> None:
        """Print that from now on no change is missed."""
        self._notify("Waiting for changes. Ctrl-C ends.", style="dim")

    def show(self, change: RowChange, columns: list[dict[str, Any]]) -> None:
        """Print one change."""
        if self._call.as_json:
            self._call.line(wire_of(change))
            return
        if change.kind == "lagged":
            now = "here is what it holds now" if self._snapshot else "its changes continue from here"
            self._notify(f"The table changed or changes were missed: {now}.")
            self._columns = []
            return
        cells = self._cells(change, columns)
        if columns != self._columns:
            self._head(columns, cells)
        self._console().print(self._line(MARKS[change.kind], cells), soft_wrap=True)

    def lost(self, error: TidegateError) -> None:
        """Print that the connection was lost; the subscription reconnects by itself."""
        reason = str(error.values.get("reason") or error).rstrip(".")
        self._notify(f"The connection was lost ({reason}); trying again.")

    def _notify(self, sentence: str, style: str = "yellow") -> None:
        from rich.text import Text

        if not self._call.as_json:
            console(stderr=True).print(Text(sentence, style=style))

    def _console(self) -> Console:
        if self._out is None:
            self._out = console()
        return self._out

    def _head(self, columns: list[dict[str, Any]], first: list[Cell]) -> None:
        """Print the names of the columns, as wide as the first row needs."""
        from tidegate.cli.output.tables import is_number, visible

        self._columns = columns
        self._right = [is_number(column) for column in columns]
        self._widths = [FIRST_CELLS.get(column["type"], FIRST_CELLS_OTHERS) for column in columns]
        self._widen([cell.width for cell in first])
        names = [Cell((visible(column["name"]),), "bold") for column in columns]
        self._console().print(self._line(" ", names), soft_wrap=True)

    def _cells(self, change: RowChange, columns: list[dict[str, Any]]) -> list[Cell]:
        from tidegate.cli.output.tables import NULL_STYLE, shown

        cells: list[Cell] = []
        for name in (column["name"] for column in columns):
            value = change.row.get(name)
            style = NULL_STYLE if value is None else STYLES[change.kind]
            if change.kind == "update" and change.old is not None:
                before = change.old.get(name)
                if before != value:
                    cells.append(Cell((shown(before), shown(value)), "bold yellow"))
                    continue
                style = NULL_STYLE if value is None else ""
            cells.append(Cell((shown(value),), style))
        return cells

    def _line(self, mark: str, cells: list[Cell]) -> Text:
        from rich.text import Text

        from tidegate.cli.output.tables import GAP

        kind = next((kind for kind, sign in MARKS.items() if sign == mark), "snapshot")
        line = Text.assemble((mark, f"bold {STYLES[kind]}".strip()))
        self._widen([cell.width for cell in cells])
        for cell, width, right in zip(cells, self._row_widths(cells), self._right, strict=True):
            line.append(GAP)
            line.append(cell.fitted(width, right=right), cell.style or None)
        line.rstrip()
        return line

    def _widen(self, widths: list[int]) -> None:
        """Make columns wider for good: for numbers, and a little for text. One long text widens none."""
        for index, width in enumerate(widths):
            if self._right[index] or width <= WIDENED_CELLS_MAX:
                self._widths[index] = max(self._widths[index], width)

    def _row_widths(self, cells: list[Cell]) -> list[int]:
        """Return the widths of one row: its long texts take the room that is left, and are cut beyond it."""
        from tidegate.cli.output.tables import GAP, fitting

        uncut = [max(cell.width, width) for cell, width in zip(cells, self._widths, strict=True)]
        room = self._console().width - 1 - len(GAP) * len(cells)
        whole = [
            right or column["type"] in FIRST_CELLS
            for right, column in zip(self._right, self._columns, strict=True)
        ]
        # A row that does not fit at all is wrapped by the terminal: nothing is lost.
        return fitting(uncut, whole, room) or fitting(uncut, self._right, room) or uncut


def wire_of(change: RowChange) -> dict[str, Any]:
    """Return a change, for one line of JSON."""
    wire: dict[str, Any] = {"kind": change.kind}
    if change.kind != "lagged":
        wire["row"] = change.row
    if change.old is not None:
        wire["old"] = change.old
    if change.seq is not None:
        wire["seq"] = change.seq
    return wire
