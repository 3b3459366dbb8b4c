"""The sparse time index of a partition, and searches of its log by time and by size.

About one entry for each MiB of the log: the time of a record batch's first message and its base offset in the
key, the bytes of all record batches before it as the value. A search by time or by bytes reads the index
first and then little of the log. A log without entries, or with entries of its newer part alone, is searched
as well, only more slowly.

    bytes before it u64 | crc32 u32 of the key and what is before

Times and offsets rise together, so the order of the keys is that of both.

A search reads what the engine has at that moment. Where retention removes a part of the log during a search,
the search raises OffsetOutOfRange with the earliest offset by then; the caller starts again there.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tidegate.errors import OffsetOutOfRange, StorageCorrupt, TidegateError, TopicNotFound
from tidegate.model.epoch import SECOND_US
from tidegate.storage.engine import KeyRange, Reader
from tidegate.topics import keys
from tidegate.topics.definitions import Retention, Topic
from tidegate.topics.log.counters import Counters
from tidegate.topics.log.record_batch import StoredBatch, decode_batch

# An entry is about a hundred bytes with all that RocksDB stores for it: one in ten thousand. A search then
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
    """Return a stored entry; `place` names the partition in errors."""
    if len(value) != _VALUE.size:
        raise StorageCorrupt(place=place, reason="an entry of the time index has another length")
    bytes_before, checksum = _VALUE.unpack(value)
    if zlib.crc32(value[:8], zlib.crc32(key)) != checksum:
        raise StorageCorrupt(place=place, reason="an entry of the time index does not match its checksum")
    time_us, offset = keys.time_of(key)
    return IndexEntry(time_us, offset, bytes_before)


def place_of(topic: Topic, partition: int) -> str:
    """Return the name of a partition in errors."""
    return f"topic '{topic.name}', partition {partition}"


@dataclass(frozen=True, slots=True)
class PartitionReader:
    """Reads of the log and the time index of one partition in an engine."""

    engine: Reader
    topic: Topic
    partition: int

    @property
    def place(self) -> str:
        """The name of the partition in errors."""
        return place_of(self.topic, self.partition)

    def first_offset_of(self, offset: int) -> int:
        """Return the base offset of the record batch with an offset."""
        span = keys.record_range(self.topic.id, self.partition, 0, offset + 1)
        for key, _ in self.engine.scan(span, reverse=True):
            return keys.base_offset_of(key)
        raise self.missing(offset)

    def batch_with(self, offset: int) -> StoredBatch:
        """Return the record batch with an offset."""
        span = keys.record_range(self.topic.id, self.partition, 0, offset + 1)
        for key, value in self.engine.scan(span, reverse=True):
            batch = self.decoded(key, value)
            if batch.stop_offset <= offset:
                break
            return batch
        raise self.missing(offset)

    def decoded(self, key: bytes, value: bytes) -> StoredBatch:
        """Return a stored record batch; raise StorageCorrupt for a damaged one."""
        base = keys.base_offset_of(key)
        return decode_batch(value, base, f"{self.place}, offset {base}")

    def missing(self, offset: int) -> TidegateError:
        """Return the error for an offset that was there: removed with its topic, or by retention, or lost."""
        if self.engine.get(keys.definition_key(self.topic.id)) is None:
            return TopicNotFound(topic=self.topic.name)
        stored = self.engine.get(keys.counter_key(self.topic.id, self.partition))
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

    def entries(self) -> Iterator[IndexEntry]:
        """Yield all entries of the index, the oldest first."""
        for key, value in self.engine.scan(keys.time_range(self.topic.id, self.partition)):
            yield read_entry(key, value, self.place)

    def offset_at(self, held: Counters, time_us: int) -> int:
        """Return the first offset whose time is at or after a time; the end where there is none."""
        low, high = held.start, held.end
        before, after = self._entries_around(time_us)
        if before is not None:
            low = min(max(low, before.offset), high)
        if after is not None:
            high = max(min(high, after.offset), low)
        # Times never go backwards, so a bisection finds the batch; each step reads one.
        while low < high:
            batch = self.batch_with((low + high) // 2)
            if batch.last_us < time_us:
                low = batch.stop_offset
            elif batch.first_us < time_us:
                # The time lies inside this batch: messages of one group commit may differ in theirs.
                times = batch.arrow().column("ts").cast("int64").to_numpy()
                return max(batch.base_offset + int(np.searchsorted(times, time_us)), held.start)
            else:
                high = batch.base_offset
        return max(low, held.start)

    def retained_start(self, held: Counters, retention: Retention, now_us: int) -> int:
        """Return where the log should start by age and by bytes: a base offset, or the end.

        A record batch expires once all of it is too old, or once the batches after it have `max_bytes`
        without it. The newest one expires by age alone.
        """
        start = held.start
        if held.start == held.end:
            return start
        if retention.seconds is not None:
            first = self.offset_at(held, now_us - retention.seconds * SECOND_US)
            start = held.end if first == held.end else max(start, self.first_offset_of(first))
        if retention.max_bytes is not None and held.stored_bytes > retention.max_bytes:
            start = max(start, self._start_by_bytes(held, held.appended_bytes - retention.max_bytes))
        return start

    def bytes_before(self, held: Counters, base: int) -> int:
        """Return the bytes of all record batches, ever, before the one with this base offset."""
        if base == held.end:
            return held.appended_bytes
        entry = self._last_entry_upto(self.batch_with(base).first_us, base)
        start, counted = held.start, held.removed_bytes
        if entry is not None and entry.offset > start:
            start, counted = entry.offset, entry.bytes_before
        span = keys.record_range(self.topic.id, self.partition, start, base)
        return counted + sum(len(value) for _, value in self.engine.scan(span))

    def _start_by_bytes(self, held: Counters, cut_bytes: int) -> int:
        """Return the first record batch that has at least so many bytes before it, else the newest."""
        base, bytes_before = held.start, held.removed_bytes
        for entry in self.entries():
            if entry.bytes_before > cut_bytes or entry.offset >= held.end:
                break
            if entry.offset >= base:
                base, bytes_before = entry.offset, entry.bytes_before
        newest = base
        span = keys.record_range(self.topic.id, self.partition, base, held.end)
        for key, value in self.engine.scan(span):
            newest = keys.base_offset_of(key)
            if bytes_before >= cut_bytes:
                break
            bytes_before += len(value)
        return newest

    def _entries_around(self, time_us: int) -> tuple[IndexEntry | None, IndexEntry | None]:
        """Return the last entry before a time, and the first at or after it."""
        middle = keys.time_key(self.topic.id, self.partition, time_us, 0)
        span = keys.time_range(self.topic.id, self.partition)
        return (
            self._first_entry(KeyRange(span.start, middle), reverse=True),
            self._first_entry(KeyRange(middle, span.stop), reverse=False),
        )

    def _last_entry_upto(self, time_us: int, offset: int) -> IndexEntry | None:
        """Return the last entry at or before an offset, whose time is known too."""
        stop = keys.time_key(self.topic.id, self.partition, time_us, offset + 1)
        start = keys.time_range(self.topic.id, self.partition).start
        return self._first_entry(KeyRange(start, stop), reverse=True)

    def _first_entry(self, span: KeyRange, *, reverse: bool) -> IndexEntry | None:
        found = next(self.engine.scan(span, reverse=reverse), None)
        return None if found is None else read_entry(*found, self.place)
