"""A statement in a child process, as the server sees it: what `worker` does, called over a channel."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from tidegate.errors import SqlInvalid
from tidegate.errors.root import from_wire
from tidegate.query.duckdb import messages as wire
from tidegate.query.duckdb.analysis import AnalyzedSelect, PlainOutputs
from tidegate.query.duckdb.error_positions import EngineError, TextRefused
from tidegate.query.duckdb.session import QueryLimits
from tidegate.query.processes.channel import ChannelFrame
from tidegate.query.processes.pool import ChildPool, ChildSession, close_shared_pool, shared_pool
from tidegate.query.processes.watch import Watch
from tidegate.query.scans.source import Comparison, SourceTable
from tidegate.storage.lake.tables import TableView

# The statistics of so many files are sent without asking which of them are needed.
STATISTICS_ROWS_MAX = 512
# Texts that are cached: a service sends a few dozen, and long ones are rarely sent twice.
ANALYZED_MAX = 1024
ANALYZED_CHARS_MAX = 4096
_WORKER = "tidegate.query.duckdb.worker"
_encode = msgspec.msgpack.Encoder().encode


def query_pool() -> ChildPool:
    """Return the pool of this process for statements."""
    return shared_pool(_WORKER)


def close_query_pool() -> None:
    """End the processes of this one for statements, and wait for their end."""
    close_shared_pool(_WORKER)


class LakeOwner(NamedTuple):
    """The lake, the limits and the priority (`nice`) that a child is bound to for good."""

    root: Path
    memory_mb: int
    threads: int
    spill_path: Path | None
    niceness: int = 0


def owner_of(root: Path, limits: QueryLimits) -> LakeOwner:
    """Return the owner of children for a lake."""
    return LakeOwner(root.absolute(), limits.memory_mb, limits.threads, limits.spill_path)


class AnalysisCache:
    """The newest analyses of one tenant, by text and number of parameters; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, int], AnalyzedSelect] = OrderedDict()

    def find(self, sql: str, parameter_count: int) -> AnalyzedSelect | None:
        """Return the analysis of a text, if it is known."""
        with self._lock:
            known = self._known.get((sql, parameter_count))
            if known is not None:
                self._known.move_to_end((sql, parameter_count))
            return known

    def add(self, sql: str, parameter_count: int, analyzed: AnalyzedSelect) -> None:
        """Remember an analysis; the one that was not used for longest is forgotten."""
        if len(sql) <= ANALYZED_CHARS_MAX:
            with self._lock:
                self._known[sql, parameter_count] = analyzed
                if len(self._known) > ANALYZED_MAX:
                    self._known.popitem(last=False)


