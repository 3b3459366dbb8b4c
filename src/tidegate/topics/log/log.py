"""The logs of topics in an engine: appends, reads by offset or time, trims.

Appends are staged on the committer's thread, so offsets follow commit order. Readers see a message only
once it is durable: a message that a reader has seen is never lost, not even by a power cut.

Times never go backwards inside a partition, whatever the clock does: an append takes the later of the clock
and the time before it. That makes the log searchable by time.

A trim removes whole record batches from the beginning. Readers in these batches finish what they began to
read, or get an error with the earliest offset that is left; the end stays, so no offset is used twice.
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
from tidegate.topics.log.counters import Counters
from tidegate.topics.log.protocol import AppendResult
from tidegate.topics.log.record_batch import (
    BatchLimits,
    Origin,
    Run,
    RunPosition,
    StoredBatch,
    encode_runs,
    joined_runs,
    message_bytes,
)
from tidegate.topics.log.time_index import (
    INDEX_EVERY_BYTES,
    IndexEntry,
    PartitionReader,
    entry_pair,
    place_of,
)
from tidegate.topics.payload_schemas import PayloadSchemas
from tidegate.topics.payloads import json_batch

# Removed bytes that are worth a compaction; less is left to RocksDB's own compactions.
COMPACT_BYTES_MIN = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Tail:
    """The end of a partition after the appends of a group commit that are not written yet.

    The counters after them are only known once their record batches are encoded; `group` has those before
    the group commit.
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
        # Durable counters of the partitions that were written or read since the server started.
        self._seen: dict[tuple[int, int], Counters] = {}
        # Counters as the last finished append leaves them, durable or not.
        self._finished: dict[tuple[int, int], Counters] = {}
        # Keys of counters, which appends need every time.
        self._counter_keys: dict[tuple[int, int], bytes] = {}
        # What `retained_start` counted: the bytes before the offset that it returned, for the trim after it.
        self._bytes_before: dict[tuple[int, int], tuple[int, int]] = {}
        # Bytes removed from each partition at its last compaction, and topics deleted since the last one.
        self._compacted_bytes: dict[tuple[int, int], int] = {}
        self._deleted: deque[int] = deque()

    def reload(self) -> None:
        """Drop the counters in memory: the engine was reopened, and may have more or less than they say."""
        self._seen.clear()
        self._finished.clear()
        self._bytes_before.clear()

    def recover(self, topic: Topic) -> None:
        """Read the counters of a topic; ids from now on are larger than any in its log."""
        for partition in range(topic.partitions):
            self._ids.advance_past(self.counters(topic, partition).last_id)

    def counters(self, topic: Topic, partition: int) -> Counters:
        """Return the counters of a partition, of what is durable."""
        topic.check_partition(partition)
        seen = self._seen.get((topic.id, partition))
        if seen is None:
            key = keys.counter_key(topic.id, partition)
            stored = Counters.decode(self._engine.get(key), place_of(topic, partition))
            # The committer may have set newer ones meanwhile: never overwrite them.
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
    ) -> AppendResult:
        """Append messages to a partition; appends of one group commit share record batches."""
        place = (topic.id, partition)
        counter_key = self._counter_keys.get(place) or self._counter_key(topic, partition)
        name = ("append", *place)
        before = staging.pending(name) or self._durable_tail(staging, topic, partition, counter_key)
        ts_us = max(self._clock.now_us(), before.last_us)
        count = len(payloads)
        ids = self._ids.take_many(count) if count > 1 else np.array((self._ids.take(),), np.int64)
        run = Run(RunPosition(partition, before.end, ts_us), origin, ids, message_keys, payloads)
        staging.set_pending(name, _Tail(before.group, before.end + count, ts_us, int(ids[-1])))
        size_bytes = message_bytes(message_keys, payloads)
        staging.gather(name, (topic, before, run), size_bytes, self._finish_runs)
        return AppendResult(partition, before.end, ids)

    def _counter_key(self, topic: Topic, partition: int) -> bytes:
        key = keys.counter_key(topic.id, topic.check_partition(partition))
        self._counter_keys[topic.id, partition] = key
        return key

    def _durable_tail(self, staging: Staging, topic: Topic, partition: int, counter_key: bytes) -> _Tail:
        """Return the end of a partition before the first append of a group commit.

        Later appends of the group need not look for the topic: deleting one closes the group.
        """
        if staging.get(keys.definition_key(topic.id)) is None:
            # Deleted since the request came in: what is appended now could never be read.
            raise TopicNotFound(topic=topic.name)
        # The first read also remembers the durable counters, before this change can be seen in the engine.
        self.counters(topic, partition)
        held = Counters.decode(staging.get(counter_key), place_of(topic, partition))
        return _Tail(held, held.end, held.last_us, held.last_id)

    def _finish_runs(
        self, parts: list[tuple[Topic, _Tail, Run]]
    ) -> tuple[list[tuple[bytes, bytes]], Callable[[], None]]:
        """Return the record batches of a group's appends to one partition, and the counters after them."""
        topic, before, first = parts[0]
        partition, last = first.place.partition, parts[-1][2]
        puts: list[tuple[bytes, bytes]] = []
        # A change that closes its group is finished apart from those before it, and read the counters before
        # the bytes of those were known.
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

        No offset is left out: a range that retention removed or that is not written yet is refused at once, a
        gap in the log is an error that names it.
        """
        self.check_range(topic, partition, start, stop)
        return self._read(topic, partition, start, stop)

    def check_range(self, topic: Topic, partition: int, start: int, stop: int) -> None:
        """Raise OffsetOutOfRange for a range that is not wholly in the partition."""
        held = self.counters(topic, partition)
        for offset in (start, stop):
            if not held.start <= offset <= held.end:
                raise OffsetOutOfRange(
                    topic=topic.name, partition=partition, offset=offset, earliest=held.start, latest=held.end
                )

    def _read(self, topic: Topic, partition: int, start: int, stop: int) -> Iterator[StoredBatch]:
        if start >= stop:
            return
        reader = self._reader(topic, partition)
        first = reader.first_offset_of(start)
        expected = start
        for key, value in self._engine.scan(keys.record_range(topic.id, partition, first, stop)):
            batch = reader.decoded(key, value)
            if batch.base_offset > expected:
                break
            if batch.stop_offset > expected:
                expected = batch.stop_offset
                yield batch
        if expected < stop:
            raise reader.missing(expected)

    def arrow(
        self, topic: Topic, stored: StoredBatch, start: int | None = None, stop: int | None = None
    ) -> pa.RecordBatch:
        """Return the messages of a record batch, payloads as JSON text; `start` and `stop` limit them."""
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

    def offset_at(self, topic: Topic, partition: int, time_us: int) -> int:
        """Return the first offset whose time is at or after a time; the end where there is none."""
        held = self.counters(topic, partition)
        while True:
            try:
                return self._reader(topic, partition).offset_at(held, time_us)
            except OffsetOutOfRange as cut:  # trimmed meanwhile: the rest of the log is searched
                earliest = int(cut.values["earliest"])
                held = replace(held, start=earliest, end=max(held.end, earliest))

    def retained_start(self, topic: Topic, partition: int, now_us: int) -> int:
        """Return where the log should start by the topic's retention; blocks, on any thread.

        That is the base offset of a record batch, or the end when all of the log is too old.
        """
        held, reader = self.counters(topic, partition), self._reader(topic, partition)
        try:
            start = reader.retained_start(held, topic.retention, now_us)
            if start > held.start:
                counted = reader.bytes_before(held, start)
                self._bytes_before[topic.id, partition] = (start, counted)
        except OffsetOutOfRange as cut:  # trimmed meanwhile
            return int(cut.values["earliest"])
        return start

    def stage_trim(self, staging: Staging, topic: Topic, partition: int, start: int) -> int:
        """Remove the record batches that lie wholly before an offset; return the number of messages."""
        if staging.get(keys.definition_key(topic.id)) is None:
            raise TopicNotFound(topic=topic.name)
        # The first read also remembers the durable counters, before this change can be seen in the engine.
        self.counters(topic, partition)
        reader, counter_key = self._reader(topic, partition), keys.counter_key(topic.id, partition)
        self._check_settled(staging, counter_key, ("append", topic.id, partition))
        before = Counters.decode(staging.get(counter_key), reader.place)
        if start > before.end:
            raise InvariantBroken(reason=f"{reader.place}: a trim to {start}, beyond the end {before.end}")
        if start <= before.start:
            return 0
        base = before.end if start == before.end else reader.first_offset_of(start)
        if base <= before.start:
            return 0
        known_at, counted = self._bytes_before.pop((topic.id, partition), (-1, 0))
        if known_at != base:
            counted = reader.bytes_before(before, base)
        records = keys.record_range(topic.id, partition, before.start, base)
        index = keys.time_range(topic.id, partition)
        index_stop = index.stop
        if base < before.end:
            index_stop = keys.time_key(topic.id, partition, reader.batch_with(base).first_us, base)
        staging.delete_keys(records)
        staging.delete_range(index.start, index_stop)
        after = replace(before, start=base, stored_bytes=before.appended_bytes - counted)
        staging.put(counter_key, after.encode())
        staging.when_durable(lambda: self._seen.__setitem__((topic.id, partition), after))
        return base - before.start

    def _check_settled(self, staging: Staging, counter_key: bytes, name: tuple[str, int, int]) -> None:
        """Raise StageLater while appends of this group are not durable: only then are their bytes counted."""
        if name in staging.own_pending:
            raise InvariantBroken(reason="one change appends to a partition and then trims it")
        is_own = counter_key in staging.written()
        if staging.pending(name) or (
            not is_own and staging.get(counter_key) != self._engine.get(counter_key)
        ):
            raise StageLater

    def compact(self, topic: Topic, partition: int, bytes_min: int = COMPACT_BYTES_MIN) -> bool:
        """Free the disk room of what trims removed since the last compaction; blocks, on any thread.

        Return False, and do nothing, while that is less than `bytes_min`.
        """
        held = self.counters(topic, partition)
        if held.removed_bytes - self._compacted_bytes.get((topic.id, partition), 0) < bytes_min:
            return False
        self._engine.compact(keys.record_range(topic.id, partition, 0, held.start))
        self._engine.compact(keys.time_range(topic.id, partition))
        self._compacted_bytes[topic.id, partition] = held.removed_bytes
        return True

    def compact_deleted(self) -> int:
        """Free the disk room of topics that were deleted since the last call; return their number. Blocks."""
        count = 0
        while self._deleted:
            for span in keys.everything_of(self._deleted.popleft()):
                self._engine.compact(span)
            count += 1
        return count

    def forget(self, topic: Topic) -> None:
        """Drop what is in memory of a topic that is gone."""
        left_bytes = 0
        for partition in range(topic.partitions):
            place = (topic.id, partition)
            seen = self._seen.pop(place, None)
            left_bytes += seen.appended_bytes - self._compacted_bytes.pop(place, 0) if seen else 0
            self._finished.pop(place, None)
            self._counter_keys.pop(place, None)
            self._bytes_before.pop(place, None)
        if left_bytes >= COMPACT_BYTES_MIN:
            self._deleted.append(topic.id)

    def _reader(self, topic: Topic, partition: int) -> PartitionReader:
        return PartitionReader(self._engine, topic, partition)
