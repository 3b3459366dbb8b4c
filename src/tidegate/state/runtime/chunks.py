"""Chunks of rows: the record batches of a partition joined to a useful size, with distinct keys and times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from tidegate.checkpoint.keys.codec import KeyType, StateKeyCodec, StateKeyColumn, whole_column
from tidegate.state.arrow.decode import Faults, converter
from tidegate.state.serializers.signatures import PLAIN

# The column with the key group, which is added to every row: int32, never null.
GROUP_COLUMN = "__tidegate_group"

# Rows of a chunk: enough that one read serves many keys, few enough for the memory. A key in two chunks is
# read and written twice, so a batch of usual size is one chunk.
CHUNK_ROWS_MAX = 131_072
CHUNK_BYTES_MAX = 64 * 1024 * 1024

_PER_MS = {"us": 1_000, "ns": 1_000_000}

Numbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class Chunk:
    """Rows with their distinct keys, in the order of storage."""

    batch: pa.RecordBatch
    codec: StateKeyCodec
    # the distinct keys: an array of one column, or of structs
    keys: pa.Array
    # the same keys in encoded form, and their key groups
    stored: list[bytes]
    groups: list[int]
    # row -> its key
    key_index: Numbers
    # row -> its event time; None without an event time column
    times_ms: Numbers | None
    # rows whose event time is null
    timeless: Numbers

    def newest_event_ms(self) -> Numbers:
        """Return the newest event time of each key's rows."""
        newest = np.full(len(self.stored), np.iinfo(np.int64).min, np.int64)
        if self.times_ms is not None:
            np.maximum.at(newest, self.key_index, self.times_ms)
        return newest

    def newest_ms(self) -> int | None:
        """Return the newest event time of all rows; None where no row has one."""
        if self.times_ms is None:
            return None
        known = np.delete(self.times_ms, self.timeless) if len(self.timeless) else self.times_ms
        return int(known.max()) if len(known) else None

    def key_values(self) -> list[Any]:
        """Return the distinct keys as operators see them: a value, or a tuple of several columns' values."""
        is_struct = kinds.is_struct(self.keys.type)
        return keys_of(self.codec.key_type, self.keys.flatten() if is_struct else [self.keys])


def take_rows(chunk: Chunk, rows: Numbers) -> Chunk:
    """Return some rows of a chunk, in their order, with their keys."""
    positions, key_index = np.unique(chunk.key_index[rows], return_inverse=True)
    numbers = {number: position for position, number in enumerate(rows.tolist())}
    timeless = [numbers[number] for number in chunk.timeless.tolist() if number in numbers]
    return Chunk(
        batch=chunk.batch.take(pa.array(rows)),
        codec=chunk.codec,
        keys=chunk.keys.take(pa.array(positions)),
        stored=[chunk.stored[position] for position in positions.tolist()],
        groups=[chunk.groups[position] for position in positions.tolist()],
        key_index=key_index.astype(np.int64),
        times_ms=None if chunk.times_ms is None else chunk.times_ms[rows],
        timeless=np.array(timeless, np.int64),
    )


