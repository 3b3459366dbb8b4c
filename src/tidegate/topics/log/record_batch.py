"""The record batch, the format of messages in the log of a partition. Version 2; version 1 is read.

    version u8 | codec u8 | schema u16 | count u32 | first time i64 µs | last time i64 µs | crc32 u32 | body

Big-endian. The checksum covers the header before it and the body. The body is one encapsulated Arrow IPC
record-batch message of `MESSAGE_SCHEMA`, so that it can be sent to a reader after a schema message without
being decoded. A body holds `count` messages whose offsets follow the base offset in the key.

The codec says what the bytes of the payloads are: 0 is JSON text, others are binary and have the columns of
the topic's payload schema of that number. Only payloads of codec 0 may be sent without decoding.

Version 1 has neither codec nor schema (both 0) nor the last column, `user`.

A body of few messages is made from a template. What Arrow writes for a record batch of a fixed schema differs
only in numbers at fixed places: the count, the nulls of each column, the offset of each buffer, and the
length of all of them. Patching those into a message that Arrow wrote once costs a fraction of ten Arrow
arrays, and most group commits hold few messages. Where Arrow's message does not look as expected there is no
template, and Arrow writes all bodies.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.errors import StorageCorrupt
from tidegate.model.messages import MESSAGE_SCHEMA

_NUMBER = struct.Struct("<q")
_PREFIX_BYTES = 8  # a mark, and the length of the metadata
# As many rows as no other number in the metadata is.
_SAMPLE_ROWS = 251


class SmallColumn(NamedTuple):
    """A column of a small body: its number of nulls and its buffers, the validity bitmap first."""

    null_count: int
    buffers: tuple[bytes, ...]


def numbers(values: Sequence[int], code: str = "q") -> SmallColumn:
    """Return a column of numbers, none of them null: `q` 64 bits, `i` 32."""
    return SmallColumn(0, (b"", struct.pack(f"<{len(values)}{code}", *values)))


def texts(values: Sequence[bytes | None]) -> SmallColumn:
    """Return a column of texts or bytes."""
    null_count = values.count(None)
    present = b""
    if null_count:
        bits = sum(1 << place for place, value in enumerate(values) if value is not None)
        present = bits.to_bytes((len(values) + 7) // 8, "little")
    end = 0
    ends = [0]
    for value in values:
        end += len(value) if value is not None else 0
        ends.append(end)
    offsets = struct.pack(f"<{len(ends)}i", *ends)
    return SmallColumn(null_count, (present, offsets, b"".join(filter(None, values))))


@lru_cache(maxsize=4096)
def repeated_text(value: str | None, count: int) -> SmallColumn:
    """Return a column with one value for all messages."""
    return texts([None if value is None else value.encode()] * count)


class Template:
    """A record-batch message of one schema whose numbers are replaced."""

    def __init__(self, head: bytes, places: tuple[int, int, int, int], columns: int, buffers: int) -> None:
        """`places` are the positions of the count, the body's length, the nodes and the buffers."""
        self._head = head
        self._count_at, self._length_at, self._nodes_at, self._buffers_at = places
        self._nodes = struct.Struct(f"<{2 * columns}q")
        self._buffers = struct.Struct(f"<{2 * buffers}q")

    def message(self, count: int, columns: Sequence[SmallColumn]) -> bytes:
        """Return the encapsulated message of these columns."""
        nodes: list[int] = []
        spans: list[int] = []
        body: list[bytes] = []
        end = 0
        for null_count, buffers in columns:
            nodes += (count, null_count)
            for buffer in buffers:
                size = len(buffer)
                spans += (end, size)
                if size:
                    padding = -size % 8
                    body.append(buffer)
                    if padding:
                        body.append(bytes(padding))
                    end += size + padding
        head = bytearray(self._head)
        _NUMBER.pack_into(head, self._count_at, count)
        _NUMBER.pack_into(head, self._length_at, end)
        self._nodes.pack_into(head, self._nodes_at, *nodes)
        self._buffers.pack_into(head, self._buffers_at, *spans)
        return b"".join((head, *body))


