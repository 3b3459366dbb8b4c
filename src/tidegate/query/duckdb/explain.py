"""EXPLAIN: how each table of a statement is read, as an answer of one row for each table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from tidegate.query.duckdb.analysis import AnalyzedSelect
from tidegate.query.duckdb.result import QueryAnswer
from tidegate.query.scans.source import ScanPlan, SourceTable, chosen_columns
from tidegate.storage.lake.tables import TableView


class ExplainedTable(NamedTuple):
    """How one table is read: its access path, its columns, and what DuckDB tests in each row."""

    table: str
    kind: str
    access: str
    columns: str
    filters: str


def explain_files(
    statement: AnalyzedSelect, view: TableView, chosen: list[int] | None, filters: str
) -> ExplainedTable:
    """Return how a lake table is read; `chosen` is None for all files."""
    count = view.file_count if chosen is None else len(chosen)
    columns = chosen_columns((column.name for column in view.columns), statement.mentioned)
    access = f"{count} of {view.file_count} files"
    return ExplainedTable(f"lake.{view.name}", "LAKE", access, ", ".join(columns), filters)


def explain_table(table: SourceTable, plan: ScanPlan, filters: str) -> ExplainedTable:
    """Return how a table is read."""
    return ExplainedTable(table.full_name, table.kind, plan.description, ", ".join(plan.columns), filters)


def explain_answer(tables: Sequence[ExplainedTable]) -> QueryAnswer:
    """Return the answer of an EXPLAIN."""
    names = ExplainedTable._fields
    columns: Sequence[Sequence[str]] = list(zip(*tables, strict=True)) if tables else [()] * len(names)
    table = pa.table([pa.array(values, pa.string()) for values in columns], names=list(names))
    return QueryAnswer(table, ["VARCHAR"] * len(names))
