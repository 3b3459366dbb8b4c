"""Payloads of routed changes: MessagePack in the log, JSON for readers. Version 1, by codec.

    codec 0  text   the payload is JSON text, as it was published
    codec 1  key    MessagePack array of the primary key's values, and the preview behind them, if any
    codec 2  full   MessagePack array of the row's values
    codec 3  diff   MessagePack array: [0, row] inserted · [1, row] deleted ·
                    [2, key, indexes of the columns that differ, their old values, their new values] updated

Values are in the order of the columns in the payload schema that the record batch names, encoded as by
`storage.row_codec`. Readers get every payload as one line of JSON, with values as answers of SQL have them,
except that values of JSON columns are embedded and not text.

The conversion to JSON works column by column, so that a message costs a few microseconds: one decode for all
messages, one conversion for each column whose JSON differs from its stored value, one encode for all lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET

from tidegate.errors import InvariantBroken, StorageCorrupt, TimeRangeInvalid
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row, Table, TableColumn, Value, positions_of
from tidegate.model.values import json_dates, json_times
from tidegate.topics.payload_schemas import PayloadSchema

CODEC_TEXT, CODEC_KEY, CODEC_FULL, CODEC_DIFF = range(4)
CODECS = {"key": CODEC_KEY, "full": CODEC_FULL, "diff": CODEC_DIFF}
INSERTED, DELETED, UPDATED = range(3)

_ARRAY_HEAD = b"\xdd"  # MessagePack: an array whose length is a u32
_encode = msgspec.msgpack.Encoder().encode
# What decoding a damaged payload may raise.
_DAMAGE = (
    *(msgspec.DecodeError, TimeRangeInvalid),
    *(ValueError, TypeError, LookupError, ArithmeticError, RecursionError),
)


def encode_full(rows: Sequence[Row]) -> list[bytes]:
    """Return the payloads of whole rows."""
    return list(map(_encode, rows))


def encode_keys(columns: Sequence[Sequence[Value]], previews: Sequence[str] | None = None) -> list[bytes]:
    """Return the payloads of primary keys, given as columns, with previews where there are any."""
    return list(map(_encode, zip(*columns, *([previews] if previews is not None else []), strict=True)))


class DiffEncoder:
    """Encodes the differences of rows of one table; a NaN equals a NaN here, and 0 is not -0."""

    def __init__(self, table: Table) -> None:
        kinds = [column.type.name for column in table.columns]
        self._key = table.key_positions
        # Values of these types may compare equal and be encoded differently.
        self._loose = [place for place, kind in enumerate(kinds) if kind in ("DOUBLE", "DECIMAL")]
        self._strict = [place for place, kind in enumerate(kinds) if kind not in ("DOUBLE", "DECIMAL")]

    def inserted(self, rows: Sequence[Row]) -> list[bytes]:
        """Return the payloads of inserted rows."""
        return [_encode((INSERTED, row)) for row in rows]

    def deleted(self, rows: Sequence[Row]) -> list[bytes]:
        """Return the payloads of deleted rows."""
        return [_encode((DELETED, row)) for row in rows]

    def updated(self, old_rows: Iterable[Row], new_rows: Iterable[Row]) -> list[bytes]:
        """Return the payloads of updated rows."""
        return [self._updated(old, new) for old, new in zip(old_rows, new_rows, strict=True)]

    def _updated(self, old: Row, new: Row) -> bytes:
        column_indexes = [place for place in self._strict if old[place] != new[place]]
        if self._loose:
            column_indexes += [place for place in self._loose if _encode(old[place]) != _encode(new[place])]
            column_indexes.sort()
        key = [new[place] for place in self._key]
        old_values = [old[place] for place in column_indexes]
        return _encode((UPDATED, key, column_indexes, old_values, [new[place] for place in column_indexes]))


def json_batch(
    batch: pa.RecordBatch, codec: int, schema: PayloadSchema | None, place: str = "a topic"
) -> pa.RecordBatch:
    """Return messages with their payloads as JSON text; StorageCorrupt names `place` and the message."""
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
    """Return the beginnings of the JSON of rows."""
    lines = _writer_of(table).full(_joined(encode_full(rows))).split(b"\n")
    return [line.decode()[:chars] for line in lines[:-1]]


def _writer_of(shape: PayloadSchema | Table) -> TextWriter:
    return _writer(shape.columns, shape.primary_key)


@lru_cache(maxsize=1024)
def _writer(columns: tuple[TableColumn, ...], primary_key: tuple[str, ...]) -> TextWriter:
    column_indexes = positions_of(tuple(column.name for column in columns), primary_key)
    return TextWriter([(column.name, column.type) for column in columns], column_indexes)


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
    """Return one MessagePack array of all payloads, which are contiguous in the column."""
    _, offsets_buffer, values = payloads.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[payloads.offset : payloads.offset + len(payloads) + 1]
    inside = memoryview(values)[int(offsets[0]) : int(offsets[-1])] if values is not None else b""
    return b"".join((_ARRAY_HEAD, len(payloads).to_bytes(4, "big"), inside))


def _joined(payloads: Sequence[bytes]) -> bytes:
    return b"".join((_ARRAY_HEAD, len(payloads).to_bytes(4, "big"), *payloads))


def _cut(lines: bytes, count: int) -> pa.Array:
    """Return the lines of a text as strings, without line ends."""
    chars = np.frombuffer(lines, np.uint8)
    ends = np.flatnonzero(chars == ord("\n"))
    if len(ends) != count:
        raise InvariantBroken(reason=f"{count} payloads became {len(ends)} lines of JSON")
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = ends - np.arange(count)
    text = np.delete(chars, ends)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


def _damage(batch: pa.RecordBatch, codec: int, schema: PayloadSchema, place: str) -> StorageCorrupt:
    """Return the error for the first message that cannot be read."""
    writer = _writer_of(schema)
    payloads = batch.column("payload")
    positions = zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
    for index, (partition, offset) in enumerate(positions):
        try:
            _texts(writer, codec, payloads.slice(index, 1))
        except _DAMAGE as problem:
            reason = f"a payload of '{schema.source}' is not what its schema {schema.number} says: {problem}"
            return StorageCorrupt(place=f"{place}, partition {partition}, offset {offset}", reason=reason)
    return StorageCorrupt(place=place, reason="its payloads overlap")


PREVIEW_NAME = "_preview"

# The MessagePack type of the values of each column type.
_STORED: dict[str, type] = {
    "BOOLEAN": bool,
    "INT": int,
    "BIGINT": int,
    "DATE": int,
    "TIMESTAMP": int,
    "DOUBLE": float,
    "BYTES": bytes,
    "DECIMAL": str,
    "TEXT": str,
    "JSON": str,
    "UUID": str,
}

Column = tuple[str, ColumnType]
_encode_lines = msgspec.json.Encoder().encode_lines
_decode_loose = msgspec.msgpack.Decoder(list[list[Any]]).decode


class TextWriter:
    """Encodes the payloads of one payload schema as lines of JSON."""

    def __init__(self, columns: Sequence[Column], key_places: Sequence[int]) -> None:
        self._columns = list(columns)
        self._key = [columns[place] for place in key_places]
        self._key_places = list(key_places)
        self._names = [name for name, _ in columns]
        self._key_names = [name for name, _ in self._key]
        self._row = _maker(self._names)
        self._key_row = _maker(self._key_names)
        self._key_preview = _maker([*self._key_names, PREVIEW_NAME])
        self._decode_full = _decoder(self._columns)
        self._decode_key = _decoder(self._key)

    def full(self, packed: bytes) -> bytes:
        """Return the lines of whole rows."""
        shown = _shown_columns(zip(*self._decode_full(packed), strict=True), self._columns)
        return _encode_lines(list(map(self._row, *shown)))

    def keys(self, packed: bytes) -> bytes:
        """Return the lines of primary keys, with previews where there are any."""
        try:
            rows = self._decode_key(packed)
        except msgspec.ValidationError:
            return self._keys_with_previews(packed)
        return _encode_lines(list(map(self._key_row, *self._key_columns(rows))))

    def _keys_with_previews(self, packed: bytes) -> bytes:
        width = len(self._key)
        rows = _decode_loose(packed)
        for row in rows:
            if len(row) == width:
                row.append(UNSET)
            elif len(row) != width + 1:
                raise ValueError(f"a key has {width} values and not {len(row)}")
        previews = [row.pop() for row in rows]
        return _encode_lines(list(map(self._key_preview, *self._key_columns(rows), previews)))

    def _key_columns(self, rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        return _shown_columns(zip(*rows, strict=True), self._key)

    def diffs(self, packed: bytes) -> bytes:
        """Return the lines of differences."""
        messages = _decode_loose(packed)
        shown: list[Any] = [None] * len(messages)
        for kind, write in enumerate((self._inserted, self._deleted, self._updated)):
            indexes = [place for place, message in enumerate(messages) if message[0] == kind]
            if indexes:
                found = write([messages[place][1:] for place in indexes])
                for place, one in zip(indexes, found, strict=True):
                    shown[place] = one
        if None in shown:
            raise ValueError(f"there is no difference of kind {messages[shown.index(None)][0]!r}")
        return _encode_lines(shown)

    def _inserted(self, messages: Sequence[Sequence[Any]]) -> list[Any]:
        columns = self._row_columns(messages)
        return self._whole(
            columns,
            [[UNSET if new is None else _ValueChange(None, new) for new in column] for column in columns],
        )

    def _deleted(self, messages: Sequence[Sequence[Any]]) -> list[Any]:
        columns = self._row_columns(messages)
        return self._whole(
            columns,
            [[UNSET if old is None else _ValueChange(old, None) for old in column] for column in columns],
        )

    def _row_columns(self, messages: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        return _shown_columns(zip(*[row for (row,) in messages], strict=True), self._columns)

    def _whole(self, columns: Sequence[Sequence[Any]], both: Sequence[Iterable[Any]]) -> list[Any]:
        """Return whole rows as differences; a column that is NULL before and after has not changed."""
        keys = map(self._key_row, *[columns[place] for place in self._key_places])
        return list(map(_Difference, keys, map(self._row, *both)))

    def _updated(self, messages: Sequence[Sequence[Any]]) -> list[Any]:
        # All values of a column are converted together, and consumed in the order they were added.
        pools: list[list[Any]] = [[] for _ in self._columns]
        for _, column_indexes, old, new in messages:
            for place, before, after in zip(column_indexes, old, new, strict=True):
                pools[place] += (before, after)
        shown = [iter(_shown(pool, kind)) for pool, (_, kind) in zip(pools, self._columns, strict=True)]
        names = self._names
        changed = [
            {names[place]: _ValueChange(next(shown[place]), next(shown[place])) for place in column_indexes}
            for _, column_indexes, _, _ in messages
        ]
        keys = map(self._key_row, *self._key_columns([key for key, _, _, _ in messages]))
        return list(map(_Difference, keys, changed))


class _ValueChange(msgspec.Struct, gc=False):
    """A value before and after."""

    old: Any
    new: Any


class _Difference(msgspec.Struct, gc=False):
    """A row's primary key and its changed columns."""

    key: Any
    changed: Any


