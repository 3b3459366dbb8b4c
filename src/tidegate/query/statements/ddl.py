"""The planner of CREATE, ALTER and DROP for namespaces, tables and indexes.

The definition is committed first; what follows from it (stream files, the filling of an index, live
subscribers) comes after, and is begun again after a crash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from tidegate.errors import (
    ColumnExists,
    IndexExists,
    NamespaceExists,
    NamespaceNotFound,
    SqlInvalid,
    SqlUnsupported,
    TableExists,
    TableNotFound,
    ValueInvalid,
)
from tidegate.model.access import Operation
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import (
    Default,
    DefaultKind,
    Durability,
    Table,
    TableColumn,
    TableIndex,
    TableKind,
    check_namespace,
)
from tidegate.model.values import coerce, to_json
from tidegate.query.statements.row_builder import DefaultSources, checked_call, place_of
from tidegate.query.step import Caller, Errors, StatementResult, Step, definition_step
from tidegate.sql.statements import (
    AlterAddColumn,
    AlterSet,
    ColumnSpec,
    CreateIndex,
    CreateNamespace,
    CreateTable,
    DropIndex,
    DropNamespace,
    DropTable,
    FunctionCall,
    Literal,
    Option,
    TableName,
)
from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.streams.store import StreamStore
from tidegate.tables.definitions import TableDirectory
from tidegate.tables.validation import NewTable

_TEXT, _BOOLEAN = ColumnType.TEXT, ColumnType.BOOLEAN
_OPTIONS = ("ttl_seconds", "durability")
T = TypeVar("T")


class Watchers(Protocol):
    """The observer of altered and dropped tables; called on the committer's thread."""

    def dropped(self, table: Table) -> None: ...

    def altered(self, table: Table) -> None: ...


