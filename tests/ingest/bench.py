"""Tables that feed topics, on either engine, with what reads both back."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tidegate.ingest.change_feed import TopicRouter, check_route
from tidegate.ingest.row_writer import RowWriter
from tidegate.model.changes import Op
from tidegate.model.ids import SnowflakeSource
from tidegate.model.tables import Row, Table, TableColumn, TableKind
from tidegate.storage.engine import Engine
from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.tables.access_paths import FullScan
from tidegate.tables.definitions import TableDirectory
from tidegate.tables.store import TableStore
from tidegate.tables.validation import NewTable
from tidegate.testing.clock import ManualClock
from tidegate.topics.definitions import Topic, TopicDirectory
from tidegate.topics.log.log import TopicLog
from tidegate.topics.payload_schemas import PayloadSchemas
from tidegate.topics.routes import Payload, Route, RouteDirectory

T = TypeVar("T")

NOW_US = 1_800_000_000_000_000
PATIENCE_SECONDS = 60
EVERY_OP: tuple[Op, ...] = ("insert", "update", "delete")


@dataclass
class Bench:
    """Everything between a statement and the messages that it sends."""

    engine: Engine
    clock: ManualClock
    committer: GroupCommitter
    tables: TableDirectory
    store: TableStore
    topics: TopicDirectory
    schemas: PayloadSchemas
    routes: RouteDirectory
    log: TopicLog
    router: TopicRouter
    writer: RowWriter

    def run(self, stage: Callable[[Staging], T]) -> T:
        return self.committer.submit(stage).result(PATIENCE_SECONDS)

    def run_together(self, *stages: Callable[[Staging], object]) -> list[object]:
        """Stage several changes in one group; give their answers or their errors."""
        queued = threading.Event()
        gate = self.committer.submit(lambda _: queued.wait(PATIENCE_SECONDS))
        futures = [self.committer.submit(stage) for stage in stages]
        queued.set()
        gate.result(PATIENCE_SECONDS)
        return [future.exception(PATIENCE_SECONDS) or future.result(0) for future in futures]

    def table(
        self,
        columns: Sequence[TableColumn],
        key: tuple[str, ...] = ("id",),
        kind: TableKind = TableKind.SHARED,
        name: str = "things",
    ) -> Table:
        if "app" not in self.tables.namespaces("default"):
            self.run(lambda staging: self.tables.stage_create_namespace(staging, "default", "app"))
        ttl_seconds = 3600 if kind == TableKind.STREAM else None
        new = NewTable("app", name, kind, tuple(columns), key, ttl_seconds)
        return self.run(lambda staging: self.tables.stage_create(staging, "default", new, NOW_US))

    def topic(self, partitions: int = 1, name: str = "app.changes") -> Topic:
        return self.run(
            lambda staging: self.topics.stage_create(staging, "default", name, partitions, NOW_US)
        )

    def route(
        self,
        topic: Topic,
        table: Table,
        payload: Payload = "full",
        *,
        ops: Sequence[Op] = EVERY_OP,
        where: str | None = None,
        by: Sequence[str] = (),
        preview: int = 0,
    ) -> list[Route]:
        columns = check_route(table, where, by, payload)
        return [
            self.add(topic, table, Route(topic.id, table.id, op, where, columns, payload, preview, NOW_US))
            for op in ops
        ]

    def add(self, topic: Topic, table: Table, route: Route) -> Route:
        return self.run(lambda staging: self.routes.stage_add(staging, topic, table, route))

    def insert(self, table: Table, rows: Sequence[Row], user: str = "", *, upsert: bool = False) -> int:
        return self.run(self.writer.insert(table, user, rows, upsert=upsert))

    def rows(self, table: Table, user: str = "") -> list[Row]:
        return [row for chunk in self.store.scan(self.engine, table, user, FullScan(), 100) for row in chunk]

    def messages(self, topic: Topic, partition: int | None = None) -> list[dict[str, Any]]:
        """Return all messages as they are outside, partition by partition, with their payloads parsed."""
        found: list[dict[str, Any]] = []
        wanted = range(topic.partitions) if partition is None else [partition]
        for number in wanted:
            held = self.log.counters(topic, number)
            for stored in self.log.read(topic, number, held.start, held.end):
                for message in self.log.arrow(topic, stored).to_pylist():
                    found.append({**message, "payload": json.loads(message["payload"])})
        return found

    def payloads(self, topic: Topic) -> list[Any]:
        return [message["payload"] for message in self.messages(topic)]

    def close(self) -> None:
        self.committer.close()


def build(engine: Engine, clock: ManualClock | None = None) -> Bench:
    """Open everything from what the engine holds."""
    clock = clock or ManualClock(NOW_US)
    committer = GroupCommitter(engine)
    tables = TableDirectory(engine)
    store = TableStore(engine, tables)
    topics = TopicDirectory(engine, 64)
    schemas, routes = PayloadSchemas(engine), RouteDirectory(engine)
    log = TopicLog(engine, SnowflakeSource(clock), clock, schemas)
    for topic in topics:
        log.recover(topic)
    router = TopicRouter(routes, schemas, topics, log, clock)
    for reload in (tables.reload, topics.reload, schemas.reload, routes.reload, log.reload):
        committer.when_reopened(reload)
    writer = RowWriter(store, [router])
    return Bench(engine, clock, committer, tables, store, topics, schemas, routes, log, router, writer)
