"""Serializers of values with parts: takes records, lists, dicts, tuples, gives MessagePack or JSON, and back.

What is written is checked against the type: a record whose fields have just the types it names is accepted at
once, everything else is read back before it counts as written. So a wrong value is the error of the row that
wrote it, never of those that read it.
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
from tidegate.state.schema.signatures import Signature, hints_of, shown, signature_of, unwrapped
from tidegate.state.serializers.arrays import ArrowSerializer, NdarraySerializer
from tidegate.state.serializers.scalars import corrupt, refused

T = TypeVar("T")

# Fields of these types hold what their exact Python type holds: no need to look inside.
_SIMPLE = (int, float, bool, str, bytes, dt.date, Decimal)

_NDARRAY = NdarraySerializer()


class _Packed(Generic[T]):
    """What MessagePack and JSON share."""

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
            raise refused(shown(self._type), value, str(error)) from error

    def decode(self, payload: bytes) -> T:
        """Return the value of bytes; StorageCorrupt for bytes that are not of the type."""
        try:
            return self._decode(payload)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, TidegateError) as error:
            raise corrupt(shown(self._type), payload, str(error)) from error

    def encode_many(self, values: Sequence[T]) -> list[bytes]:
        """Return the bytes of values, in order."""
        return list(map(self.encode, values))

    def decode_many(self, payloads: Sequence[bytes]) -> list[T]:
        """Return the values of bytes, in order."""
        try:
            return list(map(self._decode, payloads))
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, TidegateError):
            return list(map(self.decode, payloads))  # the one that is damaged says so

    def _checked(self, value: T) -> bytes:
        if self._is_record and not isinstance(value, self._type):
            raise TypeError(f"it is a {type(value).__name__}")
        payload = self._encode(value)
        self._decode(payload)
        return payload


class MsgpackSerializer(_Packed[T]):
    """MessagePack: the format of all values with parts."""

    name = "msgpack"

    def __init__(self, python_type: type[T], signature: Signature | None = None) -> None:
        encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
        decoder = msgspec.msgpack.Decoder(_known(python_type, signature), dec_hook=_typed)
        super().__init__(python_type, encoder.encode, decoder.decode)


class JsonSerializer(_Packed[T]):
    """JSON, for states that people read as they lie there; larger and slower than MessagePack."""

    name = "json"

    def __init__(self, python_type: type[T], signature: Signature | None = None) -> None:
        encoder = msgspec.json.Encoder(enc_hook=_plain)
        decoder = msgspec.json.Decoder(_known(python_type, signature), dec_hook=_typed)
        super().__init__(python_type, encoder.encode, decoder.decode)
        self._fields, self._kinds = _never, []  # JSON has no NaN: what is written is always read back


def _never(_value: Any) -> tuple[Any, ...]:
    return (None,)


def _simple_fields(record: Any) -> tuple[Callable[[Any], Any], list[type]]:
    """Return what reads the fields of a record, and their types when all of them are simple."""
    if not (isinstance(record, type) and dataclasses.is_dataclass(record)):
        return _never, []
    fields = [(name, unwrapped(kind)) for name, kind in hints_of(record).items()]
    if not fields or any(kind not in _SIMPLE for _, kind in fields):
        return _never, []
    fields = fields if len(fields) > 1 else fields * 2  # of two names a tuple is read, of one the value
    return attrgetter(*(name for name, _ in fields)), [kind for _, kind in fields]


def _known(python_type: Any, signature: Signature | None) -> Any:
    """Return the type, when it can be kept; annotations that are text have become types then."""
    if signature is None:
        signature_of(python_type)
    return python_type


def _plain(value: Any) -> Any:
    """Return what MessagePack has for a value that msgspec does not know."""
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
    raise TypeError(f"there is no {shown(python_type)} in a {type(stored).__name__}")
