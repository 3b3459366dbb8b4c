"""The encoding of columns in keys: bytes sort as the values do, and equal values have equal bytes.

    BOOLEAN      1 byte, 0 or 1
    INT, DATE    4 bytes, the sign bit flipped
    BIGINT, TIMESTAMP    8 bytes, the sign bit flipped
    DECIMAL      16 bytes, the unscaled number, the sign bit flipped
    DOUBLE       8 bytes of IEEE 754, the sign bit flipped, all bits of negative numbers; -0 is 0, and NaN
                 comes after infinity
    UUID         its 16 bytes
    TEXT, BYTES  their (UTF-8) bytes with 00 written as 00 ff, then 00 00

In an index each column is preceded by 01, and NULL is 00 alone: NULL comes first. Every column is
self-delimiting, so no key is the beginning of another. JSON has no order and is no part of a key. The
encodings of numbers and texts are those of `storage/ordered_bytes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

from tidegate.errors import InvariantBroken
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Value
from tidegate.storage.ordered_bytes import (
    PACK_LONG,
    SIGN_64,
    end_of_text,
    put_double,
    put_int,
    put_long,
    put_number,
    put_text,
)

KEY_TYPES = frozenset(
    {"BOOLEAN", "INT", "BIGINT", "DATE", "TIMESTAMP", "DECIMAL", "DOUBLE", "TEXT", "BYTES", "UUID"}
)

_EXACT = Context(prec=100, traps=[Inexact, InvalidOperation])
_NULL, _THERE = b"\x00", b"\x01"
_WIDTHS = {
    "BOOLEAN": 1,
    "INT": 4,
    "DATE": 4,
    "BIGINT": 8,
    "TIMESTAMP": 8,
    "DOUBLE": 8,
    "DECIMAL": 16,
    "UUID": 16,
}

Encoder = Callable[[Any], bytes]


def encoder_of(kind: ColumnType) -> Encoder:
    """Return the function that encodes a value of a type, not None; InvariantBroken for JSON."""
    if kind.name == "DECIMAL":
        return _decimal_encoder(kind.scale)
    try:
        return _ENCODERS[kind.name]
    except KeyError as problem:
        raise InvariantBroken(reason=f"{kind} is no part of a key") from problem


class TableKeyCodec:
    """Encodes the values of some columns, in order, as bytes that sort as they do."""

    def __init__(self, kinds: Sequence[ColumnType], *, nullable: bool) -> None:
        plain = [encoder_of(kind) for kind in kinds]
        self._encoders = [_nullable(encode) for encode in plain] if nullable else plain
        self._widths = [_WIDTHS.get(kind.name) for kind in kinds]
        self._nullable = nullable
        self._doubles = [position for position, kind in enumerate(kinds) if kind.name == "DOUBLE"]

    @property
    def is_fixed(self) -> bool:
        """Return whether every key has the same length."""
        return not self._nullable and None not in self._widths

    def encode(self, values: Sequence[Value]) -> bytes:
        """Return the bytes of the values of the first columns; as many columns as there are values."""
        return b"".join([encode(value) for encode, value in zip(self._encoders, values, strict=False)])

    def encode_at(self, position: int, value: Value) -> bytes:
        """Return the bytes of the value of one column."""
        return self._encoders[position](value)

    def encode_columns(self, prefix: bytes, columns: Sequence[Sequence[Value]]) -> list[bytes]:
        """Return the keys of many rows, each after a prefix, from one sequence of values per column."""
        if len(columns) == 1:
            encode = self._encoders[0]
            if encode is put_long:  # the most frequent key by far
                return [prefix + PACK_LONG(value + SIGN_64) for value in columns[0]]  # type: ignore[operator]
            return [prefix + encode(value) for value in columns[0]]
        parts = [map(encode, column) for encode, column in zip(self._encoders, columns, strict=True)]
        return [prefix + b"".join(key) for key in zip(*parts, strict=True)]

    def find_nan(self, columns: Sequence[Sequence[Value]]) -> tuple[int, int] | None:
        """Return column and row of the first NaN, which no primary key may have; None without one."""
        for position in self._doubles:
            for number, value in enumerate(columns[position]):
                if value != value:  # noqa: PLR0124 - only NaN differs from itself
                    return position, number
        return None

    def end_of(self, key: bytes, start: int) -> int:
        """Return the byte at which the columns end that begin at this byte of a key."""
        at = start
        for width in self._widths:
            if self._nullable:
                at += 1
                if key[at - 1 : at] == _NULL:
                    continue
            at = at + width if width is not None else end_of_text(key, at)
        return at


def _nullable(encode: Encoder) -> Encoder:
    return lambda value: _NULL if value is None else _THERE + encode(value)


def _decimal_encoder(scale: int) -> Encoder:
    def encode(value: Decimal) -> bytes:
        return put_number(int(value.scaleb(scale, context=_EXACT)), 16)

    return encode


_ENCODERS: dict[str, Encoder] = {
    "BOOLEAN": lambda value: b"\x01" if value else b"\x00",
    "INT": put_int,
    "DATE": put_int,
    "BIGINT": put_long,
    "TIMESTAMP": put_long,
    "DOUBLE": put_double,
    "UUID": lambda value: bytes.fromhex(value.replace("-", "")),
    "TEXT": lambda value: put_text(value.encode()),
    "BYTES": put_text,
}
