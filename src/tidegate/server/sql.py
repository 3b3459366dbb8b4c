"""The endpoint of SQL: one SELECT in, rows out in JSON or Arrow."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
from starlette.responses import Response

from tidegate.query.lake_sql import LakeQuery
from tidegate.server.bodies import json_answer
from tidegate.server.call import ARROW_STREAM, Call


class SqlBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST sql."""

    sql: str
    params: list[Any] = []


_sql = msgspec.json.Decoder(SqlBody)


async def run_sql(call: Call) -> Response:
    """Rows of a SELECT over the lake tables of the tenant, read without Spark."""
    running = call.running
    body = await call.json(_sql)
    begun = running.clock.monotonic_seconds()
    content = await running.threads.statement(
        _answer, running.tenants.query(call.tenant), body, call.wants_arrow()
    )
    call.check_alive()
    if isinstance(content, bytes):
        return Response(content, media_type=ARROW_STREAM)
    content["tookMs"] = round((running.clock.monotonic_seconds() - begun) * 1000, 3)
    return json_answer(content)


def _answer(query: LakeQuery, body: SqlBody, as_arrow: bool) -> bytes | dict[str, Any]:
    answer = query.run(body.sql, body.params)
    if as_arrow:
        table = answer.arrow()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())
    rows = answer.json_rows()
    return {"columns": answer.columns, "rows": rows, "rowCount": len(rows)}
