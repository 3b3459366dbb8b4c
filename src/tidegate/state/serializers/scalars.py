"""Serializers of single values: takes numbers, texts and times, gives fixed or plain bytes, and back."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tidegate.errors import StorageCorrupt, ValueInvalid

T = TypeVar("T")

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NAIVE_EPOCH = dt.datetime(1970, 1, 1)
_DAY_OF_EPOCH = dt.date(1970, 1, 1).toordinal()
_MICROSECOND = dt.timedelta(microseconds=1)

_INT = struct.Struct("<q")
_FLOAT = struct.Struct("<d")
_TIME = struct.Struct("<Bq")
_DAY = struct.Struct("<i")


def refused(name: str, value: object, reason: str) -> ValueInvalid:
    """Return the error for a value that a type does not take."""
    text = repr(value)
    text = text if len(text) <= 100 else f"{text[:100]}…"
    return ValueInvalid(place=f"{text} as {name}", reason=reason)


def corrupt(name: str, payload: bytes, reason: str) -> StorageCorrupt:
    """Return the error for bytes that are not of a type."""
    shown = payload[:32].hex() + ("…" if len(payload) > 32 else "")
    return StorageCorrupt(place=f"a value of type {name}", reason=f"{reason} ({len(payload)} bytes: {shown})")


class Scalar(Generic[T]):
    """What the serializers of single values share: one value at a time, and no numpy type."""

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


class _Number(Scalar[T]):
    """One number of 8 bytes: many of them are a numpy array."""

    dtype: np.dtype[Any]

    def encode_many(self, values: Sequence[T] | npt.NDArray[Any]) -> list[bytes]:
        """Return the bytes of values, in order; whole numpy arrays at once."""
        return number_payloads(self, values, b"")

    def decode_many(self, payloads: Sequence[bytes]) -> Any:
        """Return the values of bytes as a numpy array."""
        return numbers_of(self, payloads, 0)


class IntSerializer(_Number[int]):
    """64-bit integers."""

    name = "int64"
    dtype = np.dtype("<i8")

    def encode(self, value: int) -> bytes:
        """Return 8 bytes."""
        try:
            return _INT.pack(value)
        except struct.error:
            fits = isinstance(value, int)
            raise refused("int", value, "it is beyond 64 bits" if fits else "it is no integer") from None

    def decode(self, payload: bytes) -> int:
        """Return the number."""
        try:
            return _INT.unpack(payload)[0]  # type: ignore[no-any-return]
        except struct.error as error:
            raise corrupt("int", payload, str(error)) from error


class FloatSerializer(_Number[float]):
    """64-bit floating point numbers."""

    name = "float64"
    dtype = np.dtype("<f8")

    def encode(self, value: float) -> bytes:
        """Return 8 bytes."""
        try:
            return _FLOAT.pack(value)
        except (struct.error, TypeError, OverflowError):
            raise refused("float", value, "it is no number that a float holds") from None

    def decode(self, payload: bytes) -> float:
        """Return the number."""
        try:
            return _FLOAT.unpack(payload)[0]  # type: ignore[no-any-return]
        except struct.error as error:
            raise corrupt("float", payload, str(error)) from error


class BoolSerializer(Scalar[bool]):
    """True and False."""

    name = "bool"

    def encode(self, value: bool) -> bytes:
        """Return one byte."""
        if type(value) in (bool, np.bool_):
            return b"\x01" if value else b"\x00"
        raise refused("bool", value, "it is neither True nor False")

    def decode(self, payload: bytes) -> bool:
        """Return True or False."""
        if payload not in (b"\x00", b"\x01"):
            raise corrupt("bool", payload, "one byte 0 or 1 is expected")
        return payload == b"\x01"


class TextSerializer(Scalar[str]):
    """Text as UTF-8."""

    name = "utf8"

    def encode(self, value: str) -> bytes:
        """Return the UTF-8 bytes."""
        try:
            return str.encode(value)
        except (TypeError, UnicodeEncodeError) as error:
            raise refused("str", value, f"it is no text that UTF-8 has ({error})") from None

    def decode(self, payload: bytes) -> str:
        """Return the text."""
        try:
            return payload.decode()
        except UnicodeDecodeError as error:
            raise corrupt("str", payload, str(error)) from error


class BytesSerializer(Scalar[bytes]):
    """Bytes as they are."""

    name = "bytes"

    def encode(self, value: bytes) -> bytes:
        """Return them back, as bytes of their own."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise refused("bytes", value, "it is no bytes")
        return bytes(value)

    def decode(self, payload: bytes) -> bytes:
        """Return them back."""
        return payload


