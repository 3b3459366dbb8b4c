"""The endpoint of SQL: statements in, rows or what was written out, in JSON or Arrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
import pyarrow as pa
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from tidegate.errors import (
    ContentTypeUnsupported,
    NamespaceNotFound,
    RequestInvalid,
    RequestRefused,
    SqlInvalid,
    TableNotFound,
    TidegateError,
)
from tidegate.ingest.idempotency import Answer, Once, stage_once
from tidegate.model.tables import Table
from tidegate.query.runner import kind_of, told_which
from tidegate.query.statements.row_builder import STATEMENT_ROWS_MAX
from tidegate.query.statements.topics import consumed_outcome
from tidegate.query.step import Caller, ConsumeAsk, Kind, Outcome, Step
from tidegate.server.api.long_poll import consumed
from tidegate.server.http.arrow import plain_table
from tidegate.server.http.request import Call, decode_json
from tidegate.server.http.responses import ARROW_STREAM, JSON, ready_answer
from tidegate.server.runtime.runtime import Running
from tidegate.sql import Delete, DescribeTable, ExecuteAs, Insert, Select, Statement, TopicStatement, Update
from tidegate.sql.statements import Publish
from tidegate.storage.group_commit import Staging

# Longer texts and more rows of parameters are read in a thread: on the event loop they hold up others.
LONG_TEXT_CHARS = 16 * 1024
MANY_ROWS = 500
KEY_HINT = (
    "A key goes with one INSERT or UPSERT of values, or one UPDATE or DELETE by primary key. "
    "PUBLISH takes PRODUCER 'p' SEQUENCE n instead."
)
# What gives rows, and so can be answered as Arrow.
GIVE_ROWS: tuple[Kind, ...] = ("select", "show", "publish", "consume", "ack")


class SqlBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST sql."""

    sql: str
    params: list[Any] = []


_sql = msgspec.json.Decoder(SqlBody)
_encode = msgspec.json.Encoder().encode
_WROTE = b'"columns":[],"rows":[],"rowCount":%d'


async def run_sql(call: Call) -> Response:
    """Run statements: rows of a SELECT, or how many rows were written. Several run one after the other."""
    running = call.running
    running.answers.check_room()
    began = running.clock.monotonic_seconds()
    kind = call.content_type()
    if kind == ARROW_STREAM:
        return await _run_arrow(call, began)
    if kind != JSON:
        supported = f"{JSON}' or '{ARROW_STREAM}"
        raise ContentTypeUnsupported(content_type=kind[:80] or "(none)", supported=supported)
    if call.scope["query_string"]:
        raise RequestInvalid(
            reason="With a JSON body the statement stands in the body.",
            hint="In the query, ?sql=… belongs to an Arrow body.",
        )
    body = await call.worked(decode_json, await call.body(), _sql)
    runner = running.tables.runner
    is_long = len(body.sql) > LONG_TEXT_CHARS
    statements = await running.threads.read(runner.parsed, body.sql) if is_long else runner.parsed(body.sql)
    shares = runner.params_of(statements, body.params)
    if len(statements) > 1 and call.idempotency_key() is not None:
        raise RequestInvalid(reason="Several statements take no Idempotency-Key.", hint=KEY_HINT)
    _check_accept(call, statements)
    run = _Run(call, Caller(call.principal))
    parts: list[bytes] = []
    for number, (statement, params) in enumerate(zip(statements, shares, strict=True)):
        try:
            step = await run.planned(statement, params, is_long=is_long)
            last = await run.done(step, alone=len(statements) == 1)
        except TidegateError as problem:
            _tell_of_topics(running, call.tenant, statement, problem)
            with told_which(body.sql, statements, number):
                raise problem
        if isinstance(last, Response):
            return last
        parts.append(last)
    took_ms = round((running.clock.monotonic_seconds() - began) * 1000, 3)
    return ready_answer(_joined(parts, took_ms), JSON, held=running.answers)


