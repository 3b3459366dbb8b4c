"""Arrow in and out: messages from the columns of a stream, and a stream from batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from tidegate.errors import RequestInvalid, RequestMalformed
from tidegate.ingest.publish import Messages

# The columns that a publish takes; `payload` is JSON text.
COLUMNS = {"key": pa.string(), "payload": pa.string(), "partition": pa.int64()}
HINT = "A publish takes the columns payload (JSON text), key (text) and partition (whole number)."


def messages_of(body: bytes, messages_max: int) -> Messages:
    """Read messages from an Arrow stream; every payload is checked to be JSON."""
    table = _table(body, messages_max)
    columns = {name: _column(table, name) for name in COLUMNS}
    payloads = [_json(index, text) for index, text in enumerate(columns["payload"])]
    return Messages(columns["key"], payloads, columns["partition"])


def arrow_answer(batches: Sequence[pa.RecordBatch], schema: pa.Schema, notes: Mapping[str, str]) -> bytes:
    """Give batches as the bytes of an Arrow stream; notes travel in the schema's metadata."""
    noted = schema.with_metadata({**(schema.metadata or {}), **notes})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, noted) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(noted.metadata))
    return bytes(sink.getvalue())


def _table(body: bytes, messages_max: int) -> pa.Table:
    batches, count = [], 0
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            for batch in reader:
                batch.validate(full=True)
                batches.append(batch)
                count += batch.num_rows
                if count > messages_max:
                    reason = f"A publish takes 1 to {messages_max} messages."
                    raise RequestInvalid(reason=reason, hint="Split the request.")
            schema = reader.schema
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise RequestMalformed(reason=f"not an Arrow stream ({problem})", hint=HINT) from problem
    unknown = sorted(set(schema.names) - set(COLUMNS))
    if unknown or len(set(schema.names)) != len(schema.names) or "payload" not in schema.names:
        reason = f"The stream has the columns {', '.join(schema.names) or '(none)'}."
        raise RequestInvalid(reason=reason, hint=HINT)
    return pa.Table.from_batches(batches, schema)


def _column(table: pa.Table, name: str) -> list[Any]:
    if name not in table.schema.names:
        return [None] * table.num_rows
    column = table.column(name)
    try:
        return list(column.cast(COLUMNS[name]).to_pylist())
    except (pa.ArrowException, UnicodeDecodeError) as problem:
        reason = f"Column '{name}' is {column.type}, which is not {COLUMNS[name]}."
        raise RequestInvalid(reason=reason, hint=HINT) from problem


def _json(index: int, text: object) -> bytes:
    if not isinstance(text, str):
        raise RequestInvalid(reason=f"Message {index} has no payload.", hint="JSON null is the text null.")
    content = text.encode()
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise RequestInvalid(reason=f"Payload {index} is not JSON: {problem}.", hint=HINT) from problem
    return content
