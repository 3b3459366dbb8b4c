"""The replay of a decision: the outcome of a published batch, from its changelog file and its output.

A batch that is repeated finds its own keys in the store, so the store is not read: the changelog file says
which keys and times were accepted, and the compact output the first time of each duplicate. Rows may arrive
in another order; of several rows with one key and time the accepted one is the first by offset and row hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.checkpoint.backend import PackedEntries, StateChanges
from tidegate.checkpoint.keys.layout import SEGMENT_PREFIX_BYTES
from tidegate.dedup.columns import GROUP_BYTES, Bytes, Longs, SegmentKeys, decode_times
from tidegate.dedup.decision import (
    DUPLICATE,
    LATE,
    UNIQUE,
    BatchColumns,
    Decision,
    RepeatedKeys,
    check_rows,
    counts_of,
    decision_order,
    late_rows,
    order_by_key,
    words_of,
)
from tidegate.dedup.decision_changes import added_times
from tidegate.dedup.settings import SegmentRule
from tidegate.errors import StateMismatch

# The columns of the compact output: one line for each key and time that had a duplicate row.
DUPLICATES_KEY = "key"
DUPLICATES_TIME = "time_us"
DUPLICATES_FIRST = "first_us"
DUPLICATES_SCHEMA = pa.schema(
    [(DUPLICATES_KEY, pa.binary()), (DUPLICATES_TIME, pa.int64()), (DUPLICATES_FIRST, pa.int64())]
)

# The rows of a key with up to so many times are compared by columns; entries beyond that one by one.
STEPS_MAX = 4

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Keep = Callable[[SegmentKeys], Flags]

_OTHER_ROWS = "its rows are not those of the first time"


@dataclass(frozen=True, slots=True)
class PublishedBatch:
    """A published batch: the chunks of its changelog file, and its compact output if it has one.

    `keep` returns which keys belong to the given rows, where these are a part of the batch; None: all.
    """

    operator: str
    changes: Iterable[StateChanges]
    duplicates: pa.Table | None = None
    keep: Keep | None = None


def duplicates_table(rows: BatchColumns, decision: Decision) -> pa.Table:
    """Return the compact output of a decision: key, time and first time of the duplicates, each pair once."""
    numbers = np.flatnonzero(decision.outcome == DUPLICATE)
    keys = rows.keys.take(numbers).to_list()
    times_us, firsts_us = rows.times_us[numbers].tolist(), decision.first_us[numbers].tolist()
    lines = dict(zip(zip(keys, times_us, strict=True), firsts_us, strict=True))
    columns = [
        pa.array([key for key, _ in lines], pa.binary()),
        pa.array([time_us for _, time_us in lines], pa.int64()),
        pa.array(list(lines.values()), pa.int64()),
    ]
    return pa.Table.from_arrays(columns, schema=DUPLICATES_SCHEMA)


def replay_decision(
    rows: BatchColumns, published: PublishedBatch, rule: SegmentRule, stream_us: int | None
) -> Decision:
    """Return the decision of a published batch; StateMismatch when its rows are not the same as then.

    `stream_us` is the stream time before that batch. Without compact output the first times are 0. `changes`
    are empty: they are published already. A caller that has all parts of a batch compares the sums of their
    counts with those of the commit record: additional rows are detected in no other way.
    """
    check_rows(rows)
    outcome = np.full(len(rows), DUPLICATE, np.uint8)
    late = late_rows(rows, rule, stream_us)
    if late is not None:
        outcome[late] = LATE
    _mark_accepted(rows, published, outcome)
    first_us = np.zeros(len(rows), np.int64)
    if published.duplicates is not None:
        _fill_firsts(rows, published, outcome, first_us)
    newest_us = int(rows.times_us.max()) if len(rows) else None
    return Decision(outcome, first_us, StateChanges(), counts_of(outcome), newest_us)


def _mark_accepted(rows: BatchColumns, published: PublishedBatch, outcome: Bytes) -> None:
    """Mark the row of each accepted key and time as unique."""
    search = _Search(rows, published, outcome)
    with_offsets = rows.offsets is not None
    for changes in published.changes:
        for entries in changes.packed:
            search.mark_packed(entries)
        for entry, value in changes.entries.items():
            if value is not None:
                key = entry[:GROUP_BYTES] + entry[SEGMENT_PREFIX_BYTES:]
                search.add(key, added_times(value, with_offsets=with_offsets))
    search.mark_rest()


class _Search:
    """The rows that can have been accepted: not late, and the first in decision order of a key and time."""

    def __init__(self, rows: BatchColumns, published: PublishedBatch, outcome: Bytes) -> None:
        self._rows = rows
        self._published = published
        self._outcome = outcome
        self._numbers = _firsts(rows, np.flatnonzero(outcome != LATE))
        self._words = words_of(rows.keys)[self._numbers]
        self._rest: dict[tuple[bytes, int], int | None] = {}

    def mark_packed(self, entries: PackedEntries) -> None:
        """Mark the rows of packed entries by columns; entries not found that way wait for `mark_rest`."""
        keys, values = SegmentKeys.of_digests(entries.keys), entries.values
        if self._published.keep is not None:
            own = np.flatnonzero(self._published.keep(keys))
            keys, values = keys.take(own), values[own]
        with_offsets = self._rows.offsets is not None
        left = np.arange(len(keys))
        if len(self._words) and values.shape[1] == (16 if with_offsets else 8):
            left = self._found(keys, *decode_times(values, with_offsets=with_offsets))
        for key, value in zip(keys.take(left).to_list(), values[left], strict=True):
            self.add(key, added_times(value.tobytes(), with_offsets=with_offsets))

    def _found(self, keys: SegmentKeys, times_us: Longs, offsets: Longs | None) -> Longs:
        """Mark the rows of keys with one time each; return the positions of the keys not found."""
        words = words_of(keys)
        places = np.searchsorted(self._words, words)
        left = np.arange(len(keys))
        for _ in range(STEPS_MAX):
            inside = places[left] < len(self._words)
            inside[inside] = self._words[places[left[inside]]] == words[left[inside]]
            near = left[inside]
            if not len(near):
                break
            numbers = self._numbers[places[near]]
            fits = self._rows.times_us[numbers] == times_us[near]
            fits &= (np.take(self._rows.keys.bytes_, numbers, axis=0) == keys.take(near).bytes_).all(axis=1)
            if offsets is not None and self._rows.offsets is not None:
                fits &= self._rows.offsets[numbers] == offsets[near]
            self._outcome[numbers[fits]] = UNIQUE
            left = np.setdiff1d(left, near[fits], assume_unique=True)
            places[left] += 1
        return left

    def add(self, key: bytes, stamps: list[tuple[int, int | None]]) -> None:
        """Add the accepted times of a key to those that `mark_rest` looks up one by one."""
        for time_us, offset in stamps:
            self._rest[key, time_us] = offset

    def mark_rest(self) -> None:
        """Mark the rows of the times that were added; StateMismatch when one has no row."""
        rest = self._rest
        keep = self._published.keep
        if rest and keep is not None:
            own_flags = keep(_column([key for key, _ in rest], self._rows.keys)).tolist()
            rest = {pair: rest[pair] for pair, is_own in zip(rest, own_flags, strict=True) if is_own}
        if not rest:
            return
        row_of = self._rows_of({key for key, _ in rest})
        for pair, offset in rest.items():
            row = row_of.get(pair)
            is_other = row is None or (self._rows.offsets is not None and self._rows.offsets[row] != offset)
            if is_other:
                raise StateMismatch(operator=self._published.operator, reason=_OTHER_ROWS + _ADVICE)
            self._outcome[row] = UNIQUE

    def _rows_of(self, keys: set[bytes]) -> dict[tuple[bytes, int], int]:
        """Return the row of each key and time of some keys."""
        hashes = _column(list(keys), self._rows.keys).hashes
        numbers = self._numbers[np.isin(self._rows.keys.hashes[self._numbers], hashes)]
        key_list = self._rows.keys.take(numbers).to_list()
        pairs = zip(key_list, self._rows.times_us[numbers].tolist(), strict=True)
        return {pair: row for pair, row in zip(pairs, numbers.tolist(), strict=True) if pair[0] in keys}


def _firsts(rows: BatchColumns, timely: Longs) -> Longs:
    """Return the rows in the order of their keys; of several with one key and time only the first."""
    order = order_by_key(rows.keys, timely)
    if not len(order.repeated):
        return order.sorted_rows
    turn, keys = decision_order(
        RepeatedKeys(order.repeated, order.key_numbers, rows.times_us, rows.offsets, rows.tie)
    )
    times_us = rows.times_us[turn]
    is_later = np.zeros(len(rows), np.bool_)
    is_later[turn[1:][(keys[1:] == keys[:-1]) & (times_us[1:] == times_us[:-1])]] = True
    return order.sorted_rows[~is_later[order.sorted_rows]]


_ADVICE = (
    ": a key that was stored then is in none of them. The source, or what is between it and the "
    "deduplication, must give the same rows when a batch is repeated."
)


def _column(keys: list[bytes], like: SegmentKeys) -> SegmentKeys:
    if isinstance(like.bytes_, list):
        return SegmentKeys.of_exact(keys)
    width = like.bytes_.shape[1]
    return SegmentKeys.of_digests(np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), width))


def _fill_firsts(rows: BatchColumns, published: PublishedBatch, outcome: Bytes, first_us: Longs) -> None:
    """Set the first time of each duplicate from the compact output."""
    table = published.duplicates
    columns = (DUPLICATES_KEY, DUPLICATES_TIME, DUPLICATES_FIRST)
    lines = (
        zip(*(table.column(name).to_pylist() for name in columns), strict=True) if table is not None else ()
    )
    first_of = {(key, time_us): first for key, time_us, first in lines}
    numbers = np.flatnonzero(outcome == DUPLICATE)
    keys = rows.keys.take(numbers).to_list()
    try:
        first_us[numbers] = [
            first_of[pair] for pair in zip(keys, rows.times_us[numbers].tolist(), strict=True)
        ]
    except KeyError as problem:
        reason = f"{_OTHER_ROWS}: one that is no first occurrence was not among them."
        raise StateMismatch(operator=published.operator, reason=reason) from problem
