"""The encoding of rows: values in the order of their columns, without names; a schema id names the columns.

    version u8 | schema id u16 | MessagePack array of the values        a row of a table, in the engine

Numbers are big-endian. MessagePack has null, booleans, 64-bit integers, doubles, UTF-8 text and bytes;
DECIMAL is text. A row that is shorter than its table was written before the last columns were added. The
frames of streams hold the same arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from tidegate.errors import StorageCorrupt, ValueInvalid
from tidegate.model.tables import Row

ROW_VERSION = 1
SCHEMA_ID_MAX = 0xFFFF

_HEAD = struct.Struct(">BH")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


def encode_values(values: Sequence[Any]) -> bytes:
    """Return the array of one row's values; ValueInvalid for text that has no UTF-8 form."""
    try:
        return _encode(values)
    except UnicodeEncodeError as problem:
        raise ValueInvalid(place="A text", reason=f"it is not Unicode: {problem.reason}") from problem


def encode_row(schema_id: int, row: Row) -> bytes:
    """Return the bytes that store a row of a table."""
    return _HEAD.pack(ROW_VERSION, schema_id) + encode_values(row)


class RowReader:
    """Decodes stored rows of one table: fills in columns that were added later, restores DECIMAL.

    `missing` has one value for each column, for rows that are older than it; `decimals` are the positions
    of DECIMAL columns.
    """

    def __init__(self, schema_id: int, missing: Row, decimals: Sequence[int]) -> None:
        self._schema_id = schema_id
        self._missing = missing
        self._decimals = tuple(decimals)
        self._heads = {_HEAD.pack(ROW_VERSION, known) for known in range(1, schema_id + 1)}

    def row(self, stored: bytes, place: Callable[[], str]) -> Row:
        """Return the row of stored bytes; StorageCorrupt names the place that `place` returns."""
        if stored[:3] not in self._heads:
            version, schema_id = _HEAD.unpack(stored[:3].ljust(3, b"\0"))
            reason = (
                f"version {version}, schema {schema_id}: this reads {ROW_VERSION} and 1 to {self._schema_id}"
            )
            raise StorageCorrupt(place=place(), reason=reason)
        try:
            values = _decode(stored[3:])
        except msgspec.DecodeError as problem:
            raise StorageCorrupt(place=place(), reason=str(problem)) from problem
        return self.filled(values)

    def filled(self, values: list[Any]) -> Row:
        """Return decoded values as a row with all columns."""
        if len(values) < len(self._missing):
            values.extend(self._missing[len(values) :])
        for position in self._decimals:
            text = values[position]
            if type(text) is str:
                values[position] = Decimal(text)
        return tuple(values)
