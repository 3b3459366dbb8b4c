"""The endpoint of SQL: one SELECT in, rows out in JSON or Arrow."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from tidegate.server.bodies import ARROW_STREAM, json_answer, read_json, wants_arrow
from tidegate.server.running import Running


class SqlBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST sql."""

    sql: str
    params: list[Any] = []


_sql = msgspec.json.Decoder(SqlBody)


async def run_sql(request: Request, running: Running) -> Response:
    """Rows of a SELECT over lake tables, read without Spark."""
    body = await read_json(request, _sql, running.settings.server.body_bytes_max)
    begun = running.clock.monotonic_seconds()
    as_arrow = wants_arrow(request)
    content = await running.threads.statement(_answer, running, body, as_arrow)
    if isinstance(content, bytes):
        return Response(content, media_type=ARROW_STREAM)
    content["tookMs"] = round((running.clock.monotonic_seconds() - begun) * 1000, 3)
    return json_answer(content)


def _answer(running: Running, body: SqlBody, as_arrow: bool) -> bytes | dict[str, Any]:
    answer = running.query.run(body.sql, body.params)
    if as_arrow:
        table = answer.arrow()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())
    rows = answer.json_rows()
    return {"columns": answer.columns, "rows": rows, "rowCount": len(rows)}
