"""The decision again: takes the rows of a published batch, gives the same outcome from what it stored.

A batch that comes again finds its own keys in the store, so that is not asked: the change file says which
key and time were accepted, and the compact output what the first time of each duplicate was. Rows may come
in another order; the accepted one of several with one key and time is the first by offset and row hash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import StateMismatch
from tidegate.state.backend import Changes, PackedEntries
from tidegate.state.layout import SEGMENT_PREFIX_BYTES
from tidegate.state.segments.columns import GROUP_BYTES, KeyColumn, Longs, decode_times
from tidegate.state.segments.decide import (
    DUPLICATE,
    LATE,
    UNIQUE,
    BatchColumns,
    Decision,
    check_rows,
    counts_of,
    late_rows,
)
from tidegate.state.segments.decide_changes import added_times
from tidegate.state.segments.decide_order import words_of
from tidegate.state.segments.rule import SegmentRule

# The columns of the compact output: one line for each key and time of which a row was a duplicate.
DUPLICATES_KEY = "key"
DUPLICATES_TIME = "time_us"
DUPLICATES_FIRST = "first_us"
DUPLICATES_SCHEMA = pa.schema(
    [(DUPLICATES_KEY, pa.binary()), (DUPLICATES_TIME, pa.int64()), (DUPLICATES_FIRST, pa.int64())]
)

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
    """Give the compact output of a decision: key, time and first time of its duplicates, each once."""
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
    """Give the decision of a batch that was published; StateMismatch for rows that are not those of then.

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


def _mark_accepted(rows: BatchColumns, published: Published, outcome: Any) -> None:
    """Find the row of each accepted key and time."""
    words = words_of(rows.keys)
    by_word = np.argsort(words)
    words = words[by_word]
    slow = _Slow(rows, published, outcome)
    for changes in published.changes:
        for entries in changes.packed:
            _mark_packed(rows, (words, by_word), entries, slow)
        for entry, value in changes.entries.items():
            if value is not None:
                key = entry[:GROUP_BYTES] + entry[SEGMENT_PREFIX_BYTES:]
                slow.add(key, added_times(value, with_offsets=rows.offsets is not None))
    slow.mark()


def _mark_packed(
    rows: BatchColumns, sorted_words: tuple[Any, Longs], entries: PackedEntries, slow: _Slow
) -> None:
    """Find the rows of packed entries: at once where a key has one time and one row, else the slow way."""
    words, by_word = sorted_words
    keys = KeyColumn.of_digests(entries.keys)
    values = entries.values
    if slow.published.keep is not None:
        chosen = slow.published.keep(keys)
        keys, values = keys.take(np.flatnonzero(chosen)), values[chosen]
    left = np.ones(len(keys), np.bool_)
    width = 8 if rows.offsets is None else 16
    if values.shape[1] == width and len(words):
        asked = words_of(keys)
        places = np.minimum(np.searchsorted(words, asked), len(words) - 1)
        numbers = by_word[places]
        times_us, offsets = decode_times(values, with_offsets=rows.offsets is not None)
        alone = words[np.minimum(places + 1, len(words) - 1)] != asked
        alone |= places == len(words) - 1
        fits = alone & (words[places] == asked) & (rows.times_us[numbers] == times_us)
        fits &= (np.take(rows.keys.bytes_, numbers, axis=0) == keys.bytes_).all(axis=1)
        fits &= slow.outcome[numbers] == DUPLICATE
        if offsets is not None and rows.offsets is not None:
            fits &= rows.offsets[numbers] == offsets
        slow.outcome[numbers[fits]] = UNIQUE
        left = ~fits
    for key, value in zip(keys.take(np.flatnonzero(left)).to_list(), values[left], strict=True):
        slow.add(key, added_times(value.tobytes(), with_offsets=rows.offsets is not None))


class _Slow:
    """Accepted keys and times whose rows are looked for one by one."""

    def __init__(self, rows: BatchColumns, published: Published, outcome: Any) -> None:
        self.published = published
        self.outcome = outcome
        self._rows = rows
        self._wanted: dict[tuple[bytes, int], int | None] = {}

    def add(self, key: bytes, stamps: list[tuple[int, int | None]]) -> None:
        """Note what was accepted of a key."""
        for time_us, offset in stamps:
            self._wanted[key, time_us] = offset

    def mark(self) -> None:
        """Mark the row of each; StateMismatch when one has none."""
        wanted = self._wanted
        keep = self.published.keep
        if wanted and keep is not None:
            keys = [key for key, _ in wanted]
            is_kept = keep(_column(keys, self._rows.keys))
            wanted = {pair: wanted[pair] for pair, kept in zip(wanted, is_kept.tolist(), strict=True) if kept}
        if not wanted:
            return
        rows_of = self._candidates({key for key, _ in wanted})
        for (key, time_us), offset in wanted.items():
            numbers = rows_of.get((key, time_us))
            if not numbers:
                raise self._other_rows()
            row = self._first(np.array(numbers, np.int64))
            if offset is not None and self._rows.offsets is not None and self._rows.offsets[row] != offset:
                raise self._other_rows()
            self.outcome[row] = UNIQUE

    def _candidates(self, keys: set[bytes]) -> dict[tuple[bytes, int], list[int]]:
        """Give the rows of some keys by key and time, without late ones."""
        rows = self._rows
        hashes = _column(list(keys), rows.keys).hashes
        numbers = np.flatnonzero(np.isin(rows.keys.hashes, hashes) & (self.outcome != LATE))
        found: dict[tuple[bytes, int], list[int]] = defaultdict(list)
        listed = rows.keys.take(numbers).to_list()
        for number, key, time_us in zip(
            numbers.tolist(), listed, rows.times_us[numbers].tolist(), strict=True
        ):
            if key in keys:
                found[key, time_us].append(number)
        return found

    def _first(self, numbers: Longs) -> int:
        """Give the first of rows of one key and time."""
        if len(numbers) == 1:
            return int(numbers[0])
        columns: list[Any] = [self._rows.tie(numbers)]
        if self._rows.offsets is not None:
            columns.append(self._rows.offsets[numbers])
        return int(numbers[np.lexsort(columns)[0]])

    def _other_rows(self) -> StateMismatch:
        return StateMismatch(operator=self.published.operator, reason=_OTHER_ROWS + _ADVICE)


_ADVICE = (
    ": a key that was stored then is in none of them. The source, or what stands between it and the "
    "deduplication, must give the same rows when a batch is repeated."
)


def _column(keys: list[bytes], like: KeyColumn) -> KeyColumn:
    if isinstance(like.bytes_, list):
        return KeyColumn.of_exact(keys)
    width = like.bytes_.shape[1]
    return KeyColumn.of_digests(np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), width))


def _fill_firsts(rows: BatchColumns, published: Published, outcome: Any, first_us: Longs) -> None:
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
