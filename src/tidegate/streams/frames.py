"""The frames of a stream's log; docs/internals/stream-log.md is the page of this format.

    magic 4 | version u8 | kind u8 | schema id u16 | entries u32 | payload bytes u32 | time i64
    | first seq i64 | header checksum u32 | payload | payload checksum u32 | frame bytes u32

Big-endian. One append is one frame: all its rows have one time, and their numbers are consecutive. The
header's checksum covers the frame's position in its file, so that bytes inside a payload are not taken for a
frame, and the payload's checksum begins with the header's. The length at the end allows reading a log
backwards. Every later version keeps the header; its version says how the rest is read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tidegate.errors import StorageCorrupt
from tidegate.model.ids import NODE_BITS, NODE_MAX, SEQUENCE_BITS

MAGIC = b"\xf5TGS"  # the first byte begins no UTF-8 text
FRAME_VERSION = 1
PAYLOAD_BYTES_MAX = 256 * 1024 * 1024  # one append; far above a request's body, and fits memory twice

_HEAD = struct.Struct(">4sBBHIIqq")
_CHECKSUM = struct.Struct(">I")
_POSITION = struct.Struct(">Q")
_FOOT = struct.Struct(">II")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size
FOOT_BYTES = _FOOT.size
FRAME_BYTES_MIN = HEAD_BYTES + FOOT_BYTES

_SEQUENCES = 1 << SEQUENCE_BITS


class FrameKind(IntEnum):
    """What a frame's payload holds."""

    ROWS = 1  # an array of rows, each an array of values
    DELETES = 2  # an array of pairs: the values of a key, and the newest number that is hidden


_KINDS = frozenset(FrameKind)


class FrameHeader(NamedTuple):
    """The header of a frame, with a valid checksum."""

    position: int
    version: int
    kind: int
    schema_id: int
    entries: int
    payload_bytes: int
    time_us: int
    first_seq: int
    checksum: int

    @property
    def stop(self) -> int:
        """Where the next frame begins."""
        return self.position + FRAME_BYTES_MIN + self.payload_bytes


@dataclass(frozen=True, slots=True)
class FrameContent:
    """The content of one append: rows or deletes of one time, encoded."""

    kind: FrameKind
    schema_id: int
    entries: int
    payload: bytes


def make_frame(position: int, content: FrameContent, time_us: int, first_seq: int) -> bytes:
    """Return the bytes of a frame at a position of its file."""
    size = len(content.payload)
    front = _HEAD.pack(
        MAGIC, FRAME_VERSION, content.kind, content.schema_id, content.entries, size, time_us, first_seq
    )
    checksum = _checksum(front, position)
    foot = _FOOT.pack(zlib.crc32(content.payload, checksum), FRAME_BYTES_MIN + size)
    return b"".join((front, _CHECKSUM.pack(checksum), content.payload, foot))


def parse_head(content: bytes, position: int) -> FrameHeader | None:
    """Return the header in these bytes; None if they are no header at this position."""
    if len(content) < HEAD_BYTES or content[:4] != MAGIC:
        return None
    front = content[: _HEAD.size]
    (checksum,) = _CHECKSUM.unpack_from(content, _HEAD.size)
    if checksum != _checksum(front, position):
        return None
    _, version, kind, schema_id, entries, size, time_us, first_seq = _HEAD.unpack(front)
    return FrameHeader(position, version, kind, schema_id, entries, size, time_us, first_seq, checksum)


def check_version(head: FrameHeader, place: str) -> None:
    """Raise StorageCorrupt for a frame that another version of Tidegate wrote."""
    if head.version != FRAME_VERSION or head.kind not in _KINDS:
        raise StorageCorrupt(
            place=f"{place}, byte {head.position}",
            reason=f"a frame of version {head.version}, kind {head.kind}; this reads version {FRAME_VERSION}",
            hint="A newer Tidegate wrote it: start that one again.",
        )


def frame_bytes_before(foot: bytes) -> int:
    """Return the length of the frame that ends with this foot."""
    return int(_FOOT.unpack(foot)[1])


def payload_fault(head: FrameHeader, payload: bytes, foot: bytes) -> str | None:
    """Return what is wrong with the bytes after a header; None if they are valid."""
    checksum, size = _FOOT.unpack(foot)
    if checksum != zlib.crc32(payload, head.checksum):
        return "the checksum of the payload is wrong"
    if size != FRAME_BYTES_MIN + head.payload_bytes:
        return "the length at its end is wrong"
    return None


def seqs_from(first: int, count: int) -> Sequence[int]:
    """Return `count` consecutive snowflakes of one node, as the source of ids issues them."""
    sequence = first & (_SEQUENCES - 1)
    if sequence + count <= _SEQUENCES:
        return range(first, first + count)
    node = first >> SEQUENCE_BITS & NODE_MAX
    moment = first >> (SEQUENCE_BITS + NODE_BITS)
    ticks = range((moment << SEQUENCE_BITS) + sequence, (moment << SEQUENCE_BITS) + sequence + count)
    return [
        ((tick >> SEQUENCE_BITS << NODE_BITS | node) << SEQUENCE_BITS) | tick & (_SEQUENCES - 1)
        for tick in ticks
    ]


def last_seq(head: FrameHeader) -> int:
    """Return the number of a frame's last row."""
    return seqs_from(head.first_seq, head.entries)[-1] if head.entries else head.first_seq


def _checksum(front: bytes, position: int) -> int:
    return zlib.crc32(_POSITION.pack(position), zlib.crc32(front))
