"""The deduplication decision: the outcome of each row of a batch, and the changes to the store.

The rule, in microseconds of event time. Stream time is the newest event time of the earlier batches; the
first batch has none, so nothing is late and nothing has expired:

- a row is late when it is older than stream time minus the retention;
- else it is a duplicate when a counted time of its key is less than the retention away, before or after;
  a stored time counts while it is not older than stream time minus the retention;
- else it is unique, and its key and time are stored.

Rows of one key in one batch are decided in the order of event time, offset and row hash, whatever their order
in the batch; each sees the times that the rows before it stored. Most rows have a key that occurs once in the
batch and is not stored: they cost a sort of 64-bit words and no Python per row. Equal words only find
candidates; keys are compared whole.

Within a key times only grow, so a row can conflict with one time of this batch at most: the newest accepted
one. Usually all rows of a key lie within one retention, and only the first row without a conflicting stored
time is accepted; this case is computed for all keys at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tidegate.checkpoint.backend import StateChanges
from tidegate.dedup.columns import Bytes, Hashes, Longs, SegmentKeys, StoredTimes
from tidegate.dedup.decision_changes import AcceptedRows, changes_of
from tidegate.dedup.settings import SegmentRule
from tidegate.errors import InvariantBroken, ValueInvalid

UNIQUE = 0
DUPLICATE = 1
LATE = 2
OUTCOMES = ("unique", "duplicate", "late")

# Times of 146,000 years around 1970: a retention can be added to each without leaving 64 bits.
TIME_US_LIMIT = 1 << 62

Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Lookup(Protocol):
    """The store as the decision reads it."""

    def lookup(self, keys: SegmentKeys, from_us: Longs, to_us: Longs) -> StoredTimes:
        """Return every stored time of each key in its range, both ends included."""
        ...


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """The rows of a batch, or of a part of it that has all rows of its keys.

    `keys` begin with the key group (u16, big-endian). `offsets` are set when the store keeps them. `tie`
    returns the row hashes of the given rows: only rows with equal key, time and offset need one.
    """

    keys: SegmentKeys
    times_us: Longs
    offsets: Longs | None
    tie: Callable[[Longs], Hashes]

    def __len__(self) -> int:
        return len(self.times_us)


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of every row, and the changes to the store.

    `outcome` is UNIQUE, DUPLICATE or LATE for each row; `first_us` is the earliest counted time in conflict,
    valid for duplicates. `counts` has `unique`, `duplicate` and `late`. `newest_us` is the newest event time
    of all rows; None without rows.
    """

    outcome: Bytes
    first_us: Longs
    changes: StateChanges
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
    """Return the outcome of every row against the store; nothing is written.

    `is_redelivered` is for sources that deliver a message again after it was stored: a row whose own key,
    time and offset are stored is that message and unique again, once per batch. It is not stored again.
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
    order = order_by_key(rows.keys, timely)
    conflicts = _conflicts(rows, found, rule, stream_us, is_redelivered=is_redelivered)
    outcome[conflicts.rows] = DUPLICATE
    first_us[conflicts.rows] = conflicts.first_us
    redelivered = conflicts.redelivered
    if len(order.repeated):
        redelivered = resolve_repeated(
            RepeatedKeys(order.repeated, order.key_numbers, rows.times_us, rows.offsets, rows.tie),
            rule.retention_us,
            outcome,
            first_us,
            redelivered,
        )
    accepted = outcome == UNIQUE
    outcome[redelivered] = UNIQUE
    newest_us = int(rows.times_us.max()) if len(rows) else None
    chosen = AcceptedRows(
        rows.keys, rows.times_us, rows.offsets, order.sorted_rows[accepted[order.sorted_rows]]
    )
    changes = changes_of(chosen, found, rule, rule.counts_from_us(stream_us))
    return Decision(outcome, first_us, changes, counts_of(outcome), newest_us)


def check_rows(rows: BatchColumns) -> None:
    """Raise for columns of different lengths, and for times so far away that sums would overflow 64 bits."""
    count = len(rows)
    if len(rows.keys) != count or (rows.offsets is not None and len(rows.offsets) != count):
        raise InvariantBroken(reason=f"{count} times do not fit {len(rows.keys)} keys or the offsets")
    check_times(rows.times_us)


def check_times(times_us: Longs) -> None:
    """Raise ValueInvalid for times so far away that sums would overflow 64 bits."""
    if len(times_us) and not -TIME_US_LIMIT < int(times_us.min()) <= int(times_us.max()) < TIME_US_LIMIT:
        reason = f"it is more than {TIME_US_LIMIT} µs away from 1970; correct the source's clock or the unit"
        raise ValueInvalid(place="an event time", reason=reason)


def late_rows(rows: BatchColumns, rule: SegmentRule, stream_us: int | None) -> Flags | None:
    """Return which rows are older than stream time minus the retention; None when none is."""
    counts_from_us = rule.counts_from_us(stream_us)
    if counts_from_us is None or not len(rows):
        return None
    late: Flags = rows.times_us < counts_from_us
    return late if late.any() else None


def counts_of(outcome: Bytes) -> dict[str, int]:
    """Return the number of rows by outcome."""
    counted = np.bincount(outcome, minlength=len(OUTCOMES)).tolist()
    return dict(zip(OUTCOMES, counted, strict=True))


def _stored_times(
    rows: BatchColumns, timely: Longs | None, store: Lookup, rule: SegmentRule, stream_us: int | None
) -> StoredTimes:
    """Look up the times that can be in conflict, or that share an entry with a time that may be stored."""
    keys = rows.keys if timely is None else rows.keys.take(timely)
    times_us = rows.times_us if timely is None else rows.times_us[timely]
    if not len(times_us):
        none = np.empty(0, np.int64)
        return StoredTimes(none, none, None if rows.offsets is None else none)
    from_us, to_us = times_us - (rule.retention_us - 1), times_us + (rule.retention_us - 1)
    if rule.holds_several:
        starts_us = rule.segments_of(times_us) * np.int64(rule.interval_us)
        np.minimum(from_us, starts_us, out=from_us)
        np.maximum(to_us, starts_us + np.int64(rule.interval_us - 1), out=to_us)
    counts_from_us = rule.counts_from_us(stream_us)
    if counts_from_us is not None:
        np.maximum(from_us, np.int64(counts_from_us), out=from_us)
    found = store.lookup(keys, from_us, to_us)
    return found if timely is None else StoredTimes(timely[found.rows], found.times_us, found.offsets)


@dataclass(frozen=True, slots=True)
class _Conflicts:
    """Rows in conflict with a stored time, the earliest such time of each, and rows that are redelivered."""

    rows: Longs
    first_us: Longs
    redelivered: Longs


def _conflicts(
    rows: BatchColumns, found: StoredTimes, rule: SegmentRule, stream_us: int | None, *, is_redelivered: bool
) -> _Conflicts:
    none = np.empty(0, np.int64)
    if not len(found):
        return _Conflicts(none, none, none)
    own_us = rows.times_us[found.rows]
    near = np.abs(found.times_us - own_us) < rule.retention_us
    counts_from_us = rule.counts_from_us(stream_us)
    if counts_from_us is not None:
        near &= found.times_us >= counts_from_us
    redelivered = none
    if is_redelivered and found.offsets is not None and rows.offsets is not None:
        is_own = near & (found.times_us == own_us) & (found.offsets == rows.offsets[found.rows])
        redelivered = np.unique(found.rows[is_own])
    numbers, times_us = found.rows[near], found.times_us[near]
    if not len(numbers):
        return _Conflicts(none, none, redelivered)
    starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
    return _Conflicts(numbers[starts], np.minimum.reduceat(times_us, starts), redelivered)


# The first bytes of a key as one number: the key group and the first six bytes of the digest.
WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """The rows of a batch in the order of their keys.

    `sorted_rows` are in the order of the keys' bytes, or of their hashes with exact keys. `repeated` are the
    rows whose key occurs more than once, rows of one key adjacent, and `key_numbers` numbers these keys:
    0, 0, 1, 1, 1, 2, 2.
    """

    sorted_rows: Longs
    repeated: Longs
    key_numbers: Longs


def order_by_key(keys: SegmentKeys, chosen: Longs | None = None) -> KeyOrder:
    """Return the key order of all rows, or of the chosen ones."""
    words = words_of(keys) if chosen is None else words_of(keys)[chosen]
    by_word = np.argsort(words)
    words = words[by_word]
    same = words[1:] == words[:-1]
    sorted_rows: Longs = by_word if chosen is None else chosen[by_word]
    if not same.any():
        none = np.empty(0, np.int64)
        return KeyOrder(sorted_rows, none, none)
    in_run = np.zeros(len(words), np.bool_)
    in_run[1:] = same
    in_run[:-1] |= same
    places = np.flatnonzero(in_run)
    rows = sorted_rows[places]
    is_new, rows = _compare_whole_keys(keys, rows, words[places])
    # Rows that share a word and have different keys are sorted among themselves.
    sorted_rows[places] = rows
    return _repeated_keys(sorted_rows, rows, is_new)


def words_of(keys: SegmentKeys) -> Hashes:
    """Return the first bytes of each key as a number in the same order; the hashes of exact keys."""
    if isinstance(keys.bytes_, list):
        return keys.hashes
    return np.ascontiguousarray(keys.bytes_[:, :WORD_BYTES]).view(">u8").reshape(-1).astype(np.uint64)


def _compare_whole_keys(keys: SegmentKeys, rows: Longs, words: Hashes) -> tuple[Longs, Longs]:
    """Return which rows begin another key, and the rows sorted so that those of one key are adjacent."""
    is_new = _differs(keys, rows)
    same_word = np.r_[False, words[1:] == words[:-1]]
    if not (is_new & same_word).any():
        return is_new, rows
    # Two keys share a word: their rows may be interleaved.
    key_list = keys.take(rows).to_list()
    places = sorted(range(len(rows)), key=lambda place: (int(words[place]), key_list[place]))
    rows = rows[places]
    return _differs(keys, rows), rows


def _differs(keys: SegmentKeys, rows: Longs) -> Longs:
    """Return which rows have another key than the row before; True for the first row."""
    found = np.ones(len(rows), np.bool_)
    if isinstance(keys.bytes_, list):
        key_list = [keys.bytes_[row] for row in rows.tolist()]
        found[1:] = [one != other for one, other in zip(key_list[1:], key_list[:-1], strict=True)]
    else:
        whole = np.take(keys.bytes_, rows, axis=0)
        found[1:] = (whole[1:] != whole[:-1]).any(axis=1)
    return found  # type: ignore[return-value]


def _repeated_keys(sorted_rows: Longs, rows: Longs, is_new: Longs) -> KeyOrder:
    """Return the order without repeated rows whose word occurs again but whose key does not."""
    numbers = np.cumsum(is_new) - 1
    is_repeated = np.bincount(numbers)[numbers] > 1
    numbers = numbers[is_repeated]
    if len(numbers):
        numbers = np.cumsum(np.r_[False, numbers[1:] != numbers[:-1]])
    return KeyOrder(sorted_rows, rows[is_repeated], numbers)


@dataclass(frozen=True, slots=True)
class RepeatedKeys:
    """The rows whose key occurs more than once, rows of one key adjacent, and the key number of each.

    Times and offsets are those of the whole batch, by row.
    """

    rows: Longs
    key_numbers: Longs
    times_us: Longs
    offsets: Longs | None
    tie: Callable[[Longs], Hashes]


def resolve_repeated(
    repeated: RepeatedKeys, retention_us: int, outcome: Bytes, first_us: Longs, redelivered: Longs
) -> Longs:
    """Mark rows that are duplicates of rows of the same batch; return `redelivered` without repetitions.

    `outcome` and `first_us` hold, by row of the batch, the result of the lookup, and are updated in place.
    Of several `redelivered` rows with one key, time and offset only the first stays.
    """
    rows, keys = decision_order(repeated)
    times_us = repeated.times_us[rows]
    free = outcome[rows] == UNIQUE
    count = int(keys[-1]) + 1
    places = np.flatnonzero(free)
    if len(places):
        heads, lasts = np.full(count, -1), np.full(count, -1)
        heads[keys[places[::-1]]] = places[::-1]
        lasts[keys[places]] = places
        head = heads[keys]
        near = (head >= 0) & (np.arange(len(rows)) > head) & (times_us - times_us[head] < retention_us)
        long = (heads >= 0) & (times_us[lasts] - times_us[heads] >= retention_us)
        near &= ~long[keys]
        _mark_duplicates(rows[near], times_us[head[near]], outcome, first_us)
        for key in np.flatnonzero(long).tolist():
            start, stop = np.searchsorted(keys, [key, key + 1])
            _resolve_one_key(rows[start:stop], times_us[start:stop], retention_us, outcome, first_us)
    return _first_redelivered(rows, keys, repeated, redelivered) if len(redelivered) else redelivered


def _mark_duplicates(rows: Longs, accepted_us: Longs, outcome: Bytes, first_us: Longs) -> None:
    """Mark rows as duplicates of accepted times, or of an earlier stored time that is in conflict, too."""
    stored = outcome[rows] == DUPLICATE
    first_us[rows] = np.where(stored, np.minimum(first_us[rows], accepted_us), accepted_us)
    outcome[rows] = DUPLICATE


def _resolve_one_key(
    rows: Longs, times_us: Longs, retention_us: int, outcome: Bytes, first_us: Longs
) -> None:
    """Decide the rows of one key one by one: several of them are accepted."""
    accepted_us = int(times_us[0]) - retention_us  # too far away to conflict with any row
    for row, time_us in zip(rows.tolist(), times_us.tolist(), strict=True):
        is_near = time_us - accepted_us < retention_us
        if outcome[row] == UNIQUE:
            if not is_near:
                accepted_us = time_us
                continue
            outcome[row] = DUPLICATE
            first_us[row] = accepted_us
        elif is_near:
            first_us[row] = min(int(first_us[row]), accepted_us)


def _first_redelivered(rows: Longs, keys: Longs, repeated: RepeatedKeys, redelivered: Longs) -> Longs:
    """Return `redelivered` with one row for each message that occurs twice in the batch."""
    offsets = repeated.offsets
    if offsets is None:
        return redelivered
    is_redelivered = np.isin(rows, redelivered)
    own_rows, own_keys = rows[is_redelivered], keys[is_redelivered]
    later = np.zeros(len(own_rows), np.bool_)
    later[1:] = (
        (own_keys[1:] == own_keys[:-1])
        & (repeated.times_us[own_rows[1:]] == repeated.times_us[own_rows[:-1]])
        & (offsets[own_rows[1:]] == offsets[own_rows[:-1]])
    )
    return np.setdiff1d(redelivered, own_rows[later], assume_unique=True)


def decision_order(repeated: RepeatedKeys) -> tuple[Longs, Longs]:
    """Return rows and key numbers in the order of the decision: by key, time, offset and row hash."""
    rows, keys = repeated.rows, repeated.key_numbers
    turn = np.lexsort((repeated.times_us[rows], keys))
    rows, keys = rows[turn], keys[turn]
    same = _equal(keys) & _equal(repeated.times_us[rows])
    if not same.any():
        return rows, keys
    places = _runs(same)
    tied = rows[places]
    columns: list[np.ndarray[Any, Any]] = [repeated.times_us[tied], keys[places]]
    if repeated.offsets is not None:
        columns.insert(0, repeated.offsets[tied])
        tied = tied[np.lexsort(columns)]
        rows[places] = tied
        same &= _equal(repeated.offsets[rows])
        if not same.any():
            return rows, keys
        places = _runs(same)
        tied = rows[places]
        columns = [repeated.offsets[tied], repeated.times_us[tied], keys[places]]
    columns.insert(0, repeated.tie(tied))
    rows[places] = tied[np.lexsort(columns)]
    return rows, keys


def _equal(column: Longs) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which elements equal the element before."""
    found = np.zeros(len(column), np.bool_)
    found[1:] = column[1:] == column[:-1]
    return found


def _runs(same: np.ndarray[Any, np.dtype[np.bool_]]) -> Longs:
    """Return the positions of elements that equal the one before or the one after."""
    either = same.copy()
    either[:-1] |= same[1:]
    return np.flatnonzero(either)
