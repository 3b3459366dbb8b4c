"""The keys of entries: state keys outside, and the keys inside a segment.

Outside, the key of an entry is `key group u16 | 0x04 | segment i64 | key` (checkpoint/keys/layout.py), as of
all state. Inside a segment it is `key group u16 | key`. Within one segment both have the same order, so that
a range of state keys is one range in every segment.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.checkpoint.backend import PackedEntries, StateChanges
from tidegate.checkpoint.keys.layout import (
    META_GROUP,
    SEGMENT_PREFIX_BYTES,
    SPACE_SEGMENT,
    segment_of_entry,
    segment_prefix,
)
from tidegate.errors import InvariantBroken

GROUP_BYTES = 2

Range = tuple[bytes, bytes]


@dataclass(slots=True)
class SegmentChanges:
    """The changes of one segment under the keys inside it: ranges first, then entries, then columns."""

    ranges: list[Range] = field(default_factory=list)
    entries: dict[bytes, bytes | None] = field(default_factory=dict)
    packed: list[PackedEntries] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ranges or self.entries or self.packed)

    @property
    def size_bytes(self) -> int:
        """Return the approximate number of bytes to be written."""
        columns = sum(part.keys.nbytes + part.values.nbytes for part in self.packed)
        return columns + sum(len(key) + len(value or b"") for key, value in self.entries.items())


def inside(key: bytes) -> tuple[int, bytes]:
    """Return the segment of a state key, and the key inside that segment."""
    if len(key) < SEGMENT_PREFIX_BYTES or key[GROUP_BYTES] != SPACE_SEGMENT or key >= META_GROUP:
        raise InvariantBroken(reason=f"no entry of a segmented store lies at {key[:32]!r}")
    return segment_of_entry(key), key[:GROUP_BYTES] + key[SEGMENT_PREFIX_BYTES:]


def outside(segment: int, key: bytes) -> bytes:
    """Return the state key of an entry of a segment."""
    return segment_prefix(int.from_bytes(key[:GROUP_BYTES], "big"), segment) + key[GROUP_BYTES:]


def segments_in(changes: StateChanges) -> set[int]:
    """Return the segments to which changes add entries."""
    return {one.segment for one in changes.packed} | {segment_of_entry(key) for key in changes.entries}


def bound_inside(bound: bytes, segment: int) -> bytes:
    """Return the least key inside a segment that is not below a bound of state keys."""
    if len(bound) < GROUP_BYTES:
        return bound
    group, rest = bound[:GROUP_BYTES], bound[GROUP_BYTES:]
    own = segment_prefix(0, segment)[GROUP_BYTES:]
    if rest <= own:
        return group
    if rest.startswith(own):
        return group + rest[len(own) :]
    number = int.from_bytes(group, "big")
    return group if rest < own else min(number + 1, 0xFFFF).to_bytes(GROUP_BYTES, "big")


def split(changes: StateChanges, known: list[int], first_live: int | None) -> dict[int, SegmentChanges]:
    """Return the changes of each segment; entries of expired segments are left out."""
    parts: dict[int, SegmentChanges] = {}
    for start, stop in changes.ranges:
        for segment in known:
            inner = bound_inside(start, segment), bound_inside(min(stop, META_GROUP), segment)
            if inner[0] < inner[1]:
                parts.setdefault(segment, SegmentChanges()).ranges.append(inner)
    for key, value in changes.entries.items():
        segment, inner_key = inside(key)
        if first_live is None or segment >= first_live:
            parts.setdefault(segment, SegmentChanges()).entries[inner_key] = value
    for packed in changes.packed:
        if len(packed.keys) and (first_live is None or packed.segment >= first_live):
            parts.setdefault(packed.segment, SegmentChanges()).packed.append(packed)
    return parts
