"""Times are exact both ways."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import TimeRangeInvalid
from tidegate.model.times import (
    TIME_US_MAX,
    TIME_US_MIN,
    format_time,
    parse_time,
)

moments = st.integers(TIME_US_MIN, TIME_US_MAX)


@given(moments)
def test_a_time_reads_back_the_same(moment_us: int) -> None:
    text = format_time(moment_us)
    assert text.endswith("Z")
    assert parse_time(text) == moment_us


@pytest.mark.parametrize("moment_us", [TIME_US_MIN - 1, TIME_US_MAX + 1])
def test_a_time_outside_the_years_1_to_9999_has_no_text(moment_us: int) -> None:
    with pytest.raises(TimeRangeInvalid) as caught:
        format_time(moment_us)
    assert caught.value.values["reason"] == f"{moment_us} µs is outside the years 1 to 9999"


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
