"""The sparse time index: takes record batches as they are appended, gives places near a time or a size.

About one entry a MiB of the log: the time of a record batch's first message and its base offset in the key,
the bytes of all record batches before it as the value. A search by time or by bytes looks here first and then
reads little of the log. A log without entries, or with entries of its newer part alone, is searched as well,
only more slowly.

    bytes before it u64 | crc32 u32 of the key and what is before

Times and offsets rise together, so the order of the keys is that of both.

Searching a log: takes a time or a size, gives the offset, keeps nothing.

Every function looks at what the engine shows now. Where retention removes a part of the log under a search,
the search says OffsetOutOfRange with the offset that is the earliest by then; whoever asked begins again
there.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tidegate.errors import OffsetOutOfRange, StorageCorrupt, TidegateError, TopicNotFound
from tidegate.storage.engine import KeyRange, Reader
from tidegate.topics import keys
from tidegate.topics.definitions import Retention, Topic
from tidegate.topics.log.counters import Counters
from tidegate.topics.log.record_batch import StoredBatch, decode_batch

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
    """Return the key and the value that store an entry."""
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
    """Yield all entries of a partition, the oldest first."""
    for key, value in reader.scan(keys.time_range(topic_id, partition)):
        yield read_entry(key, value, place)


def around_time(
    reader: Reader, topic_id: int, partition: int, time_us: int, place: str
) -> tuple[IndexEntry | None, IndexEntry | None]:
    """Return the last entry before a time, and the first at or after it."""
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
    """Return the last entry at or before an offset, whose time is known too."""
    every = keys.time_range(topic_id, partition)
    stop = keys.time_key(topic_id, partition, time_us, offset + 1)
    found = next(reader.scan(KeyRange(every.start, stop), reverse=True), None)
    return None if found is None else read_entry(*found, place)


SECOND_US = 1_000_000


def place_of(topic: Topic, partition: int) -> str:
    """Return a partition as errors name it."""
    return f"topic '{topic.name}', partition {partition}"


@dataclass(frozen=True, slots=True)
class Part:
    """A partition of a topic in an engine: what a search looks through."""

    reader: Reader
    topic: Topic
    partition: int

    @property
    def place(self) -> str:
        """The partition as errors name it."""
        return place_of(self.topic, self.partition)

    def first_offset_of(self, offset: int) -> int:
        """Return the base offset of the record batch with an offset."""
        span = keys.record_range(self.topic.id, self.partition, 0, offset + 1)
        for key, _ in self.reader.scan(span, reverse=True):
            return keys.base_offset_of(key)
        raise self.missing(offset)

    def batch_with(self, offset: int) -> StoredBatch:
        """Return the record batch with an offset."""
        span = keys.record_range(self.topic.id, self.partition, 0, offset + 1)
        for key, value in self.reader.scan(span, reverse=True):
            batch = self.decoded(key, value)
            if batch.stop_offset <= offset:
                break
            return batch
        raise self.missing(offset)

    def decoded(self, key: bytes, value: bytes) -> StoredBatch:
        """Check a record batch and give it."""
        base = keys.base_offset_of(key)
        return decode_batch(value, base, f"{self.place}, offset {base}")

    def missing(self, offset: int) -> TidegateError:
        """Return the error for an offset that was there: removed with its topic, or by retention, or lost."""
        if self.reader.get(keys.definition_key(self.topic.id)) is None:
            return TopicNotFound(topic=self.topic.name)
        stored = self.reader.get(keys.counter_key(self.topic.id, self.partition))
        held = Counters.decode(stored, self.place)
        if offset < held.start:
            return OffsetOutOfRange(
                topic=self.topic.name,
                partition=self.partition,
                offset=offset,
                earliest=held.start,
                latest=held.end,
            )
        return StorageCorrupt(place=self.place, reason=f"offset {offset} is missing")


def offset_at(part: Part, held: Counters, time_us: int) -> int:
    """Return the first offset whose time is at or after a time; the end where there is none."""
    low, high = held.start, held.end
    before, after = around_time(part.reader, part.topic.id, part.partition, time_us, part.place)
    if before is not None:
        low = min(max(low, before.offset), high)
    if after is not None:
        high = max(min(high, after.offset), low)
    # Times never go backwards, so the batches can be halved; each step reads one.
    while low < high:
        batch = part.batch_with((low + high) // 2)
        if batch.last_us < time_us:
            low = batch.stop_offset
        elif batch.first_us < time_us:
            # The time lies inside this batch: messages of one group of writes may differ in theirs.
            times = batch.arrow().column("ts").cast("int64").to_numpy()
            return max(batch.base_offset + int(np.searchsorted(times, time_us)), held.start)
        else:
            high = batch.base_offset
    return max(low, held.start)


def retained_start(part: Part, held: Counters, retention: Retention, now_us: int) -> int:
    """Return where the log should start by age and by bytes: the base offset of a record batch, or the end.

    A record batch goes once all of it is over age, or once what is after it has the bytes by itself. The
    newest one goes by age alone.
    """
    start = held.start
    if held.start == held.end:
        return start
    if retention.seconds is not None:
        kept = offset_at(part, held, now_us - retention.seconds * SECOND_US)
        start = held.end if kept == held.end else max(start, part.first_offset_of(kept))
    if retention.max_bytes is not None and held.stored_bytes > retention.max_bytes:
        start = max(start, _start_by_bytes(part, held, held.appended_bytes - retention.max_bytes))
    return start


def _start_by_bytes(part: Part, held: Counters, cut_bytes: int) -> int:
    """Return the first record batch that has at least so many bytes before it, else the newest."""
    base, bytes_before = held.start, held.removed_bytes
    for entry in entries(part.reader, part.topic.id, part.partition, part.place):
        if entry.bytes_before > cut_bytes or entry.offset >= held.end:
            break
        if entry.offset >= base:
            base, bytes_before = entry.offset, entry.bytes_before
    newest = base
    for key, value in part.reader.scan(keys.record_range(part.topic.id, part.partition, base, held.end)):
        newest = keys.base_offset_of(key)
        if bytes_before >= cut_bytes:
            break
        bytes_before += len(value)
    return newest


def bytes_before(part: Part, held: Counters, base: int) -> int:
    """Return the bytes of all record batches, ever, before the one with this base offset."""
    if base == held.end:
        return held.appended_bytes
    time_us = part.batch_with(base).first_us
    entry = last_before_offset(part.reader, part.topic.id, part.partition, time_us, base, part.place)
    start, counted = held.start, held.removed_bytes
    if entry is not None and entry.offset > start:
        start, counted = entry.offset, entry.bytes_before
    span = keys.record_range(part.topic.id, part.partition, start, base)
    return counted + sum(len(value) for _, value in part.reader.scan(span))
