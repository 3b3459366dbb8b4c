"""Serializers of numbers, booleans, texts, bytes and times."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tidegate.errors import StorageCorrupt, ValueInvalid
from tidegate.model.epoch import EPOCH, NAIVE_EPOCH, date_of, day_of, us_of

T = TypeVar("T")

_INT = struct.Struct("<q")
_FLOAT = struct.Struct("<d")
_TIME = struct.Struct("<Bq")
_DAY = struct.Struct("<i")


def value_invalid(name: str, value: object, reason: str) -> ValueInvalid:
    """Return the error for a value that is not of the type."""
    text = repr(value)
    text = text if len(text) <= 100 else f"{text[:100]}…"
    return ValueInvalid(place=f"{text} as {name}", reason=reason)


def payload_corrupt(name: str, payload: bytes, reason: str) -> StorageCorrupt:
    """Return the error for bytes that are not of a type."""
    shown = payload[:32].hex() + ("…" if len(payload) > 32 else "")
    return StorageCorrupt(place=f"a value of type {name}", reason=f"{reason} ({len(payload)} bytes: {shown})")


class ScalarSerializer(Generic[T]):
    """The common part of these serializers: one value at a time, and no numpy type."""

    name = ""
    dtype: np.dtype[Any] | None = None

    def encode(self, value: T) -> bytes:
        """Return the bytes of a value."""
        raise NotImplementedError

    def decode(self, payload: bytes) -> T:
        """Return the value of bytes."""
        raise NotImplementedError

    def encode_many(self, values: Sequence[T]) -> list[bytes]:
        """Return the bytes of values, in order."""
        return list(map(self.encode, values))

    def decode_many(self, payloads: Sequence[bytes]) -> Sequence[T]:
        """Return the values of bytes, in order."""
        return list(map(self.decode, payloads))


class _NumberSerializer(ScalarSerializer[T]):
    """One number of 8 bytes: many of them are a numpy array."""

    dtype: np.dtype[Any]

    def encode_many(self, values: Sequence[T] | npt.NDArray[Any]) -> list[bytes]:
        """Return the bytes of values, in order; whole numpy arrays at once."""
        found = np.asarray(values) if len(values) else np.empty(0, self.dtype)
        fits = found.dtype.kind in ("iub" if self.dtype.kind == "i" else "iubf") and found.ndim == 1
        if not fits or (found.dtype == np.uint64 and self.dtype.kind == "i"):
            return list(map(self.encode, values))  # one by one, so that the error names the value
        payloads: list[bytes] = np.ascontiguousarray(found, self.dtype).view("V8").tolist()
        return payloads

    def decode_many(self, payloads: Sequence[bytes]) -> Any:
        """Return the values of bytes as a numpy array."""
        if set(map(len, payloads)) - {8}:
            wrong = next(payload for payload in payloads if len(payload) != 8)
            raise payload_corrupt(self.name, wrong, "8 bytes are expected")
        return np.frombuffer(b"".join(payloads), self.dtype).copy()


class IntSerializer(_NumberSerializer[int]):
    """64-bit integers."""

    name = "int64"
    dtype = np.dtype("<i8")

    def encode(self, value: int) -> bytes:
        """Return 8 bytes."""
        try:
            return _INT.pack(value)
        except struct.error:
            fits = isinstance(value, int)
            raise value_invalid(
                "int", value, "it is beyond 64 bits" if fits else "it is no integer"
            ) from None

    def decode(self, payload: bytes) -> int:
        """Return the number."""
        try:
            return _INT.unpack(payload)[0]  # type: ignore[no-any-return]
        except struct.error as error:
            raise payload_corrupt("int", payload, str(error)) from error


class FloatSerializer(_NumberSerializer[float]):
    """64-bit floating point numbers."""

    name = "float64"
    dtype = np.dtype("<f8")

    def encode(self, value: float) -> bytes:
        """Return 8 bytes."""
        try:
            return _FLOAT.pack(value)
        except (struct.error, TypeError, OverflowError):
            raise value_invalid("float", value, "it is no number that a float holds") from None

    def decode(self, payload: bytes) -> float:
        """Return the number."""
        try:
            return _FLOAT.unpack(payload)[0]  # type: ignore[no-any-return]
        except struct.error as error:
            raise payload_corrupt("float", payload, str(error)) from error


class BoolSerializer(ScalarSerializer[bool]):
    """True and False."""

    name = "bool"

    def encode(self, value: bool) -> bytes:
        """Return one byte."""
        if type(value) in (bool, np.bool_):
            return b"\x01" if value else b"\x00"
        raise value_invalid("bool", value, "it is neither True nor False")

    def decode(self, payload: bytes) -> bool:
        """Return True or False."""
        if payload not in (b"\x00", b"\x01"):
            raise payload_corrupt("bool", payload, "one byte 0 or 1 is expected")
        return payload == b"\x01"


class TextSerializer(ScalarSerializer[str]):
    """Text as UTF-8."""

    name = "utf8"

    def encode(self, value: str) -> bytes:
        """Return the UTF-8 bytes."""
        try:
            return str.encode(value)
        except (TypeError, UnicodeEncodeError) as error:
            raise value_invalid("str", value, f"it is no text that UTF-8 has ({error})") from None

    def decode(self, payload: bytes) -> str:
        """Return the text."""
        try:
            return payload.decode()
        except UnicodeDecodeError as error:
            raise payload_corrupt("str", payload, str(error)) from error


class BytesSerializer(ScalarSerializer[bytes]):
    """Bytes as they are."""

    name = "bytes"

    def encode(self, value: bytes) -> bytes:
        """Return the same bytes; a copy of a bytearray or memoryview."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise value_invalid("bytes", value, "it is no bytes")
        return bytes(value)

    def decode(self, payload: bytes) -> bytes:
        """Return the same bytes."""
        return payload


