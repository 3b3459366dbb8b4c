"""The log of a partition: stages appends, gives messages by offset, never gives an offset out twice.

Appends are staged on the committer's thread, so offsets follow commit order. Readers see a message only
once it is durable: a message that a reader has seen is never taken back, not even by a power cut.

Times never go backwards inside a partition, whatever the clock does: an append takes the later of the clock
and the time before it. That makes the log searchable by time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.errors import OffsetOutOfRange, StorageCorrupt, TopicNotFound
from tidegate.model.clock import Clock
from tidegate.model.ids import SnowflakeSource
from tidegate.storage.commit import Staging
from tidegate.storage.engine import Engine
from tidegate.topics import keys
from tidegate.topics.batches import (
    Origin,
    Place,
    Run,
    StoredBatch,
    decode_batch,
    encode_runs,
    joined_runs,
    message_bytes,
    times_of,
)
from tidegate.topics.definitions import Topic

_COUNTERS = struct.Struct(">BQQqQQ")
COUNTERS_VERSION = 1


@dataclass(frozen=True, slots=True)
class Counters:
    """Where a partition stands: what it holds is `start` ≤ offset < `end`."""

    end: int = 0
    start: int = 0
    last_us: int = 0
    last_id: int = 0
    stored_bytes: int = 0

    def encode(self) -> bytes:
        """Give the bytes that store this."""
        return _COUNTERS.pack(
            COUNTERS_VERSION, self.end, self.start, self.last_us, self.last_id, self.stored_bytes
        )

    @classmethod
    def decode(cls, stored: bytes | None, place: str) -> Counters:
        """Read stored bytes; none means a partition that nobody has written to."""
        if stored is None:
            return cls()
        if len(stored) != _COUNTERS.size or stored[0] != COUNTERS_VERSION:
            raise StorageCorrupt(place=place, reason="the counters are not of a version that this reads")
        _, end, start, last_us, last_id, stored_bytes = _COUNTERS.unpack(stored)
        return cls(end, start, last_us, last_id, stored_bytes)


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append gave out."""

    partition: int
    base_offset: int
    ids: np.ndarray

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.ids)


