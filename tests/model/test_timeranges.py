"""Time ranges behave like sets of moments; times are exact both ways."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InvariantBroken, TimeRangeInvalid
from tidegate.model.durations import Duration
from tidegate.model.timeranges import (
    TIME_US_MAX,
    TIME_US_MIN,
    TimeRange,
    format_time,
    merge_ranges,
    parse_time,
)

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


@given(moments)
def test_a_time_reads_back_the_same(moment_us: int) -> None:
    text = format_time(moment_us)
    assert text.endswith("Z")
    assert parse_time(text) == moment_us


@given(
    st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 12, 31)),
    st.none() | st.integers(-1_439, 1_439).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
def test_any_zone_agrees_with_the_calendar(local: datetime, zone: timezone | None) -> None:
    text = local.replace(tzinfo=zone).isoformat()
    expected = local.replace(tzinfo=zone or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    assert parse_time(text) == expected // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2026-01-31", "2026-01-31T00:00:00Z"),
        ("2026-01-31T12:00", "2026-01-31T12:00:00Z"),
        ("2026-01-31 12:00:00", "2026-01-31T12:00:00Z"),
        (" 2026-01-31t12:00:00z ", "2026-01-31T12:00:00Z"),
        ("2026-01-31T12:00:00+02:00", "2026-01-31T10:00:00Z"),
        ("2026-01-31T12:00:00-0530", "2026-01-31T17:30:00Z"),
        ("2026-01-31T12:00:00+02", "2026-01-31T10:00:00Z"),
        ("2026-01-31T12:00:00.5Z", "2026-01-31T12:00:00.500Z"),
        ("2026-01-31T12:00:00.123456000Z", "2026-01-31T12:00:00.123456Z"),
        ("2024-02-29", "2024-02-29T00:00:00Z"),
    ],
)
def test_forms_of_iso_8601_are_read(text: str, same: str) -> None:
    assert format_time(parse_time(text)) == same


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not an ISO 8601 time"),
        ("yesterday", "is not an ISO 8601 time"),
        ("2026-1-31", "is not an ISO 8601 time"),
        ("2026-01-31T12", "is not an ISO 8601 time"),
        ("1767225600", "is not an ISO 8601 time"),
        ("2026-01-31T12:00:00+2", "is not an ISO 8601 time"),
        ("2026-01-31T12:00:00+02:", "is not an ISO 8601 time"),
        ("2025-02-29", "is not a time"),
        ("2026-01-31T24:00:00Z", "is not a time"),
        ("2026-12-31T23:59:60Z", "is not a time"),
        ("2026-01-31T12:00:00.1234567Z", "is finer than a microsecond"),
        ("2026-01-31T12:00:00+24:00", "has a zone offset of a day or more"),
        ("0001-01-01T00:00:00+01:00", "is outside the years 1 to 9999 in UTC"),
        ("9999-12-31T23:59:59-01:00", "is outside the years 1 to 9999 in UTC"),
    ],
)
def test_a_text_that_is_no_time_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(TimeRangeInvalid) as caught:
        parse_time(text)
    assert caught.value.values["reason"].startswith(f"'{text}' {reason}")
    assert "ISO 8601" in caught.value.hint


@given(st.text(max_size=40) | st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}[+-][0-9]{2}"))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    try:
        assert TIME_US_MIN <= parse_time(text) <= TIME_US_MAX
    except TimeRangeInvalid as error:
        assert error.values["reason"]
