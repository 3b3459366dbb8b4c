"""Rows of a query as messages, in Arrow streams that each fit into a request.

A column `payload` holds JSON text, or a struct, map or array that becomes JSON. Without one, all columns but
`key`, `partition` and `dedupKey` become one JSON object a row, nulls included. Text in JSON is as SQL shows
values: decimals as text, times in UTC, bytes in base64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark_types

from tidegate.errors import RequestInvalid
from tidegate.pipeline.topic.client import with_hint_note

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PAYLOAD, KEY, PARTITION, DEDUP_KEY = "payload", "key", "partition", "dedupKey"
# A part costs a request and a synced write: large enough that this does not count, small enough for every
# task to hold one.
PART_BYTES = 4 * 1024 * 1024
PART_ROWS = 20_000
OUT_SCHEMA = pa.schema([(PAYLOAD, pa.large_string()), (KEY, pa.large_string()), (PARTITION, pa.int64())])
DEDUP_SCHEMA = OUT_SCHEMA.append(pa.field(DEDUP_KEY, pa.large_string()))

_NESTED = (spark_types.StructType, spark_types.ArrayType, spark_types.MapType)
_KEY_TYPES = (spark_types.StringType, spark_types.IntegralType)
_encode_lines = msgspec.json.Encoder().encode_lines


def check_columns(schema: StructType) -> None:
    """Refuse rows that cannot become messages, before any is read."""
    fields = {field.name: field.dataType for field in schema.fields}
    if len({name.lower() for name in fields}) < len(schema.fields):
        raise _invalid_rows("Two columns have one name", "Rename one of them.")
    for name, kind in fields.items():
        if isinstance(kind, spark_types.VariantType | spark_types.NullType):
            raise _invalid_rows(
                f"Column '{name}' has the type {kind.simpleString()}", "Convert it with to_json."
            )
    if KEY in fields and not isinstance(fields[KEY], _KEY_TYPES):
        raise _invalid_rows("Column 'key' is not text or a whole number", "Cast it: key STRING.")
    if DEDUP_KEY in fields and not isinstance(fields[DEDUP_KEY], _KEY_TYPES):
        raise _invalid_rows("Column 'dedupKey' is not text or a whole number", "Cast it, or rename it.")
    if PARTITION in fields and not isinstance(fields[PARTITION], spark_types.IntegralType):
        raise _invalid_rows("Column 'partition' is not a whole number", "Cast it, or rename it.")
    others = [name for name in fields if name not in (PAYLOAD, KEY, PARTITION, DEDUP_KEY)]
    if PAYLOAD not in fields:
        if not others:
            raise _invalid_rows(
                "The rows have no column for the payload", "Add one: to_json(struct(…)) AS payload."
            )
        return
    if not isinstance(fields[PAYLOAD], (spark_types.StringType, *_NESTED)):
        raise _invalid_rows("Column 'payload' is not JSON text", "Write it with to_json.")
    if others:
        names = ", ".join(f"'{name}'" for name in others[:5])
        raise _invalid_rows(
            f"Beside 'payload' there are the columns {names}, which would be lost",
            "Select payload, key, partition and dedupKey; or leave payload out, and all others become it.",
        )


def message_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the messages of a batch of rows."""
    names = batch.schema.names
    if PAYLOAD in names:
        payload = batch.column(PAYLOAD)
        if not pa.types.is_string(payload.type) and not pa.types.is_large_string(payload.type):
            payload = _lines(payload.to_pylist(maps_as_pydicts="strict"))
        elif payload.null_count:
            raise _invalid_rows("A row has no payload", "JSON null is the text null; filter such rows out.")
    else:
        others = [name for name in names if name not in (KEY, PARTITION, DEDUP_KEY)]
        payload = _lines(_in_utc(batch.select(others)).to_pylist(maps_as_pydicts="strict"))
    columns, schema = [payload, _optional(batch, KEY), _optional(batch, PARTITION)], OUT_SCHEMA
    if DEDUP_KEY in names:
        columns, schema = [*columns, batch.column(DEDUP_KEY)], DEDUP_SCHEMA
    arrays = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def parts_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield batches of messages, joined or split into parts of up to PART_ROWS and PART_BYTES."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        for piece in _split(batch):
            piece_bytes = text_bytes(piece)
            if waiting and (rows + piece.num_rows > PART_ROWS or size_bytes + piece_bytes > PART_BYTES):
                yield pa.Table.from_batches(waiting)
                waiting, rows, size_bytes = [], 0, 0
            waiting.append(piece)
            rows += piece.num_rows
            size_bytes += piece_bytes
    if waiting:
        yield pa.Table.from_batches(waiting)


def stream_bytes(table: pa.Table) -> bytes:
    """Return messages as the bytes of an Arrow stream, without compression."""
    sink = pa.BufferOutputStream()
    # A slice is written with only its own part of the buffers; joined, the stream has one batch.
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def text_bytes(batch: pa.RecordBatch) -> int:
    """Return the size of payloads and keys in bytes."""
    names = [name for name in (PAYLOAD, KEY, DEDUP_KEY) if name in batch.schema.names]
    sizes = [pc.sum(pc.binary_length(batch.column(name))).as_py() or 0 for name in names]
    return int(sum(sizes))


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows == 0:
        return
    if batch.num_rows == 1 or (batch.num_rows <= PART_ROWS and text_bytes(batch) <= PART_BYTES):
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _split(batch.slice(0, middle))
    yield from _split(batch.slice(middle))


def _lines(values: list[Any]) -> pa.Array:
    if any(value is None for value in values):
        raise _invalid_rows("A row has no payload", "Filter such rows out.")
    # JSON escapes line ends, so a line is a value.
    return pa.array(_encode_lines(values).split(b"\n")[:-1], pa.large_binary()).cast(pa.large_string())


def _in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with timestamps in UTC, whatever the zone of the session is."""
    columns = [
        column.cast(pa.timestamp("us", tz="UTC"))
        if pa.types.is_timestamp(column.type) and column.type.tz not in (None, "UTC")
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _optional(batch: pa.RecordBatch, name: str) -> pa.Array:
    return batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows)


def _invalid_rows(reason: str, hint: str) -> RequestInvalid:
    problem = RequestInvalid(reason=reason, hint=hint)
    with_hint_note(problem)
    return problem
