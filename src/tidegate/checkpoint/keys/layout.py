"""The layout of the entries of state: key groups, states and keys in the bytes of an entry's key.

Every entry of a key begins with its key group, so that a key group is one range and can be moved whole.
Version 1:

    key group u16 | 0x01 | state u16 | key | sub-key           an entry of a keyed state
    key group u16 | 0x02 | clock u8  | time i64 | key          a timer
    key group u16 | 0x03 | state u16 | bucket i64 | key | sub  an entry of the index for TTL cleanup
    key group u16 | 0x04 | segment i64 | key                   the times of a key in a segment (dedup/store/)
    0xfffe        | 0x01 | state u16 | sequence                an element of operator state
    0xffff        | name                                       the store's own metadata

Numbers are big-endian; signed ones have their sign bit flipped, so that bytes sort as numbers do. The key is
self-delimiting: no encoded key is a prefix of another one.
"""

from __future__ import annotations

import struct

from tidegate.errors import InvariantBroken

LAYOUT_VERSION = 1

# A key group is a u16 below OPERATOR_GROUP and META_GROUP; Flink has the same limit.
PARALLELISM_MAX = 32_768
STATES_MAX = 65_000

SPACE_ENTRY = 0x01
SPACE_TIMER = 0x02
SPACE_EXPIRY = 0x03
SPACE_SEGMENT = 0x04

OPERATOR_GROUP = b"\xff\xfe"
META_GROUP = b"\xff\xff"

_ENTRY = struct.Struct(">HBH")
_TIMER = struct.Struct(">HBBQ")
_EXPIRY = struct.Struct(">HBHQ")
_SEGMENT = struct.Struct(">HBQ")
_SIGN = 1 << 63

TIMER_PREFIX_BYTES = _TIMER.size
SEGMENT_PREFIX_BYTES = _SEGMENT.size


def groups_of(instance: int, parallelism: int, max_parallelism: int) -> range:
    """Return the key groups that an instance owns: one contiguous range."""
    first = -(-instance * max_parallelism // parallelism)
    stop = -(-(instance + 1) * max_parallelism // parallelism)
    return range(first, stop)


def group_range(groups: range) -> tuple[bytes, bytes]:
    """Return the half-open range of keys that has all entries of these key groups."""
    if groups.step != 1:
        raise InvariantBroken(reason=f"key groups of an instance lie side by side, not {groups}")
    return groups.start.to_bytes(2, "big"), groups.stop.to_bytes(2, "big")


def entry_prefix(key_group: int, state: int) -> bytes:
    """Return the bytes before the key in every entry of a state."""
    return _ENTRY.pack(key_group, SPACE_ENTRY, state)


def timer_prefix(key_group: int, clock: int, at_ms: int) -> bytes:
    """Return the bytes before the key in a timer."""
    return _TIMER.pack(key_group, SPACE_TIMER, clock, at_ms + _SIGN)


def timer_time(entry: bytes) -> int:
    """Return the time of a timer's entry."""
    return int(_TIMER.unpack_from(entry)[3]) - _SIGN


def expiry_prefix(key_group: int, state: int, bucket: int) -> bytes:
    """Return the bytes before key and sub-key in the TTL index."""
    return _EXPIRY.pack(key_group, SPACE_EXPIRY, state, bucket + _SIGN)


def segment_prefix(key_group: int, segment: int) -> bytes:
    """Return the bytes before the key in an entry of a segment."""
    return _SEGMENT.pack(key_group, SPACE_SEGMENT, segment + _SIGN)


def segment_of_entry(entry: bytes) -> int:
    """Return the segment of an entry's key."""
    return int(_SEGMENT.unpack_from(entry)[2]) - _SIGN


def after(prefix: bytes) -> bytes:
    """Return the first bytes that sort after everything with a prefix."""
    stem = prefix.rstrip(b"\xff")
    if not stem:
        raise InvariantBroken(reason="nothing sorts after a prefix of nothing but 0xff")
    return stem[:-1] + bytes([stem[-1] + 1])
