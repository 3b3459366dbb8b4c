"""Columns of a segmented store: the keys of a lookup, and the stored times that it finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from tidegate.errors import InvariantBroken

GROUP_BYTES = 2
DIGEST_BYTES = 16
KEY_BYTES = GROUP_BYTES + DIGEST_BYTES
# Stored times have their sign bit flipped, so that the order of the bytes is the order of the times.
_SIGN = np.uint64(1 << 63)

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]
Longs = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class SegmentKeys:
    """Keys as a segment stores them, and their hashes for the Bloom filter.

    `bytes_` is a uint8 array of shape (n, 18), key group u16 big-endian then the digest; or, with exact keys,
    a list of key group and encoded key. `hashes` are always those of `hashes_of`: a filter that is rebuilt
    from stored keys needs the same hashes.
    """

    bytes_: Bytes | list[bytes]
    hashes: Hashes

    @classmethod
    def of_digests(cls, keys: Bytes) -> SegmentKeys:
        """Return the keys of digests, each with its key group in front."""
        if keys.ndim != 2 or keys.shape[1] != KEY_BYTES or keys.dtype != np.uint8:
            raise InvariantBroken(reason=f"digests are {KEY_BYTES} bytes wide, not {keys.dtype}{keys.shape}")
        keys = np.ascontiguousarray(keys)
        return cls(keys, hashes_of(keys))

    @classmethod
    def of_exact(cls, keys: list[bytes]) -> SegmentKeys:
        """Return the keys of exact keys, each with its key group in front."""
        return cls(keys, hashes_of(keys))

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, rows: Longs) -> SegmentKeys:
        """Return the keys of some rows, in the order of the rows."""
        if isinstance(self.bytes_, list):
            return SegmentKeys([self.bytes_[row] for row in rows.tolist()], self.hashes[rows])
        return SegmentKeys(self.bytes_[rows], self.hashes[rows])

    def to_list(self) -> list[bytes]:
        """Return the keys one by one."""
        return self.bytes_ if isinstance(self.bytes_, list) else to_list(self.bytes_)


@dataclass(frozen=True, slots=True)
class StoredTimes:
    """The stored times that a lookup found: the row of each, sorted, its time, and its offset if stored."""

    rows: Longs
    times_us: Longs
    offsets: Longs | None = None

    def __len__(self) -> int:
        return len(self.rows)


def hashes_of(keys: Bytes | list[bytes]) -> Hashes:
    """Return the filter hash of each key: the first eight bytes of a digest, or a hash of an exact key."""
    if isinstance(keys, list):
        digest = xxhash.xxh3_64_intdigest
        return np.fromiter((digest(key) for key in keys), np.uint64, len(keys))
    first = np.ascontiguousarray(keys[:, GROUP_BYTES : GROUP_BYTES + 8])
    return first.view(np.uint64).reshape(-1)


def to_list(rows: Bytes) -> list[bytes]:
    """Return the rows of a byte array as a list of bytes, trailing zeros included."""
    width = rows.shape[1]
    return np.ascontiguousarray(rows).view(f"V{width}").reshape(-1).tolist()


def encode_times(times_us: Longs, offsets: Longs | None = None) -> Bytes:
    """Return one value per time as rows of bytes: big-endian with the sign flipped, then the offset."""
    encoded = _encoded(times_us)
    return encoded if offsets is None else np.hstack([encoded, _encoded(offsets)])


def decode_times(values: Bytes, *, with_offsets: bool) -> tuple[Longs, Longs | None]:
    """Return the times and offsets of rows of bytes that hold one time each."""
    width = 16 if with_offsets else 8
    numbers = np.ascontiguousarray(values).view(">u8").astype(np.uint64).reshape(-1, width // 8)
    signed = (numbers ^ _SIGN).view(np.int64)
    return signed[:, 0], (signed[:, 1] if with_offsets else None)


def _encoded(numbers: Longs) -> Bytes:
    flipped = numbers.astype(np.int64, copy=False).view(np.uint64) ^ _SIGN
    return flipped.astype(">u8").view(np.uint8).reshape(-1, 8)
