"""The array behind a filter: no hash is ever lost, and strangers are told apart as often as promised."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dedup.bloom.false_rate import expected_false_rate
from tidegate.dedup.bloom import blocked
from tidegate.dedup.bloom.blocked import LINE_WORDS, Hashes, Words
from tidegate.errors import InvariantBroken

BITS = 12
KEYS = 200_000
FALSE_RATE_MAX = 0.0065  # 0.54 % is expected at 12 bits; the promise is 1.5 %


def hashes_of(seed: int, count: int) -> Hashes:
    return np.random.default_rng(seed).integers(0, 1 << 64, count, dtype=np.uint64)


def empty(keys: int) -> Words:
    return np.zeros(blocked.lines_for(keys, BITS) * LINE_WORDS, np.uint64)


def false_rate(own: Hashes, strange: Hashes) -> float:
    words = empty(len(own))
    blocked.add(words, own)
    assert blocked.contains(words, own).all()
    return float(blocked.contains(words, strange).mean())


def test_what_was_added_is_found_and_few_strangers_are() -> None:
    assert false_rate(hashes_of(1, KEYS), hashes_of(2, KEYS)) < FALSE_RATE_MAX


@pytest.mark.parametrize("groups", [range(3, 4), range(8, 24), range(112, 128)])
def test_hashes_of_few_key_groups_spread_over_all_lines(groups: range) -> None:
    """In one partition only some values of `hash mod 128` occur."""
    every = hashes_of(3, 2 * KEYS)
    some = every - every % np.uint64(128) + (every >> np.uint64(9)) % np.uint64(len(groups))
    some += np.uint64(groups.start)
    assert false_rate(some[:KEYS], some[KEYS:]) < FALSE_RATE_MAX


@pytest.mark.parametrize("shift", [0, 20, 32, 46])
def test_hashes_that_are_hardly_mixed_spread_over_all_lines(shift: int) -> None:
    numbers = np.arange(2 * KEYS, dtype=np.uint64) << np.uint64(shift)
    assert false_rate(numbers[::2].copy(), numbers[1::2].copy()) < 0.015


@pytest.mark.parametrize("lines", [1, 2, 7])
def test_no_update_is_lost_where_all_hashes_of_a_call_share_a_line(lines: int) -> None:
    """The words are bit for bit those that the hashes give when they are added one by one."""
    own = hashes_of(4, 40_000)
    for count in (2, 5, 9, 33, len(own)):
        together, one_by_one = np.zeros((2, lines * LINE_WORDS), np.uint64)
        blocked.add(together, own[:count])
        assert blocked.contains(together, own[:count]).all()
        for number in range(min(count, 33)):
            blocked.add(one_by_one, own[number : number + 1])
        if count <= 33:
            assert (together == one_by_one).all()


def test_the_same_hash_many_times_in_a_call_is_one_hash() -> None:
    many, once = np.zeros((2, 64 * LINE_WORDS), np.uint64)
    own = hashes_of(5, 50)
    blocked.add(many, np.repeat(own, 3_000))
    blocked.add(once, own)
    assert (many == once).all()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    counts=st.lists(st.integers(0, 70_000), min_size=1, max_size=4),
    keys=st.sampled_from([1, 100, 5_000, 300_000]),
)
def test_bits_are_only_ever_set_and_every_hash_is_found(seed: int, counts: list[int], keys: int) -> None:
    words = empty(keys)
    own = hashes_of(seed, sum(counts))
    start = 0
    for count in counts:
        before = words.copy()
        blocked.add(words, own[start : start + count])
        start += count
        assert (words & before == before).all()
        assert blocked.contains(words, own[:start]).all()


def test_the_order_of_hashes_makes_no_difference() -> None:
    own = hashes_of(6, 100_000)
    as_they_come, ordered = np.zeros((2, 1_000 * LINE_WORDS), np.uint64)
    blocked.add(as_they_come, own)
    blocked.add(ordered, np.sort(own))
    assert (as_they_come == ordered).all()


@pytest.mark.parametrize("load", [0.25, 1.0, 1.5])
def test_the_expected_rate_is_the_measured_one(load: float) -> None:
    words = empty(KEYS)
    own = hashes_of(7, int(KEYS * load))
    blocked.add(words, own)
    measured = blocked.contains(words, hashes_of(8, 1_000_000)).mean()
    expected = expected_false_rate(len(own), len(words) // LINE_WORDS)
    assert expected == pytest.approx(measured, rel=0.1, abs=2e-5)
    assert expected_false_rate(0, 10) == 0


def test_lines_lie_in_the_array_up_to_the_last() -> None:
    lines = blocked.lines_of(np.arange(1 << 16, dtype=np.uint64), 97)
    assert lines.min() == 0
    assert lines.max() == 96
    assert blocked.lines_for(blocked.keys_max(BITS), BITS) <= blocked.LINES_MAX
    with pytest.raises(InvariantBroken):
        blocked.lines_for(blocked.keys_max(BITS) + 1_000, BITS)
