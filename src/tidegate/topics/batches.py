"""The record batch: how messages of one partition lie in the log. Version 1.

    version u8 | reserved u8 | reserved u16 | count u32 | first time i64 µs | last time i64 µs | crc32 u32 |
    body

Big-endian. The checksum covers the header before it and the body. The body is one encapsulated Arrow IPC
record-batch message of `MESSAGE_SCHEMA`, so that a reader gets it as it lies, after a schema message and
without being decoded on the way. A body holds `count` messages whose offsets follow the base offset in the
key.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.errors import StorageCorrupt

VERSION = 1
HEADER = struct.Struct(">BBHIqqI")
_HEADER_BEFORE_CRC = HEADER.size - 4
# Ends an Arrow IPC stream.
STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("message_id", pa.int64(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("payload_mode", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("payload", pa.string(), nullable=False),
    ]
)
STREAM_START: bytes = MESSAGE_SCHEMA.serialize().to_pybytes()


@dataclass(frozen=True, slots=True)
class Origin:
    """What a run of messages shares: the change they tell of, where from, and how much of it they carry."""

    op: str = "PUBLISH"
    source: str | None = None
    payload_mode: str = "full"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run of messages goes: its partition, first offset and time."""

    partition: int
    base_offset: int
    ts_us: int


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A checked record batch as it lies in the log."""

    base_offset: int
    count: int
    first_us: int
    last_us: int
    body: memoryview

    @property
    def stop_offset(self) -> int:
        """The offset after the last message."""
        return self.base_offset + self.count

    def arrow(self) -> pa.RecordBatch:
        """Decode the messages; the result shares memory with the stored bytes."""
        return pa.ipc.read_record_batch(pa.py_buffer(self.body), MESSAGE_SCHEMA)


def encode_batch(
    place: Place, origin: Origin, ids: np.ndarray, keys: Sequence[str | None], payloads: Sequence[bytes]
) -> bytes:
    """Give the bytes that store these messages; payloads are UTF-8 JSON, checked before."""
    count = len(payloads)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(place.partition, pa.int32()), count),
            pa.array(np.arange(place.base_offset, place.base_offset + count, dtype=np.int64)),
            pa.array(ids),
            pa.repeat(pa.scalar(place.ts_us, pa.timestamp("us", tz="UTC")), count),
            pa.repeat(pa.scalar(origin.op), count),
            pa.repeat(pa.scalar(origin.source, pa.string()), count),
            pa.repeat(pa.scalar(origin.payload_mode), count),
            pa.array(keys, pa.string()),
            pa.array(payloads, pa.binary()).view(pa.string()),
        ],
        schema=MESSAGE_SCHEMA,
    )
    return _framed(batch, place.ts_us, place.ts_us)


def _framed(batch: pa.RecordBatch, first_us: int, last_us: int) -> bytes:
    body = batch.serialize()
    head = HEADER.pack(VERSION, 0, 0, batch.num_rows, first_us, last_us, 0)[:_HEADER_BEFORE_CRC]
    checksum = zlib.crc32(body, zlib.crc32(head))
    return b"".join((head, checksum.to_bytes(4, "big"), body))


def decode_batch(stored: bytes, base_offset: int, place: str) -> StoredBatch:
    """Check a stored record batch and give it; `place` names it in errors."""
    if len(stored) < HEADER.size:
        raise StorageCorrupt(place=place, reason="the record batch is shorter than its header")
    version, _, _, count, first_us, last_us, checksum = HEADER.unpack_from(stored)
    if version != VERSION:
        raise StorageCorrupt(
            place=place, reason=f"record batch version {version}, this reads version {VERSION}"
        )
    view = memoryview(stored)
    if zlib.crc32(view[HEADER.size :], zlib.crc32(view[:_HEADER_BEFORE_CRC])) != checksum:
        raise StorageCorrupt(place=place, reason="the record batch does not match its checksum")
    return StoredBatch(base_offset, count, first_us, last_us, view[HEADER.size :])


def times_of(stored: bytes) -> tuple[int, int]:
    """Give the first and last time in a stored record batch, from its header alone."""
    _, _, _, _, first_us, last_us, _ = HEADER.unpack_from(stored)
    return first_us, last_us
