"""Reads of topics without a consumer group.

`start_offsets` resolves a start position (`earliest`, a time, an offset …) into an offset for each partition,
`plan` returns ranges of offsets with a limited number of messages, `read_messages` and `read_ranges` return
messages, `arrow_stream` the bytes of a range as one Arrow IPC stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import OffsetOutOfRange, RequestInvalid, StorageCorrupt
from tidegate.model.messages import MESSAGE_SCHEMA
from tidegate.topics.definitions import Topic
from tidegate.topics.log.protocol import MessageLog
from tidegate.topics.log.record_batch import STREAM_END, STREAM_START, StoredBatch

# Smaller record batches are joined on the way out: Spark and Arrow pay for each batch, not only for each row.
JOIN_BELOW_MESSAGES = 512
JOIN_BELOW_BYTES = 256 * 1024
JOINED_MESSAGES_MAX = 8192
# Bytes gathered before they are sent: large enough that the cost of a send does not count.
CHUNK_BYTES = 1024 * 1024
# Bytes of messages in one answer that is built in memory; the caller continues where it ended.
RESULT_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Start:
    """A start position: an end of the log, an offset, the one after it, a time, or offsets by partition."""

    kind: Literal["earliest", "latest", "offset", "after", "timestamp", "offsets"]
    value: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Offset ranges of one read, by partition: `start` (in) to `end` (out), and the end of the log now."""

    start: dict[int, int]
    end: dict[int, int]
    latest: dict[int, int]


@dataclass(frozen=True, slots=True)
class TopicReadResult:
    """Messages of several partitions, in offset order within each, and the next offsets to read."""

    batches: list[pa.RecordBatch]
    next_offsets: dict[int, int]
    # Why the only message of the result has the payload null: it is damaged in the log.
    damage: StorageCorrupt | None = None

    @property
    def count(self) -> int:
        """The number of messages."""
        return sum(batch.num_rows for batch in self.batches)


def start_offsets(log: MessageLog, topic: Topic, start: Start, partition: int | None) -> dict[int, int]:
    """Return the first offset, for one partition or for all; OffsetOutOfRange for one not in the log."""
    chosen = range(topic.partitions) if partition is None else [topic.check_partition(partition)]
    if start.kind in ("offset", "after") and len(chosen) > 1:
        raise RequestInvalid(
            reason=f"Topic '{topic.name}' has {topic.partitions} partitions, and an offset belongs to one.",
            hint='Name the "partition", or give one offset for each: {"offsets": {"0": 5, "1": 7}}.',
        )
    for named in start.offsets:
        topic.check_partition(named)
    return {number: _start_offset(log, topic, start, number) for number in chosen}


def _start_offset(log: MessageLog, topic: Topic, start: Start, partition: int) -> int:
    held = log.counters(topic, partition)
    if start.kind == "earliest":
        return held.start
    if start.kind == "latest":
        return held.end
    if start.kind == "timestamp":
        return log.offset_at(topic, partition, start.value)
    if start.kind == "offsets":
        offset = start.offsets.get(partition, held.start)
    else:
        offset = start.value + (1 if start.kind == "after" else 0)
    if not held.start <= offset <= held.end:
        raise OffsetOutOfRange(
            topic=topic.name, partition=partition, offset=offset, earliest=held.start, latest=held.end
        )
    return offset


def plan(log: MessageLog, topic: Topic, start: Start, messages_max: int | None) -> ReadPlan:
    """Return the next ranges to read; where there is more than allowed, in equal shares."""
    begin = start_offsets(log, topic, start, None)
    latest = {partition: max(log.counters(topic, partition).end, begin[partition]) for partition in begin}
    waiting = {partition: latest[partition] - begin[partition] for partition in begin}
    shares = waiting if messages_max is None else shared(waiting, messages_max, sum(begin.values()))
    end = {partition: begin[partition] + shares[partition] for partition in begin}
    return ReadPlan(begin, end, latest)


