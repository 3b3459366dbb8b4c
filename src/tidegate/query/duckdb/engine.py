"""SELECT in DuckDB, over the lake and over tables: the server's half; DuckDB runs in a child process.

A statement sees one version of each lake table that it names, the newest when it began, and one snapshot of
all tables in the engine. The steps: check the text, check what the caller may read, look up the tables, find
out what of them is needed, bind the statement to their columns, read, run under a watch, collect the answer.
No Spark takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.errors import (
    NotReady,
    QueryMemory,
    RequestInvalid,
    StorageCorrupt,
    TableNotFound,
    TidegateError,
)
from tidegate.model.names import shorten
from tidegate.model.schemas import ColumnType
from tidegate.query.duckdb.analysis import AnalyzedSelect, sql_invalid
from tidegate.query.duckdb.error_positions import EngineError, TextRefused
from tidegate.query.duckdb.explain import ExplainedTable, explain_answer, explain_files, explain_table
from tidegate.query.duckdb.messages import ResultColumns
from tidegate.query.duckdb.remote import AnalysisCache, StatementSession, open_statement, owner_of, query_pool
from tidegate.query.duckdb.result import QueryAnswer
from tidegate.query.duckdb.session import QueryLimits
from tidegate.query.processes.pool import ChildPool
from tidegate.query.processes.watch import Watch
from tidegate.query.scans.lake import scan_sql
from tidegate.query.scans.source import BYTES_PER_MB, ScanBudget, ScanPlan, ScanRequest, SourceTable
from tidegate.query.scans.visible_tables import VisibleTables
from tidegate.storage.lake.tables import Lake, TableView
from tidegate.tables.validation import near_names

# A writer may replace and remove files while a statement runs; it is run again on the newer version.
ATTEMPTS_MAX = 3
# Statements of a tenant beside its first have a lower priority than the first statement of any tenant.
OTHERS_NICENESS = 7
LAKE = "lake"
_MEMORY_ERRORS = frozenset({"OutOfMemoryException", "ArrowMemoryError", "MemoryError"})

Check = Callable[[frozenset[tuple[str, str]]], None]


@dataclass(frozen=True, slots=True)
class _SelectRequest:
    """One statement, its parameters and its limits."""

    sql: str
    params: list[Any]
    source: VisibleTables | None
    last: int | None
    check: Check | None
    pruning: bool = True
    rows_max: int = 0
    # Whether columns that the statement does not mention are left out.
    narrow: bool = True


@dataclass(frozen=True, slots=True)
class _FileScan:
    view: TableView
    chosen: list[int] | None
    select: str
    paths: list[str]


@dataclass(frozen=True, slots=True)
class _ReadPlan:
    """What a statement reads: files of the lake, and tables by their scan plans."""

    statement: AnalyzedSelect
    files: list[_FileScan]
    tables: list[tuple[SourceTable, ScanPlan]]

    @property
    def is_small(self) -> bool:
        """Whether so few rows are read that it is not worth binding the statement before."""
        return all(plan.is_small for _, plan in self.tables)

    @property
    def is_narrow(self) -> bool:
        """Whether some columns are not read."""
        return any(len(plan.columns) < len(table.columns) for table, plan in self.tables)


class LakeQuery:
    """Runs statements over one lake and what each caller may see; methods may be called from any thread."""

    def __init__(
        self, lake: Lake, settings: QueryLimits | None = None, pool: ChildPool | None = None
    ) -> None:
        """Without a pool, the one of this process is used."""
        self._lake = lake
        self._settings = settings or QueryLimits()
        self._pool = pool or query_pool()
        self._owner = owner_of(lake.root, self._settings)
        self._other_owner = self._owner._replace(niceness=OTHERS_NICENESS)
        self._analyses = AnalysisCache()
        self._watches: set[Watch] = set()

    def run(
        self,
        sql: str,
        params: Sequence[Any] = (),
        *,
        pruning: bool = True,
        source: VisibleTables | None = None,
        last: int | None = None,
        check: Check | None = None,
        rows_max: int | None = None,
    ) -> QueryAnswer:
        """Return the rows of one SELECT; blocks until they are all here or a limit is met.

        `check` gets every (namespace, table) that is named, before anything is read. `last` says that only
        the newest n rows of the one table can be part of the answer. The source stays open.

        Raises SqlInvalid, SqlUnsupported, TableNotFound, RequestInvalid (too many rows), QueryTimeout,
        QueryMemory, QueryCrashed, StorageCorrupt (a file of the table is damaged or missing), and the error
        of the context's Stopper.
        """
        most = self._settings.rows_max if rows_max is None else rows_max
        request = _SelectRequest(sql, list(params), source, last, check, pruning, most)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            scans: list[_FileScan] = []
            try:
                return self._run_once(request, scans)
            except _ColumnMissed:
                return self._run_once(replace(request, narrow=False), [])
            except _FilesFailed as failed:
                moved = any(self._lake.view(scan.view.name).version != scan.view.version for scan in scans)
                if not moved or attempt == ATTEMPTS_MAX:
                    raise failed.error from failed.__cause__
        raise StorageCorrupt(place=str(self._lake.root), reason="files vanish as fast as they are read")

    def explain(
        self,
        sql: str,
        params: Sequence[Any] = (),
        *,
        source: VisibleTables | None = None,
        last: int | None = None,
        check: Check | None = None,
    ) -> QueryAnswer:
        """Return a row for each table of a SELECT: how it would be read. Reads none. Errors as of `run`."""
        request = _SelectRequest(sql, list(params), source, last, check)
        scans: list[_FileScan] = []
        with self._session(request) as session, self._translated(scans, session):
            reads = self._plan(session, request, scans)
            self._bind_columns(session, reads)
            statement = reads.statement
            tables: list[ExplainedTable] = [
                explain_files(statement, scan.view, scan.chosen, session.file_filter(scan.view))
                for scan in reads.files
            ]
            tables += [
                explain_table(table, plan, session.table_filter(table)) for table, plan in reads.tables
            ]
            return explain_answer(tables)

    def interrupt(self) -> None:
        """Stop every statement that runs; their callers get NotReady."""
        for watch in list(self._watches):
            watch.stop(NotReady(reason="it is stopping"))

    def close(self) -> None:
        """End the processes that wait for a statement over this lake."""
        for owner in (self._owner, self._other_owner):
            self._pool.drop(owner)

    @contextmanager
    def _session(self, request: _SelectRequest) -> Iterator[StatementSession]:
        watch = Watch(self._pool.seconds, self._settings.timeout_seconds)
        owner = self._other_owner if self._watches else self._owner
        self._watches.add(watch)
        try:
            with open_statement(self._pool, owner, watch, request.params) as session:
                yield session
        finally:
            self._watches.discard(watch)

    @contextmanager
    def _translated(self, scans: list[_FileScan], session: StatementSession) -> Iterator[None]:
        """Translate errors of DuckDB and Arrow into Tidegate errors; their cause is a TextRefused."""
        try:
            yield
        except TextRefused as refused:
            session.check()
            raise self._translate(refused, scans) from refused
        except (EngineError, pa.ArrowException, OSError) as error:
            session.check()
            # It is about a text that we wrote, or about none.
            text_refused = TextRefused.of(error, "")
            text_refused.__cause__ = error
            raise self._translate(text_refused, scans) from text_refused

    def _run_once(self, request: _SelectRequest, scans: list[_FileScan]) -> QueryAnswer:
        with self._session(request) as session:
            with self._translated(scans, session):
                reads = self._plan(session, request, scans)
                if not reads.is_small:
                    self._bind_columns(session, reads)  # so that what cannot run reads nothing
            session.check()
            budget = ScanBudget(session.check, self._settings.memory_mb)
            warnings: list[str] = []
            for table, plan in reads.tables:
                scanned = table.scan(plan, budget)
                warnings += scanned.warnings
                session.show_rows(table, scanned.rows)
            with self._translated(scans, session):
                return self._collect(session, reads, request, warnings)

    def _plan(self, session: StatementSession, request: _SelectRequest, scans: list[_FileScan]) -> _ReadPlan:
        """Check the statement, look up its tables, create views of files, and plan how to read the rest."""
        statement = session.analyze(request.sql, self._analyses)
        if request.check is not None:
            request.check(frozenset(statement.tables))
        found = self._find(statement, request.source)
        for (namespace, name), uses in statement.tables.items():
            if namespace == LAKE:
                try:
                    scans.append(self._choose_files(session, name, pruning=uses == 1 and request.pruning))
                except TableNotFound as error:
                    raise self._unknown(f"{LAKE}.{name}", request.source) from error
                session.show_files(name, scans[-1].select)
        tables = [
            (table, table.access(_scan_request(session, request, statement, place, table)))
            for place, table in found.items()
        ]
        return _ReadPlan(statement, scans, tables)

    def _find(
        self, statement: AnalyzedSelect, source: VisibleTables | None
    ) -> dict[tuple[str, str], SourceTable]:
        """Look up every table that is not in the lake; TableNotFound names the nearest ones."""
        found: dict[tuple[str, str], SourceTable] = {}
        unknown = sorted(statement.unqualified)
        for place in statement.tables:
            table = None if source is None or place[0] == LAKE else source.find(*place)
            if table is not None:
                found[place] = table
            elif place[0] != LAKE:
                unknown.append(".".join(place))
        if unknown:
            raise self._unknown(unknown[0], source)
        return found

    def _unknown(self, full_name: str, source: VisibleTables | None) -> TableNotFound:
        own = [] if source is None else source.known()
        known = [f"{LAKE}.{name}" for name in self._lake.names()] + own
        return TableNotFound(table=shorten(full_name), known=near_names(full_name, known))

    def _choose_files(self, session: StatementSession, name: str, *, pruning: bool) -> _FileScan:
        """Return the newest version of a table and the files to read: without pruning, all of them."""
        view = self._lake.view(name)
        chosen = session.choose_files(view) if pruning else None
        return _FileScan(view, chosen, *scan_sql(view, chosen))

    def _collect(
        self, session: StatementSession, reads: _ReadPlan, request: _SelectRequest, warnings: Sequence[str]
    ) -> QueryAnswer:
        try:
            with _of_text(reads.statement):
                columns, rows = session.run(self._charge_answer())
        except TextRefused as refused:
            error = refused.__cause__
            if reads.is_narrow and isinstance(error, EngineError) and error.kind == "BinderException":
                raise _ColumnMissed from refused
            raise
        parts: list[pa.Table] = []
        row_count = 0
        with _of_text(reads.statement):
            for part in rows:
                row_count += part.num_rows
                if row_count > request.rows_max:
                    raise _too_large(f"{request.rows_max:,} rows", "query.rows_max")
                parts.append(part)
        return QueryAnswer(pa.concat_tables(parts), _type_names(columns, reads), warnings)

    def _charge_answer(self) -> Callable[[int], None]:
        """Return a counter of the bytes of an answer, which raises RequestInvalid above the limit."""
        left_bytes = self._settings.memory_mb * BYTES_PER_MB

        def charge(size_bytes: int) -> None:
            nonlocal left_bytes
            left_bytes -= size_bytes
            if left_bytes < 0:
                raise _too_large(f"{self._settings.memory_mb:,} MB", "query.memory_mb")

        return charge

    def _bind_columns(self, session: StatementSession, reads: _ReadPlan) -> None:
        for table, _ in reads.tables:
            session.show_columns(table)
        with _of_text(reads.statement):
            session.bind()

    def _translate(self, refused: TextRefused, scans: list[_FileScan]) -> Exception:
        """Return our error for one of DuckDB's: about a table's file, about memory, else about the text."""
        error, message = refused.__cause__, refused.message
        paths = [path for scan in scans for path in scan.paths]
        lost = [path for path in paths if not Path(path).exists()]
        named = [path for path in paths if path in message]
        if lost:
            return _FilesFailed(StorageCorrupt(place=lost[0], reason="the file is missing"))
        if named:
            return _FilesFailed(StorageCorrupt(place=named[0], reason=message.partition("\n")[0]))
        kind = error.kind if isinstance(error, EngineError) else ""
        if kind in _MEMORY_ERRORS or message.startswith("Out of Memory"):
            return QueryMemory(memory_mb=self._settings.memory_mb)
        return sql_invalid(refused, refused.text, refused.span)


@contextmanager
def _of_text(statement: AnalyzedSelect) -> Iterator[None]:
    """Raise errors inside as TextRefused, with the text of the statement."""
    try:
        yield
    except (EngineError, pa.ArrowException, OSError) as error:
        raise TextRefused.of(error, statement.sql) from error


def _scan_request(
    session: StatementSession,
    request: _SelectRequest,
    statement: AnalyzedSelect,
    place: tuple[str, str],
    table: SourceTable,
) -> ScanRequest:
    """Return what the statement uses of a table; a table that is named twice is read whole."""
    columns = statement.mentioned if request.narrow else None
    if statement.tables[place] != 1 or not request.pruning:
        return ScanRequest(columns)
    comparisons = session.comparisons(table)
    return ScanRequest(columns, comparisons, request.last if statement.tables.total() == 1 else None)


def _type_names(answer: ResultColumns, reads: _ReadPlan) -> list[str]:
    """Return DuckDB's names of the outputs' types, but JSON for an output that is a JSON column as it is."""
    outputs = reads.statement.outputs
    table = next(
        (t for t, _ in reads.tables if outputs and t.full_name == f"{outputs.namespace}.{outputs.name}"), None
    )
    if outputs is None or table is None:
        return answer.types
    names = [name.lower() for name in answer.names] if outputs.columns is None else outputs.columns
    jsons = {name.lower() for name, kind in table.columns if kind == ColumnType.JSON}
    return [
        "JSON" if kind == "VARCHAR" and name in jsons else kind
        for name, kind in zip(names, answer.types, strict=True)
    ]


class _FilesFailed(Exception):
    """A file could not be read; it may just have been replaced."""

    def __init__(self, error: TidegateError) -> None:
        super().__init__(str(error))
        self.error = error


class _ColumnMissed(Exception):
    """The statement does not bind to the columns that were read: it needs others, or is wrong."""


def _too_large(limit: str, setting: str) -> RequestInvalid:
    hint = f"Add a LIMIT or a WHERE, or raise {setting}."
    return RequestInvalid(reason=f"The answer has more than {limit}.", hint=hint)
