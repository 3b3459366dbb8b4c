"""The log of a partition: stages appends, gives messages by offset, never gives an offset out twice.

Appends are staged on the committer's thread, so offsets follow commit order. Readers see a message only
once it is durable: a message that a reader has seen is never taken back, not even by a power cut.

Times never go backwards inside a partition, whatever the clock does: an append takes the later of the clock
and the time before it. That makes the log searchable by time.

A trim removes whole record batches from the beginning. Readers that are in the midst of them go on with what
they began to read, or are told the earliest offset that is left; the end stays, so no offset comes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidegate.errors import InvariantBroken, OffsetOutOfRange, TopicNotFound
from tidegate.model.clock import Clock
from tidegate.model.ids import SnowflakeSource
from tidegate.storage.engine import Engine
from tidegate.storage.group_commit import StageLater, Staging
from tidegate.topics import keys
from tidegate.topics.definitions import Topic
from tidegate.topics.log import time_index
from tidegate.topics.log.counters import Counters
from tidegate.topics.log.protocol import Appended
from tidegate.topics.log.record_batch import (
    BatchLimits,
    Origin,
    Place,
    Run,
    StoredBatch,
    encode_runs,
    joined_runs,
    message_bytes,
)
from tidegate.topics.log.time_index import INDEX_EVERY_BYTES, IndexEntry, Part, entry_pair, place_of
from tidegate.topics.payload_schemas import PayloadSchemas
from tidegate.topics.payloads import json_batch

# Removed bytes that are worth a compaction; of less, RocksDB takes care when it comes by.
TIDY_BYTES_MIN = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Tail:
    """Where a partition ends after the appends of a group that are not written yet.

    Its counters are only known once the record batches are: `group` is what the group found.
    """

    group: Counters
    end: int
    last_us: int
    last_id: int


class TopicLog:
    """The logs of all topics in one engine. Appends belong to the committer's thread; reads to any thread."""

    def __init__(
        self,
        engine: Engine,
        ids: SnowflakeSource,
        clock: Clock,
        schemas: PayloadSchemas,
        notify: Callable[[Topic], None] = lambda _topic: None,
    ) -> None:
        self._engine = engine
        self._ids = ids
        self._clock = clock
        self._schemas = schemas
        # Called on the committer's thread after messages became readable.
        self._notify = notify
        # Durable counters of the partitions that were written or read since the start.
        self._seen: dict[tuple[int, int], Counters] = {}
        # Counters as the last finished append leaves them, durable or not.
        self._finished: dict[tuple[int, int], Counters] = {}
        # Keys of the counters that appends ask for.
        self._counter_keys: dict[tuple[int, int], bytes] = {}
        # What `retained_start` counted: the bytes before the offset it gave. The trim need not count again.
        self._bytes_before: dict[tuple[int, int], tuple[int, int]] = {}
        # Bytes removed from each partition when the disk got its room back, and topics that are gone since.
        self._tidied: dict[tuple[int, int], int] = {}
        self._gone: deque[int] = deque()

    def reload(self) -> None:
        """Drop what is remembered: the engine was opened again, and may hold more or less than we think."""
        self._seen.clear()
        self._finished.clear()
        self._bytes_before.clear()

    def recover(self, topic: Topic) -> None:
        """Learn where a topic's partitions stand; ids given out from now on are larger than any it holds."""
        for partition in range(topic.partitions):
            self._ids.advance_past(self.counters(topic, partition).last_id)

    def counters(self, topic: Topic, partition: int) -> Counters:
        """Return where a partition stands, counting only what is durable."""
        topic.check_partition(partition)
        seen = self._seen.get((topic.id, partition))
        if seen is None:
            key = keys.counter_key(topic.id, partition)
            stored = Counters.decode(self._engine.get(key), place_of(topic, partition))
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
        place = (topic.id, partition)
        counter_key = self._counter_keys.get(place) or self._counter_key(topic, partition)
        name = ("append", *place)
        before = staging.pending(name) or self._durable_tail(staging, topic, partition, counter_key)
        ts_us = max(self._clock.now_us(), before.last_us)
        count = len(payloads)
        ids = self._ids.take_many(count) if count > 1 else np.array((self._ids.take(),), np.int64)
        run = Run(Place(partition, before.end, ts_us), origin, ids, message_keys, payloads)
        staging.set_pending(name, _Tail(before.group, before.end + count, ts_us, int(ids[-1])))
        size_bytes = message_bytes(message_keys, payloads)
        staging.gather(name, (topic, before, run), size_bytes, self._finish_runs)
        return Appended(partition, before.end, ids)

    def _counter_key(self, topic: Topic, partition: int) -> bytes:
        key = keys.counter_key(topic.id, topic.check_partition(partition))
        self._counter_keys[topic.id, partition] = key
        return key

    def _durable_tail(self, staging: Staging, topic: Topic, partition: int, counter_key: bytes) -> _Tail:
        """Return where a partition ends before the first append of a group.

        Later appends of the group need not look for the topic: what deletes one ends its group.
        """
        if staging.get(keys.definition_key(topic.id)) is None:
            # Deleted since the request came in: what went into it now could never be read.
            raise TopicNotFound(topic=topic.name)
        # The first look also remembers the durable counters, before this change can be seen in the engine.
        self.counters(topic, partition)
        held = Counters.decode(staging.get(counter_key), place_of(topic, partition))
        return _Tail(held, held.end, held.last_us, held.last_id)

    def _finish_runs(
        self, parts: list[tuple[Topic, _Tail, Run]]
    ) -> tuple[list[tuple[bytes, bytes]], Callable[[], None]]:
        """Return the record batches of what a group appends to one partition, and the counters after it."""
        topic, before, first = parts[0]
        partition, last = first.place.partition, parts[-1][2]
        puts: list[tuple[bytes, bytes]] = []
        # A change that closes its group is finished apart from those before it, and foresaw the counters
        # before their bytes were known.
        finished = self._finished.get((topic.id, partition), before.group)
        counted = finished if finished.last_id == before.last_id else before.group
        appended_bytes, indexed_bytes = counted.appended_bytes, counted.indexed_bytes
        limits = BatchLimits.of(topic.retention_max_bytes)
        for runs in joined_runs([run for _, _, run in parts], limits):
            base, first_us = runs[0].place.base_offset, runs[0].place.ts_us
            if appended_bytes - indexed_bytes >= INDEX_EVERY_BYTES:
                entry = IndexEntry(first_us, base, appended_bytes)
                puts.append(entry_pair(topic.id, partition, entry))
                indexed_bytes = appended_bytes
            stored = encode_runs(runs)
            appended_bytes += len(stored)
            puts.append((keys.record_key(topic.id, partition, base), stored))
        after = Counters(
            last.place.base_offset + last.count,
            before.group.start,
            last.place.ts_us,
            int(last.ids[-1]),
            appended_bytes - before.group.removed_bytes,
            appended_bytes,
            indexed_bytes,
        )
        puts.append((keys.counter_key(topic.id, partition), after.encode()))
        self._finished[topic.id, partition] = after
        return puts, lambda: self._publish(topic, partition, after)

    def _publish(self, topic: Topic, partition: int, after: Counters) -> None:
        self._seen[topic.id, partition] = after
        self._notify(topic)

    def read(self, topic: Topic, partition: int, start: int, stop: int) -> Iterator[StoredBatch]:
        """Return the record batches that hold `start` ≤ offset < `stop`; the outer ones may hold more.

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
        part = self._part(topic, partition)
        first = part.first_offset_of(start)
        expected = start
        for key, value in self._engine.scan(keys.record_range(topic.id, partition, first, stop)):
            batch = part.decoded(key, value)
            if batch.base_offset > expected:
                break
            if batch.stop_offset > expected:
                expected = batch.stop_offset
                yield batch
        if expected < stop:
            raise part.missing(expected)

    def arrow(
        self, topic: Topic, stored: StoredBatch, start: int | None = None, stop: int | None = None
    ) -> pa.RecordBatch:
        """Return messages as they are outside: payloads are JSON text.

        `start` and `stop` leave others out.
        """
        batch = stored.arrow()
        if start is not None or stop is not None:
            first = max(start or 0, stored.base_offset)
            last = stored.stop_offset if stop is None else min(stop, stored.stop_offset)
            batch = batch.slice(first - stored.base_offset, max(0, last - first))
        if not stored.codec:
            return batch
        schema = self._schemas.get(topic.id, stored.schema)
        return json_batch(batch, stored.codec, schema, f"topic '{topic.name}'")

    def messages_at(self, topic: Topic, partition: int, offsets: np.ndarray) -> pa.Table:
        """Return the messages at offsets of one partition, which rise: id, key and payload."""
        found = []
        for batch in self.read(topic, partition, int(offsets[0]), int(offsets[-1]) + 1):
            inside = offsets[(offsets >= batch.base_offset) & (offsets < batch.stop_offset)]
            if len(inside):
                first = int(inside[0])
                chosen = self.arrow(topic, batch, first, int(inside[-1]) + 1)
                columns = chosen.select(["message_id", "key", "payload"])
                found.append(columns.take(pa.array(inside - first)))
        return pa.Table.from_batches(found)

    def message_at(self, topic: Topic, partition: int, offset: int) -> pa.RecordBatch:
        """Return one message as it is outside, as a batch of one row."""
        self.check_range(topic, partition, offset, offset + 1)
        return self.arrow(topic, self._part(topic, partition).batch_with(offset), offset, offset + 1)

    def offset_at(self, topic: Topic, partition: int, time_us: int) -> int:
        """Return the first offset whose time is at or after a time; the end where there is none."""
        held = self.counters(topic, partition)
        while True:
            try:
                return time_index.offset_at(self._part(topic, partition), held, time_us)
            except OffsetOutOfRange as cut:  # a trim was quicker: the rest of the log is searched
                earliest = int(cut.values["earliest"])
                held = replace(held, start=earliest, end=max(held.end, earliest))

    def retained_start(self, topic: Topic, partition: int, now_us: int) -> int:
        """Return where the log should start by the topic's age and bytes; blocks, on any thread.

        That is the base offset of a record batch, or the end when all of it is over age.
        """
        held, part = self.counters(topic, partition), self._part(topic, partition)
        try:
            start = time_index.retained_start(part, held, topic.retention, now_us)
            if start > held.start:
                counted = time_index.bytes_before(part, held, start)
                self._bytes_before[topic.id, partition] = (start, counted)
        except OffsetOutOfRange as cut:  # a trim was quicker
            return int(cut.values["earliest"])
        return start

    def stage_trim(self, staging: Staging, topic: Topic, partition: int, start: int) -> int:
        """Remove the record batches that lie wholly before an offset; give how many messages that were."""
        if staging.get(keys.definition_key(topic.id)) is None:
            raise TopicNotFound(topic=topic.name)
        # The first look also remembers the durable counters, before this change can be seen in the engine.
        self.counters(topic, partition)
        part, counter_key = self._part(topic, partition), keys.counter_key(topic.id, partition)
        self._check_settled(staging, counter_key, ("append", topic.id, partition))
        before = Counters.decode(staging.get(counter_key), part.place)
        if start > before.end:
            raise InvariantBroken(reason=f"{part.place}: a trim to {start}, beyond the end {before.end}")
        if start <= before.start:
            return 0
        base = before.end if start == before.end else part.first_offset_of(start)
        if base <= before.start:
            return 0
        known_at, counted = self._bytes_before.pop((topic.id, partition), (-1, 0))
        if known_at != base:
            counted = time_index.bytes_before(part, before, base)
        records = keys.record_range(topic.id, partition, before.start, base)
        index = keys.time_range(topic.id, partition)
        index_stop = index.stop
        if base < before.end:
            index_stop = keys.time_key(topic.id, partition, part.batch_with(base).first_us, base)
        staging.delete_range(records.start, records.stop)
        staging.delete_range(index.start, index_stop)
        after = replace(before, start=base, stored_bytes=before.appended_bytes - counted)
        staging.put(counter_key, after.encode())
        staging.when_durable(lambda: self._seen.__setitem__((topic.id, partition), after))
        return base - before.start

    def _check_settled(self, staging: Staging, counter_key: bytes, name: tuple[str, int, int]) -> None:
        """Wait until what this group appends to the partition is durable: only then are its bytes counted."""
        if name in staging.own_pending:
            raise InvariantBroken(reason="one change appends to a partition and then trims it")
        is_own = counter_key in staging.written()
        if staging.pending(name) or (
            not is_own and staging.get(counter_key) != self._engine.get(counter_key)
        ):
            raise StageLater

    def tidy(self, topic: Topic, partition: int, bytes_min: int = TIDY_BYTES_MIN) -> bool:
        """Return the disk back what trims removed since the last time; blocks, on any thread.

        Does nothing, and says so, while that is less than `bytes_min`.
        """
        held = self.counters(topic, partition)
        if held.removed_bytes - self._tidied.get((topic.id, partition), 0) < bytes_min:
            return False
        self._engine.compact(keys.record_range(topic.id, partition, 0, held.start))
        self._engine.compact(keys.time_range(topic.id, partition))
        self._tidied[topic.id, partition] = held.removed_bytes
        return True

    def tidy_gone(self) -> int:
        """Return the disk back what topics had that are gone since the last time; say how many. Blocks."""
        count = 0
        while self._gone:
            for span in keys.everything_of(self._gone.popleft()):
                self._engine.compact(span)
            count += 1
        return count

    def forget(self, topic: Topic) -> None:
        """Drop what is remembered of a topic that is gone."""
        left_bytes = 0
        for partition in range(topic.partitions):
            place = (topic.id, partition)
            seen = self._seen.pop(place, None)
            left_bytes += seen.appended_bytes - self._tidied.pop(place, 0) if seen else 0
            self._finished.pop(place, None)
            self._counter_keys.pop(place, None)
            self._bytes_before.pop(place, None)
        if left_bytes >= TIDY_BYTES_MIN:
            self._gone.append(topic.id)

    def _part(self, topic: Topic, partition: int) -> Part:
        return Part(self._engine, topic, partition)
