"""The encoding of the keys of a map state: bytes that sort as the keys do and are self-delimiting.

    int    8 bytes            bool  1 byte        str, bytes  byte strings of `storage/ordered_bytes.py`
    float  8 bytes            date  4 bytes       datetime    u8 (0: naive, 1: with UTC) | 8 bytes: µs
    tuple  its members        X | None  u8 (0: None, 1: X follows)
    Decimal  u8 (1 below, 2 at, 3 above zero) | exponent of its first digit, 4 bytes | digits + 1 | 0x00;
             below zero every byte after the first is inverted

Keys that are equal in Python are equal here: 0.0 and -0.0, Decimal 1.0 and 1.00.
"""

from __future__ import annotations

import datetime as dt
import struct
import typing
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.errors import StateInvalid, ValueInvalid
from tidegate.model.epoch import EPOCH, NAIVE_EPOCH, date_of, day_of, us_of
from tidegate.state.serializers.signatures import optional_inner, signature_of, type_text, unwrapped
from tidegate.storage.ordered_bytes import (
    put_double,
    put_long,
    put_number,
    put_text,
    short,
    take_double,
    take_long,
    take_number,
    take_text,
)

Put = Callable[[Any], bytes]
Take = Callable[[bytes, int], tuple[Any, int]]

_TURNED = bytes(255 - byte for byte in range(256))
_BELOW, _ZERO, _ABOVE = 1, 2, 3


