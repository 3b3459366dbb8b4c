"""The serializer of each type of state.

Format version 1, by type; never pickle:

    int     8 bytes, little-endian, signed       datetime  u8 (1: with UTC, 0: naive) | i64 µs since 1970
    float   8 bytes, IEEE 754, little-endian     date      i32 days since 1970, little-endian
    bool    1 byte                               Decimal   its text
    str     UTF-8                                ndarray   see `arrays.py`
    bytes   as they are                          Arrow     an IPC stream

Dataclasses, lists, dicts, tuples and Optional are MessagePack; a record is a map with the names of its
fields, so that it can be read without the class. A value of another type raises ValueInvalid when it is
written; bytes that are not of the type raise StorageCorrupt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from tidegate.state.serializers.arrays import ArrowSerializer, NdarraySerializer
from tidegate.state.serializers.msgpack import JsonSerializer, MsgpackSerializer
from tidegate.state.serializers.scalars import (
    BoolSerializer,
    BytesSerializer,
    DateSerializer,
    DatetimeSerializer,
    DecimalSerializer,
    FloatSerializer,
    IntSerializer,
    TextSerializer,
)
from tidegate.state.serializers.signatures import Signature, signature_of, type_of, unwrapped

__all__ = [
    "JsonSerializer",
    "MsgpackSerializer",
    "Serializer",
    "serializer_for",
    "stored_serializer",
]

FORMAT_VERSION = 1

T = TypeVar("T")


class Serializer(Protocol[T]):
    """Encodes and decodes the values of one type; users may pass their own to a state."""

    @property
    def name(self) -> str:
        """The name that a checkpoint stores; with another name the state needs a new version."""
        ...

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The numpy type of payloads that are one number of 8 bytes; None for all others."""
        ...

    def encode(self, value: T) -> bytes:
        """Return the bytes of a value; ValueInvalid for one that the type does not take."""
        ...

    def decode(self, payload: bytes) -> T:
        """Return the value of bytes; StorageCorrupt for bytes that are not of the type."""
        ...

    def encode_many(self, values: Sequence[T]) -> list[bytes]:
        """Return the bytes of values, in order."""
        ...

    def decode_many(self, payloads: Sequence[bytes]) -> Sequence[T]:
        """Return the values of bytes, in order: as a numpy array where there is a `dtype`."""
        ...


_SCALARS: dict[str, Callable[[], Any]] = {
    "int": IntSerializer,
    "float": FloatSerializer,
    "bool": BoolSerializer,
    "str": TextSerializer,
    "bytes": BytesSerializer,
    "datetime": DatetimeSerializer,
    "date": DateSerializer,
    "decimal": DecimalSerializer,
    "ndarray": NdarraySerializer,
}

SERIALIZER_NAMES = frozenset(
    {MsgpackSerializer.name, JsonSerializer.name, ArrowSerializer.name}
    | {str(scalar().name) for scalar in _SCALARS.values()}
)


def serializer_for(python_type: Any, *, operator: str = "(not named yet)") -> Serializer[Any]:
    """Return the serializer of a type.

    StateInvalid says what to use instead of a type that cannot be stored.
    """
    signature = signature_of(python_type, operator=operator)
    if not isinstance(signature, str):
        return MsgpackSerializer(python_type)
    if signature == "arrow":
        return ArrowSerializer(pa.Table if unwrapped(python_type) is pa.Table else pa.RecordBatch)
    return _SCALARS[signature]()  # type: ignore[no-any-return]


def stored_serializer(signature: Signature, name: str, python_type: Any = None) -> Serializer[Any] | None:
    """Return the serializer of stored values by its name; None for the name of a user's serializer.

    Without a `python_type` records are decoded to dicts.
    """
    if name not in SERIALIZER_NAMES:
        return None
    kind = type_of(signature) if python_type is None else python_type
    if name == JsonSerializer.name:
        return JsonSerializer(kind, signature)
    if not isinstance(signature, str):
        return MsgpackSerializer(kind, signature) if name == MsgpackSerializer.name else None
    serializer = serializer_for(kind)
    return serializer if serializer.name == name else None