class TopicLog:
    """The logs of all topics in one engine. Appends belong to the committer's thread; reads to any thread."""

    def __init__(
        self,
        engine: Engine,
        ids: SnowflakeSource,
        clock: Clock,
        notify: Callable[[Topic], None] = lambda _topic: None,
    ) -> None:
        self._engine = engine
        self._ids = ids
        self._clock = clock
        # Called on the committer's thread after messages became readable.
        self._notify = notify
        # Durable counters of the partitions that were written or read since the start.
        self._seen: dict[tuple[int, int], Counters] = {}

    def reload(self) -> None:
        """Drop what is remembered: the engine was opened again, and may hold more or less than we think."""
        self._seen.clear()

    def recover(self, topic: Topic) -> None:
        """Learn where a topic's partitions stand; ids given out from now on are larger than any it holds."""
        for partition in range(topic.partitions):
            self._ids.advance_past(self.counters(topic, partition).last_id)

    def counters(self, topic: Topic, partition: int) -> Counters:
        """Give where a partition stands, counting only what is durable."""
        topic.check_partition(partition)
        seen = self._seen.get((topic.id, partition))
        if seen is None:
            key = keys.counter_key(topic.id, partition)
            stored = Counters.decode(self._engine.get(key), _place(topic, partition))
            # A committer that is quicker has the newer ones: never overwrite what it has set.
            seen = self._seen.setdefault((topic.id, partition), stored)
        return seen

    def stage_append(
        self,
        staging: Staging,
        topic: Topic,
        partition: int,
        message_keys: Sequence[str | None],
        payloads: Sequence[bytes],
        origin: Origin,
    ) -> Appended:
        """Add messages to the end of a partition; what one group of writes adds shares record batches."""
        count = len(payloads)
        if staging.get(keys.definition_key(topic.id)) is None:
            # Deleted since the request came in: what went into it now could never be read.
            raise TopicNotFound(topic=topic.name)
        # The first look also remembers the durable counters, before this change can be seen in the engine.
        self.counters(topic, partition)
        counter_key = keys.counter_key(topic.id, partition)
        before = Counters.decode(staging.get(counter_key), _place(topic, partition))
        ts_us = max(self._clock.now_us(), before.last_us)
        ids = self._ids.take_many(count)
        run = Run(Place(partition, before.end, ts_us), origin, ids, message_keys, payloads)
        after = Counters(before.end + count, before.start, ts_us, int(ids[-1]), before.stored_bytes)
        staging.foresee(counter_key, after.encode())
        name = ("append", topic.id, partition)
        size_bytes = message_bytes(message_keys, payloads)
        staging.gather(name, (topic, before, run), size_bytes, self._finish_runs)
        return Appended(partition, before.end, ids)

    def _finish_runs(
        self, parts: list[tuple[Topic, Counters, Run]]
    ) -> tuple[list[tuple[bytes, bytes]], Callable[[], None]]:
        """Give the record batches of what a group appends to one partition, and the counters after it."""
        topic, before, first = parts[0]
        partition, last = first.place.partition, parts[-1][2]
        puts: list[tuple[bytes, bytes]] = []
        stored_bytes = before.stored_bytes
        for runs in joined_runs([run for _, _, run in parts]):
            stored = encode_runs(runs)
            stored_bytes += len(stored)
            puts.append((keys.record_key(topic.id, partition, runs[0].place.base_offset), stored))
        after = Counters(
            last.place.base_offset + last.count,
            before.start,
            last.place.ts_us,
            int(last.ids[-1]),
            stored_bytes,
        )
        puts.append((keys.counter_key(topic.id, partition), after.encode()))
        return puts, lambda: self._publish(topic, partition, after)

    def _publish(self, topic: Topic, partition: int, after: Counters) -> None:
        self._seen[topic.id, partition] = after
        self._notify(topic)

    def read(self, topic: Topic, partition: int, start: int, stop: int) -> Iterator[StoredBatch]:
        """Give the record batches that hold `start` ≤ offset < `stop`; the outer ones may hold more.

        Every offset asked for is there: a range that retention cut or that is not written yet is refused at
        once, a hole in the log is an error that names it.
        """
        self.check_range(topic, partition, start, stop)
        return self._read(topic, partition, start, stop)

    def check_range(self, topic: Topic, partition: int, start: int, stop: int) -> None:
        """Refuse a range that is not wholly in the partition."""
        held = self.counters(topic, partition)
        for offset in (start, stop):
            if not held.start <= offset <= held.end:
                raise OffsetOutOfRange(
                    topic=topic.name, partition=partition, offset=offset, earliest=held.start, latest=held.end
                )

    def _read(self, topic: Topic, partition: int, start: int, stop: int) -> Iterator[StoredBatch]:
        if start >= stop:
            return
        first = self._first_offset_of_batch_with(topic, partition, start)
        expected = start
        for key, value in self._engine.scan(keys.record_range(topic.id, partition, first, stop)):
            base = keys.base_offset_of(key)
            batch = decode_batch(value, base, f"{_place(topic, partition)}, offset {base}")
            if base > expected:
                break
            if batch.stop_offset > expected:
                expected = batch.stop_offset
                yield batch
        if expected < stop:
            raise self._missing(topic, partition, expected)

    def _first_offset_of_batch_with(self, topic: Topic, partition: int, offset: int) -> int:
        span = keys.record_range(topic.id, partition, 0, offset + 1)
        for key, _ in self._engine.scan(span, reverse=True):
            return keys.base_offset_of(key)
        raise self._missing(topic, partition, offset)

    def _missing(self, topic: Topic, partition: int, offset: int) -> StorageCorrupt | TopicNotFound:
        if self._engine.get(keys.definition_key(topic.id)) is None:
            return TopicNotFound(topic=topic.name)
        return StorageCorrupt(place=_place(topic, partition), reason=f"offset {offset} is missing")

    def messages_at(self, topic: Topic, partition: int, offsets: np.ndarray) -> pa.Table:
        """Give the messages at offsets of one partition, which rise: id, key and payload."""
        found = []
        for batch in self.read(topic, partition, int(offsets[0]), int(offsets[-1]) + 1):
            inside = offsets[(offsets >= batch.base_offset) & (offsets < batch.stop_offset)]
            if len(inside):
                chosen = batch.arrow().select(["message_id", "key", "payload"])
                found.append(chosen.take(pa.array(inside - batch.base_offset)))
        return pa.Table.from_batches(found)

    def offset_at(self, topic: Topic, partition: int, time_us: int) -> int:
        """Give the first offset whose time is at or after a time; the end where there is none."""
        held = self.counters(topic, partition)
        low, high = held.start, held.end
        # Times never go backwards, so the batches can be halved; each step reads one.
        while low < high:
            middle = (low + high) // 2
            base = self._first_offset_of_batch_with(topic, partition, middle)
            stored = self._engine.get(keys.record_key(topic.id, partition, base))
            if stored is None:
                raise self._missing(topic, partition, base)
            batch = decode_batch(stored, base, f"{_place(topic, partition)}, offset {base}")
            first_us, last_us = times_of(stored)
            if last_us < time_us:
                low = batch.stop_offset
            elif first_us < time_us:
                # The time lies inside this batch: messages of one group of writes may differ in theirs.
                times = batch.arrow().column("ts").cast("int64").to_numpy()
                return max(base + int(np.searchsorted(times, time_us)), held.start)
            else:
                high = base
        return max(low, held.start)

    def forget(self, topic: Topic) -> None:
        """Drop what is remembered of a topic that is gone."""
        for partition in range(topic.partitions):
            self._seen.pop((topic.id, partition), None)


def _place(topic: Topic, partition: int) -> str:
    return f"topic '{topic.name}', partition {partition}"