def _maker(names: Sequence[str]) -> Callable[..., Any]:
    """Return a fast function from values to an object that JSON writes with these names."""
    fields: list[tuple[str, Any]] = [(f"field_{place}", Any) for place in range(len(names))]
    spelled = {field: name for (field, _), name in zip(fields, names, strict=True)}
    if any(char in name for name in names for char in '"\\'):
        # A struct writes the names of its fields without escapes.
        return lambda *values: {
            name: value for name, value in zip(names, values, strict=True) if value is not UNSET
        }
    return msgspec.defstruct("Shown", fields, rename=spelled, gc=False)


def _decoder(columns: Sequence[Column]) -> Callable[[bytes], list[Any]]:
    kinds = tuple(_STORED[kind.name] | None for _, kind in columns)
    return msgspec.msgpack.Decoder(list[tuple[kinds]]).decode  # type: ignore[valid-type]


def _shown_columns(columns: Iterable[Sequence[Any]], kinds: Sequence[Column]) -> list[Sequence[Any]]:
    return [_shown(values, kind) for values, (_, kind) in zip(columns, kinds, strict=True)]


def _shown(values: Sequence[Any], kind: ColumnType) -> Sequence[Any]:
    """Return values as the JSON encoder takes them; it converts BYTES, NaN and the infinities by itself."""
    convert = _CONVERTERS.get(kind.name)
    return values if convert is None else convert(values)


def _decimals(values: Sequence[Any]) -> list[Any]:
    return [value if value is None or "E" not in value else f"{Decimal(value):f}" for value in values]


def _documents(values: Sequence[Any]) -> list[Any]:
    """Return JSON texts on one line: a line end in JSON can only be between its tokens."""
    return [None if value is None else msgspec.Raw(value.replace("\n", " ")) for value in values]


_CONVERTERS: dict[str, Callable[[Sequence[Any]], list[Any]]] = {
    "TIMESTAMP": json_times,
    "DECIMAL": _decimals,
    "JSON": _documents,
    "DATE": json_dates,
}