def _tell_of_topics(running: Running, tenant: str, statement: Statement, problem: TidegateError) -> None:
    """Say what a name is that was taken for a table, where it is a topic."""
    if not isinstance(problem, TableNotFound | NamespaceNotFound):
        return
    if isinstance(statement, Select):
        names = [table.full_name for table in statement.tables]
    elif isinstance(statement, Insert | Update | Delete | DescribeTable):
        names = [statement.table.full_name]
    else:
        return
    known = {topic.name for topic in running.topics.of(tenant)}
    for name in names:
        if name in known:
            problem.hint = (
                f"'{name}' is a topic: CONSUME FROM {name} reads it, PUBLISH INTO {name} writes into it, "
                f"DESCRIBE TOPIC {name} shows it."
            )


def _check_accept(call: Call, statements: Sequence[Statement]) -> None:
    """Refuse to write for someone who could not read the answer."""
    accepted = call.header("accept")
    if ARROW_STREAM not in accepted or JSON in accepted or "*/*" in accepted:
        return
    if len(statements) != 1 or kind_of(statements[0]) not in GIVE_ROWS:
        raise RequestInvalid(
            reason="Only the rows of one query come as Arrow.",
            hint=f"Send 'Accept: {JSON}'. Nothing was run.",
        )


async def _run_arrow(call: Call, began: float) -> Response:
    """Insert the rows of an Arrow stream."""
    query, running = call.query, call.running
    if set(query) != {"sql"}:
        raise RequestInvalid(
            reason="An Arrow body goes with ?sql=INSERT INTO namespace.table, and nothing else.",
            hint="Columns go by their names.",
        )
    statements = running.tables.runner.parsed(query["sql"])
    if len(statements) != 1:
        raise SqlInvalid(reason="an Arrow body goes with one statement.", hint="INSERT INTO namespace.table.")
    body, limit_bytes = await call.body(), running.settings.server.body_bytes_max
    run = _Run(call, Caller(call.principal))

    def planned() -> Step:
        rows = plain_table(body, STATEMENT_ROWS_MAX, limit_bytes)
        return running.tables.runner.step_arrow(statements[0], rows, run.caller)

    step = await running.threads.read(planned)
    part = await run.done(step, alone=True)
    if isinstance(part, Response):
        return part
    took_ms = round((running.clock.monotonic_seconds() - began) * 1000, 3)
    return ready_answer(_joined([part], took_ms), JSON)


