"""Everything of a running server that serves tables: definitions, rows, streams, live queries, statements."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.catalog.database import Catalog
from tidegate.catalog.paging import PageRequest
from tidegate.errors import TableChanged, TableNotFound
from tidegate.ingest.row_erasure import RowErasure
from tidegate.ingest.row_writer import RowWriter, StreamWriter
from tidegate.live.hub import LiveHub
from tidegate.model.access import Operation
from tidegate.model.changes import Changes
from tidegate.model.clock import Clock
from tidegate.model.ids import (
    MILLISECOND_BITS,
    SEQUENCE_BITS,
    SNOWFLAKE_EPOCH_US,
    SnowflakeSource,
    UuidSource,
)
from tidegate.model.quotas import TenantQuotas
from tidegate.model.tables import Table, TableKind
from tidegate.query.live import LiveSource
from tidegate.query.runner import StatementRunner
from tidegate.query.scans.system import audit_arrow, jobs_arrow, table_functions
from tidegate.query.scans.system_topics import topic_functions
from tidegate.query.statements.ddl import DdlPlanner
from tidegate.query.statements.dml import WritePlanner
from tidegate.query.statements.row_builder import DefaultSources
from tidegate.query.statements.select import SelectPlanner
from tidegate.query.statements.show import ShowPlanner
from tidegate.query.statements.topics import TopicStatements
from tidegate.query.step import Caller
from tidegate.query.table_access import TableAccess
from tidegate.server.runtime.tenant_lakes import TenantLakes
from tidegate.server.runtime.topics import TopicRuntime
from tidegate.settings import Settings
from tidegate.storage.engine import Engine
from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.storage.home.home import Home
from tidegate.streams.frame_reader import Damage
from tidegate.streams.store import StreamStore
from tidegate.tables.definitions import TableDirectory
from tidegate.tables.store import TableStore
from tidegate.telemetry.metrics import Metrics

if TYPE_CHECKING:
    import pyarrow as pa

# The newest events and jobs that a statement sees; the lists of the API have all of them.
RECORDS_MAX = 10_000
RECORDS_PAGE = 1_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StorageContext:
    """What tables share with the rest of the server."""

    settings: Settings
    clock: Clock
    engine: Engine
    committer: GroupCommitter
    catalog: Catalog
    lakes: TenantLakes
    ids: SnowflakeSource
    quotas: TenantQuotas


@dataclass(frozen=True, slots=True)
class TableRuntime:
    """Everything that endpoints use of tables."""

    directory: TableDirectory
    store: TableStore
    streams: StreamStore
    hub: LiveHub
    runner: StatementRunner
    live: LiveSource
    defining: DdlPlanner
    erasure: RowErasure

    def stream_tables(self) -> list[Table]:
        """Return the STREAM tables of all tenants."""
        return [table for table in self.directory if table.kind == TableKind.STREAM]

    def close(self) -> None:
        """Write what is buffered, and close the files."""
        self.hub.close()
        self.streams.close()


class _LiveFollower:
    """Passes rows to live subscriptions once they are durable."""

    def __init__(self, hub: LiveHub) -> None:
        self._hub = hub

    def wants(self, table: Table) -> bool:
        return self._hub.watches(table.id)

    def stage(self, staging: Staging, changes: Changes) -> None:
        """Add nothing: subscriptions have nothing on the disk."""

    def durable(self, changes: Changes) -> None:
        self._hub.publish(changes)


class _LiveTableListener:
    """Ends live subscriptions of a table that was dropped or altered."""

    def __init__(self, hub: LiveHub) -> None:
        self._hub = hub

    def dropped(self, table: Table) -> None:
        self._hub.forget(table.id, TableNotFound(table=table.full_name, known="", hint="It was dropped."))

    def altered(self, table: Table) -> None:
        self._hub.forget(table.id, TableChanged(table=table.full_name))


def first_seq_at(time_us: int) -> int:
    """Return the number before the first change of a server that starts at a time; it stays below 2^53."""
    moment_ms = max(0, time_us - SNOWFLAKE_EPOCH_US) // 1_000
    return (moment_ms & ((1 << MILLISECOND_BITS) - 1)) << SEQUENCE_BITS


def open_tables(
    context: StorageContext,
    topics: TopicRuntime,
    hub: LiveHub,
    home: Home,
    random_bytes: Callable[[int], bytes],
    metrics: Metrics,
) -> TableRuntime:
    """Open everything that serves tables."""
    clock, engine, committer = context.clock, context.engine, context.committer
    directory = TableDirectory(engine, context.quotas)
    store = TableStore(engine, directory)
    storage = context.settings.storage
    streams = StreamStore(
        home.tenant_streams_path,
        clock,
        context.ids,
        context.settings.streams,
        free_bytes_min=storage.free_bytes_min,
    )
    streams.on_damage = _damage_reporter(metrics)
    metrics.stream_writers.set_function(streams.open_writers)
    sources = DefaultSources(clock, context.ids, UuidSource(clock, random_bytes))
    follower = _LiveFollower(hub)

    def system_rows(caller: Caller) -> Mapping[str, Callable[[], pa.Table]]:
        rows = table_functions(directory, store, streams, caller.tenant)
        fed = topic_functions(topics, directory, caller.tenant)
        return {**rows, **fed, **_records(context.catalog, caller)}

    access = TableAccess(directory, store, streams, engine)
    selecting = SelectPlanner(access, context.lakes.query, system_rows, sources)
    topics.router.prepare(directory)
    rows = RowWriter(store, [topics.router, follower])
    appends = StreamWriter(streams, [follower], metrics.count_stream_append)
    writing = WritePlanner(directory, rows, appends, selecting, committer, sources)
    statements = TopicStatements(
        topics, directory, metrics.count_published, lambda table: store.counts(table).rows
    )
    watchers = _LiveTableListener(hub)
    defining = DdlPlanner(directory, streams, committer, sources, watchers, statements.stage_drop_routes)
    showing = ShowPlanner(directory, _lake_names(context.lakes))
    runner = StatementRunner(defining, showing, writing, selecting, statements)
    live = LiveSource(runner, access, committer, hub.begin)
    committer.when_reopened(directory.reload)
    committer.when_reopened(hub.forget_all)
    _forget_dropped_streams(directory, streams, home)
    erasure = RowErasure((directory, store, streams), rows, appends, engine, committer)
    return TableRuntime(directory, store, streams, hub, runner, live, defining, erasure)


def _forget_dropped_streams(directory: TableDirectory, streams: StreamStore, home: Home) -> None:
    """Remove the folders of streams that were dropped right before a crash."""
    for tenant in home.stream_tenants():
        stream_tables = [table for table in directory.of(tenant) if table.kind == TableKind.STREAM]
        streams.drop_others(tenant, stream_tables)


def _damage_reporter(metrics: Metrics) -> Callable[[Damage], None]:
    def report(damage: Damage) -> None:
        metrics.corrupt_frames.inc()
        log.error("damaged frame file=%s position=%d reason=%s", damage.file, damage.position, damage.reason)

    return report


def _lake_names(lakes: TenantLakes) -> Callable[[str], Sequence[str]]:
    return lambda tenant: lakes.lake(tenant).names()


def _records(catalog: Catalog, caller: Caller) -> dict[str, Callable[[], pa.Table]]:
    """Return the tables of the catalog; the caller's role is checked when one is read."""

    def audit() -> pa.Table:
        caller.check(Operation.AUDIT_LIST)
        return audit_arrow(_newest(lambda page: catalog.audit.list(caller.tenant, page)))

    def jobs() -> pa.Table:
        caller.check(Operation.JOB_LIST)
        return jobs_arrow(_newest(lambda page: catalog.jobs.list(caller.tenant, page)))

    return {"audit": audit, "jobs": jobs}


def _newest(listed: Callable[[PageRequest], Any]) -> list[Any]:
    found: list[Any] = []
    after: str | None = None
    while len(found) < RECORDS_MAX:
        page = listed(PageRequest(after, RECORDS_PAGE))
        found.extend(page.rows)
        after = page.next
        if after is None:
            break
    return found


def new_hub(settings: Settings, clock: Clock, start_us: int, loop: asyncio.AbstractEventLoop) -> LiveHub:
    """Return the live hub of a server that starts at a time."""
    return LiveHub(settings.live, clock, first_seq_at(start_us), loop)
