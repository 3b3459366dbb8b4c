"""The columns of a deduplication's rows: the layout of the batches that tasks get, and what is decided on.

A batch holds the caller's columns, then the added ones: the key group; then two hashes of the key, or the
content hash as 16 bytes, or with exact keys those columns of the key that are no column of the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from tidegate.checkpoint.keys.codec import KeyType, StateKeyCodec
from tidegate.dedup.columns import DIGEST_BYTES, GROUP_BYTES, KEY_BYTES, SegmentKeys
from tidegate.dedup.decision import TIME_US_LIMIT
from tidegate.errors import StateInvalid

US_PER_MS = 1_000

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_NONE = np.empty(0, np.int64)
_DIGEST = np.dtype([("group", ">u2"), ("first", ">u8"), ("second", ">u8")])
_CONTENT = np.dtype([("group", ">u2"), ("content", f"V{DIGEST_BYTES}")])


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The indexes of columns in a batch: the first `input_columns` are the caller's, then the added ones."""

    operator: str
    input_columns: int
    event_time: int
    event_time_name: str
    offset: int | None = None
    offset_name: str = ""
    # With exact keys: the indexes and the types of the key columns.
    key_columns: tuple[int, ...] = ()
    key_type: KeyType | None = None

    @property
    def group(self) -> int:
        """The index of the key group; the other added columns follow it."""
        return self.input_columns

    def check(self, batch: pa.RecordBatch) -> None:
        """Refuse rows without an event time or an offset, and times out of range."""
        times = batch.column(self.event_time)
        self._check_not_null(times, self.event_time_name, "event time")
        if self.offset is not None:
            self._check_not_null(batch.column(self.offset), self.offset_name, "offset")
        ends = pc.min_max(times.cast(pa.int64()))
        limit = TIME_US_LIMIT // US_PER_MS if at.is_integer(times.type) else TIME_US_LIMIT
        if batch.num_rows and not -limit < ends["min"].as_py() <= ends["max"].as_py() < limit:
            reason = (
                f"its event time '{self.event_time_name}' has values further from 1970 than 146,000 years; "
                "a bigint is milliseconds: divide it where it has microseconds or nanoseconds"
            )
            raise StateInvalid(operator=self.operator, reason=reason)

    def _check_not_null(self, column: pa.Array, name: str, noun: str) -> None:
        if column.null_count:
            reason = (
                f"its {noun} '{name}' is null in {column.null_count} rows of {len(column)}; filter them out "
                f"before, or give them one: coalesce({name}, …)"
            )
            raise StateInvalid(operator=self.operator, reason=reason)

    def times_us(self, batch: pa.RecordBatch) -> Longs:
        """Return the event times in microseconds."""
        column = batch.column(self.event_time)
        if at.is_integer(column.type):
            return np.asarray(column) * US_PER_MS
        return np.asarray(column.view(pa.int64()))

    def groups(self, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
        """Return the key groups."""
        return np.asarray(batch.column(self.group))

    def keys(self, batch: pa.RecordBatch) -> Bytes | list[bytes]:
        """Return the keys as a segment stores them, each after its key group."""
        if self.key_type is not None:
            return self._exact(batch, self.key_type)
        first = batch.column(self.input_columns + 1)
        if at.is_integer(first.type):
            keys = np.empty(batch.num_rows, _DIGEST)
            keys["first"] = np.asarray(first).view(np.uint64)
            keys["second"] = np.asarray(batch.column(self.input_columns + 2)).view(np.uint64)
        else:
            keys = np.empty(batch.num_rows, _CONTENT)
            keys["content"] = np.frombuffer(_joined(first), _CONTENT["content"])
        keys["group"] = self.groups(batch)
        return keys.view(np.uint8).reshape(-1, KEY_BYTES)

    def _exact(self, batch: pa.RecordBatch, key_type: KeyType) -> list[bytes]:
        encoded = StateKeyCodec(key_type).encode_array([batch.column(index) for index in self.key_columns])
        groups = self.groups(batch).astype(">u2").tobytes()
        width = pa.binary(GROUP_BYTES)
        prefixes = pa.Array.from_buffers(width, batch.num_rows, [None, pa.py_buffer(groups)])
        keys = pc.binary_join_element_wise(prefixes.cast(encoded.type), encoded, pa.scalar(b"", encoded.type))
        return keys.to_pylist()  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class KeyBucket:
    """One of several parts of a batch: all rows of some keys, chosen by the bytes of the key."""

    number: int
    count: int

    def holds(self, keys: SegmentKeys) -> npt.NDArray[np.bool_]:
        """Return the mask of the keys of this part."""
        # High bits of a mixed hash: filters and key groups use others, and get an even sample of the keys.
        mixed = keys.hashes * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
        mask: npt.NDArray[np.bool_] = mixed % np.uint64(self.count) == np.uint64(self.number)
        return mask


@dataclass(frozen=True, slots=True)
class KeyRows:
    """The columns of many batches' rows; `numbers` are those of the rows, None for all in their order."""

    keys: SegmentKeys
    times_us: Longs
    offsets: Longs | None
    numbers: Longs | None


def gather_rows(
    layout: RowLayout, batches: Iterable[pa.RecordBatch], part: KeyBucket | None = None
) -> KeyRows:
    """Return the columns of all rows, or of those of a part."""
    keys: list[Any] = []
    times_us, offsets, numbers = [_NONE], [_NONE], [_NONE]
    start = 0
    for batch in batches:
        column = _column(layout.keys(batch))
        index = slice(None) if part is None else np.flatnonzero(part.holds(column))
        keys.append(column.bytes_ if isinstance(index, slice) else column.take(index).bytes_)
        times_us.append(layout.times_us(batch)[index])
        if layout.offset is not None:
            offsets.append(np.asarray(batch.column(layout.offset))[index])
        if not isinstance(index, slice):
            numbers.append(index + start)
        start += batch.num_rows
    return KeyRows(
        _joined_keys(layout, keys),
        np.concatenate(times_us),
        None if layout.offset is None else np.concatenate(offsets),
        None if part is None else np.concatenate(numbers),
    )


def _column(keys: Bytes | list[bytes]) -> SegmentKeys:
    return SegmentKeys.of_exact(keys) if isinstance(keys, list) else SegmentKeys.of_digests(keys)


def _joined_keys(layout: RowLayout, pieces: list[Any]) -> SegmentKeys:
    if layout.key_type is not None:
        return SegmentKeys.of_exact(list(chain.from_iterable(pieces)))
    return SegmentKeys.of_digests(np.concatenate([np.empty((0, KEY_BYTES), np.uint8), *pieces]))


def _joined(column: pa.Array) -> bytes:
    """Return the concatenated bytes of all values; all have one width and none is null."""
    whole = pa.concat_arrays([column]).cast(pa.large_binary())
    offsets = np.frombuffer(whole.buffers()[1], np.int64)[whole.offset : whole.offset + len(whole) + 1]
    return whole.buffers()[2].slice(offsets[0], offsets[-1] - offsets[0]).to_pybytes() if len(whole) else b""
