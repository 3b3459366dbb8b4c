"""Keys outside and inside: takes changes under the keys of state, gives what they do to each segment.

Outside, an entry lies under `key group u16 | 0x04 | segment i64 | key` (checkpoint/keys/layout.py), as all
state does. Inside a segment it lies under `key group u16 | key`. Within one segment both sort
alike, so that a range outside is one range in every segment.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.checkpoint.backend import Changes, PackedEntries
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
class PartChanges:
    """What changes do to one segment, under the keys inside it: ranges first, then entries, then columns."""

    ranges: list[Range] = field(default_factory=list)
    entries: dict[bytes, bytes | None] = field(default_factory=dict)
    packed: list[PackedEntries] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ranges or self.entries or self.packed)

    @property
    def size_bytes(self) -> int:
        """Return about how many bytes are to be written."""
        columns = sum(part.keys.nbytes + part.values.nbytes for part in self.packed)
        return columns + sum(len(key) + len(value or b"") for key, value in self.entries.items())


def inside(key: bytes) -> tuple[int, bytes]:
    """Return the segment of an entry and its key in there."""
    if len(key) < SEGMENT_PREFIX_BYTES or key[GROUP_BYTES] != SPACE_SEGMENT or key >= META_GROUP:
        raise InvariantBroken(reason=f"no entry of a segmented store lies at {key[:32]!r}")
    return segment_of_entry(key), key[:GROUP_BYTES] + key[SEGMENT_PREFIX_BYTES:]


def outside(segment: int, key: bytes) -> bytes:
    """Return the key outside of an entry that lies in a segment."""
    return segment_prefix(int.from_bytes(key[:GROUP_BYTES], "big"), segment) + key[GROUP_BYTES:]


def segments_in(changes: Changes) -> set[int]:
    """Return the segments into which changes put something."""
    return {one.segment for one in changes.packed} | {segment_of_entry(key) for key in changes.entries}


def bound_inside(bound: bytes, segment: int) -> bytes:
    """Return the least key in a segment that lies at or behind a bound outside."""
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


def split(changes: Changes, known: list[int], first_live: int | None) -> dict[int, PartChanges]:
    """Return what changes do to each segment; what they put into expired ones is left out."""
    parts: dict[int, PartChanges] = {}
    for start, stop in changes.ranges:
        for segment in known:
            inner = bound_inside(start, segment), bound_inside(min(stop, META_GROUP), segment)
            if inner[0] < inner[1]:
                parts.setdefault(segment, PartChanges()).ranges.append(inner)
    for key, value in changes.entries.items():
        segment, inner_key = inside(key)
        if first_live is None or segment >= first_live:
            parts.setdefault(segment, PartChanges()).entries[inner_key] = value
    for packed in changes.packed:
        if len(packed.keys) and (first_live is None or packed.segment >= first_live):
            parts.setdefault(packed.segment, PartChanges()).packed.append(packed)
    return parts
