"""Case 19: how time is cut into segments, which of them live, and what their folders are called."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.dedup.settings import INTERVAL_US_MIN, SegmentRule
from tidegate.errors import StateInvalid

SECOND = 1_000_000
DAY = 86_400 * SECOND
TIMES = st.integers(-(1 << 55), 1 << 55)


def test_a_hundred_days_lie_in_segments_of_fifty() -> None:
    rule = SegmentRule.of(100 * DAY)
    assert rule.interval_us == 50 * DAY
    assert [rule.folder_name("orders", n) for n in (-1, 0, 1)] == [
        "orders.-4320000000",
        "orders.0",
        "orders.4320000000",
    ]


@pytest.mark.parametrize(
    ("retention_us", "interval_us"), [(1, INTERVAL_US_MIN), (5 * 60 * SECOND, 150 * SECOND)]
)
def test_the_interval_is_half_the_retention_and_a_minute_at_least(
    retention_us: int, interval_us: int
) -> None:
    assert SegmentRule.of(retention_us).interval_us == interval_us


def test_the_interval_is_whole_milliseconds() -> None:
    assert SegmentRule.of(200 * SECOND + 1).interval_us % 1_000 == 0
    with pytest.raises(StateInvalid, match="whole number of milliseconds"):
        SegmentRule(DAY, 60 * SECOND + 1)


def test_a_time_at_the_boundary_belongs_to_the_later_segment() -> None:
    rule = SegmentRule.of(100 * DAY)
    assert [rule.segment_of(time) for time in (-1, 0, 50 * DAY - 1, 50 * DAY)] == [-1, 0, 0, 1]


@given(time=TIMES, interval_ms=st.integers(1, 1 << 40))
def test_columns_are_cut_as_single_times_are(time: int, interval_ms: int) -> None:
    rule = SegmentRule(min(DAY, interval_ms * 1_000), interval_ms * 1_000)
    number = rule.segment_of(time)
    assert rule.start_us(number) <= time < rule.start_us(number + 1)
    assert rule.segments_of(np.array([time], np.int64)).tolist() == [number]
    assert rule.segment_of_folder("a.b", rule.folder_name("a.b", number)) == number


@pytest.mark.parametrize(
    "name", ["other.0", "orders", "orders.1", "orders.0.gone.1", "orders.-0", "orders.00"]
)
def test_other_folders_are_no_segments(name: str) -> None:
    assert SegmentRule.of(100 * DAY).segment_of_folder("orders", name) is None


def test_a_segment_expires_when_all_of_it_is_older_than_the_retention() -> None:
    rule = SegmentRule.of(100 * DAY)
    assert rule.first_live(None) is None
    assert [rule.first_live(day * DAY) for day in (0, 99, 100, 149, 150)] == [-2, -1, 0, 0, 1]
    assert rule.counts_from_us(100 * DAY) == 0


def test_three_segments_live_at_once_with_half_the_retention_each() -> None:
    rule = SegmentRule.of(100 * DAY)
    newest, oldest = rule.segment_of(149 * DAY), rule.first_live(149 * DAY)
    assert oldest is not None
    assert newest - oldest + 1 == 3


def test_too_many_segments_are_refused_with_the_interval_that_would_do() -> None:
    with pytest.raises(StateInvalid, match="give an interval of 16942 ms or more"):
        SegmentRule(8_640 * SECOND, 1_000)
    SegmentRule(8_640 * SECOND, 16_942_000)


@pytest.mark.parametrize("retention_us", [0, -5, 1 << 61])
def test_a_retention_that_cannot_be_is_refused(retention_us: int) -> None:
    with pytest.raises(StateInvalid, match="retention"):
        SegmentRule(retention_us, 60 * SECOND)


def test_a_key_may_have_several_times_in_a_segment_that_is_longer_than_the_retention() -> None:
    assert SegmentRule.of(30 * SECOND).holds_several
    assert not SegmentRule.of(60 * SECOND).holds_several
