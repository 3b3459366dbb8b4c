"""Key codecs: fixed width, big-endian, so that the order of the bytes is the order of the values.

A key is `join(KeySpace.…, u32(…), u64(…))`: one byte that says whose key it is, then parts of fixed width.
Keys of one space and one layout therefore sort by their parts, first part first, and `prefix_range` of the
leading parts is exactly the keys that share them.
"""

from __future__ import annotations

import struct
from enum import Enum

from tidegate.errors import InvariantBroken
from tidegate.storage.engine import KeyRange

_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")

_SIGN_BIT = 1 << 63  # added to an i64, it puts negatives before positives
I64_MAX = (1 << 63) - 1


class KeySpace(bytes, Enum):
    """The first byte of every key: who owns it. A value is never used again for something else.

    0xff stays free: a prefix of 0xff bytes alone has no key that comes right after its range.
    """

    SYSTEM = b"\x01"  # facts about the store itself
    TOPIC = b"\x10"  # topic definitions
    TOPIC_LOG = b"\x11"  # record batches by topic, partition and base offset
    TOPIC_COUNTER = b"\x12"  # start and end offsets by topic and partition
    TOPIC_PRODUCER = b"\x13"  # idempotent producers by topic and digest of their id
    TOPIC_TIME = b"\x14"  # some offsets by topic, partition and time
    TOPIC_GROUP = b"\x15"  # consumer groups by topic, and their positions by partition
    TOPIC_LEASE = b"\x16"  # messages delivered and not acknowledged, by topic, group, partition and offset
    TOPIC_ROUTE = b"\x17"  # which changes of tables go into a topic
    TABLE = b"\x20"  # table definitions by table
    TABLE_ROW = b"\x21"  # rows by table, user and primary key
    TABLE_INDEX = b"\x22"  # nothing, by table, index, user, indexed columns and primary key
    TABLE_COUNTER = b"\x23"  # rows and bytes of a table
    NAMESPACE = b"\x24"  # namespaces by tenant and name
    ANSWER = b"\x18"  # answers by idempotency key
    ANSWER_TIME = b"\x19"  # nothing, by the time of an answer and its idempotency key
    TOPIC_SCHEMA = b"\x1a"  # columns of payloads by topic and number
    TOPIC_PART = b"\x1b"  # messages that wait for their batch to be committed, by topic and writer
    TOPIC_DEDUP = b"\x1c"  # dedup keys that a topic accepted, by topic, segment and digest


def u8(value: int) -> bytes:
    """Return one byte that sorts like the number; 0 to 255."""
    return _packed(_U8, value)


def u16(value: int) -> bytes:
    """Return two bytes that sort like the number; 0 to 2^16 - 1."""
    return _packed(_U16, value)


def u32(value: int) -> bytes:
    """Return four bytes that sort like the number; 0 to 2^32 - 1."""
    return _packed(_U32, value)


def u64(value: int) -> bytes:
    """Return eight bytes that sort like the number; 0 to 2^64 - 1."""
    return _packed(_U64, value)


def i64(value: int) -> bytes:
    """Return eight bytes that sort like the number, negatives first; -2^63 to 2^63 - 1."""
    return _packed(_U64, value + _SIGN_BIT)


def read_u8(key: bytes, at: int = 0) -> int:
    """Return the number that `u8` wrote at this byte of the key."""
    return _unpacked(_U8, key, at)


def read_u16(key: bytes, at: int = 0) -> int:
    """Return the number that `u16` wrote at this byte of the key."""
    return _unpacked(_U16, key, at)


def read_u32(key: bytes, at: int = 0) -> int:
    """Return the number that `u32` wrote at this byte of the key."""
    return _unpacked(_U32, key, at)


def read_u64(key: bytes, at: int = 0) -> int:
    """Return the number that `u64` wrote at this byte of the key."""
    return _unpacked(_U64, key, at)


def read_i64(key: bytes, at: int = 0) -> int:
    """Return the number that `i64` wrote at this byte of the key."""
    return _unpacked(_U64, key, at) - _SIGN_BIT


def join(*parts: bytes) -> bytes:
    """Return one key of the parts, in order."""
    return b"".join(parts)


def prefix_range(prefix: bytes) -> KeyRange:
    """Return the range of exactly the keys that start with the prefix."""
    head = prefix.rstrip(b"\xff")
    if not head:
        raise InvariantBroken(reason=f"no key comes right after all keys that start with {prefix!r}")
    return KeyRange(bytes(prefix), head[:-1] + bytes((head[-1] + 1,)))


def _packed(codec: struct.Struct, value: int) -> bytes:
    try:
        return codec.pack(value)
    except struct.error as fault:
        raise InvariantBroken(reason=f"{value} does not fit into {codec.size} bytes of a key") from fault


def _unpacked(codec: struct.Struct, key: bytes, at: int) -> int:
    try:
        (value,) = codec.unpack_from(key, at)
    except struct.error as fault:
        raise InvariantBroken(reason=f"key {key!r} has no {codec.size} bytes at {at}") from fault
    return int(value)
