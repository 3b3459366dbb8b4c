"""Keys and bytes of the rows of consumer groups: groups, positions and entries.

group     TOPIC_GROUP | topic id u64 | digest of the name, 16                      name and time of creation
position  TOPIC_GROUP | topic id u64 | digest, 16 | partition u32                  its position, 77 bytes
entry     TOPIC_LEASE | topic id u64 | digest, 16 | partition u32 | start u64      delivered, not acked

    group     version u8 | created i64 | name, UTF-8 | crc32 u32
    position  version u8 | revision u64 | next u64 | last fetch id u64 |
              delivered offset i64 | delivered time i64 | acked offset i64 | acked time i64 |
              missed, not reported u64 | missed in all u64 | crc32 u32 (offset -1: none yet)
    entry     version u8 | kind u8 | stop u64 | deliveries u32 | fetch id u64 | ends i64 | span i64 |
              delivered time i64 | token u64 | member bytes u16 | user bytes u16 |
              member, UTF-8 | user, UTF-8 | reason, UTF-8 | crc32 u32

Groups and positions have version 1, entries version 2; those of version 1 have no token, no user bytes and no
user. Big-endian, times in µs since 1970; a checksum covers what is before it. A digest is BLAKE2b of the
name's UTF-8 bytes. The revision rises with every change of a position or of an entry below it, so that equal
bytes of a position mean equal entries.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import Final

import msgspec

from tidegate.errors import StorageCorrupt
from tidegate.storage.engine import KeyRange
from tidegate.storage.keys import KeySpace, join, prefix_range, read_u32, read_u64, u32, u64

ROW_VERSION = 1
ENTRY_VERSION = 2
ENTRY_VERSION_WITHOUT_USER = 1
DIGEST_BYTES = 16
_GROUP_HEAD = struct.Struct(">Bq")
_POSITION = struct.Struct(">BQQQqqqqQQ")
_ENTRY_HEAD = struct.Struct(">BBQIQqqqQHH")
_ENTRY_HEAD_WITHOUT_USER = struct.Struct(">BBQIQqqqH")
_CRC = struct.Struct(">I")
_TOPIC_AT = 1
_DIGEST_AT = 9
_PARTITION_AT = _DIGEST_AT + DIGEST_BYTES
_START_AT = _PARTITION_AT + 4

HELD: Final = 1
WAITING: Final = 2


class Entry(msgspec.Struct, frozen=True, gc=False):
    """Messages `start` ≤ offset < `stop` that were delivered and are not acknowledged, all in one state.

    Held: leased to `member` until `ends_us`. Waiting: delivered again from `ends_us` on. `span_us` is how
    long the state lasts at most, whatever the clock does meanwhile. A waiting entry has the member whose
    lease ended, which may still acknowledge it; none when it was nacked.

    `user` is whose member it is, with the tenant; '' is unknown: it was delivered by a version that did not
    store it. `token` are the random bits of the lease ids, never 0; 0 is for ids without them, of those
    versions.
    """

    start: int
    stop: int
    kind: int
    deliveries: int
    fetch_id: int
    ends_us: int
    span_us: int
    delivered_us: int
    member: str
    reason: str = ""
    user: str = ""
    token: int = 0

    @property
    def count(self) -> int:
        """The number of messages."""
        return self.stop - self.start

    def part(self, start: int, stop: int) -> Entry:
        """Return a part of the messages, in the same state."""
        if start == self.start and stop == self.stop:
            return self
        return Entry(
            start,
            stop,
            self.kind,
            self.deliveries,
            self.fetch_id,
            self.ends_us,
            self.span_us,
            self.delivered_us,
            self.member,
            self.reason,
            self.user,
            self.token,
        )

    def encode(self) -> bytes:
        """Return the bytes that store this."""
        member, user = self.member.encode(), self.user.encode()
        head = _ENTRY_HEAD.pack(
            ENTRY_VERSION,
            self.kind,
            self.stop,
            self.deliveries,
            self.fetch_id,
            self.ends_us,
            self.span_us,
            self.delivered_us,
            self.token,
            len(member),
            len(user),
        )
        body = head + member + user + self.reason.encode()
        return body + _CRC.pack(zlib.crc32(body))


class Position(msgspec.Struct, frozen=True, gc=False):
    """The position of a group in a partition, without its entries."""

    next: int
    revision: int = 0
    last_fetch_id: int = 0
    delivered_offset: int = -1
    delivered_us: int = 0
    acked_offset: int = -1
    acked_us: int = 0
    missed_unreported: int = 0
    missed_total: int = 0

    def encode(self) -> bytes:
        """Return the bytes that store this."""
        body = _POSITION.pack(
            ROW_VERSION,
            self.revision,
            self.next,
            self.last_fetch_id,
            self.delivered_offset,
            self.delivered_us,
            self.acked_offset,
            self.acked_us,
            self.missed_unreported,
            self.missed_total,
        )
        return body + _CRC.pack(zlib.crc32(body))


def digest_of(group: str) -> bytes:
    """Return the digest of a group's name, which keys have instead of it."""
    return hashlib.blake2b(group.encode(), digest_size=DIGEST_BYTES).digest()


def group_key(topic_id: int, digest: bytes) -> bytes:
    """Return the key of a group."""
    return join(KeySpace.TOPIC_GROUP, u64(topic_id), digest)


