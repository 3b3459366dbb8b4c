"""Stored values: take the bytes of a serializer, give what lies in the backend. The format, version 1:

    version u8 | flags u8 | [time i64 big-endian, ms since 1970, when flags & 1] | payload

`version` is that of the state's schema (1 to 255). The time is the one by which TTL counts; an entry that was
written before its state had a TTL carries none, and does not expire until it is written again.
"""

from __future__ import annotations

import struct

from tidegate.errors import StorageCorrupt

FLAG_TIME = 1

SCHEMA_VERSION_MAX = 255

PLAIN_BYTES = 2
TIMED_BYTES = 10

_TIMED = struct.Struct(">BBq")
_TIME = struct.Struct(">q")

pack_time = _TIME.pack


def plain_header(version: int) -> bytes:
    """Give what stands before the payload of a value without a time."""
    return bytes((version, 0))


def timed_header(version: int, time_ms: int) -> bytes:
    """Give what stands before the payload of a value with a time."""
    return _TIMED.pack(version, FLAG_TIME, time_ms)


def split_value(stored: bytes) -> tuple[int, int | None, bytes]:
    """Give schema version, time and payload of a stored value; StorageCorrupt where it is none."""
    if len(stored) < PLAIN_BYTES or stored[0] == 0:
        raise StorageCorrupt(
            place="a stored value", reason=f"its header is {stored[:PLAIN_BYTES].hex() or 'missing'}"
        )
    flags = stored[1]
    if flags == 0:
        return stored[0], None, stored[PLAIN_BYTES:]
    if flags != FLAG_TIME or len(stored) < TIMED_BYTES:
        raise StorageCorrupt(place="a stored value", reason=f"its header is {stored[:TIMED_BYTES].hex()}")
    return stored[0], _TIMED.unpack_from(stored)[2], stored[TIMED_BYTES:]


def time_of(stored: bytes) -> int | None:
    """Give the time of a stored value; None for one that carries none."""
    if len(stored) >= TIMED_BYTES and stored[1] == FLAG_TIME:
        return int(_TIMED.unpack_from(stored)[2])
    return split_value(stored)[1]
