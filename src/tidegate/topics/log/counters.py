"""The counters of a partition, in 61 bytes with a checksum.

    version u8 | end u64 | start u64 | last time i64 µs | last id u64 | stored u64 | appended u64 |
    indexed u64 | crc32 u32

Version 2, big-endian; the checksum covers what is before it. Version 1 ends after `stored` and has no
checksum: it was written before retention existed, so all that was appended is stored.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from tidegate.errors import StorageCorrupt

COUNTERS_VERSION = 2
_COUNTERS = struct.Struct(">BQQqQQQQ")
_COUNTERS_V1 = struct.Struct(">BQQqQQ")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Counters:
    """The offsets in the log of a partition, `start` ≤ offset < `end`, its last time and id, its sizes."""

    end: int = 0
    start: int = 0
    last_us: int = 0
    last_id: int = 0
    # Bytes of the record batches from `start` on.
    stored_bytes: int = 0
    # Bytes of all record batches ever appended: it only grows, so the time index can count by it.
    appended_bytes: int = 0
    # `appended_bytes` at the newest entry of the time index.
    indexed_bytes: int = 0

    @property
    def removed_bytes(self) -> int:
        """Bytes of the record batches before `start`."""
        return self.appended_bytes - self.stored_bytes

    def encode(self) -> bytes:
        """Return the bytes that store this."""
        head = _COUNTERS.pack(
            COUNTERS_VERSION,
            self.end,
            self.start,
            self.last_us,
            self.last_id,
            self.stored_bytes,
            self.appended_bytes,
            self.indexed_bytes,
        )
        return head + _CRC.pack(zlib.crc32(head))

    @classmethod
    def decode(cls, stored: bytes | None, place: str) -> Counters:
        """Return the counters of stored bytes; None stands for a partition that was never written to."""
        if stored is None:
            return cls()
        if len(stored) == _COUNTERS.size + _CRC.size and stored[0] == COUNTERS_VERSION:
            head = stored[: _COUNTERS.size]
            if zlib.crc32(head) != _CRC.unpack_from(stored, _COUNTERS.size)[0]:
                raise StorageCorrupt(place=place, reason="the counters do not match their checksum")
            return cls(*_COUNTERS.unpack(head)[1:])
        if len(stored) == _COUNTERS_V1.size and stored[0] == 1:
            _, end, start, last_us, last_id, stored_bytes = _COUNTERS_V1.unpack(stored)
            return cls(end, start, last_us, last_id, stored_bytes, stored_bytes)
        raise StorageCorrupt(place=place, reason="the counters are not of a version that this reads")
