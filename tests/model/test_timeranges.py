"""Time ranges behave like sets of moments."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InvariantBroken, TimeRangeInvalid
from tidegate.model.durations import Duration
from tidegate.model.timeranges import TimeRange, merge_ranges
from tidegate.model.times import TIME_US_MAX, TIME_US_MIN

moments = st.integers(TIME_US_MIN, TIME_US_MAX)
# Small ranges, so that a range can be compared with the set of its moments, and touching is common.
ranges = st.builds(
    lambda start, length: TimeRange(start, start + length), st.integers(-20, 20), st.integers(1, 15)
)


def moments_of(span: TimeRange | None) -> set[int]:
    return set(range(span.start_us, span.stop_us)) if span else set()


@given(ranges, st.integers(-40, 40))
def test_the_start_is_in_and_the_stop_is_not(span: TimeRange, moment: int) -> None:
    assert span.contains(moment) == (moment in moments_of(span))
    assert span.contains(span.start_us)
    assert not span.contains(span.stop_us)
    assert span.length.us == len(moments_of(span))


@given(ranges, ranges)
def test_ranges_meet_like_sets(one: TimeRange, other: TimeRange) -> None:
    assert moments_of(one.intersect(other)) == moments_of(one) & moments_of(other)
    assert one.overlaps(other) == bool(moments_of(one) & moments_of(other))
    assert one.covers(other) == (moments_of(one) >= moments_of(other))


@given(ranges, ranges)
def test_a_union_is_a_range_unless_a_gap_parts_them(one: TimeRange, other: TimeRange) -> None:
    together = moments_of(one) | moments_of(other)
    has_gap = len(together) < max(together) - min(together) + 1
    assert moments_of(one.union(other)) == (set() if has_gap else together)


def test_touching_ranges_join_but_do_not_overlap() -> None:
    one, other = TimeRange(0, 5), TimeRange(5, 9)
    assert not one.overlaps(other)
    assert one.intersect(other) is None
    assert one.union(other) == other.union(one) == TimeRange(0, 9)


@given(st.lists(ranges, max_size=12))
def test_merged_ranges_hold_the_same_moments_and_never_touch(spans: list[TimeRange]) -> None:
    merged = merge_ranges(spans)
    assert set().union(*map(moments_of, merged)) == set().union(*map(moments_of, spans))
    assert all(left.stop_us < right.start_us for left, right in pairwise(merged))


@given(moments, st.integers(1, 10**15), st.integers(1, 50))
def test_pieces_follow_each_other_and_fill_the_range(start: int, length: int, pieces: int) -> None:
    span = TimeRange(start, min(start + length, TIME_US_MAX)) if start < TIME_US_MAX else TimeRange(0, length)
    step = Duration(max(1, span.length.us // pieces))
    split = list(span.split(step))
    assert (split[0].start_us, split[-1].stop_us) == (span.start_us, span.stop_us)
    assert all(left.stop_us == right.start_us for left, right in pairwise(split))
    assert all(piece.length == step for piece in split[:-1])
    assert split[-1].length <= step


def test_splitting_is_lazy() -> None:
    everything = TimeRange(TIME_US_MIN, TIME_US_MAX)
    assert next(everything.split(Duration(1))) == TimeRange(TIME_US_MIN, TIME_US_MIN + 1)


def test_a_step_of_no_length_is_refused_at_once() -> None:
    with pytest.raises(InvariantBroken):
        TimeRange(0, 5).split(Duration(0))


@pytest.mark.parametrize(
    ("start", "stop", "reason"),
    [
        (1, 1, "its end 1970-01-01T00:00:00.000001Z is not after its start 1970-01-01T00:00:00.000001Z"),
        (1_000_000, 0, "its end 1970-01-01T00:00:00Z is not after its start 1970-01-01T00:00:01Z"),
        (0, TIME_US_MAX + 1, f"{TIME_US_MAX + 1} µs is outside the years 1 to 9999"),
        (TIME_US_MIN - 1, 0, f"{TIME_US_MIN - 1} µs is outside the years 1 to 9999"),
    ],
)
def test_a_range_that_cannot_be_is_refused(start: int, stop: int, reason: str) -> None:
    with pytest.raises(TimeRangeInvalid) as caught:
        TimeRange(start, stop)
    assert caught.value.values["reason"] == reason


def test_a_range_prints_as_two_times() -> None:
    assert str(TimeRange(0, 1_500_000)) == "1970-01-01T00:00:00Z to 1970-01-01T00:00:01.500Z"
