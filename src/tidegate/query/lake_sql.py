"""SELECT over the lake: the files come from the Delta log, the rows from DuckDB. No Spark takes part.

A statement sees one version of each table that it names: the newest when it began. Order of the steps:
check the text, look up the tables, drop files that cannot match, make a view of the rest, run under a
watch, collect the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.errors import (
    NotReady,
    RequestInvalid,
    SqlInvalid,
    StorageCorrupt,
    TableNotFound,
    TidegateError,
)
from tidegate.query.answer import QueryAnswer
from tidegate.query.database import LakeDatabase, QueryLimits, Watch, quote_name
from tidegate.query.lake_scan import scan_sql
from tidegate.query.pruning import prune
from tidegate.query.statement import Statement, read_statement, sql_invalid
from tidegate.storage.lake import Lake, TableView

__all__ = ["LakeQuery", "QueryAnswer", "QueryLimits"]

BATCH_ROWS = 10_000  # rows between two looks at the limits
# A writer may replace and remove files while a statement runs; it is run again on the newer version.
ATTEMPTS_MAX = 3
BYTES_PER_MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Scan:
    view: TableView
    select: str
    paths: list[str]


class LakeQuery:
    """Runs statements over one lake; every method may be called from any thread."""

    def __init__(self, lake: Lake, settings: QueryLimits | None = None) -> None:
        self._lake = lake
        self._settings = settings or QueryLimits()
        self._database = LakeDatabase(lake.root, self._settings)
        self._watches: set[Watch] = set()

    def run(self, sql: str, params: Sequence[Any] = (), *, pruning: bool = True) -> QueryAnswer:
        """Give the rows of one SELECT; blocks until they are all here or a limit is met.

        Raises SqlInvalid, SqlUnsupported, TableNotFound, RequestInvalid (too many rows), QueryTimeout and
        StorageCorrupt (a file of the table is damaged or missing).
        """
        for attempt in range(1, ATTEMPTS_MAX + 1):
            scans: list[_Scan] = []
            try:
                return self._run_once(sql, list(params), scans, pruning)
            except _FilesFailed as failed:
                moved = any(self._lake.view(scan.view.name).version != scan.view.version for scan in scans)
                if not moved or attempt == ATTEMPTS_MAX:
                    raise failed.error from failed.__cause__
        raise StorageCorrupt(place=str(self._lake.root), reason="files vanish as fast as they are read")

    def interrupt(self) -> None:
        """Stop every statement that runs; their callers get NotReady."""
        for watch in list(self._watches):
            watch.stop(NotReady(reason="it is stopping"))

    def close(self) -> None:
        """Release the database; statements that run meanwhile fail."""
        self._database.close()

    def _run_once(self, sql: str, params: list[Any], scans: list[_Scan], pruning: bool) -> QueryAnswer:
        import duckdb

        with self._database.session() as cursor, Watch(cursor, self._settings.timeout_seconds) as watch:
            self._watches.add(watch)
            try:
                statement = read_statement(cursor, sql, params)
                self._refuse_strangers(statement)
                for name, uses in statement.tables.items():
                    scan = self._choose_files(
                        cursor, statement, name, params if uses == 1 and pruning else None
                    )
                    scans.append(scan)
                    cursor.execute(f"CREATE VIEW lake.{quote_name(name)} AS {scan.select}")
                watch.check()
                return self._collect(cursor, statement, params, watch)
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                watch.check()
                raise self._translate(error, sql, scans) from error
            finally:
                self._watches.discard(watch)

    def _refuse_strangers(self, statement: Statement) -> None:
        for name in sorted(statement.strangers):
            known = ", ".join(f"lake.{table}" for table in self._lake.names()) or "none yet"
            raise TableNotFound(table=name, known=known)

    def _choose_files(self, cursor: Any, statement: Statement, name: str, params: list[Any] | None) -> _Scan:
        """Give the newest version of a table and the files to read: without parameters, all of them."""
        view = self._lake.view(name)
        chosen = None if params is None else prune(cursor, view, statement.sql, params)
        return _Scan(view, *scan_sql(view, chosen))

    def _collect(self, cursor: Any, statement: Statement, params: list[Any], watch: Watch) -> QueryAnswer:
        result = self._bind(cursor, statement, params)
        type_names = [str(kind) for kind in result.types]
        batches, row_count, size_bytes = [], 0, 0
        with result.to_arrow_reader(BATCH_ROWS) as reader:
            for batch in reader:
                watch.check()
                row_count += batch.num_rows
                size_bytes += batch.nbytes
                if row_count > self._settings.rows_max:
                    raise _too_large(f"{self._settings.rows_max:,} rows", "query.rows_max")
                if size_bytes > self._settings.memory_mb * BYTES_PER_MB:
                    raise _too_large(f"{self._settings.memory_mb:,} MB", "query.memory_mb")
                batches.append(batch)
            return QueryAnswer(pa.Table.from_batches(batches, schema=reader.schema), type_names)

    def _bind(self, cursor: Any, statement: Statement, params: list[Any]) -> Any:
        """Give the statement, bound and not yet run; its rows are streamed, those of `execute` are copied."""
        import duckdb

        try:
            return cursor.sql(statement.sql, params=params)
        except (duckdb.BinderException, duckdb.CatalogException):
            cursor.execute(statement.sql, params)  # fails in the same way, and says where in the text
            raise

    def _translate(self, error: Exception, sql: str, scans: list[_Scan]) -> Exception:
        """Give our error for one of DuckDB's: about a table's file, about memory, else about the text."""
        import duckdb

        message = str(error)
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
        return sql_invalid(error, sql)


class _FilesFailed(Exception):
    """A file could not be read; it may just have been replaced."""

    def __init__(self, error: TidegateError) -> None:
        super().__init__(str(error))
        self.error = error


def _too_large(limit: str, setting: str) -> RequestInvalid:
    hint = f"Add a LIMIT or a WHERE, or raise {setting}."
    return RequestInvalid(reason=f"The answer has more than {limit}.", hint=hint)
