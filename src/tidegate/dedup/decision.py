"""The decision: takes rows and what is stored of their keys, gives each row's outcome and the changes.

The rule, in microseconds of event time. Stream time is the newest event time of the batches before; none in
the first batch, where nothing is late and nothing has expired:

- a row is late when it is older than stream time minus the retention;
- else it is a duplicate when a counted time of its key is less than the retention away, before or after;
  a stored time counts while it is not older than stream time minus the retention;
- else it is unique, and its key and time are stored.

Rows of one key in one batch are taken by event time, then offset, then row hash, whatever order they lie in;
each sees the times that those before it stored. Most rows have a key that comes once and is not stored: they
cost a sort of 64-bit words and nothing per row in Python. Words only find candidates; keys are compared
whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tidegate.errors import InvariantBroken, ValueInvalid
from tidegate.state.backend import Changes
from tidegate.state.segments.columns import Bytes, Found, Hashes, KeyColumn, Longs
from tidegate.state.segments.decide_changes import Accepted, changes_of
from tidegate.state.segments.decide_order import ordered
from tidegate.state.segments.decide_repeated import Repeated, choose
from tidegate.state.segments.rule import SegmentRule

UNIQUE = 0
DUPLICATE = 1
LATE = 2
OUTCOMES = ("unique", "duplicate", "late")

# Times of 146,000 years around 1970: a retention can be added to each without leaving 64 bits.
TIME_US_LIMIT = 1 << 62

Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Lookup(Protocol):
    """What the decision asks of a store."""

    def lookup(self, keys: KeyColumn, from_us: Longs, to_us: Longs) -> Found:
        """Give every stored time of the asked keys in their ranges, both ends included."""
        ...


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """The rows of a batch, or of one part of it that holds all rows of its keys.

    `keys` begin with the key group (u16, big-endian). `offsets` are there when the store keeps them. `tie`
    gives the row hashes of the rows that it is asked for: only rows that nothing else tells apart need one.
    """

    keys: KeyColumn
    times_us: Longs
    offsets: Longs | None
    tie: Callable[[Longs], Hashes]

    def __len__(self) -> int:
        return len(self.times_us)


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of every row, and what is to be stored.

    `outcome` has UNIQUE, DUPLICATE or LATE by row; `first_us` the earliest counted time in conflict, valid
    for duplicates. `counts` has `unique`, `duplicate` and `late`. `newest_us` is the newest event time of all
    rows; None without rows.
    """

    outcome: Bytes
    first_us: Longs
    changes: Changes
    counts: dict[str, int]
    newest_us: int | None


def decide(
    rows: BatchColumns,
    store: Lookup,
    rule: SegmentRule,
    stream_us: int | None,
    *,
    is_redelivered: bool = False,
) -> Decision:
    """Give the outcome of every row against what is stored; nothing is written.

    `is_redelivered` is for sources that give a message again after it was stored: a row whose own key, time
    and offset are stored is that message, and unique again, once in a batch. Nothing is stored for it anew.
    """
    check_rows(rows)
    outcome = np.zeros(len(rows), np.uint8)
    first_us = np.zeros(len(rows), np.int64)
    late = late_rows(rows, rule, stream_us)
    timely = None
    if late is not None:
        outcome[late] = LATE
        timely = np.flatnonzero(~late)
    found = _stored_times(rows, timely, store, rule, stream_us)
    order = ordered(rows.keys, timely)
    conflicts = _conflicts(rows, found, rule, stream_us, is_redelivered=is_redelivered)
    outcome[conflicts.rows] = DUPLICATE
    first_us[conflicts.rows] = conflicts.first_us
    again = conflicts.again
    if len(order.repeated):
        again = choose(
            Repeated(order.repeated, order.key_numbers, rows.times_us, rows.offsets, rows.tie),
            rule.retention_us,
            outcome,
            first_us,
            again,
        )
    accepted = outcome == UNIQUE
    outcome[again] = UNIQUE
    newest_us = int(rows.times_us.max()) if len(rows) else None
    chosen = Accepted(rows.keys, rows.times_us, rows.offsets, order.sorted_rows[accepted[order.sorted_rows]])
    changes = changes_of(chosen, found, rule, rule.counts_from_us(stream_us))
    return Decision(outcome, first_us, changes, counts_of(outcome), newest_us)


