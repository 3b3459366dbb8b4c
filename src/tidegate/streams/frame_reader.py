"""The frames of a log, read forwards or backwards, with damage located.

A log ends with its last whole frame. Bytes after it are a torn end and ignored: the beginning of a frame, or
zeros that a power loss left. Anything else that is no frame is damage: it is reported once with its position,
and reading continues at the next header whose checksum matches its position. A header with a flipped length
has a wrong checksum, so it is never taken for a torn end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tidegate.streams.frames import (
    FOOT_BYTES,
    FRAME_BYTES_MIN,
    HEAD_BYTES,
    MAGIC,
    FrameHeader,
    check_version,
    frame_bytes_before,
    parse_head,
    payload_fault,
)

CHUNK_BYTES = 256 * 1024  # of one read of a file


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that should be a frame and are none."""

    file: str
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, byte {self.position}: {self.reason}"


class FrameSource(Protocol):
    """The bytes of a file between two positions."""

    place: str
    start: int
    stop: int

    def take(self, start: int, stop: int) -> bytes:
        """Return the bytes between two positions of the file, fewer only if the file is shorter."""
        ...


class BytesSource:
    """A source in memory; `start` is the position of its first byte in the file."""

    def __init__(self, content: bytes, place: str, start: int = 0) -> None:
        self.place = place
        self.start = start
        self.stop = start + len(content)
        self._content = content

    def take(self, start: int, stop: int) -> bytes:
        return self._content[start - self.start : stop - self.start]


class Walk:
    """An iteration over a source from its start; then `clean_stop` is the position for the next frame.

    Yields headers, whose payload is taken separately, and damage. StorageCorrupt for a frame of an unknown
    version: nothing after it can be interpreted.
    """

    def __init__(self, source: FrameSource) -> None:
        self._source = source
        self.clean_stop = source.start
        self.last: FrameHeader | None = None

    def __iter__(self) -> Iterator[FrameHeader | Damage]:
        source = self._source
        position = source.start
        while position + HEAD_BYTES <= source.stop:
            head = parse_head(source.take(position, position + HEAD_BYTES), position)
            if head is None:
                following = _next_head(source, position + 1)
                if following is None and _is_torn(source, position):
                    break
                yield Damage(source.place, position, "the header is damaged")
                position = source.stop if following is None else following
            else:
                check_version(head, source.place)
                if head.stop > source.stop:
                    break
                self.last = head
                position = head.stop
                yield head
            self.clean_stop = position
        # Fewer bytes than a header has are never a frame, so they are torn.


def walk_back(source: FrameSource) -> Iterator[FrameHeader | Damage]:
    """Yield the frames of a source from its last to its first; the source ends with a whole frame.

    Reads from foot to foot. If a foot is invalid, something is damaged: then the remaining bytes are read
    forwards, once, and yielded in reverse.
    """
    stop = source.stop
    while stop > source.start:
        head = head_before(source, stop)
        if head is None:
            yield from reversed(list(Walk(_Front(source, stop))))
            return
        check_version(head, source.place)
        yield head
        stop = head.position


def head_before(source: FrameSource, stop: int) -> FrameHeader | None:
    """Return the header of the frame that ends at a position; None if there is none."""
    if stop - FRAME_BYTES_MIN < source.start:
        return None
    position = stop - frame_bytes_before(source.take(stop - FOOT_BYTES, stop))
    if not source.start <= position <= stop - FRAME_BYTES_MIN:
        return None
    head = parse_head(source.take(position, position + HEAD_BYTES), position)
    return head if head is not None and head.stop == stop else None


def take_payload(source: FrameSource, head: FrameHeader) -> bytes | Damage:
    """Return the payload of a frame, or what is wrong with it."""
    content = source.take(head.position + HEAD_BYTES, head.stop)
    payload, foot = content[:-FOOT_BYTES], content[-FOOT_BYTES:]
    if len(payload) != head.payload_bytes:
        return Damage(source.place, head.position, "the file ends inside of it")
    fault = payload_fault(head, payload, foot)
    return payload if fault is None else Damage(source.place, head.position, fault)


class _Front:
    """The part of a source before a position."""

    def __init__(self, source: FrameSource, stop: int) -> None:
        self.place = source.place
        self.start = source.start
        self.stop = stop
        self.take = source.take


def _next_head(source: FrameSource, position: int) -> int | None:
    """Return the position of the next header at or after a position; None without one."""
    while position + HEAD_BYTES <= source.stop:
        chunk = source.take(position, min(position + CHUNK_BYTES, source.stop))
        if len(chunk) < HEAD_BYTES:
            return None
        found = chunk.find(MAGIC)
        while 0 <= found <= len(chunk) - HEAD_BYTES:
            if parse_head(chunk[found : found + HEAD_BYTES], position + found) is not None:
                return position + found
            found = chunk.find(MAGIC, found + 1)
        position += len(chunk) - HEAD_BYTES + 1
    return None


def _is_torn(source: FrameSource, position: int) -> bool:
    """True if only zeros follow, after at most the beginning of a header."""
    position += len(source.take(position, position + HEAD_BYTES - 1).rstrip(b"\0"))
    while position < source.stop:
        chunk = source.take(position, min(position + CHUNK_BYTES, source.stop))
        if not chunk or chunk.count(0) != len(chunk):
            return not chunk
        position += len(chunk)
    return True
