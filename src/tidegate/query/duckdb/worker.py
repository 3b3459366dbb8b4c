"""The child process that runs statements in DuckDB: the other end of `remote.StatementSession`.

One statement after the other, all of one lake. A message without an answer that fails spoils the answer of
the next one. A thread of its own waits for interrupts: DuckDB releases Python's lock while it computes; where
it does not, the process is killed instead.
"""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from tidegate.errors import SqlInvalid, TidegateError
from tidegate.model.schemas import ColumnType, parse_type
from tidegate.query.duckdb import messages as wire
from tidegate.query.duckdb.analysis import read_statement
from tidegate.query.duckdb.error_positions import TextRefused, read_error
from tidegate.query.duckdb.session import LakeDatabase, QueryLimits
from tidegate.query.duckdb.views import SessionViews
from tidegate.query.processes.channel import Channel, ChannelClosed, ChannelFrame
from tidegate.query.scans.lake import FileTests, choose_files, find_file_tests
from tidegate.query.scans.lake import bound_table as bound_files
from tidegate.query.scans.pushdown import bound_table, find_comparisons, find_filter
from tidegate.storage.lake.file_index import LakeColumn

BATCH_ROWS = 10_000  # rows in one part of an answer
PART_BYTES = 16 * 1024 * 1024
# The server holds the columns and the errors of an answer, so that both have limits: `*` of a short text may
# mean millions of columns, and an error may repeat a value of a gigabyte.
COLUMNS_MAX = 10_000
TYPE_CHARS_MAX = 1_000_000
MESSAGE_CHARS_MAX = 20_000
# An interrupt that comes between two steps of a statement is lost, so it is repeated.
INTERRUPT_REPEAT_SECONDS = 0.1
# The second line behind the pool's look at resident memory: no allocation beyond this succeeds.
DATA_LIMIT_MB = 2048

_ENGINE_ERRORS = (duckdb.Error, pa.ArrowException, OSError, MemoryError, UnicodeError, RecursionError)
_encode = msgspec.msgpack.Encoder().encode


def preload() -> None:
    """Load what a statement needs at its first use; starts no thread of DuckDB."""
    import pandas  # noqa: F401
    import pyarrow.dataset  # noqa: F401
    import sqlglot
    import sqlglot.dialects.duckdb
    import sqlglot.optimizer

    sqlglot.parse_one("SELECT 1", dialect="duckdb")


def run_child(session: socket.socket, control: socket.socket) -> None:
    """Run statements until the server closes the session."""
    channel, database = Channel(session), LakeDatabase()
    interrupts = _Interrupts(Channel(control))
    with suppress(ChannelClosed):
        _warm_up(database)
        frame = channel.receive()
        _confine(database, msgspec.msgpack.decode(frame.content, type=wire.Confinement))
        while True:
            with database.session() as cursor:
                interrupts.cursor = cursor
                database.has_views = _Statement(channel, cursor).serve()


def _warm_up(database: LakeDatabase) -> None:
    """Run one statement, so that the first of a caller is not the slow one."""
    with database.session() as cursor:
        cursor.register("warm", pa.table({"a": [1]}))
        statement = read_statement(cursor, "SELECT sum(a) FROM x.warm", [])
        with suppress(duckdb.Error):
            cursor.sql(statement.sql)
        cursor.sql("SELECT sum(a) FROM warm").to_arrow_table()


def _confine(database: LakeDatabase, limits: wire.Confinement) -> None:
    spill = Path(limits.spill_path) if limits.spill_path else None
    if spill is not None:
        spill.mkdir(parents=True, exist_ok=True)
    database.confine(
        Path(limits.root),
        QueryLimits(memory_mb=limits.memory_mb, threads=limits.threads, spill_path=spill),
    )
    if limits.niceness:
        # All threads of the process: it leads a process group of its own.
        os.setpriority(os.PRIO_PGRP, 0, limits.niceness)
    most = (limits.memory_mb * 2 + DATA_LIMIT_MB) * 1024 * 1024
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


class _Interrupts:
    """Interrupts the statement when the server asks for it, and until the server kills the process."""

    def __init__(self, control: Channel) -> None:
        self.cursor: Any = None
        self._control = control
        threading.Thread(target=self._run, name="interrupts", daemon=True).start()

    def _run(self) -> None:
        with suppress(ChannelClosed):
            self._control.receive()
            pause = threading.Event()
            while True:
                if self.cursor is not None:
                    with suppress(duckdb.Error):
                        self.cursor.interrupt()
                pause.wait(INTERRUPT_REPEAT_SECONDS)


