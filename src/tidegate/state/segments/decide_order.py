"""The order of keys: takes a batch's keys, gives rows in their order, and those whose key comes twice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegate.state.segments.columns import Hashes, KeyColumn, Longs

# The first bytes of a key as one number: the key group and the beginning of the digest.
WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class Order:
    """Rows by key.

    `sorted_rows` are in the order of their keys' bytes, or of their hashes with exact keys. `repeated` are
    the rows whose key comes more than once, rows of one key side by side, and `key_numbers` says which of
    them have the same key: 0, 0, 1, 1, 1, 2, 2.
    """

    sorted_rows: Longs
    repeated: Longs
    key_numbers: Longs


def ordered(keys: KeyColumn, chosen: Longs | None = None) -> Order:
    """Give the order of all rows, or of the chosen ones."""
    words = words_of(keys) if chosen is None else words_of(keys)[chosen]
    by_word = np.argsort(words)
    words = words[by_word]
    same = words[1:] == words[:-1]
    sorted_rows: Longs = by_word if chosen is None else chosen[by_word]
    if not same.any():
        none = np.empty(0, np.int64)
        return Order(sorted_rows, none, none)
    in_run = np.zeros(len(words), np.bool_)
    in_run[1:] = same
    in_run[:-1] |= same
    places = np.flatnonzero(in_run)
    rows = sorted_rows[places]
    is_new, rows = _whole_keys(keys, rows, words[places])
    # Rows of one word that have different keys are sorted anew, in the places that they had.
    sorted_rows[places] = rows
    return _repeated(sorted_rows, rows, is_new)


def words_of(keys: KeyColumn) -> Hashes:
    """Give the first bytes of each key as a number that sorts as they do; of exact keys, their hashes."""
    if isinstance(keys.bytes_, list):
        return keys.hashes
    return np.ascontiguousarray(keys.bytes_[:, :WORD_BYTES]).view(">u8").reshape(-1).astype(np.uint64)


def _whole_keys(keys: KeyColumn, rows: Longs, words: Hashes) -> tuple[Longs, Longs]:
    """Say where another key begins among rows sorted by word, and put rows of one key side by side."""
    is_new = _differs(keys, rows)
    same_word = np.r_[False, words[1:] == words[:-1]]
    if not (is_new & same_word).any():
        return is_new, rows
    # Two keys share a word: their rows may lie mixed.
    listed = keys.take(rows).to_list()
    places = sorted(range(len(rows)), key=lambda place: (int(words[place]), listed[place]))
    rows = rows[places]
    return _differs(keys, rows), rows


def _differs(keys: KeyColumn, rows: Longs) -> Longs:
    """Say which rows have another key than the row before; the first has."""
    found = np.ones(len(rows), np.bool_)
    if isinstance(keys.bytes_, list):
        listed = [keys.bytes_[row] for row in rows.tolist()]
        found[1:] = [one != other for one, other in zip(listed[1:], listed[:-1], strict=True)]
    else:
        whole = np.take(keys.bytes_, rows, axis=0)
        found[1:] = (whole[1:] != whole[:-1]).any(axis=1)
    return found  # type: ignore[return-value]


def _repeated(sorted_rows: Longs, rows: Longs, is_new: Longs) -> Order:
    """Leave out the rows whose word another key has, but whose key comes once."""
    numbers = np.cumsum(is_new) - 1
    comes_again = np.bincount(numbers)[numbers] > 1
    numbers = numbers[comes_again]
    if len(numbers):
        numbers = np.cumsum(np.r_[False, numbers[1:] != numbers[:-1]])
    return Order(sorted_rows, rows[comes_again], numbers)
