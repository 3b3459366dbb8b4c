"""The expected false positive rate of a filter, with which tests compare the measured one."""

from __future__ import annotations

import math

from tidegate.dedup.bloom.filter import BloomFilter

BITS_A_WORD = 3  # that a hash sets in each of its two words


def expected_false_rate_of(filters: BloomFilter) -> float:
    """Return the expected share of hashes that were never added and look as if they were."""
    missed = 1.0
    for page in filters._pages:
        missed *= 1 - expected_false_rate(page.count, page.lines)
    return 1 - missed


def expected_false_rate(count: int, lines: int) -> float:
    """Return the expected false positive rate of so many keys in an array of so many lines.

    The number of keys in a line has a Poisson distribution, that in one of its words, given the line, a
    binomial one.
    """
    mean = count / lines
    if mean == 0:
        return 0.0
    stop = int(mean + 12 * math.sqrt(mean) + 12)
    total = 0.0
    for keys in range(stop):
        weight = math.exp(keys * math.log(mean) - mean - math.lgamma(keys + 1))
        if weight > 1e-12:  # the rest is far below the precision of the comparison
            total += weight * _half_rate(keys) ** 2
    return min(1.0, total)


def _half_rate(keys: int) -> float:
    """Return the chance that three bits of one of four words are set after so many keys."""
    rate = 0.0
    for here in range(keys + 1):
        share = math.comb(keys, here) * 0.25**here * 0.75 ** (keys - here)
        rate += share * (1 - (63 / 64) ** (BITS_A_WORD * here)) ** BITS_A_WORD
    return rate