def rechunk(batches: Iterable[pa.RecordBatch], rows_max: int = CHUNK_ROWS_MAX) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of up to `rows_max` rows and about CHUNK_BYTES_MAX."""
    pending: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        for piece in _cut(batch, rows_max):
            if pending and (rows + piece.num_rows > rows_max or size_bytes + piece.nbytes > CHUNK_BYTES_MAX):
                yield _concat(pending)
                pending, rows, size_bytes = [], 0, 0
            pending.append(piece)
            rows += piece.num_rows
            size_bytes += piece.nbytes
    if pending:
        yield _concat(pending)


def _cut(batch: pa.RecordBatch, rows_max: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of a batch that is too large; its rows are assumed to be equally large."""
    if not batch.num_rows:
        return
    row_bytes = max(1, batch.nbytes // batch.num_rows)
    step = max(1, min(rows_max, CHUNK_BYTES_MAX // row_bytes))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class KeyFinder:
    """Finds the distinct keys and the event times of batches."""

    def __init__(self, key_type: KeyType, event_time: str | None) -> None:
        self._codec = StateKeyCodec(key_type)
        self._names = [column.name for column in key_type.columns]
        self._event_time = event_time

    def find(self, batch: pa.RecordBatch) -> Chunk:
        """Return a batch's rows as a chunk, without the column of key groups."""
        columns = [_flat(batch.column(name)) for name in self._names]
        codes, first = _distinct(columns)
        groups = np.asarray(batch.column(GROUP_COLUMN))[first]
        distinct = [column.take(pa.array(first)) for column in columns]
        stored = self._codec.encode_array(distinct)
        order = _stored_order(groups, distinct, stored)
        positions = np.empty_like(order)
        positions[order] = np.arange(len(order))
        keys = distinct[0] if len(distinct) == 1 else pa.StructArray.from_arrays(distinct, names=self._names)
        times, timeless = self._times(batch)
        return Chunk(
            batch=batch.drop_columns([GROUP_COLUMN]),
            codec=self._codec,
            keys=keys.take(pa.array(order)),
            stored=stored.take(pa.array(order)).to_pylist(),
            groups=groups[order].tolist(),
            key_index=positions[codes],
            times_ms=times,
            timeless=timeless,
        )

    def _times(self, batch: pa.RecordBatch) -> tuple[Numbers | None, Numbers]:
        if self._event_time is None:
            return None, np.empty(0, np.int64)
        column = batch.column(self._event_time)
        timeless = np.empty(0, np.int64)
        if column.null_count:
            timeless = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).astype(np.int64)
        if kinds.is_date(column.type):
            column = column.cast(pa.timestamp("ms"))
        times = column.cast(pa.int64()).fill_null(0).to_numpy()
        if kinds.is_timestamp(column.type) and column.type.unit != "ms":
            # Rounded down, before 1970 too: the result is never later than the event.
            times = times * 1_000 if column.type.unit == "s" else times // _PER_MS[column.type.unit]
        return times, timeless


def _flat(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if kinds.is_dictionary(column.type) else column


def _stored_order(groups: npt.NDArray[np.int32], keys: Sequence[pa.Array], stored: pa.Array) -> Numbers:
    """Return the order of keys in the backend: by key group, then by their bytes."""
    if len(keys) == 1 and kinds.is_signed_integer(keys[0].type) and not keys[0].null_count:
        # The bytes of integers sort as the integers do, which are compared several times as fast.
        return np.lexsort((keys[0].to_numpy(), groups)).astype(np.int64, copy=False)
    table = pa.table({"group": groups, "key": stored})
    order = pc.sort_indices(table, sort_keys=[("group", "ascending"), ("key", "ascending")])
    numbers: Numbers = order.to_numpy().astype(np.int64)
    return numbers


def _distinct(columns: Sequence[pa.Array]) -> tuple[Numbers, Numbers]:
    """Return the number of every row's key, and for each number the first row that has it."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        found = encoded.indices.to_numpy().astype(np.int64)
        codes = codes * len(encoded.dictionary) + found
        if len(columns) > 1:
            # Renumbered after each column, so that the product never exceeds 64 bits.
            codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    count = int(codes.max()) + 1 if len(codes) else 0
    first = np.empty(count, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return codes, first


def keys_of(key_type: KeyType, arrays: Sequence[pa.Array]) -> list[Any]:
    """Return many keys as Python values, as `KeyCodec.decode` returns them."""
    columns = [
        _python_values(whole_column(array), column)
        for column, array in zip(key_type.columns, arrays, strict=True)
    ]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _python_values(array: pa.Array, column: StateKeyColumn) -> list[Any]:
    if not (kinds.is_timestamp(array.type) or kinds.is_date(array.type)):
        return array.to_pylist()  # type: ignore[no-any-return]
    name = "date" if kinds.is_date(array.type) else "datetime"
    python_type = next(found for found, known in PLAIN.items() if known == name)
    convert = converter(python_type | None, array.type, column.name)
    faults: Faults = {}
    values = [] if convert is None else convert(array, None, faults)
    if faults:
        raise faults[min(faults)]
    return values
