"""The decision again: takes the rows of a published batch, gives the same outcome from what it stored.

A batch that comes again finds its own keys in the store, so that is not asked: the change file says which
key and time were accepted, and the compact output what the first time of each duplicate was. Rows may come
in another order; the accepted one of several with one key and time is the first by offset and row hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.checkpoint.backend import Changes, PackedEntries
from tidegate.checkpoint.keys.layout import SEGMENT_PREFIX_BYTES
from tidegate.dedup.columns import GROUP_BYTES, Bytes, KeyColumn, Longs, decode_times
from tidegate.dedup.decision import (
    DUPLICATE,
    LATE,
    UNIQUE,
    BatchColumns,
    Decision,
    Repeated,
    check_rows,
    counts_of,
    in_turn,
    late_rows,
    ordered,
    words_of,
)
from tidegate.dedup.decision_changes import added_times
from tidegate.dedup.settings import SegmentRule
from tidegate.errors import StateMismatch

# The columns of the compact output: one line for each key and time of which a row was a duplicate.
DUPLICATES_KEY = "key"
DUPLICATES_TIME = "time_us"
DUPLICATES_FIRST = "first_us"
DUPLICATES_SCHEMA = pa.schema(
    [(DUPLICATES_KEY, pa.binary()), (DUPLICATES_TIME, pa.int64()), (DUPLICATES_FIRST, pa.int64())]
)

# Rows of one key at so many times are looked at together; of more, each is looked for by itself.
STEPS_MAX = 4

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Keep = Callable[[KeyColumn], Flags]

_OTHER_ROWS = "its rows are not those of the first time"


@dataclass(frozen=True, slots=True)
class Published:
    """What a published batch left: the parts of its change file, and its compact output where it has one.

    `keep` says which keys are those of the rows at hand, where these are a part of the batch; None: all.
    """

    operator: str
    changes: Iterable[Changes]
    duplicates: pa.Table | None = None
    keep: Keep | None = None


def duplicates_table(rows: BatchColumns, decision: Decision) -> pa.Table:
    """Return the compact output of a decision: key, time and first time of its duplicates, each once."""
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


def redo(rows: BatchColumns, published: Published, rule: SegmentRule, stream_us: int | None) -> Decision:
    """Return the decision of a batch that was published; StateMismatch for rows that are not those of then.

    `stream_us` is the stream time before that batch. Without compact output the first times are left out (0).
    `changes` are empty: they are published already. Whoever has all parts of a batch compares the sums of
    their counts with those of the head: rows that were not there then show in no other way.
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
    return Decision(outcome, first_us, Changes(), counts_of(outcome), newest_us)


def _mark_accepted(rows: BatchColumns, published: Published, outcome: Bytes) -> None:
    """Find the row of each accepted key and time."""
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
    """The rows that can have been accepted: of those with one key and time the first in turn, none late."""

    def __init__(self, rows: BatchColumns, published: Published, outcome: Bytes) -> None:
        self._rows = rows
        self._published = published
        self._outcome = outcome
        self._numbers = _firsts(rows, np.flatnonzero(outcome != LATE))
        self._words = words_of(rows.keys)[self._numbers]
        self._rest: dict[tuple[bytes, int], int | None] = {}

    def mark_packed(self, entries: PackedEntries) -> None:
        """Mark the rows of packed entries, columns at a time; what is not found so waits for `mark_rest`."""
        keys, values = KeyColumn.of_digests(entries.keys), entries.values
        if self._published.keep is not None:
            kept = np.flatnonzero(self._published.keep(keys))
            keys, values = keys.take(kept), values[kept]
        with_offsets = self._rows.offsets is not None
        left = np.arange(len(keys))
        if len(self._words) and values.shape[1] == (16 if with_offsets else 8):
            left = self._found(keys, *decode_times(values, with_offsets=with_offsets))
        for key, value in zip(keys.take(left).to_list(), values[left], strict=True):
            self.add(key, added_times(value.tobytes(), with_offsets=with_offsets))

    def _found(self, keys: KeyColumn, times_us: Longs, offsets: Longs | None) -> Longs:
        """Mark the rows of keys with one time each; give the places of those that have none."""
        asked = words_of(keys)
        places = np.searchsorted(self._words, asked)
        left = np.arange(len(keys))
        for _ in range(STEPS_MAX):
            inside = places[left] < len(self._words)
            inside[inside] = self._words[places[left[inside]]] == asked[left[inside]]
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
        """Note what was accepted of a key, to be looked for one by one."""
        for time_us, offset in stamps:
            self._rest[key, time_us] = offset

    def mark_rest(self) -> None:
        """Mark the rows of what was noted; StateMismatch when one has none."""
        wanted = self._rest
        keep = self._published.keep
        if wanted and keep is not None:
            is_kept = keep(_column([key for key, _ in wanted], self._rows.keys)).tolist()
            wanted = {pair: wanted[pair] for pair, kept in zip(wanted, is_kept, strict=True) if kept}
        if not wanted:
            return
        row_of = self._rows_of({key for key, _ in wanted})
        for pair, offset in wanted.items():
            row = row_of.get(pair)
            is_other = row is None or (self._rows.offsets is not None and self._rows.offsets[row] != offset)
            if is_other:
                raise StateMismatch(operator=self._published.operator, reason=_OTHER_ROWS + _ADVICE)
            self._outcome[row] = UNIQUE

    def _rows_of(self, keys: set[bytes]) -> dict[tuple[bytes, int], int]:
        """Return the rows of some keys by key and time."""
        hashes = _column(list(keys), self._rows.keys).hashes
        numbers = self._numbers[np.isin(self._rows.keys.hashes[self._numbers], hashes)]
        listed = self._rows.keys.take(numbers).to_list()
        pairs = zip(listed, self._rows.times_us[numbers].tolist(), strict=True)
        return {pair: row for pair, row in zip(pairs, numbers.tolist(), strict=True) if pair[0] in keys}


def _firsts(rows: BatchColumns, timely: Longs) -> Longs:
    """Return the rows in the order of their keys, of those with one key and time the first in turn alone."""
    order = ordered(rows.keys, timely)
    if not len(order.repeated):
        return order.sorted_rows
    turn, keys = in_turn(Repeated(order.repeated, order.key_numbers, rows.times_us, rows.offsets, rows.tie))
    times_us = rows.times_us[turn]
    is_later = np.zeros(len(rows), np.bool_)
    is_later[turn[1:][(keys[1:] == keys[:-1]) & (times_us[1:] == times_us[:-1])]] = True
    return order.sorted_rows[~is_later[order.sorted_rows]]


_ADVICE = (
    ": a key that was stored then is in none of them. The source, or what stands between it and the "
    "deduplication, must give the same rows when a batch is repeated."
)


def _column(keys: list[bytes], like: KeyColumn) -> KeyColumn:
    if isinstance(like.bytes_, list):
        return KeyColumn.of_exact(keys)
    width = like.bytes_.shape[1]
    return KeyColumn.of_digests(np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), width))


def _fill_firsts(rows: BatchColumns, published: Published, outcome: Bytes, first_us: Longs) -> None:
    """Give each duplicate its first time from the compact output."""
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
