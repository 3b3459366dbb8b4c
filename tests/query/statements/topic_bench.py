"""A home with topics and tables and a runner of statements over them, without a server."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from tests.query.bench import Bench
from tidegate.ingest.row_writer import RowWriter, StreamWriter
from tidegate.model.access import Principal, Role
from tidegate.model.ids import SnowflakeSource, UuidSource
from tidegate.model.tables import Table
from tidegate.query.runner import StatementRunner
from tidegate.query.scans.system import table_functions
from tidegate.query.scans.system_topics import topic_functions
from tidegate.query.statements.ddl import DdlPlanner
from tidegate.query.statements.dml import WritePlanner
from tidegate.query.statements.row_builder import DefaultSources
from tidegate.query.statements.select import SelectPlanner
from tidegate.query.statements.show import ShowPlanner
from tidegate.query.statements.topics import TopicStatements
from tidegate.query.step import Caller, StatementResult, Step, result_of_count
from tidegate.server.runtime.topics import TopicContext, open_topics
from tidegate.settings import Settings


class _NoWatchers:
    def dropped(self, table: Table) -> None: ...

    def altered(self, table: Table) -> None: ...


def caller(tenant: str = "default") -> Caller:
    return Caller(Principal(tenant, "root", frozenset({Role.ADMIN, Role.PANEL}), "t", tenant))


class TopicBench:
    """Runs texts as the endpoint does, in this thread; `close` it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.published: list[tuple[str, int]] = []
        self._loop = asyncio.new_event_loop()
        ids, tables, streams = SnowflakeSource(bench.clock), bench.tables, bench.streams
        sources = DefaultSources(bench.clock, ids, UuidSource(bench.clock, bytes))
        context = TopicContext(Settings(), ids, bench.clock, secrets.token_bytes)
        self.topics = open_topics(context, bench.engine, bench.committer, self._loop)
        statements = TopicStatements(
            self.topics, tables, lambda tenant, count: self.published.append((tenant, count))
        )
        selecting = SelectPlanner(
            bench.access,
            lambda _tenant: bench.query,
            lambda who: {
                **table_functions(tables, bench.store, streams, who.tenant),
                **topic_functions(self.topics, tables, who.tenant),
            },
            sources,
        )
        rows = RowWriter(bench.store, [self.topics.router])
        writing = WritePlanner(tables, rows, StreamWriter(streams), selecting, bench.committer, sources)
        defining = DdlPlanner(
            tables, streams, bench.committer, sources, _NoWatchers(), statements.stage_drop_routes
        )
        showing = ShowPlanner(tables, lambda _tenant: [])
        self.runner = StatementRunner(defining, showing, writing, selecting, statements)

    def close(self) -> None:
        self._loop.close()

    def step(self, text: str, *params: Any, tenant: str = "default") -> Step:
        (statement,) = self.runner.parsed(text)
        return self.runner.step(statement, params, caller(tenant))

    def run(self, text: str, *params: Any, tenant: str = "default") -> StatementResult:
        step = self.step(text, *params, tenant=tenant)
        if step.change is not None:
            return result_of_count(self.bench.committer.submit(step.change).result())
        assert step.work is not None
        return step.work()

    def rows(self, text: str, *params: Any, tenant: str = "default") -> list[list[Any]]:
        return [list(row) for row in self.run(text, *params, tenant=tenant).json_rows()]
