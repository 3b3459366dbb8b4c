"""Searching a log: takes a time or a size, gives the offset, keeps nothing.

Every function looks at what the engine shows now. Where retention removes a part of the log under a search,
the search says OffsetOutOfRange with the offset that is the earliest by then; whoever asked begins again
there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegate.errors import OffsetOutOfRange, StorageCorrupt, TidegateError, TopicNotFound
from tidegate.storage.engine import Reader
from tidegate.topics import keys, time_index
from tidegate.topics.batches import StoredBatch, decode_batch
from tidegate.topics.counters import Counters
from tidegate.topics.definitions import Retention, Topic

SECOND_US = 1_000_000


def place_of(topic: Topic, partition: int) -> str:
    """Give a partition as errors name it."""
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
        """Give the base offset of the record batch with an offset."""
        span = keys.record_range(self.topic.id, self.partition, 0, offset + 1)
        for key, _ in self.reader.scan(span, reverse=True):
            return keys.base_offset_of(key)
        raise self.missing(offset)

    def batch_with(self, offset: int) -> StoredBatch:
        """Give the record batch with an offset."""
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
        """Give the error for an offset that was there: removed with its topic, or by retention, or lost."""
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
    """Give the first offset whose time is at or after a time; the end where there is none."""
    low, high = held.start, held.end
    before, after = time_index.around_time(part.reader, part.topic.id, part.partition, time_us, part.place)
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
    """Give where the log should start by age and by bytes: the base offset of a record batch, or the end.

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
    """Give the first record batch that has at least so many bytes before it, else the newest."""
    base, bytes_before = held.start, held.removed_bytes
    for entry in time_index.entries(part.reader, part.topic.id, part.partition, part.place):
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
    """Give the bytes of all record batches, ever, before the one with this base offset."""
    if base == held.end:
        return held.appended_bytes
    time_us = part.batch_with(base).first_us
    entry = time_index.last_before_offset(
        part.reader, part.topic.id, part.partition, time_us, base, part.place
    )
    start, counted = held.start, held.removed_bytes
    if entry is not None and entry.offset > start:
        start, counted = entry.offset, entry.bytes_before
    span = keys.record_range(part.topic.id, part.partition, start, base)
    return counted + sum(len(value) for _, value in part.reader.scan(span))