class SubKeyCodec:
    """Encodes and decodes the keys of a map state of one type."""

    def __init__(self, python_type: Any, *, operator: str = "(not named yet)") -> None:
        self.python_type = python_type
        self._put, self._take = _codec(python_type, operator)

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a key; ValueInvalid for one that the type does not take."""
        try:
            return self._put(value)
        except (TypeError, ValueError, OverflowError, struct.error, AttributeError) as error:
            text = f"{value!r:.100} as a key of type {type_text(self.python_type)}"
            raise ValueInvalid(place=text, reason=str(error)) from error

    def decode(self, stored: bytes, at: int = 0) -> Any:
        """Return the key whose bytes begin at a place and end with the bytes; StorageCorrupt for others."""
        try:
            value, end = self._take(stored, at)
        except (IndexError, ValueError, OverflowError, struct.error) as error:
            raise short(stored, at) from error
        if end != len(stored):
            raise short(stored, end)
        return value

    def encode_many(self, values: Sequence[Any] | npt.NDArray[Any]) -> list[bytes]:
        """Return the bytes of many keys, in order."""
        found = values.tolist() if isinstance(values, np.ndarray) else values
        try:
            return list(map(self._put, found))
        except (TypeError, ValueError, OverflowError, struct.error, AttributeError):
            return list(map(self.encode, found))  # one by one, so that the error names the key


def _codec(python_type: Any, operator: str) -> tuple[Put, Take]:
    python_type = unwrapped(python_type)
    if python_type in _LEAVES:
        return _LEAVES[python_type]
    inner = optional_inner(python_type)
    if inner is not None:
        return _optional(*_codec(inner, operator))
    if typing.get_origin(python_type) is tuple:
        signature_of(python_type, operator=operator)
        return _tuple([_codec(member, operator) for member in typing.get_args(python_type)])
    reason = f"{type_text(python_type)} is no key of a map state; use "
    reason += "str, int, bool, bytes, float, date, datetime, Decimal or a tuple of them."
    raise StateInvalid(operator=operator, reason=reason)


def _take_int(stored: bytes, at: int) -> tuple[int, int]:
    return take_long(stored, at), at + 8


def _put_bool(value: Any) -> bytes:
    if value is True or value is False or isinstance(value, np.bool_):
        return b"\x01" if value else b"\x00"
    raise TypeError("it is neither True nor False")


def _take_bool(stored: bytes, at: int) -> tuple[bool, int]:
    if stored[at] > 1:
        raise ValueError("neither 0 nor 1")
    return stored[at] == 1, at + 1


def _put_str(value: Any) -> bytes:
    return put_text(str.encode(value))


def _take_str(stored: bytes, at: int) -> tuple[str, int]:
    content, end = take_text(stored, at)
    return content.decode(), end


def _put_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("it is no bytes")
    return put_text(value)


def _take_float(stored: bytes, at: int) -> tuple[float, int]:
    return take_double(stored, at), at + 8


def _put_date(value: Any) -> bytes:
    if isinstance(value, dt.datetime):
        raise TypeError("it is a datetime, not a date")
    return put_number(day_of(value), 4)


def _take_date(stored: bytes, at: int) -> tuple[dt.date, int]:
    return date_of(take_number(stored, at, 4)), at + 4


def _put_datetime(value: Any) -> bytes:
    return (b"\x01" if value.tzinfo else b"\x00") + put_long(us_of(value))


def _take_datetime(stored: bytes, at: int) -> tuple[dt.datetime, int]:
    epoch = (NAIVE_EPOCH, EPOCH)[stored[at]]
    return epoch + dt.timedelta(microseconds=take_long(stored, at + 1)), at + 9


def _put_decimal(value: Any) -> bytes:
    if not isinstance(value, Decimal) or not value.is_finite():
        raise TypeError("it is no finite Decimal")
    if not value:
        return bytes([_ZERO])
    sign, digits, _ = value.as_tuple()
    shifted = bytes(digit + 1 for digit in digits).rstrip(b"\x01")  # zeros at the end change nothing
    payload = put_number(value.adjusted(), 4) + shifted + b"\x00"
    return bytes([_BELOW]) + payload.translate(_TURNED) if sign else bytes([_ABOVE]) + payload


def _take_decimal(stored: bytes, at: int) -> tuple[Decimal, int]:
    tag = stored[at]
    if tag == _ZERO:
        return Decimal(0), at + 1
    if tag not in (_BELOW, _ABOVE):
        raise ValueError("no sign")
    end = stored.index(b"\x00" if tag == _ABOVE else b"\xff", at + 5)
    payload = stored[at + 1 : end] if tag == _ABOVE else stored[at + 1 : end].translate(_TURNED)
    digits = tuple(byte - 1 for byte in payload[4:])
    exponent = take_number(payload, 0, 4) - len(digits) + 1
    return Decimal((int(tag == _BELOW), digits, exponent)), end + 1


_LEAVES: dict[Any, tuple[Put, Take]] = {
    int: (put_long, _take_int),
    bool: (_put_bool, _take_bool),
    str: (_put_str, _take_str),
    bytes: (_put_bytes, take_text),
    float: (put_double, _take_float),
    dt.date: (_put_date, _take_date),
    dt.datetime: (_put_datetime, _take_datetime),
    Decimal: (_put_decimal, _take_decimal),
}


def _optional(put: Put, take: Take) -> tuple[Put, Take]:
    def take_optional(stored: bytes, at: int) -> tuple[Any, int]:
        if stored[at] > 1:
            raise ValueError("neither 0 nor 1")
        return take(stored, at + 1) if stored[at] else (None, at + 1)

    return lambda value: b"\x00" if value is None else b"\x01" + put(value), take_optional


def _tuple(members: list[tuple[Put, Take]]) -> tuple[Put, Take]:
    puts, takes = [put for put, _ in members], [take for _, take in members]

    def put_tuple(value: Any) -> bytes:
        if not isinstance(value, tuple):
            raise TypeError("it is no tuple")
        return b"".join([put(member) for put, member in zip(puts, value, strict=True)])

    def take_tuple(stored: bytes, at: int) -> tuple[Any, int]:
        values = []
        for take in takes:
            value, at = take(stored, at)
            values.append(value)
        return tuple(values), at

    return put_tuple, take_tuple
