"""The tables that one statement of one caller may read beside the lake: tables, streams and system tables.

All engine tables are of one moment: a snapshot is taken when the first of them is looked up, and their
definitions are read from it too, so that rows, columns and indexes belong together. Close it soon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidegate.model.tables import TableKind
from tidegate.query.scans.source import SourceTable
from tidegate.query.scans.streams import StreamTable
from tidegate.query.scans.system import NAMESPACE, SystemTable
from tidegate.query.scans.tables import EngineTable
from tidegate.query.step import Caller
from tidegate.query.table_access import TableAccess
from tidegate.storage.engine import Snapshot
from tidegate.tables.definitions import decode_table
from tidegate.tables.keys import definition_key

if TYPE_CHECKING:
    import pyarrow as pa


class VisibleTables:
    """The tables of one tenant as one caller sees them, for one statement on one thread."""

    def __init__(
        self, tables: TableAccess, caller: Caller, system: Mapping[str, Callable[[], pa.Table]]
    ) -> None:
        self._tables = tables
        self._caller = caller
        self._system = system
        self._snapshot: Snapshot | None = None

    def find(self, namespace: str, name: str) -> SourceTable | None:
        """Return a table by its name in small letters; None where there is none."""
        if namespace == NAMESPACE:
            rows = self._system.get(name)
            return None if rows is None else SystemTable(name, rows)
        snapshot = self._frozen()
        table = self._tables.directory.find(self._caller.tenant, namespace, name)
        if table is None:
            return None
        if table.kind == TableKind.STREAM:
            return StreamTable(table, self._caller.owner_of(table), self._tables.streams)
        key = definition_key(table.id)
        stored = snapshot.get(key)
        if stored is None:
            return None
        owner = self._caller.owner_of(table)
        return EngineTable(decode_table(key, stored), owner, self._tables.store, snapshot)

    def known(self) -> list[str]:
        """Return the full names of all tables."""
        own = [table.full_name for table in self._tables.directory.of(self._caller.tenant)]
        return own + [f"{NAMESPACE}.{name}" for name in sorted(self._system)]

    def close(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    def _frozen(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = self._tables.engine.snapshot()
        return self._snapshot
