"""The SQL endpoint: runs statements, answers with rows or the number of written rows, in JSON or Arrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
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
from tidegate.ingest.idempotency import Answer, IdempotentRequest, stage_idempotent
from tidegate.model.json_limits import DEPTH_MAX
from tidegate.model.tables import Table
from tidegate.query.runner import kind_of, statement_errors
from tidegate.query.statements.row_builder import STATEMENT_ROWS_MAX
from tidegate.query.statements.topics import consumed_result
from tidegate.query.step import (
    Caller,
    ConsumeRequest,
    StatementKind,
    StatementResult,
    Step,
    check_nesting,
)
from tidegate.server.api.long_poll import fetch_messages
from tidegate.server.http.arrow import arrow_answer, plain_table
from tidegate.server.http.request import HttpRequest, decode_json
from tidegate.server.http.responses import ARROW_STREAM, JSON, ready_answer
from tidegate.server.runtime.runtime import Runtime
from tidegate.server.runtime.statement_queue import StatementOwner
from tidegate.sql.statements import (
    Delete,
    DescribeTable,
    ExecuteAs,
    Insert,
    Publish,
    Select,
    Statement,
    TopicStatement,
    Update,
)
from tidegate.storage.group_commit import Staging

# Longer texts and more rows of parameters are parsed in a thread: on the event loop they would delay others.
LONG_TEXT_CHARS = 16 * 1024
MANY_ROWS = 500
KEY_HINT = (
    "A key goes with one INSERT or UPSERT of values, or one UPDATE or DELETE by primary key. "
    "PUBLISH takes PRODUCER 'p' SEQUENCE n instead."
)
# Statements with rows, which can be answered in Arrow.
ROW_KINDS: tuple[StatementKind, ...] = ("select", "show", "publish", "consume", "ack")
# Statements after which more is stored; PUBLISH is checked where its messages are staged.
GROWING_KINDS: tuple[StatementKind, ...] = ("insert", "upsert", "update")


class SqlBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST sql."""

    sql: str
    params: list[Any] = []


_sql = msgspec.json.Decoder(SqlBody)
_encode = msgspec.json.Encoder().encode
_WROTE = b'"columns":[],"rows":[],"rowCount":%d'


async def run_sql(request: HttpRequest) -> Response:
    """Run statements, one after the other; answers with rows, or with the number of written rows."""
    runtime = request.runtime
    runtime.held_responses.check_room()
    began = runtime.clock.monotonic_seconds()
    kind = request.content_type()
    if kind == ARROW_STREAM:
        return await _run_arrow(request, began)
    if kind != JSON:
        supported = f"{JSON}' or '{ARROW_STREAM}"
        raise ContentTypeUnsupported(content_type=kind[:80] or "(none)", supported=supported)
    if request.scope["query_string"]:
        raise RequestInvalid(
            reason="With a JSON body the statement belongs in the body.",
            hint="In the query, ?sql=… belongs to an Arrow body.",
        )
    body = await request.run_by_size(_decode_body, await request.body())
    runner = runtime.tables.runner
    is_long = len(body.sql) > LONG_TEXT_CHARS
    statements = await runtime.threads.read(runner.parsed, body.sql) if is_long else runner.parsed(body.sql)
    shares = runner.params_of(statements, body.params)
    if len(statements) > 1 and request.idempotency_key() is not None:
        raise RequestInvalid(reason="Several statements take no Idempotency-Key.", hint=KEY_HINT)
    _check_accept(request, statements)
    run = _StatementRun(request, Caller(request.principal))
    parts: list[bytes] = []
    for number, (statement, params) in enumerate(zip(statements, shares, strict=True)):
        try:
            step = await run.plan(statement, params, is_long=is_long)
            last = await run.execute(step, statement, alone=len(statements) == 1)
        except TidegateError as problem:
            _hint_at_topic(runtime, request.tenant, statement, problem)
            with statement_errors(body.sql, statements, number):
                raise problem
        if isinstance(last, Response):
            return last
        parts.append(last)
    took_ms = round((runtime.clock.monotonic_seconds() - began) * 1000, 3)
    return ready_answer(_join_parts(parts, took_ms), JSON, held=runtime.held_responses)


