"""Spark's 64-bit hash of keys, and the key group of a hash.

The hash is Spark's `xxhash64(column, …)`: XXH64 with seed 42, each column's hash being the next one's seed;
null leaves the hash as it is. Spark computes the key group of every row; tools compute the same here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

SEED = 42

# Spark stores a decimal of at most so many digits in a long, and hashes it as one.
DECIMAL_LONG_DIGITS_MAX = 18

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)

Hashes = npt.NDArray[np.uint64]


def groups_of_hashes(hashes: Hashes, max_parallelism: int) -> npt.NDArray[np.int32]:
    """Return the key groups of many hashes: Spark's pmod."""
    return (hashes.view(np.int64) % max_parallelism).astype(np.int32)


def wide_bytes(value: int) -> bytes:
    """Return the bytes hashed of the unscaled value of a long decimal: Java's BigInteger.toByteArray."""
    width = (value if value >= 0 else ~value).bit_length() // 8 + 1
    return value.to_bytes(width, "big", signed=True)


def hash_ints(values: npt.NDArray[Any], seeds: Hashes) -> Hashes:
    """Return the hashes of 32-bit integers, each with its own seed."""
    words = values.astype(np.int32).view(np.uint32).astype(np.uint64)
    hashes = (seeds + _P5 + np.uint64(4)) ^ (words * _P1)
    return _mixed(_rotated(hashes, 23) * _P2 + _P3)


def hash_longs(values: npt.NDArray[Any], seeds: Hashes) -> Hashes:
    """Return the hashes of 64-bit integers, each with its own seed."""
    words = values.astype(np.int64).view(np.uint64)
    hashes = (seeds + _P5 + np.uint64(8)) ^ (_rotated(words * _P2, 31) * _P1)
    return _mixed(_rotated(hashes, 27) * _P1 + _P4)


def hash_texts(values: Sequence[bytes], seeds: Hashes) -> Hashes:
    """Return the hashes of byte strings, each with its own seed."""
    digest = xxhash.xxh64_intdigest
    return np.fromiter(map(digest, values, seeds.tolist()), np.uint64, len(values))


def keep_where_null(column: pa.Array, hashes: Hashes, seeds: Hashes) -> Hashes:
    """Return the hashes, but the seeds where a column is null."""
    if not column.null_count:
        return hashes
    missing = column.is_null().to_numpy(zero_copy_only=False)
    return np.where(missing, seeds, hashes)


def _rotated(words: Hashes, bits: int) -> Hashes:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _mixed(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))
