"""Columns of a deduplication's rows: takes Arrow batches as the plan brings them, gives what is decided upon.

A batch holds the caller's columns, then ours: the key group; then two hashes of the key, or the content
hash as 16 bytes, or with exact keys those columns of the key that are no column of the caller's.
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

from tidegate.checkpoint.keys.codec import KeyCodec, KeyType
from tidegate.dedup.columns import DIGEST_BYTES, GROUP_BYTES, KEY_BYTES, KeyColumn
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
    """Where things stand in a batch: `given` columns are the caller's, ours follow."""

    operator: str
    given: int
    event_time: int
    event_time_name: str
    offset: int | None = None
    offset_name: str = ""
    # With exact keys: where the columns of the key stand, and what they are.
    key_places: tuple[int, ...] = ()
    key_type: KeyType | None = None

    @property
    def group(self) -> int:
        """Return the place of the key group; what else is ours stands behind it."""
        return self.given

    def check(self, batch: pa.RecordBatch) -> None:
        """Refuse rows without an event time or an offset, and times that no clock ever shows."""
        times = batch.column(self.event_time)
        self._check_there(times, self.event_time_name, "event time")
        if self.offset is not None:
            self._check_there(batch.column(self.offset), self.offset_name, "offset")
        ends = pc.min_max(times.cast(pa.int64()))
        limit = TIME_US_LIMIT // US_PER_MS if at.is_integer(times.type) else TIME_US_LIMIT
        if batch.num_rows and not -limit < ends["min"].as_py() <= ends["max"].as_py() < limit:
            reason = (
                f"its event time '{self.event_time_name}' has values further from 1970 than 146,000 years; "
                "a bigint is milliseconds: divide it where it has microseconds or nanoseconds"
            )
            raise StateInvalid(operator=self.operator, reason=reason)

    def _check_there(self, column: pa.Array, name: str, noun: str) -> None:
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
        """Return the keys as they lie in a segment, each behind its key group."""
        if self.key_type is not None:
            return self._exact(batch, self.key_type)
        first = batch.column(self.given + 1)
        if at.is_integer(first.type):
            keys = np.empty(batch.num_rows, _DIGEST)
            keys["first"] = np.asarray(first).view(np.uint64)
            keys["second"] = np.asarray(batch.column(self.given + 2)).view(np.uint64)
        else:
            keys = np.empty(batch.num_rows, _CONTENT)
            keys["content"] = np.frombuffer(_joined(first), _CONTENT["content"])
        keys["group"] = self.groups(batch)
        return keys.view(np.uint8).reshape(-1, KEY_BYTES)

    def _exact(self, batch: pa.RecordBatch, key_type: KeyType) -> list[bytes]:
        encoded = KeyCodec(key_type).encode_array([batch.column(place) for place in self.key_places])
        groups = self.groups(batch).astype(">u2").tobytes()
        width = pa.binary(GROUP_BYTES)
        fronts = pa.Array.from_buffers(width, batch.num_rows, [None, pa.py_buffer(groups)])
        keys = pc.binary_join_element_wise(fronts.cast(encoded.type), encoded, pa.scalar(b"", encoded.type))
        return keys.to_pylist()  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class KeyBucket:
    """One of several parts in which a batch is worked on: all rows of its keys, by the keys' own bytes."""

    number: int
    count: int

    def holds(self, keys: KeyColumn) -> npt.NDArray[np.bool_]:
        """Return which keys are of this part."""
        # High bits of a mix, so that filters and key groups, which go by others, see all kinds of keys.
        mixed = keys.hashes * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
        found: npt.NDArray[np.bool_] = mixed % np.uint64(self.count) == np.uint64(self.number)
        return found


@dataclass(frozen=True, slots=True)
class KeyRows:
    """The columns of many batches' rows; `numbers` are those of the rows, None for all in their order."""

    keys: KeyColumn
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
        found = _column(layout.keys(batch))
        place = slice(None) if part is None else np.flatnonzero(part.holds(found))
        keys.append(found.bytes_ if isinstance(place, slice) else found.take(place).bytes_)
        times_us.append(layout.times_us(batch)[place])
        if layout.offset is not None:
            offsets.append(np.asarray(batch.column(layout.offset))[place])
        if not isinstance(place, slice):
            numbers.append(place + start)
        start += batch.num_rows
    return KeyRows(
        _joined_keys(layout, keys),
        np.concatenate(times_us),
        None if layout.offset is None else np.concatenate(offsets),
        None if part is None else np.concatenate(numbers),
    )


def _column(keys: Bytes | list[bytes]) -> KeyColumn:
    return KeyColumn.of_exact(keys) if isinstance(keys, list) else KeyColumn.of_digests(keys)


def _joined_keys(layout: RowLayout, pieces: list[Any]) -> KeyColumn:
    if layout.key_type is not None:
        return KeyColumn.of_exact(list(chain.from_iterable(pieces)))
    return KeyColumn.of_digests(np.concatenate([np.empty((0, KEY_BYTES), np.uint8), *pieces]))


def _joined(column: pa.Array) -> bytes:
    """Return the bytes of all values one after the other; all have one width and none is null."""
    whole = pa.concat_arrays([column]).cast(pa.large_binary())
    offsets = np.frombuffer(whole.buffers()[1], np.int64)[whole.offset : whole.offset + len(whole) + 1]
    return whole.buffers()[2].slice(offsets[0], offsets[-1] - offsets[0]).to_pybytes() if len(whole) else b""