class DatetimeSerializer(ScalarSerializer[dt.datetime]):
    """Times to the microsecond; those with a time zone are decoded in UTC."""

    name = "datetime"

    def encode(self, value: dt.datetime) -> bytes:
        """Return 9 bytes."""
        if not isinstance(value, dt.datetime):
            raise value_invalid("datetime", value, "it is no datetime")
        return _TIME.pack(bool(value.tzinfo), us_of(value))

    def decode(self, payload: bytes) -> dt.datetime:
        """Return the time."""
        try:
            aware, micros = _TIME.unpack(payload)
            return (EPOCH if aware else NAIVE_EPOCH) + dt.timedelta(microseconds=micros)
        except (struct.error, OverflowError) as error:
            raise payload_corrupt("datetime", payload, str(error)) from error


class DateSerializer(ScalarSerializer[dt.date]):
    """Days."""

    name = "date"

    def encode(self, value: dt.date) -> bytes:
        """Return 4 bytes."""
        if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
            raise value_invalid("date", value, "it is no date")
        return _DAY.pack(day_of(value))

    def decode(self, payload: bytes) -> dt.date:
        """Return the day."""
        try:
            return date_of(_DAY.unpack(payload)[0])
        except (struct.error, OverflowError, ValueError) as error:
            raise payload_corrupt("date", payload, str(error)) from error


class DecimalSerializer(ScalarSerializer[Decimal]):
    """Decimal numbers with all their digits, as text."""

    name = "decimal"

    def encode(self, value: Decimal) -> bytes:
        """Return the text."""
        if not isinstance(value, Decimal):
            raise value_invalid("Decimal", value, "it is no Decimal")
        return str(value).encode()

    def decode(self, payload: bytes) -> Decimal:
        """Return the number."""
        try:
            return Decimal(payload.decode())
        except (InvalidOperation, UnicodeDecodeError) as error:
            raise payload_corrupt("Decimal", payload, "it is no decimal number") from error
