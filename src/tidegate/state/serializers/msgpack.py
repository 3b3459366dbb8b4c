"""Serializers of values with parts (records, lists, dicts, tuples): MessagePack or JSON.

Values are checked against the type: a record whose fields have exactly the annotated types is accepted at
once, the bytes of everything else are decoded before they are written. So a wrong value is the error of the
row that wrote it, never of those that read it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.errors import TidegateError
from tidegate.state.serializers.arrays import ArrowSerializer, NdarraySerializer
from tidegate.state.serializers.scalars import payload_corrupt, value_invalid
from tidegate.state.serializers.signatures import Signature, hints_of, signature_of, type_text, unwrapped

T = TypeVar("T")

# A value of exactly one of these types is right without a look inside.
_SIMPLE = (int, float, bool, str, bytes, dt.date, Decimal)

_NDARRAY = NdarraySerializer()


class _PackedSerializer(Generic[T]):
    """The common part of MessagePack and JSON."""

    name = ""
    dtype: np.dtype[Any] | None = None

    def __init__(
        self, python_type: Any, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
    ) -> None:
        self._type: Any = unwrapped(python_type)
        self._is_record = isinstance(self._type, type) and dataclasses.is_dataclass(self._type)
        self._encode = encode
        self._decode = decode
        self._fields, self._kinds = _simple_fields(self._type)

    def encode(self, value: T) -> bytes:
        """Return the bytes of a value; ValueInvalid for one that the type does not take."""
        try:
            if value.__class__ is self._type and [*map(type, self._fields(value))] == self._kinds:
                return self._encode(value)
            return self._checked(value)
        except (TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
            raise value_invalid(type_text(self._type), value, str(error)) from error

    def decode(self, payload: bytes) -> T:
        """Return the value of bytes; StorageCorrupt for bytes that are not of the type."""
        try:
            return self._decode(payload)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, TidegateError) as error:
            raise payload_corrupt(type_text(self._type), payload, str(error)) from error

    def encode_many(self, values: Sequence[T]) -> list[bytes]:
        """Return the bytes of values, in order."""
        return list(map(self.encode, values))

    def decode_many(self, payloads: Sequence[bytes]) -> list[T]:
        """Return the values of bytes, in order."""
        try:
            return list(map(self._decode, payloads))
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, TidegateError):
            return list(map(self.decode, payloads))  # one by one, so that the error shows the payload

    def _checked(self, value: T) -> bytes:
        if self._is_record and not isinstance(value, self._type):
            raise TypeError(f"it is a {type(value).__name__}")
        payload = self._encode(value)
        self._decode(payload)
        return payload


class MsgpackSerializer(_PackedSerializer[T]):
    """MessagePack: the format of all values with parts."""

    name = "msgpack"

    def __init__(self, python_type: type[T], signature: Signature | None = None) -> None:
        encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
        decoder = msgspec.msgpack.Decoder(_check_type(python_type, signature), dec_hook=_typed)
        super().__init__(python_type, encoder.encode, decoder.decode)


class JsonSerializer(_PackedSerializer[T]):
    """JSON, for states that people read without tools; larger and slower than MessagePack."""

    name = "json"

    def __init__(self, python_type: type[T], signature: Signature | None = None) -> None:
        encoder = msgspec.json.Encoder(enc_hook=_plain)
        decoder = msgspec.json.Decoder(_check_type(python_type, signature), dec_hook=_typed)
        super().__init__(python_type, encoder.encode, decoder.decode)
        self._fields, self._kinds = _no_fields, []  # JSON has no NaN: all values are decoded before the write


def _no_fields(_value: Any) -> tuple[Any, ...]:
    return (None,)


def _simple_fields(record: Any) -> tuple[Callable[[Any], Any], list[type]]:
    """Return a getter of the fields of a record, and their types, when all of them are simple."""
    if not (isinstance(record, type) and dataclasses.is_dataclass(record)):
        return _no_fields, []
    fields = [(name, unwrapped(kind)) for name, kind in hints_of(record).items()]
    if not fields or any(kind not in _SIMPLE for _, kind in fields):
        return _no_fields, []
    fields = fields if len(fields) > 1 else fields * 2  # attrgetter of one name returns no tuple
    return attrgetter(*(name for name, _ in fields)), [kind for _, kind in fields]


def _check_type(python_type: Any, signature: Signature | None) -> Any:
    """Return the type, after a check that it can be stored; annotations that are text become types."""
    if signature is None:
        signature_of(python_type)
    return python_type


def _plain(value: Any) -> Any:
    """Return the MessagePack form of a value that msgspec does not know."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, int | float | str | bytes):
        kind: Any = next(kind for kind in (int, float, str, bytes) if isinstance(value, kind))
        return kind(value)
    if isinstance(value, np.ndarray):
        return _NDARRAY.encode(value)
    if isinstance(value, pa.RecordBatch | pa.Table):
        return ArrowSerializer(type(value)).encode(value)
    raise TypeError(f"a {type(value).__name__} cannot be kept in state")


def _typed(python_type: Any, stored: Any) -> Any:
    """Return the array behind the bytes that `_plain` made."""
    if getattr(python_type, "__origin__", python_type) is np.ndarray and isinstance(stored, bytes):
        return _NDARRAY.decode(stored)
    if python_type in (pa.RecordBatch, pa.Table) and isinstance(stored, bytes):
        return ArrowSerializer(python_type).decode(stored)
    raise TypeError(f"there is no {type_text(python_type)} in a {type(stored).__name__}")
