"""The keys of topics in the engine.

definition    TOPIC | topic id u64                                    the topic's definition
counters      TOPIC_COUNTER | topic id u64 | partition u32            next offset, log start, last time and id
record batch  TOPIC_LOG | topic id u64 | partition u32 | offset u64   messages, by their first offset
time index    TOPIC_TIME | topic id u64 | partition u32 | i64 | u64   bytes before it, by time and base offset
producer      TOPIC_PRODUCER | topic id u64 | digest of its id, 16    an idempotent producer's last requests
dedup key     TOPIC_DEDUP | topic id u64 | 1 | segment u64 | 16       the position of its message, by digest
segments      TOPIC_DEDUP | topic id u64 | 0                          segments of dedup keys, and a time
next id       SYSTEM | 1 u32                                          the next topic id; ids are never reused

All fixed width and big-endian, so that byte order is offset order and a range scan is a read. Groups, leases,
routes, payload schemas and parts of a batch have the topic's id in front as well, each in its own key space.
"""

from __future__ import annotations

import hashlib

from tidegate.storage.engine import KeyRange
from tidegate.storage.keys import KeySpace, i64, join, prefix_range, read_i64, read_u64, u8, u32, u64

OFFSET_END = 2**63 - 1
NEXT_ID = join(KeySpace.SYSTEM, u32(1))
_OFFSET_AT = 13
_TIME_AT = 13
_TIME_OFFSET_AT = 21
# The key spaces of a topic's data, by its id; its definition is apart.
_SPACES = (
    KeySpace.TOPIC_COUNTER,
    KeySpace.TOPIC_LOG,
    KeySpace.TOPIC_TIME,
    KeySpace.TOPIC_PRODUCER,
    KeySpace.TOPIC_GROUP,
    KeySpace.TOPIC_LEASE,
    KeySpace.TOPIC_ROUTE,
    KeySpace.TOPIC_SCHEMA,
    KeySpace.TOPIC_PART,
    KeySpace.TOPIC_DEDUP,
)
_DEDUP_SEGMENTS, _DEDUP_KEY = u8(0), u8(1)


def definition_key(topic_id: int) -> bytes:
    """Return the key of a topic's definition."""
    return join(KeySpace.TOPIC, u64(topic_id))


def definition_range() -> KeyRange:
    """Return the keys of all definitions."""
    return prefix_range(KeySpace.TOPIC)


def is_definition(key: bytes) -> bool:
    """True for the key of a topic's definition."""
    return key[:1] == KeySpace.TOPIC


def topic_id_of(key: bytes) -> int:
    """Return the topic id inside a definition key."""
    return read_u64(key, 1)


def counter_key(topic_id: int, partition: int) -> bytes:
    """Return the key of a partition's counters."""
    return join(KeySpace.TOPIC_COUNTER, u64(topic_id), u32(partition))


def record_key(topic_id: int, partition: int, base_offset: int) -> bytes:
    """Return the key of a record batch."""
    return join(KeySpace.TOPIC_LOG, u64(topic_id), u32(partition), u64(base_offset))


def base_offset_of(key: bytes) -> int:
    """Return the base offset inside a record key."""
    return read_u64(key, _OFFSET_AT)


def record_range(topic_id: int, partition: int, start: int, stop: int) -> KeyRange:
    """Return the keys of the record batches whose base offset is in a half-open range."""
    return KeyRange(record_key(topic_id, partition, start), record_key(topic_id, partition, stop))


def time_key(topic_id: int, partition: int, time_us: int, base_offset: int) -> bytes:
    """Return the key of an entry of the time index."""
    return join(KeySpace.TOPIC_TIME, u64(topic_id), u32(partition), i64(time_us), u64(base_offset))


def time_of(key: bytes) -> tuple[int, int]:
    """Return the time and the base offset inside a key of the time index."""
    return read_i64(key, _TIME_AT), read_u64(key, _TIME_OFFSET_AT)


def time_range(topic_id: int, partition: int) -> KeyRange:
    """Return the keys of the time index of a partition."""
    return prefix_range(join(KeySpace.TOPIC_TIME, u64(topic_id), u32(partition)))


def producer_key(topic_id: int, producer_id: str) -> bytes:
    """Return the key of an idempotent producer's last requests."""
    digest = hashlib.blake2b(producer_id.encode(), digest_size=16).digest()
    return join(KeySpace.TOPIC_PRODUCER, u64(topic_id), digest)


def dedup_digest(dedup_key: str) -> bytes:
    """Return the 16 bytes that stand for a dedup key: BLAKE2b-128 of its UTF-8.

    Users choose these keys, and with a digest that can be forged (xxh3 can) one user could make the message
    of another look like a duplicate. For BLAKE2b that takes 2^128 tries, and it needs no secret that a backup
    would have to carry. Two keys that collide, after 2^64 tries, are both the attacker's own.
    """
    return hashlib.blake2b(dedup_key.encode(), digest_size=16).digest()


def dedup_segments_key(topic_id: int) -> bytes:
    """Return the key of the list of a topic's segments of dedup keys."""
    return join(KeySpace.TOPIC_DEDUP, u64(topic_id), _DEDUP_SEGMENTS)


def dedup_prefix(topic_id: int, segment: int) -> bytes:
    """Return the prefix of the keys of a segment; the digests of dedup keys follow."""
    return join(KeySpace.TOPIC_DEDUP, u64(topic_id), _DEDUP_KEY, u64(segment))


def dedup_range(topic_id: int, start: int, stop: int) -> KeyRange:
    """Return the dedup keys of the segments in a half-open range."""
    return KeyRange(dedup_prefix(topic_id, start), dedup_prefix(topic_id, stop))


def dedup_everything(topic_id: int) -> KeyRange:
    """Return all keys of a topic that have to do with dedup keys."""
    return prefix_range(join(KeySpace.TOPIC_DEDUP, u64(topic_id)))


def everything_of(topic_id: int) -> list[KeyRange]:
    """Return ranges that hold all keys of one topic but its definition."""
    return [prefix_range(join(space, u64(topic_id))) for space in _SPACES]