def _decode_body(content: bytes) -> SqlBody:
    body = decode_json(content, _sql)
    # Without so many brackets nothing is nested too deeply, and most requests have none.
    if content.count(b"[") + content.count(b"{") > DEPTH_MAX:
        check_nesting(body.params)
    return body


def _hint_at_topic(runtime: Runtime, tenant: str, statement: Statement, problem: TidegateError) -> None:
    """Set the hint of an error about an unknown table whose name is that of a topic."""
    if not isinstance(problem, TableNotFound | NamespaceNotFound):
        return
    if isinstance(statement, Select):
        names = [table.full_name for table in statement.tables]
    elif isinstance(statement, Insert | Update | Delete | DescribeTable):
        names = [statement.table.full_name]
    else:
        return
    known = {topic.name for topic in runtime.topics.directory.of(tenant)}
    for name in names:
        if name in known:
            problem.hint = (
                f"'{name}' is a topic: CONSUME FROM {name} reads it, PUBLISH INTO {name} writes into it, "
                f"DESCRIBE TOPIC {name} shows it."
            )


def _check_accept(request: HttpRequest, statements: Sequence[Statement]) -> None:
    """Raise RequestInvalid where the client does not accept the answer, before anything is written."""
    accepted = request.header("accept")
    if ARROW_STREAM not in accepted or JSON in accepted or "*/*" in accepted:
        return
    if len(statements) != 1 or kind_of(statements[0]) not in ROW_KINDS:
        raise RequestInvalid(
            reason="Only the rows of one query come as Arrow.",
            hint=f"Send 'Accept: {JSON}'. Nothing was run.",
        )


async def _run_arrow(request: HttpRequest, began: float) -> Response:
    """Insert the rows of an Arrow stream."""
    query, runtime = request.query, request.runtime
    if set(query) != {"sql"}:
        raise RequestInvalid(
            reason="An Arrow body goes with ?sql=INSERT INTO namespace.table, and nothing else.",
            hint="Columns go by their names.",
        )
    statements = runtime.tables.runner.parsed(query["sql"])
    if len(statements) != 1:
        raise SqlInvalid(reason="an Arrow body goes with one statement.", hint="INSERT INTO namespace.table.")
    body, limit_bytes = await request.body(), runtime.settings.server.body_bytes_max
    run = _StatementRun(request, Caller(request.principal))

    def plan() -> Step:
        rows = plain_table(body, STATEMENT_ROWS_MAX, limit_bytes)
        return runtime.tables.runner.step_arrow(statements[0], rows, run.caller)

    step = await runtime.threads.read(plan)
    run.note_acting(statements[0])
    part = await run.execute(step, statements[0], alone=True)
    if isinstance(part, Response):
        return part
    took_ms = round((runtime.clock.monotonic_seconds() - began) * 1000, 3)
    return ready_answer(_join_parts([part], took_ms), JSON)