def template_of(schema: pa.Schema) -> Template | None:
    """Return the template of a schema; None where Arrow's message does not look as expected."""
    columns = [_sample(field, _SAMPLE_ROWS) for field in schema]
    written = _by_arrow(schema, columns, _SAMPLE_ROWS)
    head_bytes = _PREFIX_BYTES + int.from_bytes(written[4:_PREFIX_BYTES], "little")
    head, body_bytes = written[:head_bytes], len(written) - head_bytes
    nodes = b"".join(struct.pack("<qq", _SAMPLE_ROWS, column.null_count) for column in columns)
    spans, end = b"", 0
    sizes = [len(buffer) for column in columns for buffer in column.buffers]
    for size in sizes:
        spans += struct.pack("<qq", end, size)
        end += size + -size % 8
    # The first occurrence of the count is before the buffers and the nodes, which contain it as well.
    before_nodes = head[: head.find(nodes)]
    needles = (_NUMBER.pack(_SAMPLE_ROWS), _NUMBER.pack(body_bytes), nodes, spans)
    if [before_nodes.count(needles[0]), *map(head.count, needles[1:])] != [1, 1, 1, 1]:
        return None
    places = (before_nodes.find(needles[0]), *map(head.find, needles[1:]))
    template = Template(head, places, len(columns), len(sizes))  # type: ignore[arg-type]
    few = [_sample(field, 2) for field in schema]
    return template if template.message(2, few) == _by_arrow(schema, few, 2) else None


def _sample(field: pa.Field, count: int) -> SmallColumn:
    if pa.types.is_string(field.type):
        first = [None] if field.nullable else [b"first"]
        return texts([*first, *(b"%d" % number for number in range(1, count))])
    return numbers(range(count), "i" if field.type.bit_width == 32 else "q")


def _by_arrow(schema: pa.Schema, columns: Sequence[SmallColumn], count: int) -> bytes:
    arrays = [
        pa.Array.from_buffers(
            field.type, count, [pa.py_buffer(buffer) if buffer else None for buffer in column.buffers]
        )
        for field, column in zip(schema, columns, strict=True)
    ]
    written: bytes = pa.RecordBatch.from_arrays(arrays, schema=schema).serialize().to_pybytes()
    return written


T = TypeVar("T")

VERSION = 2
VERSION_WITHOUT_USER = 1
HEADER = struct.Struct(">BBHIqqI")
_HEADER_BEFORE_CRC = HEADER.size - 4
# A reader decodes whole record batches: larger ones would make a small read expensive, and a slow reader hold
# much memory. A message that is larger by itself has a record batch of its own.
BATCH_MESSAGES_MAX = 8192
BATCH_BYTES_MAX = 1024 * 1024
# Retention by bytes removes whole record batches and keeps the newest: where there is a limit, none is larger
# than a fraction of it. Below the minimum the head of a record batch (about 1 KiB) would be most of the log.
LIMITED_BATCH_BYTES_MIN = 4 * 1024
LIMITED_BATCH_PARTS = 8
# About what the other columns of a message take besides its key and payload.
MESSAGE_HEAD_BYTES = 80
# Up to this many messages are written without Arrow's arrays, which would take most of the time.
SMALL_MESSAGES_MAX = 64
# Ends an Arrow IPC stream.
STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

_TEMPLATE = template_of(MESSAGE_SCHEMA)
_SCHEMA_WITHOUT_USER = pa.schema(list(MESSAGE_SCHEMA)[:-1])
STREAM_START: bytes = MESSAGE_SCHEMA.serialize().to_pybytes()


@dataclass(frozen=True, slots=True)
class Origin:
    """What the messages of a run share: operation, source, user, and the codec of their payloads."""

    op: str = "PUBLISH"
    source: str | None = None
    payload_mode: str = "full"
    codec: int = 0
    schema: int = 0
    user: str | None = None

    def shares_batch_with(self, other: Origin) -> bool:
        """True if messages of both may be in one record batch: they may differ in operation and user."""
        return self is other or (
            self.source == other.source
            and self.payload_mode == other.payload_mode
            and self.codec == other.codec
            and self.schema == other.schema
        )


