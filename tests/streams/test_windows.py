"""Windows: sizes by time to live, the calendar, and names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.streams.windows import DAY_MS, HOUR_MS, MINUTE_MS, WEEK_MS, Window, parse_window, window_at

# 1900 to 2200, in microseconds.
_times_us = st.integers(-2_208_988_800_000_000, 7_258_118_400_000_000)
_ttls = st.integers(1, 400 * 86_400)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(time_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=time_ms)


@pytest.mark.parametrize(
    ("ttl_seconds", "size_ms"),
    [
        (1, MINUTE_MS),
        (15 * 60, MINUTE_MS),
        (15 * 60 + 1, HOUR_MS),
        (86_400, HOUR_MS),
        (86_401, DAY_MS),
        (7 * 86_400, DAY_MS),
        (7 * 86_400 + 1, WEEK_MS),
        (30 * 86_400, WEEK_MS),
        (30 * 86_400 + 1, 31 * DAY_MS),
        (3650 * 86_400, 31 * DAY_MS),
    ],
)
def test_the_size_follows_from_the_time_to_live(ttl_seconds: int, size_ms: int) -> None:
    """Case 1, at every bound."""
    january_us = 1_767_225_600_000_000
    assert window_at(january_us, ttl_seconds).duration_ms == size_ms


@given(_times_us, _ttls)
def test_a_moment_lies_in_its_window_and_both_ends_agree(time_us: int, ttl_seconds: int) -> None:
    window = window_at(time_us, ttl_seconds)
    assert window.start_us <= time_us < window.stop_us
    assert window_at(window.start_us, ttl_seconds) == window
    assert window_at(window.stop_us - 1, ttl_seconds) == window
    assert window_at(window.stop_us, ttl_seconds).start_ms == window.stop_ms


@given(_times_us)
def test_weeks_begin_on_monday_and_months_have_their_true_length(time_us: int) -> None:
    week, month = window_at(time_us, 20 * 86_400), window_at(time_us, 100 * 86_400)
    first = _moment(week.start_ms)
    assert (first.weekday(), first.hour, first.minute, first.second, first.microsecond) == (0, 0, 0, 0, 0)
    first, following = _moment(month.start_ms), _moment(month.stop_ms)
    assert (first.day, following.day) == (1, 1)
    assert (first.hour, following.hour) == (0, 0)
    months = (following.year - first.year) * 12 + following.month - first.month
    assert months == 1


def test_february_of_a_leap_year_has_29_days() -> None:
    moment_us = int(datetime(2028, 2, 29, 23, 59, tzinfo=UTC).timestamp()) * 1_000_000
    assert window_at(moment_us, 100 * 86_400).duration_ms == 29 * DAY_MS


@given(st.builds(Window, st.integers(-(10**15), 10**15), st.integers(1, 10**11)))
def test_a_name_reads_as_the_window_that_wrote_it(window: Window) -> None:
    assert parse_window(window.name) == window


@pytest.mark.parametrize(
    "name", ["", "w", "w1-", "w1-0", "w1--5", "w01-60000", "w1-060000", "x1-60000", "w1-60000x", "table.id"]
)
def test_other_names_are_no_windows(name: str) -> None:
    assert parse_window(name) is None


def test_names_are_as_the_layout_says() -> None:
    assert window_at(1_748_343_059_999_999, 60).name == "w1748343000000-60000"
