"""The planner of SELECT and EXPLAIN.

A point read by primary key and the last rows of a stream are read from their store. Everything else runs in
DuckDB over what the caller may see: the lake of the tenant, SHARED tables, the caller's own rows of USER and
STREAM tables, and system tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tidegate.errors import SqlInvalid, SqlUnsupported, ValueInvalid
from tidegate.model.access import Operation
from tidegate.model.tables import Row, Table, TableKind
from tidegate.query.duckdb.engine import LakeQuery
from tidegate.query.duckdb.result import QueryAnswer
from tidegate.query.scans.visible_tables import VisibleTables
from tidegate.query.statements.row_builder import DefaultSources, check_column, simple_value
from tidegate.query.statements.row_edits import Edits
from tidegate.query.step import Caller, StatementResult, Step, check_params, result_of_answer, result_of_rows
from tidegate.query.table_access import TableAccess
from tidegate.sql.statements import (
    Delete,
    Explain,
    Literal,
    Param,
    Point,
    Select,
    Simple,
    TableName,
    Update,
)

if TYPE_CHECKING:
    import pyarrow as pa

# LAST reads no more than an answer may hold.
LAST_ROWS_MAX = 1_000_000
# Without a number the word would be an alias, and all rows would be read.
_LAST_ALONE = re.compile(r"\bFROM\s+[\w\"]+\s*\.\s*[\w\"]+\s+LAST\s*$", re.IGNORECASE)
_SYSTEM_OPERATIONS = {"audit": Operation.AUDIT_LIST, "jobs": Operation.JOB_LIST}
SystemRows = Callable[[Caller], Mapping[str, "Callable[[], pa.Table]"]]


class SelectPlanner:
    """Plans statements that read; any thread may ask."""

    def __init__(
        self,
        tables: TableAccess,
        lake_of: Callable[[str], LakeQuery],
        system_rows: SystemRows,
        sources: DefaultSources,
    ) -> None:
        self._tables = tables
        self._lake_of = lake_of
        self._system_rows = system_rows
        self._sources = sources

    def select(self, statement: Select, params: Sequence[Any], caller: Caller) -> Step:
        """Plan a SELECT."""
        check_params(statement.parameter_count, params)
        last = None if statement.last is None else last_count(statement.last, params)
        if statement.point is not None:
            short = self._short(statement.point, last, params, caller)
            if short is not None:
                return Step("select", work=short, is_short=True)
        self.check_early(statement.tables, caller)
        if statement.last is not None:
            self._check_streams(statement, caller)
        elif _LAST_ALONE.search(statement.text):
            raise SqlInvalid(reason="LAST takes a number of rows.", hint="Such as LAST 100.")
        only = last if statement.last_alone else None
        sql = statement.query.sql
        return Step("select", work=lambda: result_of_answer(self.run(sql, params, caller, last=only)))

    def check_early(self, named: Sequence[TableName], caller: Caller) -> None:
        """Refuse a query whose caller may read nothing of it, before DuckDB parses its text.

        `named` is what the parser has found. What DuckDB finds is checked again, and decides.
        """
        if not caller.may(Operation.SQL_QUERY):
            self._checker(caller)(frozenset((table.namespace.lower(), table.name.lower()) for table in named))

    def explain(self, statement: Explain, params: Sequence[Any], caller: Caller) -> Step:
        """Plan an EXPLAIN of a query, or of how the rows of an UPDATE or DELETE are found."""
        check_params(statement.parameter_count, params)
        inner, last, written = statement.statement, None, None
        if isinstance(inner, Select):
            self.check_early(inner.tables, caller)
            sql = inner.query.sql
            if inner.last is not None and inner.last_alone:
                last = last_count(inner.last, params)
        elif isinstance(inner, (Update, Delete)):
            caller.check(Operation.SQL_WRITE)
            written = self._tables.directory.get(caller.tenant, inner.table.namespace, inner.table.name)
            assigned = dict(inner.assignments) if isinstance(inner, Update) else None
            edits = Edits(written, assigned, inner.where, params, self._sources)
            sql, params = edits.find_sql(), edits.params
        else:
            raise SqlUnsupported(reason="EXPLAIN takes a SELECT, an UPDATE or a DELETE.")

        def work() -> StatementResult:
            with closing(self._source(caller)) as source:
                lake = self._lake_of(caller.tenant)
                check = self._checker(caller, written, is_bare=written is not None)
                return result_of_answer(lake.explain(sql, params, source=source, last=last, check=check))

        return Step("select", work=work)

    def run(
        self,
        sql: str,
        params: Sequence[Any],
        caller: Caller,
        *,
        last: int | None = None,
        rows_max: int | None = None,
        written: Table | None = None,
        is_bare: bool = False,
    ) -> QueryAnswer:
        """Return the rows of a SELECT; blocking.

        The right to read the table that is `written` was checked before; a bare expression names no table.
        """
        check = self._checker(caller, written, is_bare=is_bare or written is not None)
        with closing(self._source(caller)) as source:
            lake = self._lake_of(caller.tenant)
            return lake.run(sql, params, source=source, last=last, check=check, rows_max=rows_max)

    def values(self, expressions: Sequence[str], params: Sequence[Any], caller: Caller) -> list[Any]:
        """Return the values of expressions without columns; a SELECT inside one is checked like any other."""
        if not expressions:
            return []
        sql = f"SELECT {', '.join(f'({expression})' for expression in expressions)}"
        table = self.run(sql, params, caller, is_bare=True).arrow()
        if (table.num_rows, table.num_columns) != (1, len(expressions)):
            raise SqlInvalid(
                reason="an expression in VALUES gives one value.", hint="INSERT … SELECT adds several rows."
            )
        try:
            return [column[0].as_py() for column in table.columns]
        except (OverflowError, ValueError) as problem:
            reason = f"a value of the list is out of range: {problem}."
            raise SqlInvalid(reason=reason, hint="Times are in the years 1 to 9999.") from problem

    def _source(self, caller: Caller) -> VisibleTables:
        return VisibleTables(self._tables, caller, self._system_rows(caller))

    def _short(
        self, point: Point, last: int | None, params: Sequence[Any], caller: Caller
    ) -> Callable[[], StatementResult] | None:
        """Return the work of a point read or of the last rows of a stream; None where DuckDB has to do it."""
        table = self._tables.directory.find(caller.tenant, point.table.namespace, point.table.name)
        if table is None:
            return None
        columns = table.shown_columns
        chosen = _chosen(table, point.columns)
        if chosen is None:
            return None
        self._check_table(table, caller)
        user = caller.owner_of(table)
        shown = [columns[position] for position in chosen]

        def projected(rows: Sequence[Row]) -> list[Row]:
            return [tuple(row[position] for position in chosen) for row in rows]

        if table.kind == TableKind.STREAM:
            if point.equals or last is None:
                return None

            def read_last() -> StatementResult:
                rows = self._tables.streams.read(table, user, last=last)
                return result_of_rows(shown, projected(rows.rows), rows.warnings)

            return read_last
        key = None if last is not None else key_of(table, point.equals, params, self._sources)
        if key is None:
            return None

        def read_one() -> StatementResult:
            row = self._tables.store.get(self._tables.engine, table, user, key)
            return result_of_rows(shown, projected([] if row is None else [row]))

        return read_one

    def _check_streams(self, statement: Select, caller: Caller) -> None:
        find = self._tables.directory.find
        found = [find(caller.tenant, name.namespace, name.name) for name in statement.tables]
        streams = [table for table in found if table is not None and table.kind == TableKind.STREAM]
        if len(streams) == 1:
            return
        if streams:
            hint = "Write each part as (SELECT … FROM namespace.table LAST n)."
            raise SqlUnsupported(reason=f"LAST reads one STREAM table, not {len(streams)}.", hint=hint)
        names = ", ".join(name.full_name for name in statement.tables)
        known = [table for table in found if table is not None]
        if known or all(name.namespace in ("lake", "system") for name in statement.tables):
            reason = f"LAST reads STREAM tables{f', and {names} is none' if names else ''}."
            raise SqlUnsupported(reason=reason, hint="Write ORDER BY … DESC LIMIT n.")

    def _checker(
        self, caller: Caller, written: Table | None = None, *, is_bare: bool = False
    ) -> Callable[[frozenset[tuple[str, str]]], None]:
        def check(names: frozenset[tuple[str, str]]) -> None:
            if not names and not is_bare:
                caller.check(Operation.SQL_QUERY)
            for namespace, name in sorted(names):
                if written is not None and (namespace, name) == (written.namespace, written.name):
                    continue
                if namespace == "system":
                    caller.check(_SYSTEM_OPERATIONS.get(name, Operation.TABLE_LIST))
                    continue
                table = self._tables.directory.find(caller.tenant, namespace, name)
                if table is None:
                    caller.check(Operation.SQL_QUERY)
                else:
                    self._check_table(table, caller)

        return check

    def _check_table(self, table: Table, caller: Caller) -> None:
        caller.check(Operation.SQL_READ_OWN if table.is_scoped else Operation.SQL_QUERY)


def last_count(simple: Simple, params: Sequence[Any]) -> int:
    """Return the n of LAST n."""
    value = params[simple.number - 1] if isinstance(simple, Param) else getattr(simple, "value", None)
    if type(value) is not int or not 1 <= value <= LAST_ROWS_MAX:
        raise SqlInvalid(
            reason=f"LAST takes a whole number from 1 to {LAST_ROWS_MAX}.", hint="Such as LAST 100."
        )
    return value


def _chosen(table: Table, names: tuple[str, ...] | None) -> list[int] | None:
    """Return the positions of the named columns; None where one is not a plain column."""
    known = [name.lower() for name, _ in table.shown_columns]
    if names is None:
        return list(range(len(known)))
    lower = [name.lower() for name in names]
    if len(set(lower)) < len(lower) or not set(lower) <= set(known):
        return None
    return [known.index(name) for name in lower]


# Values that a column of a type holds as they are, so that equality is the same here and in DuckDB.
_EXACT: dict[str, tuple[type, ...]] = {
    "BOOLEAN": (bool,),
    "INT": (int,),
    "BIGINT": (int,),
    "DECIMAL": (int, Decimal),
    "DOUBLE": (int, float, Decimal),
    "TEXT": (str,),
    "UUID": (str,),
    "DATE": (str,),
    "TIMESTAMP": (str,),
    "BYTES": (bytes,),
}


def key_of(
    table: Table, equals: Mapping[str, Simple] | None, params: Sequence[Any], sources: DefaultSources
) -> Row | None:
    """Return the primary key that equalities name, or None where they are anything else."""
    if equals is None or not table.primary_key or len(equals) != len(table.primary_key):
        return None
    known = {check_column(table, name).name: simple for name, simple in equals.items()}
    if set(known) != set(table.primary_key):
        return None
    if not all(_is_exact(simple, table, name, params) for name, simple in known.items()):
        return None
    try:
        return tuple(
            simple_value(known[name], check_column(table, name), params, sources)
            for name in table.primary_key
        )
    except ValueInvalid:
        return None  # DuckDB compares values that the column cannot hold, or refuses them


def _is_exact(simple: Simple, table: Table, name: str, params: Sequence[Any]) -> bool:
    """Return whether a value means the same to the column as to DuckDB: NULL equals nothing, 1 is not '1'."""
    if not isinstance(simple, (Literal, Param)):
        return False
    value = params[simple.number - 1] if isinstance(simple, Param) else simple.value
    return type(value) in _EXACT.get(check_column(table, name).type.name, ())
