"""The views of one session of DuckDB: one for each table of the statement, over files or over Arrow rows.

Views have the names that statements use. The rows behind them are registered under names that no statement
can write (`analysis.ROWS_PREFIX`), and that no other session sees. UUID columns are UUID in DuckDB, JSON
columns are text, as they are in the lake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.model.schemas import ColumnType
from tidegate.query.duckdb.analysis import ROWS_PREFIX
from tidegate.query.duckdb.names import SYSTEM, SYSTEM_INSIDE
from tidegate.query.quoting import quote_name
from tidegate.query.scans.source import TableHeader


class SessionViews:
    """The views of one session."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self._schemas = {"lake"}  # every session has this one
        self._registered: dict[str, str] = {}
        self._views: dict[str, str] = {}

    def show_files(self, name: str, select: str) -> None:
        """Create the view of a lake table."""
        self._cursor.execute(f"CREATE VIEW lake.{quote_name(name)} AS {select}")

    def show_columns(self, table: TableHeader) -> None:
        """Create the view of a table's columns, without rows, to bind a statement to."""
        schema = pa.schema([(name, kind.to_arrow()) for name, kind in table.columns])
        self._create(table, schema.empty_table(), table.columns)

    def show_rows(self, table: TableHeader, rows: pa.Table) -> None:
        """Create the view of some columns of a table, in place of the one without rows."""
        kinds = dict(table.columns)
        self._create(table, rows, [(name, kinds[name]) for name in rows.column_names])

    def _create(self, table: TableHeader, rows: pa.Table, columns: Sequence[tuple[str, ColumnType]]) -> None:
        registered = self._registered.setdefault(table.full_name, f"{ROWS_PREFIX}{len(self._registered) + 1}")
        namespace, _, name = table.full_name.partition(".")
        schema = SYSTEM_INSIDE if namespace == SYSTEM else namespace
        if schema not in self._schemas:
            self._cursor.execute(f"CREATE SCHEMA {quote_name(schema)}")
            self._schemas.add(schema)
        self._cursor.register(registered, rows)
        outputs = ", ".join(_output(column, kind) for column, kind in columns)
        view = f"{quote_name(schema)}.{quote_name(name)}"
        sql = f"CREATE OR REPLACE VIEW {view} AS SELECT {outputs} FROM {registered}"  # noqa: S608 - quoted
        if self._views.get(registered) != sql:
            self._cursor.execute(sql)
            self._views[registered] = sql


def _output(name: str, kind: ColumnType) -> str:
    quoted = quote_name(name)
    return f"CAST({quoted} AS UUID) AS {quoted}" if kind == ColumnType.UUID else quoted
