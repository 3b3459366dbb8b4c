"""A blocked Bloom filter of 64-bit hashes in an array, computed with numpy.

The array consists of lines of 64 bytes, a cache line each, of eight 64-bit words. A hash belongs to one line
and sets six bits of it: three in one of the first four words and three in one of the last four. A probe
costs one cache miss and two gathers. With 12 bits a key 0.54 % of the hashes that were never added are false
positives (a filter that spreads its bits over the whole array: 0.3 %, six cache misses).

**Placement.** A hash is mixed again (multiply, fold, multiply, fold; both steps are bijections of 64 bits, so
no two hashes become one). In one partition only some values of `hash mod max_parallelism` occur, and sorted
hashes arrive in runs: the mixed bits show neither. The high 24 bits choose the line, the four below them the
words, the low 36 the bits in the words: no bit is used twice, up to 2^24 lines.

**No update is lost.** `add` reads the words of a chunk of hashes, sets bits in the copies and writes them
back; where two hashes of the chunk share a word, the last write wins and the other's bits may be missing.
So it reads again and repeats the step with every hash whose bits are not all set, until there is none:
on return the bits of every hash were read back as set. It terminates: in each round, of the hashes that share
a word, the one written last sets a bit that was not set before (else it would not have been repeated), and a
word has 64 bits. Every value that is written contains all bits of the one that it replaces, in one aligned
8-byte store: whenever the writer is killed, no bit that was set before is missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.errors import InvariantBroken

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]
Places = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

LINE_BYTES = 64
LINE_WORDS = 8
LINE_BITS = LINE_BYTES * 8
LINES_MAX = 1 << 24  # 1 GiB; beyond, the bits that choose the line are those that choose the words

# Hashes at a time: the six temporaries of a chunk, 256 KiB each, stay in the cores' second-level cache.
CHUNK_HASHES = 32_768

_BITS_A_WORD = 3
_FIRST_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SECOND_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
_ONE, _ZERO, _THREE, _FOUR = np.uint64(1), np.uint64(0), np.uint64(3), np.uint64(4)
_SIX_BITS = np.uint64(63)
_FOLD = np.uint64(32)
_FIRST_BITS, _LAST_BITS, _FIRST_WORD, _LAST_WORD = 0, 18, np.uint64(36), np.uint64(38)


def lines_for(keys: int, bits_per_key: int) -> int:
    """Return the number of lines for `keys`, at most `keys_max`, at `bits_per_key`."""
    lines = max(1, -(-keys * bits_per_key // LINE_BITS))
    if lines > LINES_MAX:
        raise InvariantBroken(reason=f"a page of {keys} keys has {lines} lines, {LINES_MAX} are allowed")
    return lines


def keys_max(bits_per_key: int) -> int:
    """Return the most keys of one array."""
    return LINES_MAX * LINE_BITS // bits_per_key


def lines_of(hashes: Hashes, lines: int) -> Hashes:
    """Return the line of each hash."""
    mixed, spare = np.empty_like(hashes), np.empty_like(hashes)
    _mix(hashes, mixed, spare)
    return _line(mixed, lines, spare)


def contains(words: Words, hashes: Hashes) -> Flags:
    """Return for each hash whether all its bits are set."""
    found = np.empty(len(hashes), np.bool_)
    scratch = _Scratch(min(len(hashes), CHUNK_HASHES))
    for start in range(0, len(hashes), CHUNK_HASHES):
        chunk = hashes[start : start + CHUNK_HASHES]
        first, first_mask, last, last_mask, spare = scratch.places(chunk, len(words) // LINE_WORDS)
        # `wrap` spares numpy a copy of the result; no position is out of range.
        words.take(first, out=spare, mode="wrap")
        np.bitwise_and(spare, first_mask, out=spare)
        np.bitwise_xor(spare, first_mask, out=first_mask)
        words.take(last, out=spare, mode="wrap")
        np.bitwise_and(spare, last_mask, out=spare)
        np.bitwise_xor(spare, last_mask, out=last_mask)
        np.bitwise_or(first_mask, last_mask, out=first_mask)
        np.equal(first_mask, _ZERO, out=found[start : start + CHUNK_HASHES])
    return found


def add(words: Words, hashes: Hashes) -> None:
    """Set the bits of every hash; on return each of them was read back as set."""
    scratch = _Scratch(min(len(hashes), CHUNK_HASHES))
    for start in range(0, len(hashes), CHUNK_HASHES):
        chunk = hashes[start : start + CHUNK_HASHES]
        first, first_mask, last, last_mask, _ = scratch.places(chunk, len(words) // LINE_WORDS)
        _set(words, first, first_mask)
        _set(words, last, last_mask)


def _set(words: Words, places: Places, masks: Words) -> None:
    while len(places):
        new = words.take(places)
        np.bitwise_or(new, masks, out=new)
        words[places] = new
        words.take(places, out=new, mode="wrap")
        np.bitwise_and(new, masks, out=new)
        lost = np.not_equal(new, masks)
        if not lost.any():
            return
        places, masks = places[lost], masks[lost]


class _Scratch:
    """Temporary arrays of one call, reused for each chunk."""

    def __init__(self, size: int) -> None:
        self._arrays = np.empty((6, size), np.uint64)

    def places(self, hashes: Hashes, lines: int) -> tuple[Places, Words, Places, Words, Words]:
        """Return the two words of each hash, the bits in each, and a spare array."""
        mixed, first, first_mask, last, last_mask, spare = self._arrays[:, : len(hashes)]
        _mix(hashes, mixed, spare)
        _line(mixed, lines, first)
        np.left_shift(first, _THREE, out=first)
        np.right_shift(mixed, _LAST_WORD, out=last)
        np.bitwise_and(last, _THREE, out=last)
        np.bitwise_or(last, _FOUR, out=last)
        np.bitwise_or(last, first, out=last)
        np.right_shift(mixed, _FIRST_WORD, out=spare)
        np.bitwise_and(spare, _THREE, out=spare)
        np.bitwise_or(first, spare, out=first)
        _mask(mixed, _FIRST_BITS, first_mask, spare)
        _mask(mixed, _LAST_BITS, last_mask, spare)
        return first.view(np.int64), first_mask, last.view(np.int64), last_mask, spare


def _mix(hashes: Hashes, mixed: Hashes, spare: Hashes) -> None:
    np.multiply(hashes, _FIRST_MULTIPLIER, out=mixed)
    np.right_shift(mixed, _FOLD, out=spare)
    np.bitwise_xor(mixed, spare, out=mixed)
    np.multiply(mixed, _SECOND_MULTIPLIER, out=mixed)
    np.right_shift(mixed, _FOLD, out=spare)
    np.bitwise_xor(mixed, spare, out=mixed)


def _line(mixed: Hashes, lines: int, out: Hashes) -> Hashes:
    np.right_shift(mixed, _FOLD, out=out)
    np.multiply(out, np.uint64(lines), out=out)
    np.right_shift(out, _FOLD, out=out)
    return out


def _mask(mixed: Hashes, shift: int, out: Words, spare: Words) -> None:
    out.fill(0)
    for number in range(_BITS_A_WORD):
        np.right_shift(mixed, np.uint64(shift + 6 * number), out=spare)
        np.bitwise_and(spare, _SIX_BITS, out=spare)
        np.left_shift(_ONE, spare, out=spare)
        np.bitwise_or(out, spare, out=out)
