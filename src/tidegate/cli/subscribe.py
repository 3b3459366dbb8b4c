"""`tidegate subscribe`: the rows of a SELECT, and what happens to them, as it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.invocation import Invocation, command, console
from tidegate.cli.sql import ParamOption, parse_param, pointed
from tidegate.cli.statements import Placed
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from tidegate.sdk.client import Change

MARKS = {"snapshot": " ", "insert": "+", "update": "~", "delete": "-"}
STYLES = {"snapshot": "", "insert": "green", "update": "yellow", "delete": "red"}
# How wide a column is at least; the first row and longer values make it wider, and it stays so.
CELLS_AT_FIRST = {"BOOLEAN": 5, "TIMESTAMP": 27, "BIGINT": 6, "INT": 6, "DOUBLE": 8}
CELLS_AT_FIRST_ELSE = 12
CELLS_MAX = 60


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "subscribe", tenant=True)(subscribe)


def subscribe(
    call: Invocation,
    statement: Annotated[str, typer.Argument(help="A SELECT over one table.")],
    params: ParamOption = None,
    from_seq: Annotated[
        int | None,
        typer.Option("--from-seq", metavar="N", min=0, help="Go on behind this change, without a snapshot."),
    ] = None,
    no_snapshot: Annotated[
        bool, typer.Option("--no-snapshot", help="Leave out the rows that are there already.")
    ] = False,
) -> None:
    """Show the rows of a SELECT, then every change of them, until Ctrl-C; with --json one a line."""
    printer = Lines(call)
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
            raise pointed(error, Placed(statement), as_json=call.as_json) from error
        finally:
            changes.close()


class Lines:
    """Prints changes, one a line, in columns that keep their place."""

    def __init__(self, call: Invocation) -> None:
        self._call = call
        self._out: Console | None = None
        self._columns: list[dict[str, Any]] = []
        self._widths: list[int] = []
        self._right: list[bool] = []

    def begin(self) -> None:
        """Tell people that from now on nothing is missed."""
        self._tell("Waiting for changes. Ctrl-C ends.", style="dim")

    def show(self, change: Change, columns: list[dict[str, Any]]) -> None:
        """Print one change."""
        if self._call.as_json:
            self._call.line(wire_of(change))
            return
        if change.kind == "lagged":
            self._tell("Changes were missed; here is what the table holds now.")
            self._columns = []
            return
        cells = self._cells(change, columns)
        if columns != self._columns:
            self._head(columns, cells)
        self._console().print(self._line(MARKS[change.kind], cells), soft_wrap=True)

    def lost(self, error: TidegateError) -> None:
        """Say that the connection is gone; the subscription goes on by itself."""
        self._tell(f"The connection was lost ({error.values.get('reason') or error}); trying again.")

    def _tell(self, sentence: str, style: str = "yellow") -> None:
        from rich.text import Text

        if not self._call.as_json:
            console(stderr=True).print(Text(sentence, style=style), soft_wrap=True)

    def _console(self) -> Console:
        if self._out is None:
            self._out = console()
        return self._out

    def _head(self, columns: list[dict[str, Any]], first: list[tuple[str, str]]) -> None:
        """Print the names of the columns, as wide as the first row needs."""
        from rich.cells import cell_len

        from tidegate.cli.rows import is_number, visible

        self._columns = columns
        self._right = [is_number(column) for column in columns]
        self._widths = [
            max(min(cell_len(text), CELLS_MAX), CELLS_AT_FIRST.get(column["type"], CELLS_AT_FIRST_ELSE))
            for (text, _), column in zip(first, columns, strict=True)
        ]
        names = [(visible(column["name"]), "bold") for column in columns]
        self._console().print(self._line(" ", names), soft_wrap=True)

    def _cells(self, change: Change, columns: list[dict[str, Any]]) -> list[tuple[str, str]]:
        from tidegate.cli.rows import NULL_STYLE, shown

        cells: list[tuple[str, str]] = []
        for name in (column["name"] for column in columns):
            value = change.row.get(name)
            style = NULL_STYLE if value is None else STYLES[change.kind]
            if change.kind == "update" and change.old is not None:
                before = change.old.get(name)
                if before != value:
                    cells.append((f"{shown(before)} → {shown(value)}", "bold yellow"))
                    continue
                style = NULL_STYLE if value is None else ""
            cells.append((shown(value), style))
        return cells

    def _line(self, mark: str, cells: list[tuple[str, str]]) -> Text:
        from rich.cells import cell_len
        from rich.text import Text

        kind = next((kind for kind, sign in MARKS.items() if sign == mark), "snapshot")
        line = Text.assemble((mark, f"bold {STYLES[kind]}".strip()))
        for index, (text, style) in enumerate(cells):
            width = cell_len(text)
            self._widths[index] = max(self._widths[index], min(width, CELLS_MAX))
            space = " " * (self._widths[index] - width)
            line.append("  ")
            line.append(space + text if self._right[index] else text + space, style or None)
        line.rstrip()
        return line


def wire_of(change: Change) -> dict[str, Any]:
    """Give a change as one line of JSON has it."""
    wire: dict[str, Any] = {"kind": change.kind}
    if change.kind != "lagged":
        wire["row"] = change.row
    if change.old is not None:
        wire["old"] = change.old
    if change.seq is not None:
        wire["seq"] = change.seq
    return wire