class RunPosition(msgspec.Struct, frozen=True, gc=False):
    """The position of a run of messages: its partition, first offset and time."""

    partition: int
    base_offset: int
    ts_us: int


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A record batch of the log whose checksum is verified; the body is not decoded."""

    base_offset: int
    count: int
    first_us: int
    last_us: int
    body: memoryview
    codec: int = 0
    schema: int = 0
    version: int = VERSION

    @property
    def is_wire_format(self) -> bool:
        """True if the body can be sent without decoding: it has all columns, and the payloads are text."""
        return self.version == VERSION and self.codec == 0

    @property
    def stop_offset(self) -> int:
        """The offset after the last message."""
        return self.base_offset + self.count

    def arrow(self) -> pa.RecordBatch:
        """Return the messages with their payloads as stored: text for codec 0 only.

        The result shares memory with the stored bytes. `TopicLog.arrow` decodes payloads as well.
        """
        if self.version == VERSION:
            return pa.ipc.read_record_batch(pa.py_buffer(self.body), MESSAGE_SCHEMA)
        old = pa.ipc.read_record_batch(pa.py_buffer(self.body), _SCHEMA_WITHOUT_USER)
        columns = [*old.columns, pa.nulls(old.num_rows, pa.string())]
        return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


class Run(msgspec.Struct, frozen=True):
    """Messages of one partition that follow each other; payloads are as the origin's codec says, checked."""

    place: RunPosition
    origin: Origin
    ids: np.ndarray
    keys: Sequence[str | None]
    payloads: Sequence[bytes]

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.payloads)

    def part(self, start: int, stop: int) -> Run:
        """Return the messages `start` ≤ index < `stop`, which keep their offsets and ids."""
        place = RunPosition(self.place.partition, self.place.base_offset + start, self.place.ts_us)
        chosen = slice(start, stop)
        return Run(place, self.origin, self.ids[chosen], self.keys[chosen], self.payloads[chosen])


class BatchLimits(NamedTuple):
    """The size limit of a record batch; a message counts as its key, its payload and `head_bytes`."""

    bytes_max: int = BATCH_BYTES_MAX
    head_bytes: int = 0

    @classmethod
    def of(cls, retention_max_bytes: int | None) -> BatchLimits:
        """Return the limits for a topic by its retention in bytes of one partition."""
        if retention_max_bytes is None:
            return _UNLIMITED
        part_bytes = max(LIMITED_BATCH_BYTES_MIN, retention_max_bytes // LIMITED_BATCH_PARTS)
        return cls(min(part_bytes, BATCH_BYTES_MAX), MESSAGE_HEAD_BYTES)


_UNLIMITED = BatchLimits()


def message_bytes(keys: Sequence[str | None], payloads: Sequence[bytes]) -> int:
    """Return the bytes of messages, with their keys."""
    if len(payloads) == 1:
        return len(payloads[0]) + len((keys[0] or "").encode())
    # Encoding one text of all keys is several times faster than each by itself.
    return sum(map(len, payloads)) + len("".join(filter(None, keys)).encode())


def joined_runs(runs: Sequence[Run], limits: BatchLimits = _UNLIMITED) -> Iterator[list[Run]]:
    """Yield the runs of each record batch: consecutive ones with equal origins, up to the limits.

    A run that is too long for one record batch is cut.
    """
    joined: list[Run] = []
    count = size_bytes = 0
    for run, run_bytes in _cut_runs(runs, limits):
        run_count = len(run.payloads)
        over = count + run_count > BATCH_MESSAGES_MAX or size_bytes + run_bytes > limits.bytes_max
        if joined and (over or not run.origin.shares_batch_with(joined[0].origin)):
            yield joined
            joined, count, size_bytes = [], 0, 0
        joined.append(run)
        count += run_count
        size_bytes += run_bytes
    if joined:
        yield joined


def _cut_runs(runs: Sequence[Run], limits: BatchLimits) -> Iterator[tuple[Run, int]]:
    """Yield runs that each fit into a record batch, with their bytes."""
    bytes_max, head_bytes = limits
    for run in runs:
        count = len(run.payloads)
        size_bytes = message_bytes(run.keys, run.payloads) + count * head_bytes
        if count == 1 or (count <= BATCH_MESSAGES_MAX and size_bytes <= bytes_max):
            yield run, size_bytes
            continue
        start = part_bytes = 0
        for index, (key, payload) in enumerate(zip(run.keys, run.payloads, strict=True)):
            one_bytes = len(payload) + head_bytes + (len(key.encode()) if key else 0)
            full = index - start == BATCH_MESSAGES_MAX or part_bytes + one_bytes > bytes_max
            if full and index > start:
                yield run.part(start, index), part_bytes
                start, part_bytes = index, 0
            part_bytes += one_bytes
        yield run.part(start, count), part_bytes


def encode_runs(runs: Sequence[Run]) -> bytes:
    """Return the bytes that store these messages as one record batch."""
    place, origin, last_us = runs[0].place, runs[0].origin, runs[-1].place.ts_us
    count = runs[-1].place.base_offset + len(runs[-1].payloads) - place.base_offset
    if count <= SMALL_MESSAGES_MAX and _TEMPLATE is not None:
        body: bytes | pa.Buffer = _small_body(_TEMPLATE, runs, count)
    else:
        body = _large_body(runs, count)
    counts = (VERSION, origin.codec, origin.schema, count)
    head = HEADER.pack(*counts, place.ts_us, last_us, 0)[:_HEADER_BEFORE_CRC]
    checksum = zlib.crc32(body, zlib.crc32(head))
    return b"".join((head, checksum.to_bytes(4, "big"), body))


def _small_body(template: Template, runs: Sequence[Run], count: int) -> bytes:
    """Return the Arrow message of few messages; the same messages as `_large_body`, faster."""
    place, origin = runs[0].place, runs[0].origin
    of_message = runs if len(runs) == count else [run for run in runs for _ in run.payloads]
    ops = {run.origin.op for run in runs}
    users = {run.origin.user for run in runs}
    keys = [key if key is None else key.encode() for run in runs for key in run.keys]
    return template.message(
        count,
        (
            numbers([place.partition] * count, "i"),
            numbers(range(place.base_offset, place.base_offset + count)),
            SmallColumn(0, (b"", b"".join([run.ids.tobytes() for run in runs]))),
            numbers([run.place.ts_us for run in of_message]),
            _few_by_run(ops, [run.origin.op for run in of_message]),
            repeated_text(origin.source, count),
            repeated_text(origin.payload_mode, count),
            texts(keys),
            texts(_joined([run.payloads for run in runs])),
            _few_by_run(users, [run.origin.user for run in of_message]),
        ),
    )


def _few_by_run(kinds: set[Any], values: Sequence[str | None]) -> SmallColumn:
    if len(kinds) == 1:
        return repeated_text(values[0], len(values))
    return texts([value if value is None else value.encode() for value in values])


def _large_body(runs: Sequence[Run], count: int) -> pa.Buffer:
    place, origin = runs[0].place, runs[0].origin
    batch = pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(place.partition, pa.int32()), count),
            pa.array(np.arange(place.base_offset, place.base_offset + count, dtype=np.int64)),
            pa.array(runs[0].ids if len(runs) == 1 else np.concatenate([run.ids for run in runs])),
            _times(runs),
            _by_run(runs, [run.origin.op for run in runs], count),
            pa.repeat(pa.scalar(origin.source, pa.string()), count),
            pa.repeat(pa.scalar(origin.payload_mode), count),
            pa.array(_joined([run.keys for run in runs]), pa.string()),
            pa.array(_joined([run.payloads for run in runs]), pa.binary()).view(pa.string()),
            _by_run(runs, [run.origin.user for run in runs], count),
        ],
        schema=MESSAGE_SCHEMA,
    )
    return batch.serialize()