class DdlPlanner:
    """Plans statements about tables; any thread may ask."""

    def __init__(
        self,
        tables: TableDirectory,
        streams: StreamStore,
        committer: GroupCommitter,
        sources: DefaultSources,
        watchers: Watchers,
        drop_routes: Callable[[Staging, Table], Sequence[str]] = lambda _staging, _table: (),
    ) -> None:
        self._tables = tables
        self._streams = streams
        self._committer = committer
        self._sources = sources
        self._watchers = watchers
        # Drops the routes of a table, in the same write, and returns warnings about them.
        self._drop_routes = drop_routes

    def create_namespace(self, statement: CreateNamespace, caller: Caller) -> Step:
        """Plan CREATE NAMESPACE."""
        caller.check(Operation.TABLE_CREATE)
        return self._change(
            lambda staging: self._tables.stage_create_namespace(staging, caller.tenant, statement.name),
            Operation.TABLE_CREATE,
            f"namespace/{statement.name}",
            allowed=NamespaceExists if statement.if_not_exists else (),
        )

    def drop_namespace(self, statement: DropNamespace, caller: Caller) -> Step:
        """Plan DROP NAMESPACE."""
        caller.check(Operation.TABLE_DROP)
        return self._change(
            lambda staging: self._tables.stage_drop_namespace(staging, caller.tenant, statement.name),
            Operation.TABLE_DROP,
            f"namespace/{statement.name}",
            allowed=NamespaceNotFound if statement.if_exists else (),
        )

    def create_table(self, statement: CreateTable, caller: Caller) -> Step:
        """Plan CREATE TABLE."""
        caller.check(Operation.TABLE_CREATE)
        check_namespace(statement.table.namespace)
        ttl_seconds, durability = _stream_options(statement.options, statement.kind)
        new = NewTable(
            namespace=statement.table.namespace,
            name=statement.table.name,
            kind=statement.kind,
            columns=tuple(self._column(spec) for spec in statement.columns),
            primary_key=statement.primary_key,
            ttl_seconds=ttl_seconds,
            durability=durability,
        )

        def change(staging: Staging) -> Table:
            return self._tables.stage_create(staging, caller.tenant, new, self._sources.clock.now_us())

        def open_stream(table: Table) -> StatementResult:
            if table.kind == TableKind.STREAM:
                self._streams.open_table(table)
            return StatementResult()

        allowed = TableExists if statement.if_not_exists else ()
        return self._change(
            change, Operation.TABLE_CREATE, _subject(statement.table), open_stream, allowed=allowed
        )

    def add_column(self, statement: AlterAddColumn, caller: Caller) -> Step:
        """Plan ALTER TABLE … ADD COLUMN."""
        caller.check(Operation.TABLE_CHANGE)
        column = self._with_missing(self._column(statement.column))

        def change(staging: Staging) -> Table:
            altered = self._tables.stage_add_column(staging, self._get(statement.table, caller), column)
            staging.when_durable(lambda: self._watchers.altered(altered))
            return altered

        allowed = ColumnExists if statement.if_not_exists else ()
        return self._change(change, Operation.TABLE_CHANGE, _subject(statement.table), allowed=allowed)

    def set_options(self, statement: AlterSet, caller: Caller) -> Step:
        """Plan ALTER TABLE … SET (…)."""
        caller.check(Operation.TABLE_CHANGE)

        def change(staging: Staging) -> Table:
            table = self._get(statement.table, caller)
            ttl_seconds, durability = _stream_options(statement.options, table.kind)
            chosen = durability if "durability" in statement.options else None
            now_us, seconds = self._sources.clock.now_us(), ttl_seconds or table.ttl_seconds or 0
            return self._tables.stage_set_ttl(staging, table, seconds, chosen, now_us)

        return self._change(change, Operation.TABLE_CHANGE, _subject(statement.table))

    def drop_table(self, statement: DropTable, caller: Caller) -> Step:
        """Plan DROP TABLE."""
        caller.check(Operation.TABLE_DROP)

        def change(staging: Staging) -> tuple[Table, Sequence[str]]:
            table = self._tables.stage_drop(staging, self._get(statement.table, caller))
            warnings = self._drop_routes(staging, table)
            staging.when_durable(lambda: self._watchers.dropped(table))
            return table, warnings

        def drop_stream(dropped: tuple[Table, Sequence[str]]) -> StatementResult:
            table, warnings = dropped
            if table.kind == TableKind.STREAM:
                self._streams.drop(table)
            return StatementResult(warnings=warnings)

        allowed = (TableNotFound, NamespaceNotFound) if statement.if_exists else ()
        return self._change(
            change, Operation.TABLE_DROP, _subject(statement.table), drop_stream, allowed=allowed
        )

    def create_index(self, statement: CreateIndex, caller: Caller) -> Step:
        """Plan CREATE INDEX; it is used once every row is in it."""
        caller.check(Operation.TABLE_CHANGE)

        def change(staging: Staging) -> Table:
            table = self._get(statement.table, caller)
            return self._tables.stage_add_index(staging, table, statement.name, statement.columns)

        def fill(table: Table) -> StatementResult:
            self.fill_indexes(table)
            return StatementResult()

        allowed = IndexExists if statement.if_not_exists else ()
        return self._change(change, Operation.TABLE_CHANGE, _subject(statement.table), fill, allowed=allowed)

    def fill_indexes(self, table: Table) -> None:
        """Add older rows to indexes that are not ready; blocking, and may be called again.

        An index is dropped where a row is too long for it: it would never be ready.
        """
        for index in table.indexes:
            if not index.ready:
                self._fill(table, index)

    def _fill(self, table: Table, index: TableIndex) -> None:
        after: bytes | None = b""
        try:
            while after is not None:
                after = self._commit(self._filling(table.id, index.id, after))
        except ValueInvalid:
            self._commit(lambda staging: self._tables.stage_drop_index(staging, table, index.name))
            raise

    def _filling(self, table_id: int, index_id: int, after: bytes) -> Callable[[Staging], bytes | None]:
        def change(staging: Staging) -> bytes | None:
            table = self._tables.by_id(table_id)
            if table is None or all(index.id != index_id for index in table.indexes):
                return None  # dropped meanwhile
            return self._tables.stage_fill_index(staging, table, index_id, after)

        return change

    def drop_index(self, statement: DropIndex, caller: Caller) -> Step:
        """Plan DROP INDEX."""
        caller.check(Operation.TABLE_CHANGE)

        def change(staging: Staging) -> None:
            table = self._get(statement.table, caller)
            if statement.if_exists and all(index.name != statement.name for index in table.indexes):
                return
            self._tables.stage_drop_index(staging, table, statement.name)

        return self._change(change, Operation.TABLE_CHANGE, _subject(statement.table))

    def _get(self, name: TableName, caller: Caller) -> Table:
        if name.namespace in ("lake", "system"):
            raise SqlUnsupported(
                reason=f"Tables of {name.namespace} are not made, changed or dropped by statements.",
                hint="Pipelines write the lake." if name.namespace == "lake" else "They are read-only.",
            )
        return self._tables.get(caller.tenant, name.namespace, name.name)

    def _change(
        self,
        change: Callable[[Staging], T],
        operation: Operation,
        subject: str,
        then: Callable[[T], StatementResult] | None = None,
        *,
        allowed: Errors = (),
    ) -> Step:
        return definition_step(self._committer, change, (operation, subject), then, allowed=allowed)

    def _commit(self, change: Callable[[Staging], T]) -> T:
        return self._committer.submit(change).result()

    def _column(self, spec: ColumnSpec) -> TableColumn:
        column = TableColumn(spec.name, str(spec.type), spec.required)
        if spec.default is None:
            return column
        simple = spec.default.simple
        if isinstance(simple, FunctionCall):
            checked_call(simple, column, self._sources, 1)
            default = Default(simple.kind)
        elif isinstance(simple, Literal):
            value = coerce(simple.value, spec.type, place_of(column))
            if value is None:
                return column
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueInvalid(place=place_of(column), reason="a default is a finite number")
            default = Default(DefaultKind.VALUE, to_json(value, spec.type))
        else:
            raise SqlUnsupported(
                reason=f"The default of column '{spec.name}' is an expression.",
                hint="A default is a constant, NOW(), SNOWFLAKE_ID() or UUID_V7().",
            )
        return TableColumn(spec.name, str(spec.type), spec.required, default)

    def _with_missing(self, column: TableColumn) -> TableColumn:
        """Return a new column with the value of older rows: its default, computed once."""
        default = column.default
        if default is None:
            return column
        if default.kind == DefaultKind.VALUE:
            missing = default.value
        elif default.kind == DefaultKind.NOW:
            value = self._sources.many(default.kind, column.type, 1)[0]
            missing = to_json(value, column.type)
        else:
            raise SqlUnsupported(
                reason=f"Column '{column.name}': all old rows would have the same {default.kind.upper()}().",
                hint="Add it without a default, or with a constant.",
            )
        return TableColumn(column.name, column.type_text, column.required, default, missing)


def _subject(table: TableName) -> str:
    return f"table/{table.full_name}"


def _stream_options(options: Mapping[str, Option], kind: TableKind) -> tuple[int | None, Durability]:
    """Return time to live and durability; refuse what is unknown or out of place."""
    for name in options:
        if name not in _OPTIONS:
            raise SqlInvalid(reason=f"there is no option '{name}'.", hint=f"Options: {', '.join(_OPTIONS)}.")
        if kind != TableKind.STREAM:
            raise SqlInvalid(reason=f"'{name}' belongs to STREAM tables; this is a {kind} table.", hint="")
    ttl_seconds = options.get("ttl_seconds")
    if ttl_seconds is not None and (type(ttl_seconds) is not int or ttl_seconds <= 0):
        reason = f"ttl_seconds is a whole number above 0, not {ttl_seconds!r}."
        raise SqlInvalid(reason=reason, hint="Such as WITH (ttl_seconds = 60).")
    durability = options.get("durability", Durability.BUFFERED.value)
    if durability not in tuple(Durability):
        reason = f"durability is 'buffered' or 'fsync', not {durability!r}."
        raise SqlInvalid(reason=reason, hint="Such as WITH (durability = 'fsync').")
    return ttl_seconds, Durability(str(durability))