def position_key(topic_id: int, digest: bytes, partition: int) -> bytes:
    """Return the key of a group's position in a partition."""
    return join(KeySpace.TOPIC_GROUP, u64(topic_id), digest, u32(partition))


def entry_prefix(topic_id: int, digest: bytes, partition: int) -> bytes:
    """Return the prefix of the keys of a partition's entries; the start follows."""
    return join(KeySpace.TOPIC_LEASE, u64(topic_id), digest, u32(partition))


def groups_range(topic_id: int | None = None) -> KeyRange:
    """Return the keys of groups and positions, of one topic or of all."""
    return prefix_range(KeySpace.TOPIC_GROUP if topic_id is None else _topic(KeySpace.TOPIC_GROUP, topic_id))


def entries_range(topic_id: int) -> KeyRange:
    """Return the keys of the entries of all groups of a topic."""
    return prefix_range(_topic(KeySpace.TOPIC_LEASE, topic_id))


def everything_of_group(topic_id: int, digest: bytes) -> list[KeyRange]:
    """Return ranges that hold all keys of one group."""
    spaces = (KeySpace.TOPIC_GROUP, KeySpace.TOPIC_LEASE)
    return [prefix_range(join(space, u64(topic_id), digest)) for space in spaces]


def topic_id_of(key: bytes) -> int:
    """Return the topic id inside a key of this module."""
    return read_u64(key, _TOPIC_AT)


def digest_in(key: bytes) -> bytes:
    """Return the digest inside a key of this module."""
    return key[_DIGEST_AT:_PARTITION_AT]


def partition_in(key: bytes) -> int | None:
    """Return the partition inside a key of this module; None for the key of a group."""
    return read_u32(key, _PARTITION_AT) if len(key) > _PARTITION_AT else None


def start_in(key: bytes) -> int:
    """Return the start inside the key of an entry."""
    return read_u64(key, _START_AT)


def encode_group(name: str, created_us: int) -> bytes:
    """Return the bytes that store a group."""
    body = _GROUP_HEAD.pack(ROW_VERSION, created_us) + name.encode()
    return body + _CRC.pack(zlib.crc32(body))


def decode_group(stored: bytes, place: str) -> tuple[str, int]:
    """Return the name of a stored group and the time of its creation."""
    body = _checked(stored, _GROUP_HEAD.size, place)
    _, created_us = _GROUP_HEAD.unpack_from(body)
    return body[_GROUP_HEAD.size :].decode(), created_us


def decode_position(stored: bytes, place: str) -> Position:
    """Return a stored position."""
    body = _checked(stored, _POSITION.size, place)
    if len(body) != _POSITION.size:
        raise StorageCorrupt(place=place, reason=f"a position has {_POSITION.size} bytes, not {len(body)}")
    # In the struct the offset comes first: it is the one field without a default.
    _, revision, offset, *others = _POSITION.unpack(body)
    return Position(offset, revision, *others)


def decode_entry(stored: bytes, start: int, place: str) -> Entry:
    """Return a stored entry."""
    versions = (ENTRY_VERSION, ENTRY_VERSION_WITHOUT_USER)
    body = _checked(stored, _ENTRY_HEAD_WITHOUT_USER.size, place, versions)
    if body[0] == ENTRY_VERSION_WITHOUT_USER:
        head, at = _ENTRY_HEAD_WITHOUT_USER.unpack_from(body), _ENTRY_HEAD_WITHOUT_USER.size
        token, member_bytes, user_bytes = 0, head[-1], 0
    else:
        if len(body) < _ENTRY_HEAD.size:
            raise StorageCorrupt(place=place, reason="a row of a consumer group is too short")
        head, at = _ENTRY_HEAD.unpack_from(body), _ENTRY_HEAD.size
        token, member_bytes, user_bytes = head[-3:]
    _, kind, stop, deliveries, fetch_id, ends_us, span_us, delivered_us = head[:8]
    if kind not in (HELD, WAITING) or stop <= start:
        raise StorageCorrupt(place=place, reason=f"an entry of kind {kind} that ends at {stop}")
    user_at = at + member_bytes
    reason_at = user_at + user_bytes
    member, user = body[at:user_at].decode(), body[user_at:reason_at].decode()
    numbers = (kind, deliveries, fetch_id, ends_us, span_us, delivered_us)
    return Entry(start, stop, *numbers, member, body[reason_at:].decode(), user, token)


def _topic(space: KeySpace, topic_id: int) -> bytes:
    return join(space, u64(topic_id))


def _checked(stored: bytes, size_min: int, place: str, versions: tuple[int, ...] = (ROW_VERSION,)) -> bytes:
    if len(stored) < size_min + _CRC.size:
        raise StorageCorrupt(place=place, reason="a row of a consumer group is too short")
    body = stored[: -_CRC.size]
    if zlib.crc32(body) != _CRC.unpack_from(stored, len(body))[0]:
        raise StorageCorrupt(place=place, reason="a row of a consumer group does not match its checksum")
    if body[0] not in versions:
        reason = f"a row of a consumer group of version {body[0]}, this reads up to {max(versions)}"
        raise StorageCorrupt(place=place, reason=reason)
    return body