class _StatementRun:
    """Plans and runs the statements of one request."""

    def __init__(self, request: HttpRequest, caller: Caller) -> None:
        self.caller = caller
        self._request = request
        self._runtime = request.runtime

    async def plan(self, statement: Statement, params: Sequence[Any], *, is_long: bool) -> Step:
        """Return the plan of a statement, made inline where that is quick, else in a thread."""
        step = self._runtime.tables.runner.step
        try:
            if is_long or len(params) > MANY_ROWS or not _is_quick(statement):
                planned = await self._runtime.threads.read(step, statement, params, self.caller)
            else:
                planned = step(statement, params, self.caller)
        except TidegateError as problem:
            self._count_failure(kind_of(statement), problem)
            raise
        self.note_acting(statement)
        return planned

    def note_acting(self, statement: Statement) -> None:
        """Note for the audit trail that a statement which was allowed acts as another user."""
        if isinstance(statement, ExecuteAs):
            kind, request = kind_of(statement), self._request
            notes = self._runtime.audit_notes
            notes.executed_as(self.caller.principal, statement.user, kind, request.place)

    async def execute(self, step: Step, statement: Statement, *, alone: bool) -> bytes | Response:
        """Run a step; return its part of the answer, or the whole answer where it is the only one."""
        try:
            self._check_quotas(step)
            if step.table is not None and step.table.is_scoped:
                part = await self._execute_write(step, statement, alone=alone)
            else:
                part = await self._execute(step, alone=alone)
        except TidegateError as problem:
            self._count_failure(step.kind, problem)
            raise
        except ClientDisconnect:
            self._runtime.metrics.count_statement(step.kind, "failed")
            raise
        self._runtime.metrics.count_statement(step.kind, "done")
        return part

    def _check_quotas(self, step: Step) -> None:
        """Raise where a quota refuses a step; a write by key is checked once it is known to be no repeat."""
        quotas = self._runtime.quotas
        if quotas.limits_published and step.published_bytes:
            quotas.take_published(self._request.principal, step.published_bytes)
        if quotas.limits_disk and step.change is None and step.kind in GROWING_KINDS:
            quotas.check_disk(self._request.tenant)

    async def _execute_write(self, step: Step, statement: Statement, *, alone: bool) -> bytes | Response:
        """Run a step that writes a user's rows; refused if the token ended, or while they are removed."""
        self._request.check_alive()
        user = statement.user if isinstance(statement, ExecuteAs) else self.caller.principal.user
        owners, owner = self._runtime.row_owners, (self._request.tenant, user)
        owners.begin_write(owner)
        try:
            return await self._execute(step, alone=alone)
        finally:
            owners.end_write(owner)

    async def _execute(self, step: Step, *, alone: bool) -> bytes | Response:
        if step.change is not None:
            try:
                return await self._write(step, step.change)
            except SqlInvalid:
                if step.work is None:
                    raise
        if step.consume is not None:
            return await self._consume(step.consume, alone=alone)
        if step.work is None:
            return _part(StatementResult())
        if step.kind not in ("select", "show") and self._request.idempotency_key() is not None:
            raise RequestInvalid(reason="This statement takes no Idempotency-Key.", hint=KEY_HINT)
        write = _arrow if alone and self._request.wants_arrow() else _json
        threads = self._runtime.threads
        principal = self._request.principal
        owner = StatementOwner(self._request.tenant, principal.full_name)
        run = threads.read if step.is_short else partial(threads.statement, owner)
        if step.audit is None and not step.is_short:
            # A definition runs to its end even if its client disconnects; everything else does not.
            content, outcome, kind = await threads.statement_for(
                owner, self._request.wait_disconnect, write, step.work
            )
        elif step.audit is None:
            content, outcome, kind = await run(write, step.work)
        else:
            operation, subject = step.audit
            async with self._runtime.audited(self._request.actor(), str(operation), subject):
                content, outcome, kind = await run(write, step.work)
        self._request.check_alive()
        if step.table is not None:
            self._count(step.table, outcome.row_count)
        return content if kind == JSON else ready_answer(content, kind, held=self._runtime.held_responses)

    async def _consume(self, consume: ConsumeRequest, *, alone: bool) -> bytes | Response:
        if self._request.idempotency_key() is not None:
            raise RequestInvalid(reason="CONSUME takes no Idempotency-Key.", hint=KEY_HINT)
        found = await fetch_messages(self._request, consume)
        write = _arrow if alone and self._request.wants_arrow() else _json
        work = partial(consumed_result, found.table(), found.missed, consume.topic.name)
        content, _, kind = await self._runtime.threads.read(write, work)
        return content if kind == JSON else ready_answer(content, kind, held=self._runtime.held_responses)

    async def _write(self, step: Step, change: Callable[[Staging], int]) -> bytes | Response:
        key, runtime = self._request.idempotency_key(), self._runtime
        if runtime.quotas.limits_disk and step.kind in GROWING_KINDS:
            change = _within_disk(runtime, self._request.tenant, change)
        if key is None:
            count = await runtime.committer.commit(change)
            if step.table is not None:
                self._count(step.table, count)
            return _WROTE % count
        who = self._request.principal.full_name
        fingerprint = await self._request.fingerprint()
        idempotent = IdempotentRequest(self._request.tenant, who, key, fingerprint, runtime.clock.now_us())
        counts: list[int] = []

        def write_now(staging: Staging) -> Answer:
            counts.append(change(staging))
            return Answer(200, _join_parts([_WROTE % counts[0]], 0.0))

        answer = await runtime.committer.commit(
            lambda staging: stage_idempotent(staging, idempotent, write_now)
        )
        if step.table is not None and counts:
            self._count(step.table, counts[0])
        return Response(answer.body, answer.status, media_type=JSON)

    def _count_failure(self, kind: StatementKind, problem: TidegateError) -> None:
        outcome: Literal["refused", "failed"] = "refused" if isinstance(problem, RequestRefused) else "failed"
        self._runtime.metrics.count_statement(kind, outcome)

    def _count(self, table: Table, count: int) -> None:
        self._runtime.metrics.count_rows_written(self._request.tenant, str(table.kind), count)


