"""SHOW and DESCRIBE: takes a parsed statement, gives the step that tells what tables there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.errors import NamespaceNotFound, TableNotFound
from tidegate.model.access import Operation
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import DefaultKind, Row, Table, TableColumn
from tidegate.query.steps import Caller, Outcome, Step, found
from tidegate.query.system_tables import SYSTEM_SCHEMAS
from tidegate.sql.statements import DescribeTable, ShowTables, TableName
from tidegate.tables.definitions import TableDirectory

_TEXT, _BOOLEAN = ColumnType.TEXT, ColumnType.BOOLEAN
# The columns of DESCRIBE TABLE.
DESCRIBED = [
    ("column", _TEXT),
    ("type", _TEXT),
    ("required", _BOOLEAN),
    ("default", _TEXT),
    ("key", _BOOLEAN),
    ("indexes", _TEXT),
]


class Showing:
    """Plans statements that tell of tables; any thread may ask."""

    def __init__(self, tables: TableDirectory, lake_names: Callable[[str], Sequence[str]]) -> None:
        self._tables = tables
        self._lake_names = lake_names

    def show_tables(self, statement: ShowTables, caller: Caller) -> Step:
        """Plan SHOW TABLES: our own and those of the lake."""
        caller.check(Operation.TABLE_LIST)

        def work() -> Outcome:
            namespace = statement.namespace
            if namespace not in (None, "lake") and namespace not in self._tables.namespaces(caller.tenant):
                raise NamespaceNotFound(namespace=namespace)
            rows: list[Row] = [
                (table.namespace, table.name, str(table.kind)) for table in self._tables.of(caller.tenant)
            ]
            rows += [("lake", name, "LAKE") for name in self._lake_names(caller.tenant)]
            chosen = [row for row in rows if namespace in (None, row[0])]
            return found([("namespace", _TEXT), ("table", _TEXT), ("kind", _TEXT)], sorted(chosen))

        return Step("show", work=work, is_short=True)

    def show_namespaces(self, caller: Caller) -> Step:
        """Plan SHOW NAMESPACES."""
        caller.check(Operation.TABLE_LIST)

        def work() -> Outcome:
            tables = self._tables.of(caller.tenant)
            rows: list[Row] = [
                (name, sum(table.namespace == name for table in tables))
                for name in self._tables.namespaces(caller.tenant)
            ]
            return found([("namespace", _TEXT), ("tables", ColumnType.BIGINT)], rows)

        return Step("show", work=work, is_short=True)

    def describe(self, statement: DescribeTable, caller: Caller) -> Step:
        """Plan DESCRIBE TABLE of one of our own tables, or of a system table."""
        caller.check(Operation.TABLE_LIST)
        return Step("show", work=lambda: self._described(statement.table, caller), is_short=True)

    def _described(self, name: TableName, caller: Caller) -> Outcome:
        if name.namespace == "system":
            if name.name not in SYSTEM_SCHEMAS:
                known = ", ".join(f"system.{known}" for known in SYSTEM_SCHEMAS)
                raise TableNotFound(table=name.full_name, known=known)
            kinds = SYSTEM_SCHEMAS[name.name]
            return found(
                DESCRIBED, [(name, str(kind), False, None, False, None) for name, kind in kinds.items()]
            )
        table = self._tables.get(caller.tenant, name.namespace, name.name)
        return found(DESCRIBED, [_described(table, column) for column in table.columns])


def _described(table: Table, column: TableColumn) -> Row:
    default = column.default
    text = None
    if default is not None:
        text = str(default.value) if default.kind == DefaultKind.VALUE else f"{default.kind.upper()}()"
    names = [index.name for index in table.indexes if column.name in index.columns]
    is_key = column.name in table.primary_key
    return (column.name, column.type_text, column.required, text, is_key, ", ".join(names) or None)
