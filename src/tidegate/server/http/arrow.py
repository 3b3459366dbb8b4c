"""Arrow streams as bodies: messages from the columns of a stream, and a stream from batches.

Decoding a body may cost little more memory than its own bytes, so everything that lets a few bytes stand for
many is refused before it is decoded: compressed buffers, dictionaries, and every type but plain text and
numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import BodyTooLarge, RequestInvalid, RequestMalformed
from tidegate.ingest.publish import Messages

# The columns that a publish takes; `payload` is JSON text.
COLUMNS = {"key": pa.string(), "payload": pa.string(), "partition": pa.int64(), "dedupKey": pa.string()}
HINT = "A publish takes the columns payload (JSON text), key, dedupKey (text) and partition (whole number)."
PLAIN_HINT = "Write the stream without compression and without dictionaries, with plain text columns."
# Field numbers in the flatbuffers of Arrow's format (Message.fbs).
_MESSAGE_VERSION, _MESSAGE_HEADER, _MESSAGE_METADATA, _BATCH_COMPRESSION = 0, 2, 4, 3
_VERSION_5 = 4


def messages_of(body: bytes, messages_max: int, bytes_max: int) -> Messages:
    """Return the messages of an Arrow stream; every payload is checked to be JSON."""
    try:
        _check_plain(body)
        table = _table(body, messages_max, bytes_max)
    except (pa.ArrowException, OSError, ValueError, struct.error) as problem:
        raise RequestMalformed(reason=f"not an Arrow stream ({problem})", hint=HINT) from problem
    columns = {name: _column(table, name) for name in COLUMNS}
    payloads = [_json(index, text) for index, text in enumerate(columns["payload"])]
    dedup_keys = columns["dedupKey"] if "dedupKey" in table.schema.names else None
    return Messages(columns["key"], payloads, columns["partition"], dedup_keys)


def plain_table(body: bytes, rows_max: int, bytes_max: int) -> pa.Table:
    """Return the rows of an Arrow stream, whatever their columns; nothing in it may be compressed."""
    try:
        _check_plain(body)
        batches, count, size_bytes = [], 0, 0
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            for batch in reader:
                # A column of nulls has no bytes, however many rows it claims.
                count += batch.num_rows
                if count > rows_max:
                    reason = f"A statement writes up to {rows_max} rows."
                    raise RequestInvalid(reason=reason, hint="Send them in several requests.")
                batch.validate(full=True)
                size_bytes += batch.nbytes
                if size_bytes > bytes_max:
                    raise BodyTooLarge(limit_bytes=bytes_max)
                batches.append(batch)
            names = reader.schema.names
            if len(set(names)) < len(names):
                raise RequestInvalid(reason="Two columns of the stream have one name.", hint=PLAIN_HINT)
            return pa.Table.from_batches(batches, reader.schema)
    except (pa.ArrowException, OSError, ValueError, struct.error) as problem:
        raise RequestMalformed(reason=f"not an Arrow stream ({problem})", hint=PLAIN_HINT) from problem


def arrow_answer(table: pa.Table, notes: Mapping[str, bytes]) -> bytes:
    """Return a table as the bytes of an Arrow stream, with notes in the schema's metadata."""
    if notes:
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), **notes})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _check_plain(body: bytes) -> None:
    """Raise for a stream with anything but a schema and uncompressed record batches."""
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type not in ("schema", "record batch"):
            raise RequestInvalid(reason=f"The stream has a {message.type}.", hint=PLAIN_HINT)
        if message.type == "record batch" and _is_compressed(memoryview(message.metadata)):
            raise RequestInvalid(reason="The buffers of the stream are compressed.", hint=PLAIN_HINT)


def _is_compressed(metadata: memoryview) -> bool:
    """True if the metadata of a record batch names a codec; Arrow has checked that it is well formed."""
    (root,) = struct.unpack_from("<I", metadata)
    header = _field(metadata, root, _MESSAGE_HEADER)
    if not header:
        raise ValueError("a message without a header")
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    if _field(metadata, batch, _BATCH_COMPRESSION):
        return True
    # Before version 5 a codec could be in the custom metadata of the message, and readers still look there.
    version = _field(metadata, root, _MESSAGE_VERSION)
    is_old = not version or struct.unpack_from("<h", metadata, version)[0] < _VERSION_5
    return is_old and _field(metadata, root, _MESSAGE_METADATA) != 0


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Return the position of a field of a flatbuffers table, or 0 where it is absent."""
    slots = table - struct.unpack_from("<i", metadata, table)[0]
    slot = 4 + 2 * number
    if slot >= struct.unpack_from("<H", metadata, slots)[0]:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, slots + slot)
    return table + int(offset) if offset else 0


def _table(body: bytes, messages_max: int, bytes_max: int) -> pa.Table:
    batches, count, size_bytes = [], 0, 0
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        _check_schema(reader.schema)
        for batch in reader:
            count += batch.num_rows
            if count > messages_max:
                reason = f"A publish takes 1 to {messages_max} messages."
                raise RequestInvalid(reason=reason, hint="Split the request.")
            batch.validate(full=True)
            size_bytes += sum(_text_bytes(column) for column in batch.columns)
            if size_bytes > bytes_max:
                raise BodyTooLarge(limit_bytes=bytes_max)
            batches.append(batch)
        return pa.Table.from_batches(batches, reader.schema)


def _check_schema(schema: pa.Schema) -> None:
    unknown = sorted(set(schema.names) - set(COLUMNS))
    if unknown or len(set(schema.names)) != len(schema.names) or "payload" not in schema.names:
        names = ", ".join(schema.names)[:200]
        raise RequestInvalid(reason=f"The stream has the columns {names or '(none)'}.", hint=HINT)
    for field in schema:
        if not _fits(field.name, field.type):
            reason = f"Column '{field.name}' is {str(field.type)[:80]}, which is not {COLUMNS[field.name]}."
            raise RequestInvalid(reason=reason, hint=f"{HINT} {PLAIN_HINT}")


def _fits(name: str, kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):  # a column of nulls
        return name != "payload"
    if name == "partition":
        return bool(pa.types.is_integer(kind))
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _text_bytes(column: pa.Array) -> int:
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        return 0
    return pc.sum(pc.binary_length(column).cast(pa.int64())).as_py() or 0


def _column(table: pa.Table, name: str) -> list[Any]:
    if name not in table.schema.names:
        return [None] * table.num_rows
    column = table.column(name)
    if name != "partition":
        return list(column.to_pylist())
    try:
        return list(column.cast(COLUMNS[name]).to_pylist())
    except pa.ArrowException as problem:
        raise RequestInvalid(reason=f"Column '{name}' does not fit: {problem}.", hint=HINT) from problem


def _json(index: int, text: object) -> bytes:
    if not isinstance(text, str):
        raise RequestInvalid(reason=f"Message {index} has no payload.", hint="JSON null is the text null.")
    content = text.encode()
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise RequestInvalid(reason=f"Payload {index} is not JSON: {problem}.", hint=HINT) from problem
    return content