def _within_disk(runtime: Runtime, tenant: str, change: Callable[[Staging], int]) -> Callable[[Staging], int]:
    """Return a change that is refused where the tenant has as much on the disk as it may have."""

    def checked(staging: Staging) -> int:
        runtime.quotas.check_disk(tenant)
        return change(staging)

    return checked


def _is_quick(statement: Statement) -> bool:
    """True if planning reads nothing but the statement's own values."""
    if isinstance(statement, ExecuteAs):
        return _is_quick(statement.statement)
    if isinstance(statement, Insert):
        return statement.rows is not None and len(statement.rows) <= MANY_ROWS
    if isinstance(statement, Update):
        return all(fragment.simple is not None for _, fragment in statement.assignments)
    if isinstance(statement, Publish):
        return len(statement.payloads) <= MANY_ROWS
    return isinstance(statement, (Select, Delete, TopicStatement))


def _json(work: Callable[[], StatementResult]) -> tuple[bytes, StatementResult, str]:
    outcome = work()
    return _part(outcome), outcome, JSON


def _arrow(work: Callable[[], StatementResult]) -> tuple[bytes, StatementResult, str]:
    outcome = work()
    if outcome.arrow is None:
        return _part(outcome), outcome, JSON
    notes = {"tidegate.warnings": _encode(list(outcome.warnings))} if outcome.warnings else {}
    return arrow_answer(outcome.arrow(), notes), outcome, ARROW_STREAM


def _part(outcome: StatementResult) -> bytes:
    """Return the JSON of one statement's result, without the braces."""
    content: dict[str, Any] = {
        "columns": outcome.columns,
        "rows": outcome.json_rows(),
        "rowCount": outcome.row_count,
    }
    if outcome.warnings:
        content["warnings"] = outcome.warnings
    return _encode(content)[1:-1]


def _join_parts(parts: Sequence[bytes], took_ms: float) -> bytes:
    """Return the whole answer: the result of the last statement, and of several statements all results."""
    took = b',"tookMs":' + _encode(took_ms)
    if len(parts) == 1:
        return b"{" + parts[0] + took + b"}"
    results = b",".join(b"{" + part + b"}" for part in parts)
    return b"{" + parts[-1] + took + b',"results":[' + results + b"]}"
