"""Rows of one key in one batch: takes those whose key comes again, says which are stored and which are not.

Of one key the rows are taken by time, offset and row hash. Times only grow, so a row can be in conflict with
one time of this batch at most: the newest that was accepted. Mostly all rows of a key lie within one
retention, and the first one that no stored time forbids is the only one accepted: that is done for all keys
at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.state.segments.columns import Bytes, Hashes, Longs

_UNIQUE = 0
_DUPLICATE = 1


@dataclass(frozen=True, slots=True)
class Repeated:
    """Rows whose key comes more than once, those of one key side by side, and which key each has.

    Times and offsets are those of the whole batch, by row.
    """

    rows: Longs
    key_numbers: Longs
    times_us: Longs
    offsets: Longs | None
    tie: Callable[[Longs], Hashes]


def choose(repeated: Repeated, retention_us: int, outcome: Bytes, first_us: Longs, again: Longs) -> Longs:
    """Mark the rows that another row of the batch makes duplicates, and give `again` without repetitions.

    `outcome` and `first_us` hold, by row of the batch, what follows from stored times, and are changed in
    place. `again` are rows that are stored themselves: of several with one key, time and offset the first
    stays.
    """
    rows, keys = in_turn(repeated)
    times_us = repeated.times_us[rows]
    free = outcome[rows] == _UNIQUE
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
        _mark(rows[near], times_us[head[near]], outcome, first_us)
        for key in np.flatnonzero(long).tolist():
            start, stop = np.searchsorted(keys, [key, key + 1])
            _walk(rows[start:stop], times_us[start:stop], retention_us, outcome, first_us)
    return _once(rows, keys, repeated, again) if len(again) else again


def _mark(rows: Longs, accepted_us: Longs, outcome: Bytes, first_us: Longs) -> None:
    """Make rows duplicates of accepted times, unless an earlier stored time is in conflict, too."""
    stored = outcome[rows] == _DUPLICATE
    first_us[rows] = np.where(stored, np.minimum(first_us[rows], accepted_us), accepted_us)
    outcome[rows] = _DUPLICATE


def _walk(rows: Longs, times_us: Longs, retention_us: int, outcome: Bytes, first_us: Longs) -> None:
    """Take the rows of one key one by one: several of them are accepted."""
    accepted_us = int(times_us[0]) - retention_us  # too far away to be in conflict with any
    for row, time_us in zip(rows.tolist(), times_us.tolist(), strict=True):
        is_near = time_us - accepted_us < retention_us
        if outcome[row] == _UNIQUE:
            if not is_near:
                accepted_us = time_us
                continue
            outcome[row] = _DUPLICATE
            first_us[row] = accepted_us
        elif is_near:
            first_us[row] = min(int(first_us[row]), accepted_us)


def _once(rows: Longs, keys: Longs, repeated: Repeated, again: Longs) -> Longs:
    """Give `again` with one row for each message that comes twice in the batch."""
    offsets = repeated.offsets
    if offsets is None:
        return again
    is_again = np.isin(rows, again)
    own_rows, own_keys = rows[is_again], keys[is_again]
    later = np.zeros(len(own_rows), np.bool_)
    later[1:] = (
        (own_keys[1:] == own_keys[:-1])
        & (repeated.times_us[own_rows[1:]] == repeated.times_us[own_rows[:-1]])
        & (offsets[own_rows[1:]] == offsets[own_rows[:-1]])
    )
    return np.setdiff1d(again, own_rows[later], assume_unique=True)


def in_turn(repeated: Repeated) -> tuple[Longs, Longs]:
    """Give rows and key numbers in the order in which rows of a key are taken: time, offset, row hash."""
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
    """Say which places hold the same as the place before."""
    found = np.zeros(len(column), np.bool_)
    found[1:] = column[1:] == column[:-1]
    return found


def _runs(same: np.ndarray[Any, np.dtype[np.bool_]]) -> Longs:
    """Give the places that are the same as the one before or the one after."""
    either = same.copy()
    either[:-1] |= same[1:]
    return np.flatnonzero(either)
