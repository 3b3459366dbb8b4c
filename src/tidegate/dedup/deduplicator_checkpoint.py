"""What stored times cannot tell of messages that come again: takes outcomes, gives those that would change.

A message that a consumer gets again is known by its stored key, time and offset. That fails when its own
call, or one soon after, moved stream time so far that its time no longer counts: it would be late. And a
duplicate would be unique, when the time that it was in conflict with no longer counts. These few are kept,
beside the newest head, in the file of its output.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.state.segments.columns import Bytes, Hashes, Longs
from tidegate.state.segments.decide import DUPLICATE, UNIQUE, BatchColumns

# Of calls before the newest; the newest call's are all kept. A file of so many has about 2 MB.
ROWS_MAX = 65_536
# A consumer that begins again where it last acknowledged has come past them after so many calls.
CALLS_MAX = 64

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("hash", pa.uint64()),
        ("time_us", pa.int64()),
        ("outcome", pa.uint8()),
        ("first_us", pa.int64()),
        ("call", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Recent:
    """Messages of the newest calls whose outcome the store could not tell again, sorted by offset."""

    table: pa.Table

    @classmethod
    def none(cls) -> Recent:
        """Give that of a deduplication without any call."""
        return cls(SCHEMA.empty_table())

    @classmethod
    def of_batches(cls, batches: Iterable[pa.RecordBatch]) -> Recent:
        """Give what `table` was when it was written; nothing of a file that holds something else."""
        found = [batch for batch in batches if batch.schema.equals(SCHEMA)]
        return cls(pa.Table.from_batches(found, SCHEMA))

    def recall(self, rows: BatchColumns, outcome: Bytes, first_us: Longs) -> Longs:
        """Set the outcome of rows that are known, and give their numbers.

        Of one message that comes twice in the call, the second is a duplicate of the first.
        """
        if not len(self.table) or rows.offsets is None:
            return np.empty(0, np.int64)
        offsets, hashes, times_us, outcomes, firsts_us, _ = self._arrays()
        places = np.minimum(np.searchsorted(offsets, rows.offsets), len(offsets) - 1)
        known = (offsets[places] == rows.offsets) & (times_us[places] == rows.times_us)
        known &= hashes[places] == rows.keys.hashes
        numbers = np.flatnonzero(known)
        outcome[numbers] = outcomes[places[numbers]]
        first_us[numbers] = firsts_us[places[numbers]]
        _, firsts = np.unique(rows.offsets[numbers], return_index=True)
        later = np.setdiff1d(numbers, numbers[firsts], assume_unique=True)
        first_us[later] = np.where(outcome[later] == UNIQUE, rows.times_us[later], first_us[later])
        outcome[later] = DUPLICATE
        return numbers

    def after(self, rows: BatchColumns, outcome: Bytes, first_us: Longs, kept: tuple[int, int]) -> Recent:
        """Give what is kept after a call: `kept` is its number, and the first time that counts after it."""
        call, counts_from_us = kept
        older = self.table
        older = older.filter(pa.compute.greater_equal(older["call"], call - CALLS_MAX))
        if rows.offsets is not None and len(rows):
            changes = (outcome == UNIQUE) & (rows.times_us < counts_from_us)
            changes |= (outcome == DUPLICATE) & (np.minimum(first_us, rows.times_us) < counts_from_us)
            numbers = np.flatnonzero(changes)
        else:
            numbers = np.empty(0, np.int64)
        if not len(numbers) and len(older) == len(self.table) <= ROWS_MAX:
            return self
        if len(older) > ROWS_MAX:
            older = older.sort_by([("call", "descending")]).slice(0, ROWS_MAX)
        return Recent(_merged(older, _new(rows, outcome, first_us, numbers, call)))

    def _arrays(self) -> list[np.ndarray[Any, Any]]:
        return [column.to_numpy() for column in self.table.columns]


def _new(rows: BatchColumns, outcome: Bytes, first_us: Longs, numbers: Longs, call: int) -> pa.Table:
    if rows.offsets is None:
        return SCHEMA.empty_table()
    hashes: Hashes = rows.keys.hashes
    picked = [column[numbers] for column in (rows.offsets, hashes, rows.times_us, outcome, first_us)]
    calls = np.full(len(numbers), call, np.int64)
    arrays = [pa.array(column, field.type) for column, field in zip([*picked, calls], SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _merged(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Give one line for each offset: what was told first holds; unique before duplicate in one call."""
    both = pa.concat_tables([older, newer]).combine_chunks()
    both = both.sort_by([("offset", "ascending"), ("call", "ascending"), ("outcome", "ascending")])
    offsets = both["offset"].to_numpy()
    is_first = np.r_[True, offsets[1:] != offsets[:-1]] if len(offsets) else np.empty(0, np.bool_)
    return both.filter(pa.array(is_first))