class DatetimeSerializer(Scalar[dt.datetime]):
    """Times to the microsecond: with a time zone they come back in UTC, without one as they were."""

    name = "datetime"

    def encode(self, value: dt.datetime) -> bytes:
        """Return 9 bytes."""
        if not isinstance(value, dt.datetime):
            raise refused("datetime", value, "it is no datetime")
        aware = value.tzinfo is not None
        return _TIME.pack(aware, (value - (_EPOCH if aware else _NAIVE_EPOCH)) // _MICROSECOND)

    def decode(self, payload: bytes) -> dt.datetime:
        """Return the time."""
        try:
            aware, micros = _TIME.unpack(payload)
            return (_EPOCH if aware else _NAIVE_EPOCH) + dt.timedelta(microseconds=micros)
        except (struct.error, OverflowError) as error:
            raise corrupt("datetime", payload, str(error)) from error


class DateSerializer(Scalar[dt.date]):
    """Days."""

    name = "date"

    def encode(self, value: dt.date) -> bytes:
        """Return 4 bytes."""
        if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
            raise refused("date", value, "it is no date")
        return _DAY.pack(value.toordinal() - _DAY_OF_EPOCH)

    def decode(self, payload: bytes) -> dt.date:
        """Return the day."""
        try:
            return dt.date.fromordinal(_DAY.unpack(payload)[0] + _DAY_OF_EPOCH)
        except (struct.error, OverflowError, ValueError) as error:
            raise corrupt("date", payload, str(error)) from error


class DecimalSerializer(Scalar[Decimal]):
    """Decimal numbers with all their digits, as text."""

    name = "decimal"

    def encode(self, value: Decimal) -> bytes:
        """Return the text."""
        if not isinstance(value, Decimal):
            raise refused("Decimal", value, "it is no Decimal")
        return str(value).encode()

    def decode(self, payload: bytes) -> Decimal:
        """Return the number."""
        try:
            return Decimal(payload.decode())
        except (InvalidOperation, UnicodeDecodeError) as error:
            raise corrupt("Decimal", payload, "it is no decimal number") from error


def number_payloads(serializer: Any, values: Sequence[Any] | npt.NDArray[Any], prefix: bytes) -> list[bytes]:
    """Return the bytes of numbers, each behind the same prefix."""
    numbers = _as_numbers(serializer, values)
    width = len(prefix) + 8
    table = np.empty((len(numbers), width), np.uint8)
    table[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    table[:, len(prefix) :] = numbers.view(np.uint8).reshape(-1, 8)
    return table.view(f"V{width}").ravel().tolist()


def _as_numbers(serializer: Any, values: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return numbers as an array of the serializer's type; a value that does not fit is refused by name."""
    dtype: np.dtype[Any] = serializer.dtype
    found = np.asarray(values) if len(values) else np.empty(0, dtype)
    fits = found.dtype.kind in ("iub" if dtype.kind == "i" else "iubf") and found.ndim == 1
    if fits and not (found.dtype == np.uint64 and dtype.kind == "i"):
        return np.ascontiguousarray(found, dtype)
    payloads = b"".join(map(serializer.encode, values))
    numbers: npt.NDArray[Any] = np.frombuffer(payloads, dtype)
    return numbers


def numbers_of(serializer: Any, payloads: Sequence[bytes], skip: int) -> npt.NDArray[Any]:
    """Return the numbers of payloads that each begin with `skip` other bytes, as an array of one's own."""
    width = skip + 8
    if set(map(len, payloads)) - {width}:
        wrong = next(payload for payload in payloads if len(payload) != width)
        raise corrupt(serializer.name, wrong[skip:], "8 bytes are expected")
    if not skip:
        return np.frombuffer(b"".join(payloads), serializer.dtype).copy()
    table = np.frombuffer(b"".join(payloads), np.uint8).reshape(-1, width)
    numbers: npt.NDArray[Any] = np.ascontiguousarray(table[:, skip:]).view(serializer.dtype).ravel()
    return numbers
