"""`tidegate sql`: one statement, statements from a pipe, or a prompt."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.commands.sql.splitter import TextSpan, excerpt, locate_statements, script_parts
from tidegate.cli.hints import UsageRefused
from tidegate.cli.invocation import Invocation, command, console
from tidegate.cli.output.format import plural
from tidegate.errors import NamespaceNotFound, RequestInvalid, TidegateError

if TYPE_CHECKING:
    from tidegate.sdk.client import Client, Result, SqlAnswer

# The participle of the rows that a statement counts.
DEEDS = {"INSERT": "written", "UPSERT": "written", "UPDATE": "changed", "DELETE": "deleted"}
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
_WORD = re.compile(r"\w+", re.ASCII)


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
    if statement is not None and _is_file(statement):
        line = f"tidegate sql < {shlex.quote(statement)}"
        raise UsageRefused(f"'{statement}' is a file, not a statement. This runs what is in it: {line}")
    with call.client() as client:
        if statement is not None and statement != "-":
            run_script(call, client, statement, values)
        elif statement == "-" or not sys.stdin.isatty():
            run_script(call, client, sys.stdin.read(), values)
        elif values:
            raise UsageRefused("--param binds values to a statement: give one, as an argument or from stdin.")
        else:
            from tidegate.cli.commands.sql.prompt import prompt

            prompt(call, client)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or not one at all
        return False


def parse_param(text: str) -> Any:
    """Return a value of the command line: JSON, else the text itself."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return text


def _no_constant(name: str) -> Any:
    raise ValueError(name)  # NaN and its like are no JSON, though Python's reader takes them


def run_script(call: Invocation, client: Client, text: str, values: list[Any]) -> None:
    r"""Run a text: all of it is read before anything is run.

    Lines such as \d are run by themselves, and so are the statements between two of them.
    """
    parts = script_parts(text)
    count = sum(not is_short(part.text) for part in parts)
    if values and count == 0:
        raise UsageRefused("--param binds values to a statement, and there is none.")
    if values and count > 1:
        raise UsageRefused("--param does not go with a text that lines with a backslash part.")
    for part in parts:
        if is_short(part.text):
            run_short(call, client, part.text)
        else:
            run_text(call, client, part, values)


def run_text(
    call: Invocation, client: Client, text: TextSpan, values: list[Any], *, expanded: bool = False
) -> None:
    """Run one statement or several and print their results; an error shows its line."""
    single = [] if values else single_statements(text)
    if len(single) > 1:
        _run_each(call, client, single, expanded=expanded)
        return
    try:
        answer = client.sql(text.text, values)
    except TidegateError as error:
        raise pointed(error, text, as_json=call.as_json) from error
    if call.as_json:
        for wire in wires_of(answer):
            call.line(wire)
    else:
        show(answer, text.text, expanded=expanded)


def single_statements(text: TextSpan) -> list[TextSpan]:
    """Return the statements of a text that can be sent one by one; none where it has a mistake or parameters.

    Such a text is sent whole: the server refuses it before anything of it is run.
    """
    found = locate_statements(text.text)
    if len(found) < 2:
        return []
    from tidegate.sql.parser.parse import parse

    try:
        parsed = parse(text.text)
    except TidegateError:
        return []
    if len(parsed) != len(found) or any(one.parameter_count for one in parsed):
        return []
    return [
        TextSpan(one.text, one.line + text.line - 1, one.column + (text.column - 1 if one.line == 1 else 0))
        for one in found
    ]


def _run_each(call: Invocation, client: Client, statements: Sequence[TextSpan], *, expanded: bool) -> None:
    """Run statements one after the other; the results of those before a mistake are shown."""
    count, took_ms = len(statements), 0.0
    for number, statement in enumerate(statements, start=1):
        try:
            answer = client.sql(statement.text)
        except TidegateError as error:
            raise with_statement_number(
                pointed(error, statement, as_json=call.as_json), number, count
            ) from error
        took_ms += answer.took_ms
        last = number == count
        if call.as_json:
            for wire in wires_of(answer):
                call.line({**wire, "tookMs": took_ms} if last else _without_time(wire))
        else:
            took = f"; {count} statements in {took_ms:.0f} ms" if last else ""
            for result in answer.results:
                _show_one(result, statement.text, took, expanded=expanded)


def _without_time(wire: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in wire.items() if name != "tookMs"}


def with_statement_number(error: TidegateError, number: int, count: int) -> TidegateError:
    """Add to an error the number of its statement, and what was run before it."""
    done = {1: "Nothing was run", 2: "Statement 1 was run"}.get(
        number, f"Statements 1 to {number - 1} were run"
    )
    error.values["statement"] = number
    error.hint = f"{error.hint} This is statement {number} of {count}. {done}.".strip()
    return error


def run_short(
    call: Invocation, client: Client, short: str, *, expanded: bool = False, in_prompt: bool = False
) -> None:
    r"""Run a short form such as \d."""
    statement = statement_of(short, in_prompt=in_prompt)
    try:
        run_text(call, client, TextSpan(statement), [], expanded=expanded)
    except NamespaceNotFound as error:
        if statement.startswith("DESCRIBE"):
            raise
        hint = r"A table is written with its namespace: \d NAMESPACE.TABLE. \d lists all tables."
        raise NamespaceNotFound(hint=hint, **error.values) from error