class StatementSession:
    """One statement in a child; EngineError is an error of DuckDB, every other is one of ours."""

    def __init__(self, session: ChildSession, params: Sequence[Any]) -> None:
        self._session = session
        self._params = params
        self.check = session.watch.check
        # Whether every answer that was asked for has been read.
        self.is_in_order = True

    def analyze(self, sql: str, cache: AnalysisCache) -> AnalyzedSelect:
        """Return the analysis of a text; raise SqlInvalid or SqlUnsupported."""
        known = cache.find(sql, len(self._params))
        try:
            params = wire.pack_values(self._params)
            if known is not None:
                text = wire.StatementText(known.sql, params, known.parameter_count)
                self._session.post(wire.STATEMENT, _encode(text))
                return known
            content = _encode(wire.StatementText(sql, params))
        except UnicodeEncodeError as error:
            raise SqlInvalid(reason=f"it is not Unicode text: {error}") from error
        found = self._call(wire.ANALYZE, content, wire.Analysis)
        outputs = found.outputs
        analyzed = AnalyzedSelect(
            found.sql,
            Counter({(namespace, name): count for namespace, name, count in found.tables}),
            frozenset(found.unqualified),
            found.parameter_count,
            None if found.mentioned is None else frozenset(found.mentioned),
            None if outputs is None else _plain_outputs(*outputs),
        )
        cache.add(sql, len(self._params), analyzed)
        return analyzed

    def comparisons(self, table: SourceTable) -> tuple[Comparison, ...]:
        """Return the comparisons that every row of the table must meet to have any part in the answer."""
        if not table.compared:
            return ()
        found = self._call(wire.COMPARISONS, _encode(_columns_of(table)), list[wire.FoundComparison])
        return tuple(Comparison(c.column, c.operator, tuple(wire.unpack_values(c.values))) for c in found)

    def choose_files(self, view: TableView) -> list[int] | None:
        """Return the numbers of the files of a lake table to read, in order, or None for all of them."""
        if view.file_count == 0:
            return None
        columns = _encode(_lake_columns_of(view))
        if view.file_count <= STATISTICS_ROWS_MAX:
            with wire.memory_file(view.files) as fd:
                return self._found_files(wire.FILE_TESTS, columns, fd).chosen
        needed = self._found_files(wire.FILE_TESTS, columns).needed
        if not needed:
            return None
        with wire.memory_file(view.files.select(needed)) as fd:
            return self._found_files(wire.CHOOSE_FILES, view.name.encode(), fd).chosen

    def _found_files(self, kind: int, content: bytes, fd: int | None = None) -> wire.FoundFiles:
        found: wire.FoundFiles = self._call(kind, content, wire.FoundFiles, fd)
        return found

    def file_filter(self, view: TableView) -> str:
        """Return the WHERE of the SELECT that reads a lake table, as text; '' where there is none."""
        return str(self._call(wire.FILTER_TEXT, b"L" + _encode(_lake_columns_of(view)), str))

    def table_filter(self, table: SourceTable) -> str:
        """Return the WHERE of the SELECT that reads a table, as text; '' where there is none."""
        return str(self._call(wire.FILTER_TEXT, b"T" + _encode(_columns_of(table)), str))

    def show_files(self, name: str, select: str) -> None:
        """Create the view of a lake table."""
        self._session.post(wire.SHOW_FILES, _encode(wire.FileView(name, select)))

    def show_columns(self, table: SourceTable) -> None:
        """Create the view of a table's columns, without rows, to bind a statement to."""
        self._session.post(wire.SHOW_COLUMNS, _encode(_columns_of(table)))

    def show_rows(self, table: SourceTable, rows: pa.Table) -> None:
        """Create the view of some columns of a table, in place of the one without rows."""
        with wire.memory_file(rows) as fd:
            self._session.post(wire.SHOW_ROWS, _encode(_columns_of(table)), fd)

    def bind(self) -> None:
        """Bind the statement to the views that are there; it is not run."""
        self._call(wire.BIND, b"", None)

    def run(self, charge: Callable[[int], None]) -> tuple[wire.ResultColumns, Iterator[pa.Table]]:
        """Return the columns of the answer, and its rows in parts, to be read to the end.

        `charge` gets the bytes of each frame when it has arrived; what it raises ends the rows.
        """
        columns = self._call(wire.RUN, b"", wire.ResultColumns)
        return columns, self._rows(charge)

    def _rows(self, charge: Callable[[int], None]) -> Iterator[pa.Table]:
        parts: list[bytearray] = []
        while True:
            frame = self._session.receive()
            if frame.kind not in (wire.ROWS, wire.ROWS_PART):
                self.is_in_order = True
                if frame.kind == wire.ROWS_END:
                    return
                raise _error_of(frame)
            charge(len(frame.content))
            parts.append(frame.content)
            if frame.kind == wire.ROWS:
                content = parts[0] if len(parts) == 1 else b"".join(parts)
                parts = []
                yield pa.ipc.open_stream(pa.py_buffer(content)).read_all()

    def _call(self, kind: int, content: bytes, answer: Any, fd: int | None = None) -> Any:
        self.is_in_order = False
        frame = self._session.call(kind, content, fd)
        self.is_in_order = kind != wire.RUN or frame.kind != wire.ANSWER
        if frame.kind != wire.ANSWER:
            raise _error_of(frame)
        return msgspec.msgpack.decode(frame.content, type=answer)


@contextmanager
def open_statement(
    pool: ChildPool, owner: LakeOwner, watch: Watch, params: Sequence[Any]
) -> Iterator[StatementSession]:
    """Yield a statement in a child of the owner, which is used again if all of its answers were read."""
    with pool.session(owner, watch, owner.memory_mb) as session:
        if session.is_new:
            spill = "" if owner.spill_path is None else str(session.spill_below(owner.spill_path))
            limits = wire.Confinement(str(owner.root), owner.memory_mb, owner.threads, spill, owner.niceness)
            session.post(wire.CONFINE, _encode(limits))
        statement = StatementSession(session, params)
        try:
            yield statement
        finally:
            if statement.is_in_order:
                session.finish(wire.FINISH)


def _plain_outputs(namespace: str, name: str, columns: list[str] | None) -> PlainOutputs:
    return PlainOutputs(namespace, name, None if columns is None else tuple(columns))


def _columns_of(table: SourceTable) -> wire.TableColumns:
    return wire.TableColumns(table.full_name, wire.kinds_of(table.columns), sorted(table.compared))


def _lake_columns_of(view: TableView) -> wire.LakeColumns:
    return wire.LakeColumns(view.name, [(c.name, c.kind, c.is_partition) for c in view.columns])


def _error_of(frame: ChannelFrame) -> Exception:
    if frame.kind == wire.FAILED:
        failure = msgspec.msgpack.decode(frame.content, type=wire.EngineFailure)
        return EngineError(failure.kind, failure.message)
    refusal = msgspec.msgpack.decode(frame.content, type=wire.TextRefusal)
    error = from_wire(refusal.wire)
    if refusal.refused is not None:
        error.__cause__ = TextRefused(*refusal.refused)
    return error