def check_rows(rows: BatchColumns) -> None:
    """Refuse columns of different lengths, and times so far away that sums would leave 64 bits."""
    count = len(rows)
    if len(rows.keys) != count or (rows.offsets is not None and len(rows.offsets) != count):
        raise InvariantBroken(reason=f"{count} times stand beside {len(rows.keys)} keys or other offsets")
    check_times(rows.times_us)


def check_times(times_us: Longs) -> None:
    """Refuse times so far away that sums would leave 64 bits."""
    if len(times_us) and not -TIME_US_LIMIT < int(times_us.min()) <= int(times_us.max()) < TIME_US_LIMIT:
        reason = f"it is more than {TIME_US_LIMIT} µs away from 1970; mend the source's clock or the unit"
        raise ValueInvalid(place="an event time", reason=reason)


def late_rows(rows: BatchColumns, rule: SegmentRule, stream_us: int | None) -> Flags | None:
    """Say which rows are older than stream time minus the retention; None when none is."""
    counts_from_us = rule.counts_from_us(stream_us)
    if counts_from_us is None or not len(rows):
        return None
    late: Flags = rows.times_us < counts_from_us
    return late if late.any() else None


def counts_of(outcome: Bytes) -> dict[str, int]:
    """Count rows by outcome."""
    counted = np.bincount(outcome, minlength=len(OUTCOMES)).tolist()
    return dict(zip(OUTCOMES, counted, strict=True))


def _stored_times(
    rows: BatchColumns, timely: Longs | None, store: Lookup, rule: SegmentRule, stream_us: int | None
) -> Found:
    """Ask the store for what can be in conflict, or lies in the same entry as what may be stored."""
    keys = rows.keys if timely is None else rows.keys.take(timely)
    times_us = rows.times_us if timely is None else rows.times_us[timely]
    if not len(times_us):
        none = np.empty(0, np.int64)
        return Found(none, none, None if rows.offsets is None else none)
    from_us, to_us = times_us - (rule.retention_us - 1), times_us + (rule.retention_us - 1)
    if rule.holds_several:
        starts_us = rule.segments_of(times_us) * np.int64(rule.interval_us)
        np.minimum(from_us, starts_us, out=from_us)
        np.maximum(to_us, starts_us + np.int64(rule.interval_us - 1), out=to_us)
    counts_from_us = rule.counts_from_us(stream_us)
    if counts_from_us is not None:
        np.maximum(from_us, np.int64(counts_from_us), out=from_us)
    found = store.lookup(keys, from_us, to_us)
    return found if timely is None else Found(timely[found.rows], found.times_us, found.offsets)


@dataclass(frozen=True, slots=True)
class _Conflicts:
    """Rows with a stored time in conflict, the earliest one of each; and rows that are stored themselves."""

    rows: Longs
    first_us: Longs
    again: Longs


def _conflicts(
    rows: BatchColumns, found: Found, rule: SegmentRule, stream_us: int | None, *, is_redelivered: bool
) -> _Conflicts:
    none = np.empty(0, np.int64)
    if not len(found):
        return _Conflicts(none, none, none)
    own_us = rows.times_us[found.rows]
    near = np.abs(found.times_us - own_us) < rule.retention_us
    counts_from_us = rule.counts_from_us(stream_us)
    if counts_from_us is not None:
        near &= found.times_us >= counts_from_us
    again = none
    if is_redelivered and found.offsets is not None and rows.offsets is not None:
        is_own = near & (found.times_us == own_us) & (found.offsets == rows.offsets[found.rows])
        again = np.unique(found.rows[is_own])
    numbers, times_us = found.rows[near], found.times_us[near]
    if not len(numbers):
        return _Conflicts(none, none, again)
    starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
    return _Conflicts(numbers[starts], np.minimum.reduceat(times_us, starts), again)
