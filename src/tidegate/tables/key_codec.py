"""Columns as parts of a key: the order of the bytes is the order of the values, and equal means equal.

    BOOLEAN      1 byte, 0 or 1
    INT, DATE    4 bytes, the sign bit turned over
    BIGINT, TIMESTAMP    8 bytes, the sign bit turned over
    DECIMAL      16 bytes, the number without its point, the sign bit turned over
    DOUBLE       8 bytes of IEEE 754, the sign bit turned over, all bits where it is negative; -0 is 0, and
                 NaN comes after infinity
    UUID         its 16 bytes
    TEXT, BYTES  their (UTF-8) bytes with 00 written as 00 ff, then 00 00

In an index each column is preceded by 01, and NULL is 00 alone: NULL comes first. Every column says by
itself where it ends, so no key is the beginning of another. JSON has no order and is no part of a key.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

from tidegate.errors import InvariantBroken
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Value

KEY_TYPES = frozenset(
    {"BOOLEAN", "INT", "BIGINT", "DATE", "TIMESTAMP", "DECIMAL", "DOUBLE", "TEXT", "BYTES", "UUID"}
)

_U32 = struct.Struct(">I").pack
_U64 = struct.Struct(">Q").pack
_DOUBLE = struct.Struct(">d").pack
_SIGN_32, _SIGN_64, _SIGN_128 = 1 << 31, 1 << 63, 1 << 127
_ALL_64 = (1 << 64) - 1
_NAN = b"\xff\xf8" + bytes(6)
_EXACT = Context(prec=100, traps=[Inexact, InvalidOperation])
_NULL, _THERE = b"\x00", b"\x01"
_END = b"\x00\x00"
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
    """Return the function that writes one value of a type; None is not among the values."""
    if kind.name == "DECIMAL":
        return _decimal_encoder(kind.scale)
    try:
        return _ENCODERS[kind.name]
    except KeyError as problem:
        raise InvariantBroken(reason=f"{kind} is no part of a key") from problem


class KeyCodec:
    """Writes the values of some columns, in order, as bytes that sort like them."""

    def __init__(self, kinds: Sequence[ColumnType], *, nullable: bool) -> None:
        plain = [encoder_of(kind) for kind in kinds]
        self._encoders = [_nullable(encode) for encode in plain] if nullable else plain
        self._widths = [_WIDTHS.get(kind.name) for kind in kinds]
        self._nullable = nullable
        self._doubles = [place for place, kind in enumerate(kinds) if kind.name == "DOUBLE"]

    @property
    def is_fixed(self) -> bool:
        """Whether every key has the same length."""
        return not self._nullable and None not in self._widths

    def encode(self, values: Sequence[Value]) -> bytes:
        """Return the bytes of the values of the first columns; as many columns as there are values."""
        return b"".join([encode(value) for encode, value in zip(self._encoders, values, strict=False)])

    def encode_at(self, place: int, value: Value) -> bytes:
        """Return the bytes of the value of one column."""
        return self._encoders[place](value)

    def encode_columns(self, prefix: bytes, columns: Sequence[Sequence[Value]]) -> list[bytes]:
        """Return the keys of many rows, each after a prefix, from one sequence of values per column."""
        if len(columns) == 1:
            encode = self._encoders[0]
            if encode is _wide:  # the most frequent key by far
                return [prefix + _U64(value + _SIGN_64) for value in columns[0]]  # type: ignore[operator]
            return [prefix + encode(value) for value in columns[0]]
        parts = [map(encode, column) for encode, column in zip(self._encoders, columns, strict=True)]
        return [prefix + b"".join(key) for key in zip(*parts, strict=True)]

    def find_nan(self, columns: Sequence[Sequence[Value]]) -> tuple[int, int] | None:
        """Return the column and the row of a NaN, which no primary key may have, or None."""
        for place in self._doubles:
            for number, value in enumerate(columns[place]):
                if value != value:  # noqa: PLR0124 - only NaN differs from itself
                    return place, number
        return None

    def end_of(self, key: bytes, start: int) -> int:
        """Return where the columns end that begin at this byte of a key."""
        at = start
        for width in self._widths:
            if self._nullable:
                at += 1
                if key[at - 1 : at] == _NULL:
                    continue
            at = at + width if width is not None else key.index(_END, at) + len(_END)
        return at


def _nullable(encode: Encoder) -> Encoder:
    return lambda value: _NULL if value is None else _THERE + encode(value)


def _wide(value: int) -> bytes:
    return _U64(value + _SIGN_64)


def _double(value: float) -> bytes:
    if math.isnan(value):
        return _NAN
    bits = int.from_bytes(_DOUBLE(value + 0.0), "big")  # -0.0 + 0.0 is 0.0
    return _U64(bits ^ _ALL_64 if bits & _SIGN_64 else bits | _SIGN_64)


def _decimal_encoder(scale: int) -> Encoder:
    def encode(value: Decimal) -> bytes:
        return (int(value.scaleb(scale, context=_EXACT)) + _SIGN_128).to_bytes(16, "big")

    return encode


def _escaped(value: bytes) -> bytes:
    return value.replace(b"\x00", b"\x00\xff") + _END


_ENCODERS: dict[str, Encoder] = {
    "BOOLEAN": lambda value: b"\x01" if value else b"\x00",
    "INT": lambda value: _U32(value + _SIGN_32),
    "DATE": lambda value: _U32(value + _SIGN_32),
    "BIGINT": _wide,
    "TIMESTAMP": _wide,
    "DOUBLE": _double,
    "UUID": lambda value: bytes.fromhex(value.replace("-", "")),
    "TEXT": lambda value: _escaped(value.encode()),
    "BYTES": _escaped,
}
