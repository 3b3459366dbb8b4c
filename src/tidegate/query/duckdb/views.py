"""What a session lends to DuckDB: a view for each table of the statement, over files or over Arrow rows.

Views have the names that statements use. The rows behind them are registered under names that no statement
can say (`statement.LENT_PREFIX`), and that no other session sees. UUID columns are UUID in DuckDB, JSON
columns are text, as they are in the lake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.model.schemas import ColumnType
from tidegate.query.duckdb.analysis import LENT_PREFIX
from tidegate.query.duckdb.names import SYSTEM, SYSTEM_INSIDE
from tidegate.query.duckdb.session import quote_name
from tidegate.query.scans.source import SourceTable


class Lending:
    """The views of one session."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self._schemas = {"lake"}  # every session has this one
        self._lent: dict[str, str] = {}
        self._views: dict[str, str] = {}

    def lend_files(self, name: str, select: str) -> None:
        """Make a view of a lake table."""
        self._cursor.execute(f"CREATE VIEW lake.{quote_name(name)} AS {select}")

    def lend_shape(self, table: SourceTable) -> None:
        """Make a view of a table's columns, without rows, to bind a statement to."""
        schema = pa.schema([(name, kind.to_arrow()) for name, kind in table.columns])
        self._lend(table, schema.empty_table(), table.columns)

    def lend_rows(self, table: SourceTable, rows: pa.Table) -> None:
        """Make a view of some columns of a table, in place of one of its shape."""
        kinds = dict(table.columns)
        self._lend(table, rows, [(name, kinds[name]) for name in rows.column_names])

    def _lend(self, table: SourceTable, rows: pa.Table, columns: Sequence[tuple[str, ColumnType]]) -> None:
        lent = self._lent.setdefault(table.full_name, f"{LENT_PREFIX}{len(self._lent) + 1}")
        namespace, _, name = table.full_name.partition(".")
        schema = SYSTEM_INSIDE if namespace == SYSTEM else namespace
        if schema not in self._schemas:
            self._cursor.execute(f"CREATE SCHEMA {quote_name(schema)}")
            self._schemas.add(schema)
        self._cursor.register(lent, rows)
        outputs = ", ".join(_output(column, kind) for column, kind in columns)
        place = f"{quote_name(schema)}.{quote_name(name)}"
        sql = f"CREATE OR REPLACE VIEW {place} AS SELECT {outputs} FROM {lent}"  # noqa: S608 - all are quoted
        if self._views.get(lent) != sql:
            self._cursor.execute(sql)
            self._views[lent] = sql


def _output(name: str, kind: ColumnType) -> str:
    quoted = quote_name(name)
    return f"CAST({quoted} AS UUID) AS {quoted}" if kind == ColumnType.UUID else quoted
