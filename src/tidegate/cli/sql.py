"""`tidegate sql`: one statement, statements from a pipe, or a prompt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.invocation import Invocation, command
from tidegate.cli.report import report_error
from tidegate.cli.show import cell_text, count_text, table_of
from tidegate.cli.statements import is_statement, split_statements
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.sdk.client import Answer, Client

HISTORY_FILE = "sql_history"
HISTORY_LINES_MAX = 1000
PROMPT = "tidegate> "
PROMPT_MORE = "     ...> "
LEAVE_WORDS = frozenset({"exit", "quit", "\\q", ".exit", ".quit"})
NUMBER_TYPES = ("TINYINT", "SMALLINT", "INT", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "sql", tenant=True)(sql)


def sql(
    call: Invocation,
    statement: Annotated[
        str | None, typer.Argument(help="The statement; without one: statements from stdin, or a prompt.")
    ] = None,
) -> None:
    """Run a SELECT over the tables of the lake, which are written lake.NAME."""
    with call.client() as client:
        if statement is not None and statement != "-":
            run_statement(call, client, statement)
        elif statement == "-" or not sys.stdin.isatty():
            run_script(call, client, sys.stdin.read())
        else:
            prompt(call, client)


def run_script(call: Invocation, client: Client, text: str) -> None:
    """Run the statements of a text one after the other; the first that fails ends it."""
    statements, rest = split_statements(text)
    if is_statement(rest):
        statements.append(rest.strip())
    for statement in statements:
        run_statement(call, client, statement)


def run_statement(call: Invocation, client: Client, statement: str) -> None:
    """Run one statement and print its rows."""
    answer = client.sql(statement)
    wire = {
        "columns": answer.columns,
        "rows": answer.rows,
        "rowCount": len(answer.rows),
        "tookMs": answer.took_ms,
    }
    call.answer(wire, lambda: answer_table(answer))


def answer_table(answer: Answer) -> RenderableType:
    """Draw rows for people, and how many there are."""
    from rich.console import Group
    from rich.text import Text

    names = [column["name"] for column in answer.columns]
    right = [i for i, column in enumerate(answer.columns) if column["type"].startswith(NUMBER_TYPES)]
    table = table_of(names, ([cell_text(value) for value in row] for row in answer.rows), right=right)
    count = len(answer.rows)
    line = f"{count_text(count)} row{'' if count == 1 else 's'} in {answer.took_ms:.0f} ms"
    return Group(table, Text(line, style="dim"))


def prompt(call: Invocation, client: Client) -> None:
    """Read statements from the terminal until Ctrl-D; an error is shown and the prompt goes on."""
    remembered = _open_history(call.home_path)
    typer.echo("Statements end with a semicolon. Ctrl-C drops a statement, Ctrl-D leaves.")
    text: str | None = ""
    try:
        while text is not None:
            try:
                text = _read_and_run(call, client, text)
            except KeyboardInterrupt:
                typer.echo()
                text = ""
    finally:
        _close_history(remembered)


def _read_and_run(call: Invocation, client: Client, text: str) -> str | None:
    """Read one line, run what it completes, and give what is not complete yet; None at the end."""
    try:
        line = input(PROMPT_MORE if text.strip() else PROMPT)
    except EOFError:
        typer.echo()
        return None
    if not text.strip() and line.strip().lower().rstrip(";") in LEAVE_WORDS:
        return None
    statements, rest = split_statements(f"{text}{line}\n")
    for statement in statements:
        _run_and_go_on(call, client, statement)
    return rest


def _run_and_go_on(call: Invocation, client: Client, statement: str) -> None:
    try:
        run_statement(call, client, statement)
    except TidegateError as error:
        report_error(call.advise(error).to_wire()["error"], as_json=call.as_json)


def _open_history(home_path: Path) -> Path | None:
    try:
        import readline
    except ImportError:  # a Python without it still has a prompt, without history
        return None
    path = home_path / HISTORY_FILE
    readline.set_history_length(HISTORY_LINES_MAX)
    if path.exists():
        readline.read_history_file(path)
    return path


def _close_history(path: Path | None) -> None:
    if path is not None and path.parent.is_dir():
        import readline

        path.touch(mode=0o600)
        readline.write_history_file(path)
