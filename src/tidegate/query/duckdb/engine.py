"""SELECT in DuckDB, over the lake and over tables.

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

from tidegate.errors import NotReady, RequestInvalid, SqlInvalid, StorageCorrupt, TableNotFound, TidegateError
from tidegate.model.names import shorten
from tidegate.model.schemas import ColumnType
from tidegate.query.duckdb.analysis import AnalyzedSelect, read_statement, sql_invalid
from tidegate.query.duckdb.error_positions import TextRefused
from tidegate.query.duckdb.explain import ExplainedTable, explain_answer, explain_files, explain_table
from tidegate.query.duckdb.result import QueryAnswer
from tidegate.query.duckdb.session import LakeDatabase, QueryLimits, Watch
from tidegate.query.duckdb.views import SessionViews
from tidegate.query.scans.lake import prune, scan_sql
from tidegate.query.scans.pushdown import find_comparisons
from tidegate.query.scans.source import BYTES_PER_MB, ScanBudget, ScanPlan, ScanRequest, SourceTable
from tidegate.query.scans.visible_tables import VisibleTables
from tidegate.storage.lake.tables import Lake, TableView
from tidegate.tables.validation import near_names

BATCH_ROWS = 10_000  # rows between two checks of the limits
# A writer may replace and remove files while a statement runs; it is run again on the newer version.
ATTEMPTS_MAX = 3
LAKE = "lake"

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
    views: SessionViews

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

    def __init__(self, lake: Lake, settings: QueryLimits | None = None) -> None:
        self._lake = lake
        self._settings = settings or QueryLimits()
        self._database = LakeDatabase(lake.root, self._settings)
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
        StorageCorrupt (a file of the table is damaged or missing), and the error of the context's Stopper.
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
        with self._session() as (cursor, watch), self._translated(scans, watch):
            reads = self._plan(cursor, request, scans)
            self._bind_columns(cursor, reads, request.params)
            statement = reads.statement
            tables: list[ExplainedTable] = [
                explain_files(statement, scan.view, scan.chosen) for scan in reads.files
            ]
            tables += [explain_table(statement, table, plan) for table, plan in reads.tables]
            return explain_answer(tables)

    def interrupt(self) -> None:
        """Stop every statement that runs; their callers get NotReady."""
        for watch in list(self._watches):
            watch.stop(NotReady(reason="it is stopping"))

    def close(self) -> None:
        """Release the database; statements that run meanwhile fail."""
        self._database.close()

    @contextmanager
    def _session(self) -> Iterator[tuple[Any, Watch]]:
        with self._database.session() as cursor, Watch(cursor, self._settings.timeout_seconds) as watch:
            self._watches.add(watch)
            try:
                yield cursor, watch
            finally:
                self._watches.discard(watch)

    @contextmanager
    def _translated(self, scans: list[_FileScan], watch: Watch) -> Iterator[None]:
        """Translate errors of DuckDB and Arrow into Tidegate errors; their cause is a TextRefused."""
        import duckdb

        try:
            yield
        except TextRefused as refused:
            watch.check()
            raise self._translate(refused, scans) from refused
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            watch.check()
            # It is about a text that we wrote, or about none.
            text_refused = TextRefused(error, "")
            text_refused.__cause__ = error
            raise self._translate(text_refused, scans) from text_refused

    def _run_once(self, request: _SelectRequest, scans: list[_FileScan]) -> QueryAnswer:
        with self._session() as (cursor, watch):
            with self._translated(scans, watch):
                reads = self._plan(cursor, request, scans)
                if not reads.is_small:
                    self._bind_columns(cursor, reads, request.params)  # so that what cannot run reads nothing
            watch.check()
            budget = ScanBudget(watch.check, self._settings.memory_mb)
            warnings: list[str] = []
            for table, plan in reads.tables:
                scanned = table.scan(plan, budget)
                warnings += scanned.warnings
                reads.views.show_rows(table, scanned.rows)
            with self._translated(scans, watch):
                watch.check()
                return self._collect(cursor, reads, request, watch, warnings)

    def _plan(self, cursor: Any, request: _SelectRequest, scans: list[_FileScan]) -> _ReadPlan:
        """Check the statement, look up its tables, create views of files, and plan how to read the rest."""
        statement = read_statement(cursor, request.sql, request.params)
        if request.check is not None:
            request.check(frozenset(statement.tables))
        found = self._find(statement, request.source)
        views = SessionViews(cursor)
        for (namespace, name), uses in statement.tables.items():
            if namespace == LAKE:
                params = request.params if uses == 1 and request.pruning else None
                try:
                    scans.append(self._choose_files(cursor, statement, name, params))
                except TableNotFound as error:
                    raise self._unknown(f"{LAKE}.{name}", request.source) from error
                views.show_files(name, scans[-1].select)
        tables = [
            (table, table.access(_scan_request(cursor, request, statement, place, table)))
            for place, table in found.items()
        ]
        return _ReadPlan(statement, scans, tables, views)

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

    def _choose_files(
        self, cursor: Any, statement: AnalyzedSelect, name: str, params: list[Any] | None
    ) -> _FileScan:
        """Return the newest version of a table and the files to read: without parameters, all of them."""
        view = self._lake.view(name)
        chosen = None if params is None else prune(cursor, view, statement.sql, params)
        return _FileScan(view, chosen, *scan_sql(view, chosen))

    def _collect(
        self, cursor: Any, reads: _ReadPlan, request: _SelectRequest, watch: Watch, warnings: Sequence[str]
    ) -> QueryAnswer:
        with _of_text(reads.statement):
            return self._collected(self._bind(cursor, reads, request.params), reads, request, watch, warnings)

    def _collected(
        self, result: Any, reads: _ReadPlan, request: _SelectRequest, watch: Watch, warnings: Sequence[str]
    ) -> QueryAnswer:
        type_names = _type_names([str(kind) for kind in result.types], result.columns, reads)
        batches, row_count, size_bytes = [], 0, 0
        with result.to_arrow_reader(BATCH_ROWS) as reader:
            for batch in reader:
                watch.check()
                row_count += batch.num_rows
                size_bytes += batch.nbytes
                if row_count > request.rows_max:
                    raise _too_large(f"{request.rows_max:,} rows", "query.rows_max")
                if size_bytes > self._settings.memory_mb * BYTES_PER_MB:
                    raise _too_large(f"{self._settings.memory_mb:,} MB", "query.memory_mb")
                batches.append(batch)
            return QueryAnswer(pa.Table.from_batches(batches, schema=reader.schema), type_names, warnings)

    def _bind_columns(self, cursor: Any, reads: _ReadPlan, params: list[Any]) -> None:
        for table, _ in reads.tables:
            reads.views.show_columns(table)
        with _of_text(reads.statement):
            _bound(cursor, reads.statement, params)

    def _bind(self, cursor: Any, reads: _ReadPlan, params: list[Any]) -> Any:
        import duckdb

        try:
            return _bound(cursor, reads.statement, params)
        except duckdb.BinderException as error:
            if reads.is_narrow:
                raise _ColumnMissed from error
            raise

    def _translate(self, refused: TextRefused, scans: list[_FileScan]) -> Exception:
        """Return our error for one of DuckDB's: about a table's file, about memory, else about the text."""
        import duckdb

        error, message = refused.__cause__, refused.message
        paths = [path for scan in scans for path in scan.paths]
        lost = [path for path in paths if not Path(path).exists()]
        named = [path for path in paths if path in message]
        if lost:
            return _FilesFailed(StorageCorrupt(place=lost[0], reason="the file is missing"))
        if named:
            return _FilesFailed(StorageCorrupt(place=named[0], reason=message.partition("\n")[0]))
        if isinstance(error, duckdb.OutOfMemoryException) or message.startswith("Out of Memory"):
            hint = "Ask for less at a time, or raise query.memory_mb."
            return SqlInvalid(
                reason=f"it needs more than {self._settings.memory_mb} MB of memory.", hint=hint
            )
        return sql_invalid(refused, refused.text, refused.span)


@contextmanager
def _of_text(statement: AnalyzedSelect) -> Iterator[None]:
    """Raise errors inside as TextRefused, with the text of the statement."""
    import duckdb

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise TextRefused(error, statement.sql) from error


def _scan_request(
    cursor: Any,
    request: _SelectRequest,
    statement: AnalyzedSelect,
    place: tuple[str, str],
    table: SourceTable,
) -> ScanRequest:
    """Return what the statement uses of a table; a table that is named twice is read whole."""
    columns = statement.mentioned if request.narrow else None
    if statement.tables[place] != 1 or not request.pruning:
        return ScanRequest(columns)
    comparisons = find_comparisons(cursor, statement.sql, table, request.params)
    return ScanRequest(columns, comparisons, request.last if statement.tables.total() == 1 else None)


def _bound(cursor: Any, statement: AnalyzedSelect, params: list[Any]) -> Any:
    """Return the statement, bound and not yet run; its rows are streamed, those of `execute` are copied."""
    import duckdb

    try:
        return cursor.sql(statement.sql, params=params)
    except (duckdb.BinderException, duckdb.CatalogException):
        cursor.execute(statement.sql, params)  # fails in the same way, with the position in the text
        raise


def _type_names(types: list[str], columns: Sequence[str], reads: _ReadPlan) -> list[str]:
    """Return DuckDB's names of the outputs' types, but JSON for an output that is a JSON column as it is."""
    outputs = reads.statement.outputs
    table = next(
        (t for t, _ in reads.tables if outputs and t.full_name == f"{outputs.namespace}.{outputs.name}"), None
    )
    if outputs is None or table is None:
        return types
    names = [name.lower() for name in columns] if outputs.columns is None else outputs.columns
    jsons = {name.lower() for name, kind in table.columns if kind == ColumnType.JSON}
    return [
        "JSON" if kind == "VARCHAR" and name in jsons else kind
        for name, kind in zip(names, types, strict=True)
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
