"""The codec of frame payloads: rows and deletes, read with the present schema of the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from tidegate.errors import InvariantBroken, ValueInvalid
from tidegate.model.tables import Row, Table
from tidegate.storage.row_codec import RowReader, encode_values
from tidegate.streams.frames import PAYLOAD_BYTES_MAX, FrameContent, FrameHeader, FrameKind, seqs_from

# A delete hides the rows of this key whose number is at most this one.
Hidden: TypeAlias = tuple[Row, int]

_decode_rows = msgspec.msgpack.Decoder(list[list[Any]]).decode
_decode_deletes = msgspec.msgpack.Decoder(list[tuple[list[Any], int]]).decode


def rows_content(table: Table, rows: Sequence[Row]) -> FrameContent:
    """Return the frame content of these rows; ValueInvalid if it is too large for one frame."""
    width = len(table.columns)
    if set(map(len, rows)) != {width}:
        raise InvariantBroken(reason=f"a row of '{table.full_name}' has not {width} values")
    return _content(FrameKind.ROWS, table, rows)


def deletes_content(table: Table, hidden: Sequence[Hidden]) -> FrameContent:
    """Return the frame content of a delete of these keys."""
    return _content(FrameKind.DELETES, table, hidden)


def _content(kind: FrameKind, table: Table, values: Sequence[Any]) -> FrameContent:
    payload = encode_values(values)
    if len(payload) > PAYLOAD_BYTES_MAX:
        reason = f"its rows take {len(payload)} bytes, {PAYLOAD_BYTES_MAX} are the most"
        raise ValueInvalid(place=f"A statement on '{table.full_name}'", reason=reason)
    return FrameContent(kind, table.schema_id, len(values), payload)


class PayloadReader:
    """Decodes frames with the present schema of a table; ValueError if a payload does not fit its header."""

    def __init__(self, table: Table) -> None:
        self._width = len(table.columns)
        decimals = [place for place, column in enumerate(table.columns) if column.type.name == "DECIMAL"]
        self._reader = RowReader(table.schema_id, _missing(table), decimals)
        keys = table.key_positions
        self._keys = keys
        key_decimals = [place for place, key in enumerate(keys) if key in decimals]
        self._key_reader = RowReader(table.schema_id, (None,) * len(keys), key_decimals)
        self._plain = not decimals

    @property
    def is_keyed(self) -> bool:
        """True if a later row can replace an earlier one."""
        return bool(self._keys)

    def rows(self, head: FrameHeader, payload: bytes) -> list[Row]:
        """Return the rows of a frame with all columns, number and time, in the order of their numbers."""
        found = _decode_rows(payload)
        seqs = _numbered(head, len(found))
        width, time_us = self._width, head.time_us
        if self._plain and all(len(values) == width for values in found):
            return [(*values, seq, time_us) for values, seq in zip(found, seqs, strict=True)]
        # A row can be longer than the table if a column was added after the caller read the schema.
        filled = self._reader.filled
        return [(*filled(values[:width]), seq, time_us) for values, seq in zip(found, seqs, strict=True)]

    def deletes(self, head: FrameHeader, payload: bytes) -> list[Hidden]:
        """Return the keys that a frame hides."""
        found = _decode_deletes(payload)
        _numbered(head, len(found))
        return [(self._key_reader.filled(values), seq) for values, seq in found]

    def key(self, row: Row) -> Row:
        """Return the key of a row with all columns."""
        return tuple([row[place] for place in self._keys])


def _numbered(head: FrameHeader, count: int) -> Sequence[int]:
    if count != head.entries:
        raise ValueError(f"it holds {count} entries, and its header says {head.entries}")
    return seqs_from(head.first_seq, count)


def _missing(table: Table) -> Row:
    if all(column.missing is None for column in table.columns):
        return (None,) * len(table.columns)
    from tidegate.model.values import from_json

    return tuple(from_json(column.missing, column.type) for column in table.columns)
