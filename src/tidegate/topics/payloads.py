"""Payloads of routed changes: binary inside, JSON outside. Version 1, by the codec of the record batch.

    codec 0  text   the payload is JSON text, as it was published
    codec 1  key    MessagePack array of the primary key's values, and the preview behind them, if any
    codec 2  full   MessagePack array of the row's values
    codec 3  diff   MessagePack array: [0, row] inserted · [1, row] deleted ·
                    [2, key, places of the columns that differ, their old values, their new values] updated

Values lie by the order of the columns in the payload schema that the record batch names, as `storage.rows`
writes them. Outside every payload is one line of JSON, with values as answers of SQL give them, but for JSON
columns, which are values and not text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.errors import InvariantBroken, StorageCorrupt, TimeRangeInvalid
from tidegate.model.tables import Row, Table, TableColumn, Value, positions_of
from tidegate.topics.payload_text import TextWriter
from tidegate.topics.schemas import PayloadSchema

CODEC_TEXT, CODEC_KEY, CODEC_FULL, CODEC_DIFF = range(4)
CODECS = {"key": CODEC_KEY, "full": CODEC_FULL, "diff": CODEC_DIFF}
INSERTED, DELETED, UPDATED = range(3)

_ARRAY_HEAD = b"\xdd"  # MessagePack: an array whose length is a u32
_encode = msgspec.msgpack.Encoder().encode
# What a payload can bring up that is not as it was written.
_DAMAGE = (
    *(msgspec.DecodeError, TimeRangeInvalid),
    *(ValueError, TypeError, LookupError, ArithmeticError, RecursionError),
)


def encode_full(rows: Sequence[Row]) -> list[bytes]:
    """Give the payloads of whole rows."""
    return list(map(_encode, rows))


def encode_keys(columns: Sequence[Sequence[Value]], previews: Sequence[str] | None = None) -> list[bytes]:
    """Give the payloads of primary keys, which come by their columns, with previews where there are any."""
    return list(map(_encode, zip(*columns, *([previews] if previews is not None else []), strict=True)))


class DiffEncoder:
    """Writes what changed in rows of one table; a NaN is the same as a NaN here, and 0 is not -0."""

    def __init__(self, table: Table) -> None:
        kinds = [column.type.name for column in table.columns]
        self._key = table.key_positions
        # Values of these types may be equal and still not the same.
        self._loose = [place for place, kind in enumerate(kinds) if kind in ("DOUBLE", "DECIMAL")]
        self._strict = [place for place, kind in enumerate(kinds) if kind not in ("DOUBLE", "DECIMAL")]

    def inserted(self, rows: Sequence[Row]) -> list[bytes]:
        """Give the payloads of rows that came."""
        return [_encode((INSERTED, row)) for row in rows]

    def deleted(self, rows: Sequence[Row]) -> list[bytes]:
        """Give the payloads of rows that went."""
        return [_encode((DELETED, row)) for row in rows]

    def updated(self, old_rows: Iterable[Row], new_rows: Iterable[Row]) -> list[bytes]:
        """Give the payloads of rows that stayed, and what they were before."""
        return [self._updated(old, new) for old, new in zip(old_rows, new_rows, strict=True)]

    def _updated(self, old: Row, new: Row) -> bytes:
        places = [place for place in self._strict if old[place] != new[place]]
        if self._loose:
            places += [place for place in self._loose if _encode(old[place]) != _encode(new[place])]
            places.sort()
        key = [new[place] for place in self._key]
        return _encode((UPDATED, key, places, [old[place] for place in places], [new[p] for p in places]))


def json_batch(
    batch: pa.RecordBatch, codec: int, schema: PayloadSchema | None, place: str = "a topic"
) -> pa.RecordBatch:
    """Give messages with their payloads as JSON text; StorageCorrupt names the place and the message."""
    if codec == CODEC_TEXT or batch.num_rows == 0:
        return batch
    if codec not in (CODEC_KEY, CODEC_FULL, CODEC_DIFF):
        raise StorageCorrupt(place=place, reason=f"payload codec {codec}, this reads 0 to {CODEC_DIFF}")
    if schema is None:
        raise InvariantBroken(reason="routed payloads are read without their schema")
    column = batch.schema.get_field_index("payload")
    try:
        text = _texts(_writer_of(schema), codec, batch.column(column))
    except _DAMAGE as problem:
        raise _damage(batch, codec, schema, place) from problem
    arrays = batch.columns
    arrays[column] = text
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def preview_texts(table: Table, rows: Sequence[Row], chars: int) -> list[str]:
    """Give the beginnings of the JSON of rows."""
    lines = _writer_of(table).full(_joined(encode_full(rows))).split(b"\n")
    return [line.decode()[:chars] for line in lines[:-1]]


def _writer_of(shape: PayloadSchema | Table) -> TextWriter:
    return _writer(shape.columns, shape.primary_key)


@lru_cache(maxsize=1024)
def _writer(columns: tuple[TableColumn, ...], primary_key: tuple[str, ...]) -> TextWriter:
    places = positions_of(tuple(column.name for column in columns), primary_key)
    return TextWriter([(column.name, column.type) for column in columns], places)


def _texts(writer: TextWriter, codec: int, payloads: pa.Array) -> pa.Array:
    packed = _packed(payloads)
    if codec == CODEC_FULL:
        lines = writer.full(packed)
    elif codec == CODEC_KEY:
        lines = writer.keys(packed)
    else:
        lines = writer.diffs(packed)
    return _cut(lines, len(payloads))


def _packed(payloads: pa.Array) -> bytes:
    """Give one MessagePack array of all payloads: they lie side by side already."""
    _, offsets_buffer, values = payloads.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[payloads.offset : payloads.offset + len(payloads) + 1]
    inside = memoryview(values)[int(offsets[0]) : int(offsets[-1])] if values is not None else b""
    return b"".join((_ARRAY_HEAD, len(payloads).to_bytes(4, "big"), inside))


def _joined(payloads: Sequence[bytes]) -> bytes:
    return b"".join((_ARRAY_HEAD, len(payloads).to_bytes(4, "big"), *payloads))


def _cut(lines: bytes, count: int) -> pa.Array:
    """Give the lines of a text as strings, without their ends."""
    chars = np.frombuffer(lines, np.uint8)
    ends = np.flatnonzero(chars == ord("\n"))
    if len(ends) != count:
        raise InvariantBroken(reason=f"{count} payloads became {len(ends)} lines of JSON")
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = ends - np.arange(count)
    text = np.delete(chars, ends)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


def _damage(batch: pa.RecordBatch, codec: int, schema: PayloadSchema, place: str) -> StorageCorrupt:
    """Give the error for the first message that cannot be read."""
    writer = _writer_of(schema)
    payloads = batch.column("payload")
    places = zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
    for index, (partition, offset) in enumerate(places):
        try:
            _texts(writer, codec, payloads.slice(index, 1))
        except _DAMAGE as problem:
            reason = f"a payload of '{schema.source}' is not what its schema {schema.number} says: {problem}"
            return StorageCorrupt(place=f"{place}, partition {partition}, offset {offset}", reason=reason)
    return StorageCorrupt(place=place, reason="its payloads overlap")