def is_short(text: str) -> bool:
    r"""Return whether a text is one of the short forms, such as \d."""
    return text.lstrip().startswith("\\")


def statement_of(short: str, *, in_prompt: bool = False) -> str:
    r"""Return the statement that a short form stands for: \d, \d NAMESPACE, \d NAMESPACE.TABLE, \dn."""
    word, _, name = short.strip().rstrip(";").strip().partition(" ")
    name = name.strip()
    if word == "\\d" and not name:
        return "SHOW TABLES"
    if word == "\\d" and _NAME.fullmatch(name):
        return f"DESCRIBE TABLE {name}"
    if word == "\\d" and _WORD.fullmatch(name):
        return f"SHOW TABLES IN {name}"
    if word == "\\dn" and not name:
        return "SHOW NAMESPACES"
    there = [r"\d (tables)", r"\d NAMESPACE (its tables)", r"\d NAMESPACE.TABLE (its columns)"]
    there += [r"\dn (namespaces)"]
    there += [r"\x (rows as blocks)", r"\? (help)", r"\q (leave)"] if in_prompt else []
    hint = f"There are {', '.join(there[:-1])} and {there[-1]}."
    raise RequestInvalid(reason=f"'{short.strip()}' is no short form.", hint=hint)


def pointed(error: TidegateError, statement: TextSpan, *, as_json: bool) -> TidegateError:
    """Return an error with its position in the whole text, and for people with that line before its hint."""
    line, column = error.values.get("line"), error.values.get("column")
    if not isinstance(line, int) or not isinstance(column, int):
        return error
    values = dict(error.values)
    values["line"] = line + statement.line - 1
    values["column"] = column + (statement.column - 1 if line == 1 else 0)
    position = f"line {values['line']}, column {values['column']}"
    reason = str(values.get("reason", "")).replace(f"line {line}, column {column}", position)
    place = "" if as_json else excerpt(statement, line, column)
    # DuckDB draws the line into its message; one drawing is enough.
    values["reason"] = reason.partition(DRAWING)[0] if place else reason
    shown = [*place.split("\n"), *([error.hint] if error.hint else [])]
    better = type(error)(hint="\n  ".join(shown) if place else error.hint, **values)
    better.request_id = error.request_id
    return better


def wires_of(answer: SqlAnswer) -> Iterator[dict[str, Any]]:
    """Yield the result of each statement as the HTTP endpoint writes it; the last one has the total time."""
    for number, result in enumerate(answer.results, start=1):
        wire: dict[str, Any] = {
            "columns": result.columns,
            "rows": result.rows,
            "rowCount": result.row_count,
        }
        if number == len(answer.results):
            wire["tookMs"] = answer.took_ms
        if result.warnings:
            wire["warnings"] = result.warnings
        yield wire


def show(answer: SqlAnswer, text: str, *, expanded: bool = False) -> None:
    """Print the result of each statement for people, and after the last one the total time."""
    count = len(answer.results)
    statements = [text] if count == 1 else [one.text for one in locate_statements(text)]
    if len(statements) != count:
        statements = [""] * count  # the server splits the text otherwise
    took = f" in {answer.took_ms:.0f} ms"
    for number, (result, statement) in enumerate(zip(answer.results, statements, strict=True), start=1):
        all_of_them = f"; {count} statements" if count > 1 else ""
        _show_one(result, statement, f"{all_of_them}{took}" if number == count else "", expanded=expanded)


def _show_one(result: Result, statement: str, took: str, *, expanded: bool) -> None:
    """Print the rows of one statement and their number, or what was done; then its warnings."""
    from rich.text import Text

    out = console()
    if result.columns:
        from tidegate.cli.output.tables import ROWS_SHOWN_MAX, RowGrid

        rows_max = ROWS_SHOWN_MAX if out.is_terminal else None
        RowGrid(result.columns, result.rows, rows_max=rows_max, expanded=expanded).print(out)
        out.print(Text(_count_line(result, took, rows_max), style="dim"))
    else:
        out.print(Text(f"{_done(result, statement)}{took}", style="dim"))
    for warning in result.warnings:
        console(stderr=True).print(Text(f"Warning: {warning}", style="yellow"))


def _count_line(result: Result, took: str, rows_max: int | None) -> str:
    line = f"{plural(result.row_count, 'row')}{took}"
    if rows_max is not None and len(result.rows) > rows_max:
        return f"{line}; {plural(rows_max, 'row')} shown. A LIMIT gives fewer, --json and pipes give all."
    return line


def _done(result: Result, statement: str) -> str:
    """Return what a statement did, by its verb, or the verb inside EXECUTE AS."""
    from tidegate.sdk.statements import first_word
    from tidegate.sql.parser.lexer import tokens_of

    verb = first_word(statement)
    if verb == "EXECUTE":
        verb = next((token.key for token in tokens_of(statement) if token.key in DEEDS), "")
    return f"{plural(result.row_count, 'row')} {DEEDS[verb]}" if verb in DEEDS else "Done"
