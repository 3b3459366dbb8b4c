"""A home without a server: tables, streams and a lake in one place, and ways to fill and ask them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.model.access import Principal, Role
from tidegate.model.ids import SnowflakeSource
from tidegate.model.tables import Row, Table, TableColumn, TableKind
from tidegate.query.duckdb.engine import Check, LakeQuery
from tidegate.query.duckdb.result import QueryAnswer
from tidegate.query.duckdb.session import QueryLimits
from tidegate.query.scans.system import table_functions
from tidegate.query.scans.visible_tables import VisibleTables
from tidegate.query.step import Caller
from tidegate.query.table_access import TableAccess
from tidegate.settings.sections import StreamSettings
from tidegate.storage.engine import Engine
from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.storage.lake.tables import Lake
from tidegate.storage.memory import MemoryEngine
from tidegate.streams.store import StreamStore
from tidegate.tables.definitions import TableDirectory
from tidegate.tables.store import TableStore
from tidegate.tables.validation import NewTable
from tidegate.testing.clock import ManualClock

TTL_SECONDS = 7 * 86_400


def reader(user: str = "alice", tenant: str = "default") -> Caller:
    """Return someone who reads."""
    return Caller(Principal(tenant, user, frozenset({Role.READER}), "t", tenant))


class Bench:
    """Holders and a query over them; `close` it."""

    def __init__(self, folder: Path, limits: QueryLimits | None = None, engine: Engine | None = None) -> None:
        self.clock = ManualClock()
        self.engine = engine or MemoryEngine()
        self.committer = GroupCommitter(self.engine, sync=False)
        self.tables = TableDirectory(self.engine)
        self.store = TableStore(self.engine, self.tables)
        ids = SnowflakeSource(self.clock)
        self.streams = StreamStore(
            lambda tenant: folder / tenant / "streams", self.clock, ids, StreamSettings(), free_bytes_min=0
        )
        self.access = TableAccess(self.tables, self.store, self.streams, self.engine)
        self.root = folder / "lake"
        self.root.mkdir(parents=True, exist_ok=True)
        self.query = LakeQuery(Lake(self.root), limits or QueryLimits(timeout_seconds=120, memory_mb=256))

    def close(self) -> None:
        self.query.close()
        self.streams.close()
        self.committer.close()
        self.engine.close()

    def commit(self, stage: Callable[[Staging], Any]) -> Any:
        return self.committer.submit(stage).result()

    def create(
        self,
        full_name: str,
        kind: TableKind,
        columns: Mapping[str, str],
        key: Sequence[str] = (),
        *,
        tenant: str = "default",
    ) -> Table:
        """Make a table, and its namespace unless it is there."""
        namespace, _, name = full_name.partition(".")
        if namespace not in self.tables.namespaces(tenant):
            self.commit(lambda staging: self.tables.stage_create_namespace(staging, tenant, namespace))
        made = tuple(TableColumn(column, type_text) for column, type_text in columns.items())
        ttl = TTL_SECONDS if kind == TableKind.STREAM else None
        new = NewTable(namespace, name, kind, made, tuple(key), ttl)
        return self.commit(  # type: ignore[no-any-return]
            lambda staging: self.tables.stage_create(staging, tenant, new, self.clock.now_us())
        )

    def insert(self, table: Table, rows: Sequence[Row], user: str = "alice") -> None:
        if table.kind == TableKind.STREAM:
            self.streams.append(table, user, rows)
            return
        owner = "" if table.kind == TableKind.SHARED else user
        self.commit(
            lambda staging: self.store.stage_insert(
                staging, table, owner, rows, upsert=True, wants_changes=False
            )
        )

    def index(self, table: Table, name: str, columns: Sequence[str], *, fill: bool = True) -> Table:
        """Add an index, and bring all rows into it."""
        made: Table = self.commit(
            lambda staging: self.tables.stage_add_index(staging, table, name, tuple(columns))
        )
        after: bytes | None = b""
        number = made.indexes[-1].id
        while fill and after is not None:
            after = self.commit(
                partial(self.tables.stage_fill_index, table=made, index_id=number, after=after)
            )
        found = self.tables.by_id(table.id)
        assert found is not None
        return found

    def source(self, caller: Caller | None = None, **system: Callable[[], pa.Table]) -> VisibleTables:
        who = caller or reader()
        rows = {**table_functions(self.tables, self.store, self.streams, who.tenant), **system}
        return VisibleTables(self.access, who, rows)

    def ask(
        self,
        sql: str,
        *params: Any,
        caller: Caller | None = None,
        last: int | None = None,
        check: Check | None = None,
        pruning: bool = True,
    ) -> QueryAnswer:
        with closing(self.source(caller)) as source:
            return self.query.run(sql, params, source=source, last=last, check=check, pruning=pruning)

    def rows(self, sql: str, *params: Any, caller: Caller | None = None) -> list[list[Any]]:
        return self.ask(sql, *params, caller=caller).json_rows()

    def explain(self, sql: str, *params: Any, last: int | None = None) -> list[dict[str, Any]]:
        with closing(self.source()) as source:
            answer = self.query.explain(sql, params, source=source, last=last)
        names = [column["name"] for column in answer.columns]
        return [dict(zip(names, row, strict=True)) for row in answer.json_rows()]
