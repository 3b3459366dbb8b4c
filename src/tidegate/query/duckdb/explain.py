"""EXPLAIN: how each table of a statement is read, as an answer of one row a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from tidegate.query.duckdb.analysis import Statement
from tidegate.query.duckdb.pushdown import BoundTable, bound_table, find_filter
from tidegate.query.duckdb.result import QueryAnswer
from tidegate.query.scans.lake import bound_table as bound_files
from tidegate.query.scans.source import Plan, SourceTable, chosen_columns
from tidegate.storage.lake.tables import TableView


class Told(NamedTuple):
    """How one table is read: which way, which columns, and what DuckDB tests in each row that came."""

    table: str
    kind: str
    access: str
    columns: str
    filters: str


def told_files(statement: Statement, view: TableView, chosen: list[int] | None) -> Told:
    """Tell which files of a lake table are read: None for all."""
    count = view.file_count if chosen is None else len(chosen)
    columns = chosen_columns((column.name for column in view.columns), statement.mentioned)
    access = f"{count} of {view.file_count} files"
    return Told(
        f"lake.{view.name}", "LAKE", access, ", ".join(columns), _filters(statement, bound_files(view))
    )


def told_table(statement: Statement, table: SourceTable, plan: Plan) -> Told:
    """Tell how a table is read."""
    filters = _filters(statement, bound_table(table))
    return Told(table.full_name, table.kind, plan.words, ", ".join(plan.columns), filters)


def explained(told: Sequence[Told]) -> QueryAnswer:
    """Return the answer of an EXPLAIN."""
    names = Told._fields
    columns: Sequence[Sequence[str]] = list(zip(*told, strict=True)) if told else [()] * len(names)
    table = pa.table([pa.array(values, pa.string()) for values in columns], names=list(names))
    return QueryAnswer(table, ["VARCHAR"] * len(names))


def _filters(statement: Statement, table: BoundTable) -> str:
    return find_filter(statement.sql, table, statement.parameter_count)
