"""The system tables about tables, windows, audit events and jobs, as Arrow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.errors import TableChanged, TidegateError
from tidegate.model.schemas import Column, ColumnType, Schema
from tidegate.model.tables import Default, DefaultKind, Table, TableKind
from tidegate.model.values import to_arrow
from tidegate.query.scans.source import ScanBudget, ScanPlan, ScanRequest, ScanResult, chosen_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.catalog.audit import AuditEvent
    from tidegate.catalog.jobs import Job
    from tidegate.streams.store import StreamStore
    from tidegate.streams.table_log import WindowStats
    from tidegate.tables.definitions import TableDirectory
    from tidegate.tables.store import TableStore

NAMESPACE = "system"

log = logging.getLogger(__name__)

_TEXT, _INT, _BIGINT = ColumnType.TEXT, ColumnType.INT, ColumnType.BIGINT
_TIME, _BOOLEAN, _JSON = ColumnType.TIMESTAMP, ColumnType.BOOLEAN, ColumnType.JSON

SYSTEM_SCHEMAS: Mapping[str, Mapping[str, ColumnType]] = {
    "tables": {
        **{"namespace": _TEXT, "name": _TEXT, "kind": _TEXT, "columns": _INT, "primary_key": _TEXT},
        **{"ttl_seconds": _BIGINT, "durability": _TEXT, "rows": _BIGINT, "size_bytes": _BIGINT},
        **{"indexes": _TEXT, "created": _TIME},
    },
    "columns": {
        **{"namespace": _TEXT, "table": _TEXT, "name": _TEXT, "ordinal": _INT, "type": _TEXT},
        **{"required": _BOOLEAN, "default": _TEXT, "primary_key": _BOOLEAN},
    },
    "streams": {
        **{"namespace": _TEXT, "table": _TEXT, "window": _TEXT, "start": _TIME, "stop": _TIME},
        **{"files": _INT, "size_bytes": _BIGINT, "writers": _INT},
    },
    "namespaces": {"name": _TEXT, "tables": _INT},
    "topics": {
        **{"topic": _TEXT, "partitions": _INT, "messages": _BIGINT, "size_bytes": _BIGINT},
        **{"retention_seconds": _BIGINT, "retention_max_bytes": _BIGINT, "sources": _INT, "groups": _INT},
        **{"dead_letters": _BIGINT, "dedup_seconds": _BIGINT, "created": _TIME},
    },
    "topic_sources": {
        **{"topic": _TEXT, "source": _TEXT, "op": _TEXT, "where": _TEXT, "partition_by": _TEXT},
        **{"payload": _TEXT, "preview": _INT, "created": _TIME},
    },
    "topic_groups": {
        **{"topic": _TEXT, "group": _TEXT, "lag": _BIGINT, "in_flight": _BIGINT, "waiting": _BIGINT},
        **{"missed": _BIGINT, "members": _INT, "created": _TIME},
        **{"delivered": _BIGINT, "redelivered": _BIGINT, "acked": _BIGINT, "nacked": _BIGINT},
    },
    "topic_offsets": {
        **{"topic": _TEXT, "group": _TEXT, "partition": _INT, "start": _BIGINT, "end": _BIGINT},
        **{"position": _BIGINT, "next": _BIGINT, "lag": _BIGINT, "in_flight": _BIGINT, "waiting": _BIGINT},
        **{"last_delivered_offset": _BIGINT, "last_delivered": _TIME},
        **{"last_acked_offset": _BIGINT, "last_acked": _TIME},
    },
    "audit": {
        **{"id": _BIGINT, "at": _TIME, "user": _TEXT, "action": _TEXT, "subject": _TEXT},
        **{"outcome": _TEXT, "request_id": _TEXT, "details": _JSON},
    },
    "jobs": {
        **{"id": _TEXT, "kind": _TEXT, "subject": _TEXT, "state": _TEXT, "progress": ColumnType.DOUBLE},
        **{"attempts": _INT, "owner": _TEXT, "created_by": _TEXT},
        **{"created": _TIME, "started": _TIME, "finished": _TIME},
    },
}


class SystemTable:
    """A system table; its rows are made when a statement names it."""

    def __init__(self, name: str, rows: Callable[[], pa.Table]) -> None:
        self.full_name = f"{NAMESPACE}.{name}"
        self.kind = "SYSTEM"
        self.compared: frozenset[str] = frozenset()
        self._rows = rows()
        self.columns = tuple((c.name, c.type) for c in Schema.from_arrow(self._rows.schema).columns)

    def access(self, request: ScanRequest) -> ScanPlan:
        columns = chosen_columns((name for name, _ in self.columns), request.columns)
        return ScanPlan("whole table", columns, is_small=True)

    def scan(self, plan: ScanPlan, budget: ScanBudget) -> ScanResult:
        rows = self._rows.select(list(plan.columns))
        budget.charge(rows.nbytes)
        return ScanResult(rows)


def table_functions(
    tables: TableDirectory, store: TableStore, streams: StreamStore, tenant: str
) -> dict[str, Callable[[], pa.Table]]:
    """Return the system tables about the tables of a tenant, each made when it is read."""

    def windows(table: Table) -> Sequence[WindowStats] | None:
        """Return the windows of a stream; None where its folder is damaged, so that the others are shown."""
        try:
            return streams.describe(table)
        except TableChanged:
            return []  # dropped since the list was made
        except TidegateError as problem:
            log.error(
                "stream unreadable table=%s error_code=%s error=%s", table.full_name, problem.code, problem
            )
            return None

    def counts(table: Table) -> tuple[int | None, int | None]:
        if table.kind == TableKind.STREAM:
            found = windows(table)
            return None, None if found is None else sum(window.size_bytes for window in found)
        rows, size_bytes = store.counts(table)
        return rows, size_bytes

    def described() -> pa.Table:
        found = [table for table in tables.of(tenant) if table.kind == TableKind.STREAM]
        return streams_arrow([(table, windows(table)) for table in found])

    return {
        "tables": lambda: tables_arrow([(table, *counts(table)) for table in tables.of(tenant)]),
        "columns": lambda: columns_arrow(tables.of(tenant)),
        "streams": described,
        "namespaces": lambda: namespaces_arrow(tables.namespaces(tenant), tables.of(tenant)),
    }


def tables_arrow(tables: Iterable[tuple[Table, int | None, int | None]]) -> pa.Table:
    """Return `system.tables` of tables with their rows and bytes; None where these are not counted."""
    return system_arrow(
        "tables",
        [
            (
                *(table.namespace, table.name, str(table.kind), len(table.columns)),
                *(", ".join(table.primary_key) or None, table.ttl_seconds),
                str(table.durability) if table.kind == TableKind.STREAM else None,
                *(rows, size_bytes, _indexes(table), table.created_us),
            )
            for table, rows, size_bytes in tables
        ],
    )


def columns_arrow(tables: Iterable[Table]) -> pa.Table:
    """Return `system.columns`, without those that every stream has."""
    return system_arrow(
        "columns",
        [
            (
                *(table.namespace, table.name, column.name, ordinal, str(column.type), column.required),
                *(_default(column.default), column.name in table.primary_key),
            )
            for table in tables
            for ordinal, column in enumerate(table.columns, start=1)
        ],
    )


def streams_arrow(streams: Iterable[tuple[Table, Sequence[WindowStats] | None]]) -> pa.Table:
    """Return `system.streams`: one row for each window of each stream, as `StreamStore.describe` returns it.

    A stream whose windows cannot be read (None) has one row with its name.
    """
    rows: list[tuple[Any, ...]] = []
    for table, windows in streams:
        if windows is None:
            rows.append((table.namespace, table.name, *[None] * 6))
            continue
        rows += [
            (
                *(table.namespace, table.name, window.name, window.start_ms * 1000),
                (window.start_ms + window.duration_ms) * 1000,
                *(window.files, window.size_bytes, window.writers),
            )
            for window in windows
        ]
    return system_arrow("streams", rows)


def namespaces_arrow(names: Iterable[str], tables: Iterable[Table]) -> pa.Table:
    """Return `system.namespaces` with the number of tables in each."""
    homes = [table.namespace for table in tables]
    return system_arrow("namespaces", [(name, homes.count(name)) for name in names])


def audit_arrow(events: Iterable[AuditEvent]) -> pa.Table:
    """Return `system.audit`."""
    return system_arrow(
        "audit",
        [
            (
                *(event.id, event.at_us, event.user, event.action, event.subject, event.outcome),
                *(event.request_id, msgspec.json.encode(event.details).decode()),
            )
            for event in events
        ],
    )


def jobs_arrow(jobs: Iterable[Job]) -> pa.Table:
    """Return `system.jobs`."""
    return system_arrow(
        "jobs",
        [
            (
                *(job.id, job.kind, job.subject, job.state, job.progress, job.attempts),
                *(job.owner, job.created_by, job.created_us, job.started_us, job.finished_us),
            )
            for job in jobs
        ],
    )


def system_arrow(name: str, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Return the rows of a system table as Arrow."""
    import pyarrow as pa

    kinds = SYSTEM_SCHEMAS[name]
    schema = pa.schema([Column(column, kind).to_arrow() for column, kind in kinds.items()])
    turned: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(kinds)
    arrays = [to_arrow(values, kind) for values, kind in zip(turned, kinds.values(), strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _indexes(table: Table) -> str | None:
    """Return the indexes as text, such as `by_room (room, at)`; one that is not ready is marked."""
    shown = [
        f"{index.name} ({', '.join(index.columns)}){'' if index.ready else ' (being filled)'}"
        for index in table.indexes
    ]
    return ", ".join(shown) or None


def _default(default: Default | None) -> str | None:
    if default is None:
        return None
    if default.kind != DefaultKind.VALUE:
        return f"{default.kind.name}()"
    return msgspec.json.encode(default.value).decode()
