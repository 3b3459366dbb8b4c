"""Serializers of numpy arrays and Arrow batches.

A numpy array, format version 1: length of the type's name u8 | its name | dimensions u8 | lengths u64 … |
numbers in C order. Arrow batches and tables are IPC streams.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.serializers.scalars import ScalarSerializer, payload_corrupt, value_invalid

# Numbers, truth values, times and fixed texts; never Python values inside an array.
_KINDS = "biufcSUMm"
_DIMENSIONS_MAX = 32


class NdarraySerializer(ScalarSerializer["npt.NDArray[Any]"]):
    """numpy arrays of any shape whose elements have a fixed size."""

    name = "ndarray"

    def encode(self, value: npt.NDArray[Any]) -> bytes:
        """Return the type, the shape and the numbers."""
        if not isinstance(value, np.ndarray):
            raise value_invalid("ndarray", value, "it is no numpy array")
        if value.dtype.kind not in _KINDS or value.dtype.names or value.ndim > _DIMENSIONS_MAX:
            raise value_invalid("ndarray", value.dtype, "its elements have no fixed size")
        kind = value.dtype.str.encode()
        shape = struct.pack(f"<B{value.ndim}Q", value.ndim, *value.shape)
        return bytes([len(kind)]) + kind + shape + value.tobytes()

    def decode(self, payload: bytes) -> npt.NDArray[Any]:
        """Return a new array, which may be changed."""
        try:
            after = 1 + payload[0]
            dtype = np.dtype(payload[1:after].decode("ascii"))
            if dtype.kind not in _KINDS:
                raise ValueError(f"there is no element type {dtype}")
            dimensions = payload[after]
            shape = struct.unpack_from(f"<{dimensions}Q", payload, after + 1)
            numbers = np.frombuffer(payload, dtype, offset=after + 1 + 8 * dimensions)
            return numbers.reshape(shape).copy()
        except (ValueError, TypeError, IndexError, struct.error, SyntaxError, OverflowError) as error:
            raise payload_corrupt("ndarray", payload, str(error)) from error


class ArrowSerializer(ScalarSerializer[Any]):
    """Arrow record batches and tables."""

    name = "arrow"

    def __init__(self, python_type: Any = pa.Table) -> None:
        self._type: Any = python_type

    def encode(self, value: Any) -> bytes:
        """Return an IPC stream."""
        if not isinstance(value, self._type):
            raise value_invalid(self._type.__name__, type(value), "it is another type")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write(value)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def decode(self, payload: bytes) -> Any:
        """Return the batch or the table."""
        try:
            with pa.ipc.open_stream(payload) as reader:
                found = reader.read_all()
            found.validate()
        except (pa.ArrowInvalid, OSError, pa.ArrowException) as error:
            raise payload_corrupt("Arrow", payload, str(error)) from error
        if self._type is pa.Table:
            return found
        batches: Sequence[Any] = found.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=found.schema)
