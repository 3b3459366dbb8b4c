"""An order-preserving encoding of integers and byte strings, with marked ends.

Integers are big-endian of a fixed width, with the sign bit flipped. In a byte string 0x00 becomes 0x00 0xff,
and 0x00 0x00 ends it: a string sorts before every longer one that begins with it.
"""

from __future__ import annotations

import math
import struct

from tidegate.errors import StorageCorrupt

END = b"\x00\x00"
_ZERO = b"\x00"
_ESCAPED = b"\x00\xff"

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_DOUBLE = struct.Struct(">d")
_SIGN_32, SIGN_64 = 1 << 31, 1 << 63
_ALL_64 = (1 << 64) - 1

# `PACK_LONG(number + SIGN_64)` is `put_long(number)`, for loops that cannot afford the call.
PACK_LONG = _U64.pack


def put_number(number: int, width: int) -> bytes:
    """Return a signed integer in so many bytes; OverflowError when it does not fit."""
    return (number + (1 << (8 * width - 1))).to_bytes(width, "big")


def take_number(stored: bytes, at: int, width: int) -> int:
    """Return the signed integer that begins at a place."""
    if at + width > len(stored):
        raise short(stored, at)
    return int.from_bytes(stored[at : at + width], "big") - (1 << (8 * width - 1))


def put_int(number: int) -> bytes:
    """Return what `put_number` returns for 4 bytes; struct.error for what does not fit or is no integer."""
    return _U32.pack(number + _SIGN_32)


def put_long(number: int) -> bytes:
    """Return what `put_number` returns for 8 bytes; struct.error for what does not fit or is no integer."""
    return _U64.pack(number + SIGN_64)


def take_long(stored: bytes, at: int) -> int:
    """Return the integer of 8 bytes that begins at a place; struct.error where there are fewer."""
    number: int = _U64.unpack_from(stored, at)[0]
    return number - SIGN_64


def put_double(number: float) -> bytes:
    """Return 8 bytes: IEEE 754, the sign bit flipped, below zero all bits; -0 is 0 and NaN comes last."""
    found = math.nan if math.isnan(number) else number + 0.0  # -0.0 + 0.0 is 0.0
    bits: int = _U64.unpack(_DOUBLE.pack(found))[0]
    return _U64.pack(bits ^ _ALL_64 if bits & SIGN_64 else bits | SIGN_64)


def take_double(stored: bytes, at: int) -> float:
    """Return the number of 8 bytes that begins at a place; struct.error where there are fewer."""
    bits: int = _U64.unpack_from(stored, at)[0]
    number: float = _DOUBLE.unpack(_U64.pack(bits ^ SIGN_64 if bits & SIGN_64 else bits ^ _ALL_64))[0]
    return number


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
