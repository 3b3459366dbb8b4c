"""Ordered bytes: takes integers and byte strings, gives bytes that sort as they do and say where they end.

Integers are big-endian of a fixed width, with the sign bit turned. In a byte string 0x00 becomes 0x00 0xff,
and 0x00 0x00 ends it: a string sorts before every longer one that begins with it.
"""

from __future__ import annotations

from tidegate.errors import StorageCorrupt

END = b"\x00\x00"
_ZERO = b"\x00"
_ESCAPED = b"\x00\xff"


def put_number(number: int, width: int) -> bytes:
    """Return a signed integer in so many bytes; OverflowError when it does not fit."""
    return (number + (1 << (8 * width - 1))).to_bytes(width, "big")


def take_number(stored: bytes, at: int, width: int) -> int:
    """Return the signed integer that begins at a place."""
    if at + width > len(stored):
        raise short(stored, at)
    return int.from_bytes(stored[at : at + width], "big") - (1 << (8 * width - 1))


def put_text(content: bytes) -> bytes:
    """Return a byte string with its end."""
    return content.replace(_ZERO, _ESCAPED) + END


def end_of_text(stored: bytes, at: int) -> int:
    """Return the place after the byte string that begins at a place."""
    while True:
        at = stored.find(_ZERO, at)
        follower = stored[at + 1] if 0 <= at < len(stored) - 1 else -1
        if follower == 0x00:
            return at + 2
        if follower != 0xFF:
            raise short(stored, max(at, 0))
        at += 2


def take_text(stored: bytes, at: int) -> tuple[bytes, int]:
    """Return the byte string that begins at a place, and the place after it."""
    end = stored.find(_ZERO, at)
    if end >= 0 and stored[end : end + 2] == END:  # no zero byte inside, as nearly always
        return stored[at:end], end + 2
    end = end_of_text(stored, at)
    return stored[at : end - 2].replace(_ESCAPED, _ZERO), end


def short(stored: bytes, at: int) -> StorageCorrupt:
    """Return the error for bytes that end before the value does, or are not of its form."""
    return StorageCorrupt(place=f"the key {stored[:64].hex()}", reason=f"byte {at} is not of its form")
