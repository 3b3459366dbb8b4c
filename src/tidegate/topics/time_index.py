"""The sparse time index: takes record batches as they are appended, gives places near a time or a size.

About one entry a MiB of the log: the time of a record batch's first message and its base offset in the key,
the bytes of all record batches before it as the value. A search by time or by bytes looks here first and then
reads little of the log. A log without entries, or with entries of its newer part alone, is searched as well,
only more slowly.

    bytes before it u64 | crc32 u32 of the key and what is before

Times and offsets rise together, so the order of the keys is that of both.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.errors import StorageCorrupt
from tidegate.storage.engine import KeyRange, Reader
from tidegate.topics import keys

# An entry is about a hundred bytes with all that RocksDB keeps of it: one in ten thousand. A search then
# reads this much of the log at most, a few milliseconds.
INDEX_EVERY_BYTES = 1024 * 1024
_VALUE = struct.Struct(">QI")


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A record batch: the time of its first message, its base offset, and the bytes before it."""

    time_us: int
    offset: int
    bytes_before: int


def entry_pair(topic_id: int, partition: int, entry: IndexEntry) -> tuple[bytes, bytes]:
    """Give the key and the value that store an entry."""
    key = keys.time_key(topic_id, partition, entry.time_us, entry.offset)
    head = entry.bytes_before.to_bytes(8, "big")
    return key, head + zlib.crc32(head, zlib.crc32(key)).to_bytes(4, "big")


def read_entry(key: bytes, value: bytes, place: str) -> IndexEntry:
    """Read an entry; `place` names the partition in errors."""
    if len(value) != _VALUE.size:
        raise StorageCorrupt(place=place, reason="an entry of the time index has another length")
    bytes_before, checksum = _VALUE.unpack(value)
    if zlib.crc32(value[:8], zlib.crc32(key)) != checksum:
        raise StorageCorrupt(place=place, reason="an entry of the time index does not match its checksum")
    time_us, offset = keys.time_of(key)
    return IndexEntry(time_us, offset, bytes_before)


def entries(reader: Reader, topic_id: int, partition: int, place: str) -> Iterator[IndexEntry]:
    """Give all entries of a partition, the oldest first."""
    for key, value in reader.scan(keys.time_range(topic_id, partition)):
        yield read_entry(key, value, place)


def around_time(
    reader: Reader, topic_id: int, partition: int, time_us: int, place: str
) -> tuple[IndexEntry | None, IndexEntry | None]:
    """Give the last entry before a time, and the first at or after it."""
    every = keys.time_range(topic_id, partition)
    middle = keys.time_key(topic_id, partition, time_us, 0)
    before = next(reader.scan(KeyRange(every.start, middle), reverse=True), None)
    after = next(reader.scan(KeyRange(middle, every.stop)), None)
    return (
        None if before is None else read_entry(*before, place),
        None if after is None else read_entry(*after, place),
    )


def last_before_offset(
    reader: Reader, topic_id: int, partition: int, time_us: int, offset: int, place: str
) -> IndexEntry | None:
    """Give the last entry at or before an offset, whose time is known too."""
    every = keys.time_range(topic_id, partition)
    stop = keys.time_key(topic_id, partition, time_us, offset + 1)
    found = next(reader.scan(KeyRange(every.start, stop), reverse=True), None)
    return None if found is None else read_entry(*found, place)