def _joined(parts: list[Sequence[T]]) -> Sequence[T]:
    return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))


def _by_run(runs: Sequence[Run], values: Sequence[str | None], count: int) -> pa.Array:
    """Return a column that has one value for all messages of a run."""
    first = values[0]
    if values.count(first) == len(values):
        return pa.nulls(count, pa.string()) if first is None else pa.repeat(pa.scalar(first), count)
    of_run = np.repeat(np.arange(len(runs)), [run.count for run in runs])
    return pa.array(values, pa.string()).take(pa.array(of_run))


def _times(runs: Sequence[Run]) -> pa.Array:
    kind = MESSAGE_SCHEMA.field("ts").type
    if len(runs) == 1:
        return pa.repeat(pa.scalar(runs[0].place.ts_us, kind), runs[0].count)
    times = np.repeat([run.place.ts_us for run in runs], [run.count for run in runs])
    return pa.array(times.astype(np.int64)).view(kind)


def decode_batch(stored: bytes, base_offset: int, place: str) -> StoredBatch:
    """Return a stored record batch; raise StorageCorrupt for a damaged one, which `place` names."""
    if len(stored) < HEADER.size:
        raise StorageCorrupt(place=place, reason="the record batch is shorter than its header")
    version, codec, schema, count, first_us, last_us, checksum = HEADER.unpack_from(stored)
    if version not in (VERSION, VERSION_WITHOUT_USER):
        raise StorageCorrupt(
            place=place, reason=f"record batch version {version}, this reads versions 1 to {VERSION}"
        )
    view = memoryview(stored)
    if zlib.crc32(view[HEADER.size :], zlib.crc32(view[:_HEADER_BEFORE_CRC])) != checksum:
        raise StorageCorrupt(place=place, reason="the record batch does not match its checksum")
    if version == VERSION_WITHOUT_USER:
        codec = schema = 0  # these bytes had no meaning then
    return StoredBatch(base_offset, count, first_us, last_us, view[HEADER.size :], codec, schema, version)
