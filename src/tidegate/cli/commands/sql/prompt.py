"""The interactive prompt of `tidegate sql`; its history is a file in the home."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import create_output

from tidegate.cli.commands.sql.completion import CompletionSchema, KnownNames, completions
from tidegate.cli.commands.sql.splitter import TextSpan, is_statement, locate_statements, split_statements
from tidegate.cli.commands.sql.sql import is_short, run_short, run_text
from tidegate.cli.output.errors import columns_of, report_error, wrapped
from tidegate.errors import TidegateError
from tidegate.sdk.statements import first_word

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent

    from tidegate.cli.invocation import Invocation
    from tidegate.sdk.client import Client

HISTORY_FILE = "sql_history"
HISTORY_ENTRIES_MAX = 1000
PROMPT = "tidegate> "
PROMPT_MORE = "     ...> "
LEAVE_WORDS = frozenset({"exit", "quit", "\\q", ".exit", ".quit"})
# Statements that change the names to complete.
DEFINING_WORDS = frozenset({"CREATE", "DROP", "ALTER"})
GREETING = (
    r"Statements end with a semicolon. Tab completes, Ctrl-C drops a statement, Ctrl-D leaves, \? helps."
)
HELP = r"""\d                   tables
\d NAMESPACE         its tables
\d NAMESPACE.TABLE   its columns
\dn                  namespaces
\x                   rows as blocks, or side by side again
\?                   this help
\q                   leave (or Ctrl-D)
A statement ends with a semicolon and may span lines. Tab completes keywords, topics, tables and columns."""


def prompt(call: Invocation, client: Client) -> None:
    """Read statements from the terminal until Ctrl-D; an error is shown and the prompt continues."""
    Prompt(call, client).run()


class Prompt:
    """One session of the prompt: the terminal, the names to complete, and how rows are shown."""

    def __init__(self, call: Invocation, client: Client) -> None:
        self._call = call
        self._client = client
        self._known = KnownNames(lambda: _schema(client))
        self._expanded = False

    def run(self) -> None:
        """Read and run until the end of the input."""
        session = self._session()
        typer.echo(wrapped(GREETING, columns_of(sys.stdout)))
        while True:
            try:
                text = session.prompt(PROMPT)
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if text.strip().lower().rstrip(";").rstrip() in LEAVE_WORDS:
                return
            try:
                self._run(text)
            except KeyboardInterrupt:
                typer.echo("Interrupted. The server stops a query; a write may have been done.", err=True)

    def _run(self, text: str) -> None:
        try:
            if is_short(text):
                self._run_short(text.strip())
                return
            for statement in locate_statements(text):
                self._run_one(statement)
        except TidegateError as error:
            report_error(self._call.advise(error).to_wire()["error"], as_json=self._call.as_json)

    def _run_short(self, text: str) -> None:
        word = text.rstrip(";").strip()
        if word == "\\?":
            typer.echo(wrapped(HELP, columns_of(sys.stdout)))
        elif word == "\\x":
            self._expanded = not self._expanded
            typer.echo(f"Rows are shown {'as blocks' if self._expanded else 'side by side'}.")
        else:
            run_short(self._call, self._client, word, expanded=self._expanded, in_prompt=True)

    def _run_one(self, statement: TextSpan) -> None:
        run_text(self._call, self._client, statement, [], expanded=self._expanded)
        if first_word(statement.text) in DEFINING_WORDS:
            self._known.forget()

    def _session(self) -> PromptSession[str]:
        return PromptSession(
            history=open_history(self._call.home_path),
            completer=SqlCompleter(self._known.now),
            complete_while_typing=False,
            lexer=_lexer(),
            multiline=True,
            prompt_continuation=PROMPT_MORE,
            key_bindings=_bindings(),
            output=create_output(always_prefer_tty=True),
            enable_open_in_editor=False,
            reserve_space_for_menu=6,
        )


class SqlCompleter(Completer):
    """Offers the words that fit where the cursor is."""

    def __init__(self, schema: Callable[[], CompletionSchema]) -> None:
        self._schema = schema

    def get_completions(self, document: Document, _event: CompleteEvent) -> Iterable[Completion]:
        """Yield what may replace the word before the cursor."""
        before = document.text_before_cursor
        for word, kind, typed in completions(before, document.text, self._schema()):
            yield Completion(word, start_position=-typed, display_meta=kind)


class BoundedHistory(FileHistory):
    """A history in a file that only its owner reads, and that does not grow without end."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        path.touch(mode=0o600)
        entries = list(super().load_history_strings())  # the newest first
        if len(entries) > HISTORY_ENTRIES_MAX:
            self._rewrite(entries[:HISTORY_ENTRIES_MAX])

    def _rewrite(self, newest_first: list[str]) -> None:
        beside = self._path.with_name(f"{self._path.name}.new")
        beside.unlink(missing_ok=True)
        beside.touch(mode=0o600)
        written = FileHistory(str(beside))
        for entry in reversed(newest_first):
            written.store_string(entry)
        beside.replace(self._path)


def open_history(home_path: Path) -> History:
    """Return the history of a home, or one in memory where there is no home that can be written to."""
    if not home_path.is_dir() or not os.access(home_path, os.W_OK):
        return InMemoryHistory()
    return BoundedHistory(home_path / HISTORY_FILE)


def is_whole(text: str) -> bool:
    """True if Enter runs a text: a semicolon ends it, or it is a short form, a leave word or nothing."""
    if not text.strip() or is_short(text) or text.strip().lower() in LEAVE_WORDS:
        return True
    statements, rest = split_statements(text)
    return not is_statement(rest) and (bool(statements) or ";" in text)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @Condition
    def _whole() -> bool:
        return is_whole(get_app().current_buffer.text)

    @bindings.add("enter", filter=_whole & has_focus(DEFAULT_BUFFER))
    def _run(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    return bindings


def _lexer() -> PygmentsLexer:
    # Pygments comes with Rich, and without types.
    return PygmentsLexer(importlib.import_module("pygments.lexers.sql").SqlLexer)


def _schema(client: Client) -> CompletionSchema:
    """Fetch the names of tables, columns and topics; without the right to, only keywords are completed."""
    try:
        answer = client.sql('SELECT namespace, "table", name FROM system.columns ORDER BY ALL')
        tables = client.sql("SHOW TABLES")
        topics = client.sql("SHOW TOPICS")
    except TidegateError:
        return CompletionSchema({})
    found: dict[str, list[str]] = {f"{row[0]}.{row[1]}": [] for row in tables.rows}
    for namespace, table, column in answer.rows:
        found.setdefault(f"{namespace}.{table}", []).append(column)
    return CompletionSchema(found, [row[0] for row in topics.rows])