def shared(waiting: Mapping[int, int], total_max: int, turn: int = 0) -> dict[int, int]:
    """Return equal shares of a total; what one partition does not need goes to the others.

    Where the total is too small for all, `turn` rotates the first one, so that repeated reads reach all.
    """
    shares = dict.fromkeys(waiting, 0)
    left = total_max
    open_partitions = {partition for partition, count in waiting.items() if count}
    while open_partitions and left > 0:
        share = max(1, left // len(open_partitions))
        order = sorted(open_partitions)
        first = turn % len(order)
        for partition in order[first:] + order[:first]:
            part = min(share, waiting[partition] - shares[partition], left)
            shares[partition] += part
            left -= part
        open_partitions = {one for one in open_partitions if shares[one] < waiting[one]}
    return shares


def read_messages(log: MessageLog, topic: Topic, begin: Mapping[int, int], limit: int) -> TopicReadResult:
    """Return at most `limit` messages from these offsets on, from all partitions in equal shares.

    Large messages make it fewer: a result ends at `RESULT_BYTES_MAX`, but never before its first message. It
    ends before a damaged message, too. Where that is the first one, the result is this one, without payload.
    """
    held = {partition: max(0, log.counters(topic, partition).end - begin[partition]) for partition in begin}
    shares = shared(held, limit, sum(begin.values())).items()
    ranges = [(partition, begin[partition], begin[partition] + count) for partition, count in shares]
    batches, damage = read_ranges(log, topic, ranges, RESULT_BYTES_MAX)
    taken = TopicReadResult(batches, dict(begin), damage)
    for batch in batches:
        taken.next_offsets[batch.column("partition")[0].as_py()] += batch.num_rows
    return taken


def read_ranges(
    log: MessageLog, topic: Topic, ranges: Sequence[tuple[int, int, int]], bytes_max: int
) -> tuple[list[pa.RecordBatch], StorageCorrupt | None]:
    """Return the messages of ranges (partition, start, stop), in this order.

    The result ends at `bytes_max`, but never before the first message. It ends before a damaged message, too.
    Where that is the first one, the result is this one, without its payload, and why. StorageCorrupt where
    its whole record batch is damaged.
    """
    batches: list[pa.RecordBatch] = []
    room_bytes = bytes_max
    for partition, start, stop in ranges:
        try:
            for whole in _readable_batches(log, topic, partition, start, stop):
                batch = _fitting(whole, room_bytes, at_least_one=not batches)
                if batch.num_rows:
                    batches.append(batch)
                room_bytes -= batch.nbytes
                if batch.num_rows < whole.num_rows:
                    return batches, None
        except StorageCorrupt as damage:
            if batches:
                break
            return [_without_payload(log, topic, partition, start)], damage
    return batches, None


def _without_payload(log: MessageLog, topic: Topic, partition: int, offset: int) -> pa.RecordBatch:
    """Return one message with the payload null; StorageCorrupt where its record batch is damaged."""
    stored = next(iter(log.read(topic, partition, offset, offset + 1)))
    batch = stored.arrow().slice(offset - stored.base_offset, 1)
    index = batch.schema.get_field_index("payload")
    return batch.set_column(index, batch.schema.field(index), pa.array(["null"], pa.string()))


def _readable_batches(
    log: MessageLog, topic: Topic, partition: int, start: int, stop: int
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range; before a damaged one it ends with StorageCorrupt."""
    for stored in log.read(topic, partition, start, stop):
        try:
            whole = log.arrow(topic, stored, start, stop)
        except StorageCorrupt:
            first = max(start, stored.base_offset)
            damaged = _damaged_offset(log, topic, stored, first)
            if damaged > first:
                yield log.arrow(topic, stored, first, damaged)
            raise
        yield whole


def _damaged_offset(log: MessageLog, topic: Topic, stored: StoredBatch, start: int) -> int:
    """Return the offset of the first message of a batch, from `start` on, whose payload is damaged."""
    low, high = start, stored.stop_offset - 1
    while low < high:
        middle = (low + high + 1) // 2
        try:
            log.arrow(topic, stored, start, middle)
        except StorageCorrupt:
            high = middle - 1
        else:
            low = middle
    return low


def _fitting(batch: pa.RecordBatch, room_bytes: int, *, at_least_one: bool) -> pa.RecordBatch:
    """Return the first messages of a batch whose payloads fit into the room."""
    if batch.nbytes <= room_bytes:
        return batch
    sizes = pc.cumulative_sum(pc.binary_length(batch.column("payload")).cast(pa.int64())).to_numpy()
    fitting = int((sizes <= room_bytes).sum())
    return batch.slice(0, max(fitting, 1 if at_least_one else 0))


def arrow_stream(log: MessageLog, topic: Topic, partition: int, start: int, stop: int) -> Iterator[bytes]:
    """Return exactly the messages of a range as the bytes of an Arrow IPC stream, in chunks.

    Stored record batches are sent without decoding; only the outer two are cut, and small ones are joined. A
    chunk has at most `CHUNK_BYTES`, however large a message is.
    """
    log.check_range(topic, partition, start, stop)
    return _chunks(_messages(log, topic, log.read(topic, partition, start, stop), start, stop))


def _chunks(parts: Iterator[bytes | memoryview]) -> Iterator[bytes]:
    gathered: list[memoryview] = []
    room_bytes = CHUNK_BYTES
    for part in chain([STREAM_START], parts, [STREAM_END]):
        left = memoryview(part)
        while left:
            gathered.append(left[:room_bytes])
            left = left[room_bytes:]
            room_bytes -= len(gathered[-1])
            if not room_bytes:
                yield b"".join(gathered)
                gathered, room_bytes = [], CHUNK_BYTES
    if gathered:
        yield b"".join(gathered)


def _messages(
    log: MessageLog, topic: Topic, stored: Iterator[StoredBatch], start: int, stop: int
) -> Iterator[bytes | memoryview]:
    small: list[pa.RecordBatch] = []
    small_rows = small_bytes = 0
    for batch in stored:
        whole = start <= batch.base_offset and batch.stop_offset <= stop
        if whole and (batch.count >= JOIN_BELOW_MESSAGES or len(batch.body) >= JOIN_BELOW_BYTES):
            if small:
                yield _joined(small)
                small, small_rows, small_bytes = [], 0, 0
            yield batch.body if batch.is_wire_format else _joined([log.arrow(topic, batch)])
            continue
        small.append(log.arrow(topic, batch, start, stop))
        small_rows += small[-1].num_rows
        small_bytes += small[-1].nbytes
        if small_rows >= JOINED_MESSAGES_MAX or small_bytes >= CHUNK_BYTES:
            yield _joined(small)
            small, small_rows, small_bytes = [], 0, 0
    if small:
        yield _joined(small)


def _joined(batches: list[pa.RecordBatch]) -> bytes:
    if len(batches) == 1:
        return bytes(batches[0].serialize())
    table = pa.Table.from_batches(batches, MESSAGE_SCHEMA).combine_chunks()
    return b"".join(bytes(batch.serialize()) for batch in table.to_batches())