@dataclass(frozen=True, slots=True)
class _RemoteTable:
    """A table of the server as views and pushdown need it."""

    full_name: str
    columns: tuple[tuple[str, ColumnType], ...]
    compared: frozenset[str]


class _Statement:
    """One statement of the server, in one session of the database."""

    def __init__(self, channel: Channel, cursor: Any) -> None:
        self._channel = channel
        self._cursor = cursor
        self._views = SessionViews(cursor)
        self._sql = ""
        self._params: list[Any] = []
        self._parameter_count = 0
        self._tests: dict[str, FileTests] = {}
        self._spoiled: Exception | None = None
        self._calls: dict[int, Callable[[ChannelFrame], Any]] = {
            wire.ANALYZE: self._analyze,
            wire.COMPARISONS: self._comparisons,
            wire.FILE_TESTS: self._file_tests,
            wire.CHOOSE_FILES: self._choose_files,
            wire.FILTER_TEXT: self._filter_text,
            wire.BIND: lambda _: self._bind(),
            wire.RUN: lambda _: self._run(),
        }
        self._posts: dict[int, Callable[[ChannelFrame], None]] = {
            wire.STATEMENT: self._set_statement,
            wire.SHOW_FILES: self._show_files,
            wire.SHOW_COLUMNS: self._show_columns,
            wire.SHOW_ROWS: self._show_rows,
        }

    def serve(self) -> bool:
        """Answer messages until the server is done with the statement; return whether there are views."""
        has_views = False
        while True:
            frame = self._channel.receive()
            if frame.kind == wire.FINISH:
                return has_views
            post = self._posts.get(frame.kind)
            if post is None:
                self._answer(frame)
                continue
            has_views = has_views or frame.kind != wire.STATEMENT
            try:
                if self._spoiled is None:
                    post(frame)
            except _ENGINE_ERRORS as error:
                self._spoiled = error

    def _answer(self, frame: ChannelFrame) -> None:
        try:
            if self._spoiled is not None:
                spoiled, self._spoiled = self._spoiled, None
                raise spoiled
            answer = self._calls[frame.kind](frame)
            self._channel.send(wire.ANSWER if frame.kind != wire.RUN else wire.ROWS_END, _encode(answer))
        except TidegateError as error:
            self._channel.send(wire.REFUSED, _encode(_refusal(error)))
        except _ENGINE_ERRORS as error:
            self._channel.send(wire.FAILED, _encode(_failure(error)))

    def _analyze(self, frame: ChannelFrame) -> wire.Analysis:
        text = msgspec.msgpack.decode(frame.content, type=wire.StatementText)
        self._params = wire.unpack_values(text.params)
        found = read_statement(self._cursor, text.sql, self._params)
        self._sql, self._parameter_count = found.sql, found.parameter_count
        outputs = None
        if found.outputs is not None:
            columns = found.outputs.columns
            outputs = (*found.outputs[:2], None if columns is None else list(columns))
        return wire.Analysis(
            found.sql,
            [(*place, count) for place, count in found.tables.items()],
            sorted(found.unqualified),
            found.parameter_count,
            None if found.mentioned is None else sorted(found.mentioned),
            outputs,
        )

    def _set_statement(self, frame: ChannelFrame) -> None:
        text = msgspec.msgpack.decode(frame.content, type=wire.StatementText)
        self._sql, self._parameter_count = text.sql, text.parameter_count
        self._params = wire.unpack_values(text.params)

    def _comparisons(self, frame: ChannelFrame) -> list[wire.FoundComparison]:
        table = _table_of(frame)
        found = find_comparisons(self._cursor, self._sql, table, self._params)
        return [wire.FoundComparison(c.column, c.operator, wire.pack_values(c.values)) for c in found]

    def _file_tests(self, frame: ChannelFrame) -> wire.FoundFiles:
        """Return the files to read, or the columns of the file table that are needed to choose them."""
        name, columns = _lake_columns(frame)
        tests = find_file_tests(self._cursor, name, columns, self._sql, self._params)
        files = None if frame.fd is None else wire.read_memory_file(frame.fd)
        if tests is None:
            return wire.FoundFiles()
        if files is not None:
            return wire.FoundFiles(choose_files(self._cursor, files, tests.tests, self._params))
        self._tests[name] = tests
        return wire.FoundFiles(needed=list(tests.columns))

    def _choose_files(self, frame: ChannelFrame) -> wire.FoundFiles:
        name = bytes(frame.content).decode()
        files = wire.read_memory_file(_fd_of(frame))
        return wire.FoundFiles(choose_files(self._cursor, files, self._tests[name].tests, self._params))

    def _filter_text(self, frame: ChannelFrame) -> str:
        if frame.content[:1] == b"L":
            name, columns = _lake_columns(ChannelFrame(frame.kind, frame.content[1:]))
            table = bound_files(name, columns)
        else:
            table = bound_table(_table_of(ChannelFrame(frame.kind, frame.content[1:])))
        return find_filter(self._sql, table, self._parameter_count)

    def _show_files(self, frame: ChannelFrame) -> None:
        view = msgspec.msgpack.decode(frame.content, type=wire.FileView)
        self._views.show_files(view.name, view.select)

    def _show_columns(self, frame: ChannelFrame) -> None:
        self._views.show_columns(_table_of(frame))

    def _show_rows(self, frame: ChannelFrame) -> None:
        self._views.show_rows(_table_of(frame), wire.read_memory_file(_fd_of(frame)))

    def _bind(self) -> None:
        self._bound()

    def _bound(self) -> Any:
        """Return the statement, not yet run; its rows are streamed, those of `execute` are copied."""
        try:
            return self._cursor.sql(self._sql, params=self._params)
        except (duckdb.BinderException, duckdb.CatalogException):
            self._cursor.execute(self._sql, self._params)  # fails alike, with the position
            raise

    def _run(self) -> None:
        result = self._bound()
        if len(result.columns) > COLUMNS_MAX:
            raise _too_wide(f"{len(result.columns):,} columns, {COLUMNS_MAX:,} are allowed")
        columns = wire.ResultColumns(list(result.columns), [str(kind) for kind in result.types])
        if sum(map(len, columns.types)) > TYPE_CHARS_MAX:
            raise _too_wide(f"types with names of more than {TYPE_CHARS_MAX:,} characters")
        self._channel.send(wire.ANSWER, _encode(columns))
        with result.to_arrow_reader(BATCH_ROWS) as reader:
            is_empty = True
            for batch in reader:
                is_empty = False
                self._send_rows(pa.Table.from_batches([batch]))
            if is_empty:
                self._send_rows(reader.schema.empty_table())

    def _send_rows(self, rows: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        content = memoryview(sink.getvalue())
        while len(content) > PART_BYTES:
            self._channel.send(wire.ROWS_PART, content[:PART_BYTES])
            content = content[PART_BYTES:]
        self._channel.send(wire.ROWS, content)


def _fd_of(frame: ChannelFrame) -> int:
    if frame.fd is None:
        raise RuntimeError("a frame without its file")
    return frame.fd


def _table_of(frame: ChannelFrame) -> _RemoteTable:
    table = msgspec.msgpack.decode(frame.content, type=wire.TableColumns)
    columns = tuple((name, parse_type(kind)) for name, kind in table.columns)
    return _RemoteTable(table.full_name, columns, frozenset(table.compared))


def _lake_columns(frame: ChannelFrame) -> tuple[str, list[LakeColumn]]:
    table = msgspec.msgpack.decode(frame.content, type=wire.LakeColumns)
    return table.name, [LakeColumn(*column) for column in table.columns]


def _too_wide(what: str) -> SqlInvalid:
    return SqlInvalid(reason=f"its answer has {what}.", hint="Name the columns that are needed.")


def _failure(error: Exception) -> wire.EngineFailure:
    message = str(error)
    if len(message) > MESSAGE_CHARS_MAX:
        message = f"{read_error(error)[0][:MESSAGE_CHARS_MAX]}…"
    return wire.EngineFailure(type(error).__name__, message)


def _refusal(error: TidegateError) -> wire.TextRefusal:
    refused = error.__cause__
    if isinstance(refused, TextRefused):
        return wire.TextRefusal(error.to_wire(), (refused.message, refused.text, refused.span))
    return wire.TextRefusal(error.to_wire())
