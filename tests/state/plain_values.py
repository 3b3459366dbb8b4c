"""Stored values as JSON values, read by their signatures alone."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.state.serializers.arrays import ArrowSerializer
from tidegate.state.serializers.msgpack import MsgpackSerializer
from tidegate.state.serializers.registry import serializer_for, stored_serializer
from tidegate.state.serializers.signatures import Signature, type_of


def plain_decode(signature: Signature, payload: bytes, *, serializer: str = "") -> Any:
    """Return a value as JSON values, by its signature alone, without its class.

    Bytes become base64, times ISO 8601, Decimals text, tuples lists; a dict whose keys are no text becomes
    a list of pairs.
    """
    name = serializer or _default_name(signature)
    found = stored_serializer(signature, name)
    if found is None:
        raise LookupError(f"no serializer '{name}' reads {signature}")
    return _jsonable(found.decode(payload))


def _default_name(signature: Signature) -> str:
    if not isinstance(signature, str):
        return MsgpackSerializer.name
    return ArrowSerializer.name if signature == "arrow" else serializer_for(type_of(signature)).name


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _jsonable(one) for key, one in value.items()}
        return [[_jsonable(key), _jsonable(one)] for key, one in value.items()]
    if isinstance(value, list | tuple):
        return [_jsonable(one) for one in value]
    if isinstance(value, pa.RecordBatch | pa.Table):
        return _jsonable(value.to_pylist())
    if isinstance(value, np.ndarray):
        return _jsonable(value.tolist())
    return msgspec.to_builtins(value)
