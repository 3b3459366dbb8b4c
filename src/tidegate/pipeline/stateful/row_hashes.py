"""Hashes of rows that are the same in every attempt, whatever the order of the rows.

Where two rows of one key have one event time, this number decides which is the first. Only such rows are
hashed: whole columns at a time where values have one width, and once for each distinct value elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as at
import xxhash

Hashes = np.ndarray[Any, np.dtype[np.uint64]]

# The mixer of splitmix64.
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0x5851F42D4C957F2D)


def row_hashes(rows: pa.RecordBatch) -> Hashes:
    """Return the hash of each row over all its columns in order."""
    hashes = np.zeros(rows.num_rows, np.uint64)
    for column in rows.columns:
        hashes = _mixed(hashes + _STEP ^ _column_hashes(column))
    return hashes


def _column_hashes(column: pa.Array) -> Hashes:
    kind = column.type
    if at.is_null(kind):
        return np.full(len(column), _NULL)
    if _is_plain(kind):
        hashes = _plain_bits(column)
    elif _is_text(kind):
        encoded = column.dictionary_encode()
        texts = encoded.dictionary.cast(pa.large_binary()).to_pylist()
        known = np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts))
        places = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        hashes = known[places] if len(known) else np.zeros(len(column), np.uint64)
    else:
        texts = [repr(value).encode(errors="surrogatepass") for value in column.to_pylist()]
        hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts))
    if column.null_count:
        hashes = np.where(column.is_null().to_numpy(zero_copy_only=False), _NULL, hashes)
    return hashes


def _is_plain(kind: pa.DataType) -> bool:
    is_time = at.is_date32(kind) or at.is_timestamp(kind) or at.is_duration(kind) or at.is_time(kind)
    return bool(at.is_boolean(kind) or at.is_integer(kind) or at.is_floating(kind) or is_time)


def _is_text(kind: pa.DataType) -> bool:
    is_string = at.is_string(kind) or at.is_large_string(kind)
    return bool(is_string or at.is_binary(kind) or at.is_large_binary(kind))


def _plain_bits(column: pa.Array) -> Hashes:
    kind = column.type
    if at.is_floating(kind):
        bits: Hashes = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False).view(np.uint64)
        return bits
    if at.is_boolean(kind):
        numbers = column.cast(pa.uint8())
    elif at.is_integer(kind):
        numbers = column
    else:
        numbers = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    wide: Hashes = numbers.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    return wide


def _mixed(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(30))) * _FIRST
    hashes = (hashes ^ (hashes >> np.uint64(27))) * _SECOND
    return hashes ^ (hashes >> np.uint64(31))
