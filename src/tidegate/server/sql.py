"""The endpoint of SQL: one SELECT in, rows out in JSON or Arrow."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
from starlette.responses import Response

from tidegate.model.clock import Clock
from tidegate.query.lake_sql import LakeQuery
from tidegate.server.bodies import ready_answer
from tidegate.server.call import ARROW_STREAM, JSON, Call


class SqlBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST sql."""

    sql: str
    params: list[Any] = []


_sql = msgspec.json.Decoder(SqlBody)


async def run_sql(call: Call) -> Response:
    """Rows of a SELECT over the lake tables of the tenant, read without Spark."""
    running = call.running
    body = await call.json(_sql)
    running.answers.check_room()
    query, write = running.tenants.query(call.tenant), _arrow if call.wants_arrow() else _json
    content = await running.threads.statement(write, query, body, running.clock)
    call.check_alive()
    kind = ARROW_STREAM if write is _arrow else JSON
    return ready_answer(content, kind, held=running.answers)


def _arrow(query: LakeQuery, body: SqlBody, _clock: Clock) -> bytes:
    table = query.run(body.sql, body.params).arrow()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _json(query: LakeQuery, body: SqlBody, clock: Clock) -> bytes:
    begun = clock.monotonic_seconds()
    answer = query.run(body.sql, body.params)
    rows = answer.json_rows()
    took_ms = round((clock.monotonic_seconds() - begun) * 1000, 3)
    content = {"columns": answer.columns, "rows": rows, "rowCount": len(rows), "tookMs": took_ms}
    return msgspec.json.encode(content)