class _Run:
    """Runs the steps of one call."""

    def __init__(self, call: Call, caller: Caller) -> None:
        self.caller = caller
        self._call = call
        self._running = call.running

    async def planned(self, statement: Statement, params: Sequence[Any], *, is_long: bool) -> Step:
        """Plan a statement: here where that is quick, else in a thread."""
        step = self._running.tables.runner.step
        try:
            if is_long or len(params) > MANY_ROWS or not _is_quick(statement):
                return await self._running.threads.read(step, statement, params, self.caller)
            return step(statement, params, self.caller)
        except TidegateError as problem:
            self._count_failure(kind_of(statement), problem)
            raise

    async def done(self, step: Step, *, alone: bool) -> bytes | Response:
        """Run a step; give its part of the answer, or the whole answer where that is ready."""
        try:
            part = await self._done(step, alone=alone)
        except TidegateError as problem:
            self._count_failure(step.kind, problem)
            raise
        except ClientDisconnect:
            self._running.metrics.count_statement(step.kind, "failed")
            raise
        self._running.metrics.count_statement(step.kind, "done")
        return part

    async def _done(self, step: Step, *, alone: bool) -> bytes | Response:
        if step.change is not None:
            try:
                return await self._changed(step, step.change)
            except SqlInvalid:
                if step.work is None:
                    raise
        if step.consume is not None:
            return await self._consumed(step.consume, alone=alone)
        if step.work is None:
            return _part(Outcome())
        if step.kind not in ("select", "show") and self._call.idempotency_key() is not None:
            raise RequestInvalid(reason="This statement takes no Idempotency-Key.", hint=KEY_HINT)
        write = _arrow if alone and self._call.wants_arrow() else _written
        threads = self._running.threads
        run = threads.read if step.is_short else threads.statement
        if step.audit is None and not step.is_short:
            # A definition is made whoever waits for it; everything else only for its caller.
            content, outcome, kind = await threads.statement_for(self._call.left, write, step.work)
        elif step.audit is None:
            content, outcome, kind = await run(write, step.work)
        else:
            operation, subject = step.audit
            async with self._running.audited(self._call.actor(), str(operation), subject):
                content, outcome, kind = await run(write, step.work)
        self._call.check_alive()
        if step.table is not None:
            self._count(step.table, outcome.row_count)
        return content if kind == JSON else ready_answer(content, kind, held=self._running.answers)

    async def _consumed(self, ask: ConsumeAsk, *, alone: bool) -> bytes | Response:
        if self._call.idempotency_key() is not None:
            raise RequestInvalid(reason="CONSUME takes no Idempotency-Key.", hint=KEY_HINT)
        found = await consumed(self._call, ask)
        write = _arrow if alone and self._call.wants_arrow() else _written
        work = partial(consumed_outcome, found.table(), found.missed, ask.topic.name)
        content, _, kind = await self._running.threads.read(write, work)
        return content if kind == JSON else ready_answer(content, kind, held=self._running.answers)

    async def _changed(self, step: Step, change: Callable[[Staging], int]) -> bytes | Response:
        key, running = self._call.idempotency_key(), self._running
        if key is None:
            count = await running.committer.commit(change)
            if step.table is not None:
                self._count(step.table, count)
            return _WROTE % count
        who = self._call.principal.full_name
        fingerprint = await self._call.fingerprint()
        once = Once(self._call.tenant, who, key, fingerprint, running.clock.now_us())
        counts: list[int] = []

        def deed(staging: Staging) -> Answer:
            counts.append(change(staging))
            return Answer(200, _joined([_WROTE % counts[0]], 0.0))

        answer = await running.committer.commit(lambda staging: stage_once(staging, once, deed))
        if step.table is not None and counts:
            self._count(step.table, counts[0])
        return Response(answer.body, answer.status, media_type=JSON)

    def _count_failure(self, kind: Kind, problem: TidegateError) -> None:
        outcome: Literal["refused", "failed"] = "refused" if isinstance(problem, RequestRefused) else "failed"
        self._running.metrics.count_statement(kind, outcome)

    def _count(self, table: Table, count: int) -> None:
        self._running.metrics.count_rows_written(self._call.tenant, str(table.kind), count)


def _is_quick(statement: Statement) -> bool:
    """Return whether planning looks at nothing but the statement's own values."""
    if isinstance(statement, ExecuteAs):
        return _is_quick(statement.statement)
    if isinstance(statement, Insert):
        return statement.rows is not None and len(statement.rows) <= MANY_ROWS
    if isinstance(statement, Update):
        return all(fragment.simple is not None for _, fragment in statement.assignments)
    if isinstance(statement, Publish):
        return len(statement.payloads) <= MANY_ROWS
    return isinstance(statement, (Select, Delete, TopicStatement))


def _written(work: Callable[[], Outcome]) -> tuple[bytes, Outcome, str]:
    outcome = work()
    return _part(outcome), outcome, JSON


def _arrow(work: Callable[[], Outcome]) -> tuple[bytes, Outcome, str]:
    outcome = work()
    if outcome.arrow is None:
        return _part(outcome), outcome, JSON
    table = outcome.arrow()
    if outcome.warnings:
        noted = {**(table.schema.metadata or {}), b"tidegate.warnings": _encode(list(outcome.warnings))}
        table = table.replace_schema_metadata(noted)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue()), outcome, ARROW_STREAM


def _part(outcome: Outcome) -> bytes:
    """Return what one statement answers, without the braces."""
    content: dict[str, Any] = {
        "columns": outcome.columns,
        "rows": outcome.json_rows(),
        "rowCount": outcome.row_count,
    }
    if outcome.warnings:
        content["warnings"] = outcome.warnings
    return _encode(content)[1:-1]


def _joined(parts: Sequence[bytes], took_ms: float) -> bytes:
    """Return the whole answer: what the last statement gave, and all of them where there are several."""
    took = b',"tookMs":' + _encode(took_ms)
    if len(parts) == 1:
        return b"{" + parts[0] + took + b"}"
    results = b",".join(b"{" + part + b"}" for part in parts)
    return b"{" + parts[-1] + took + b',"results":[' + results + b"]}"
