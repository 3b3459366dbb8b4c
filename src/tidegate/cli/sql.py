"""`tidegate sql`: one statement, statements from a pipe, or a prompt."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.advice import UsageRefused
from tidegate.cli.invocation import Invocation, command, console
from tidegate.cli.show import plural
from tidegate.cli.statements import Placed, excerpt, placed_statements
from tidegate.errors import RequestInvalid, TidegateError

if TYPE_CHECKING:
    from tidegate.sdk.client import Answer, Client

# Statements whose count is of rows that they wrote.
WRITING_WORDS = frozenset({"INSERT", "UPSERT", "UPDATE", "DELETE", "EXECUTE"})
DRAWING = "\n\nLINE "
ParamOption = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        "-p",
        metavar="VALUE",
        help="The value of the next ? or $n: JSON where it reads as JSON (5, null, '\"5\"'), else text.",
    ),
]
_NAME = re.compile(r"\w+\.\w+", re.ASCII)


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "sql", tenant=True)(sql)


def sql(
    call: Invocation,
    statement: Annotated[
        str | None,
        typer.Argument(help="The statement, or several; without one: statements from stdin, or a prompt."),
    ] = None,
    params: ParamOption = None,
) -> None:
    r"""Run SQL over tables, streams and the lake. Without a statement: a prompt. \d lists tables."""
    values = [parse_param(text) for text in params or ()]
    with call.client() as client:
        if statement is not None and statement != "-":
            run_script(call, client, statement, values)
        elif statement == "-" or not sys.stdin.isatty():
            run_script(call, client, sys.stdin.read(), values)
        elif values:
            raise UsageRefused("--param binds values to a statement: give one, as an argument or from stdin.")
        else:
            from tidegate.cli.sql_prompt import prompt

            prompt(call, client)


def parse_param(text: str) -> Any:
    """Read a value from the command line: JSON, else the text itself."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return text


def _no_constant(name: str) -> Any:
    raise ValueError(name)  # NaN and its like are no JSON, whatever Python's reader takes


def run_script(call: Invocation, client: Client, text: str, values: list[Any]) -> None:
    """Run the statements of a text one after the other; the first that fails ends it."""
    statements = [Placed(statement_of(text.strip()))] if is_short(text) else placed_statements(text)
    if values and len(statements) != 1:
        raise UsageRefused(f"--param binds values to one statement, and there are {len(statements)}.")
    for statement in statements:
        run_statement(call, client, statement, values)


def run_statement(
    call: Invocation, client: Client, statement: Placed, values: list[Any], *, expanded: bool = False
) -> None:
    """Run one statement and print what it answers; an error shows the place it speaks of."""
    try:
        answer = client.sql(statement.text, values)
    except TidegateError as error:
        raise pointed(error, statement, as_json=call.as_json) from error
    if call.as_json:
        call.line(wire_of(answer))
    else:
        show(answer, statement.text, expanded=expanded)


def is_short(text: str) -> bool:
    r"""Say whether a text is one of the short forms, such as \d."""
    return text.lstrip().startswith("\\")


def statement_of(short: str) -> str:
    r"""Give the statement that a short form stands for: \d, \d NAME, \dn."""
    word, _, name = short.rstrip(";").strip().partition(" ")
    name = name.strip()
    if word == "\\d" and not name:
        return "SHOW TABLES"
    if word == "\\d" and _NAME.fullmatch(name):
        return f"DESCRIBE TABLE {name}"
    if word == "\\dn" and not name:
        return "SHOW NAMESPACES"
    hint = r"There are \d (tables), \d NAMESPACE.TABLE (its columns) and \dn (namespaces)."
    raise RequestInvalid(reason=f"'{short}' is no short form.", hint=hint)


def pointed(error: TidegateError, statement: Placed, *, as_json: bool) -> TidegateError:
    """Give an error with the place in the whole text, and for people with that line before its hint."""
    line, column = error.values.get("line"), error.values.get("column")
    if not isinstance(line, int) or not isinstance(column, int):
        return error
    values = dict(error.values)
    values["line"] = line + statement.line - 1
    values["column"] = column + (statement.column - 1 if line == 1 else 0)
    told = f"line {values['line']}, column {values['column']}"
    reason = str(values.get("reason", "")).replace(f"line {line}, column {column}", told)
    place = "" if as_json else excerpt(statement, line, column)
    # DuckDB draws the line into its message; one drawing is enough.
    values["reason"] = reason.partition(DRAWING)[0] if place else reason
    shown = [*place.split("\n"), *([error.hint] if error.hint else [])]
    better = type(error)(hint="\n  ".join(shown) if place else error.hint, **values)
    better.request_id = error.request_id
    return better


def wire_of(answer: Answer) -> dict[str, Any]:
    """Give an answer as the HTTP endpoint words it."""
    wire: dict[str, Any] = {
        "columns": answer.columns,
        "rows": answer.rows,
        "rowCount": answer.row_count,
        "tookMs": answer.took_ms,
    }
    if answer.warnings:
        wire["warnings"] = answer.warnings
    return wire


def show(answer: Answer, statement: str, *, expanded: bool = False) -> None:
    """Print an answer for people: its rows and how many there are, or what was done; then its warnings."""
    from rich.text import Text

    out = console()
    if answer.columns:
        from tidegate.cli.rows import ROWS_SHOWN_MAX, Rows

        rows_max = ROWS_SHOWN_MAX if out.is_terminal else None
        Rows(answer.columns, answer.rows, rows_max=rows_max, expanded=expanded).print(out)
        out.print(Text(_count_line(answer, rows_max), style="dim"))
    else:
        out.print(Text(f"{_done(answer, statement)} in {answer.took_ms:.0f} ms", style="dim"))
    for warning in answer.warnings:
        console(stderr=True).print(Text(f"Warning: {warning}", style="yellow"), soft_wrap=True)


def _count_line(answer: Answer, rows_max: int | None) -> str:
    line = f"{plural(answer.row_count, 'row')} in {answer.took_ms:.0f} ms"
    if rows_max is not None and len(answer.rows) > rows_max:
        return f"{line}; {plural(rows_max, 'row')} shown. A LIMIT gives fewer, --json and pipes give all."
    return line


def _done(answer: Answer, statement: str) -> str:
    from tidegate.sdk.reading import first_word

    return f"{plural(answer.row_count, 'row')} written" if first_word(statement) in WRITING_WORDS else "Done"
