"""Durations: exact both ways, and refused with a reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import DurationInvalid, InvariantBroken
from tidegate.model.durations import US_MAX, Duration, format_duration, parse_duration

S = 1_000_000
DAY = 86_400 * S


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("100 days", 100 * DAY),
        ("1 day", DAY),
        ("2 weeks", 14 * DAY),
        ("5 s", 5 * S),
        ("5s", 5 * S),
        ("  5  Seconds ", 5 * S),
        ("15 min", 900 * S),
        ("24 h", DAY),
        ("1.5 h", 5_400 * S),
        ("250 ms", 250_000),
        ("0.1 s", 100_000),
        ("7 us", 7),
        ("7 \u00b5s", 7),
        ("7 \u03bcs", 7),
        ("0 s", 0),
        ("PT5S", 5 * S),
        ("pt5s", 5 * S),
        ("P100D", 100 * DAY),
        ("P1DT2H", 26 * 3_600 * S),
        ("P2W", 14 * DAY),
        ("PT1H30M", 5_400 * S),
        ("PT90M", 5_400 * S),
        ("PT0.000001S", 1),
        ("PT1,5S", 1_500_000),
        ("P0D", 0),
        (f"{US_MAX} us", US_MAX),
    ],
)
def test_texts_that_people_write_are_read(text: str, us: int) -> None:
    assert parse_duration(text) == Duration(us)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("5", "it has no unit"),
        ("s", "it is not a number and a unit"),
        ("5 5 s", "it is not a number and a unit"),
        (".5 s", "it is not a number and a unit"),
        ("1e3 s", "it is not a number and a unit"),
        ("\u0665 s", "it is not a number and a unit"),
        ("5 parsecs", "'parsecs' is not a unit of time"),
        ("5 m", "'m' may mean minutes or months; write 'min'"),
        ("5 months", "months and years have no fixed length; write days"),
        ("1 year", "months and years have no fixed length; write days"),
        ("P1M", "months and years have no fixed length; write days"),
        ("P1Y2D", "months and years have no fixed length; write days"),
        ("-5 s", "it is negative, and time only passes"),
        ("-PT5S", "it is negative, and time only passes"),
        ("PT-5S", "it is negative, and time only passes"),
        ("P", "it begins like ISO 8601 but is not of the form P1DT2H3M4S"),
        ("PT", "it begins like ISO 8601 but is not of the form P1DT2H3M4S"),
        ("P1DT", "it begins like ISO 8601 but is not of the form P1DT2H3M4S"),
        ("P5S", "it begins like ISO 8601 but is not of the form P1DT2H3M4S"),
        ("PT1S2H", "it begins like ISO 8601 but is not of the form P1DT2H3M4S"),
        ("PT1.5H3M", "only the last part may have a fraction"),
        ("0.5 us", "it is not a whole number of microseconds"),
        ("PT0.0000001S", "it is not a whole number of microseconds"),
        (f"{US_MAX + 1} us", "it is longer than 292,000 years"),
        ("9" * 65 + " s", "it is longer than 64 characters"),
    ],
)
def test_a_refusal_says_why(text: str, reason: str) -> None:
    with pytest.raises(DurationInvalid) as caught:
        parse_duration(text)
    assert caught.value.values["reason"] == reason


@given(st.integers(0, US_MAX) | st.integers(0, 10_000).map(lambda n: n * DAY // 48))
def test_what_is_written_reads_back_the_same(us: int) -> None:
    duration = Duration(us)
    assert parse_duration(format_duration(duration)) == duration
    assert str(duration) == format_duration(duration)


@given(
    st.tuples(st.integers(0, 9_999), st.integers(0, 99), st.integers(0, 99), st.integers(0, 10**8)),
)
def test_iso_parts_add_up(parts: tuple[int, int, int, int]) -> None:
    days, hours, minutes, us = parts
    text = f"P{days}DT{hours}H{minutes}M{us // S}.{us % S:06d}S"
    assert parse_duration(text).us == days * DAY + hours * 3_600 * S + minutes * 60 * S + us


@given(st.text(max_size=80))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        assert 0 <= parse_duration(text).us <= US_MAX
    except DurationInvalid as error:
        assert error.values["reason"]


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 s"),
        (DAY, "1 day"),
        (100 * DAY, "100 days"),
        (26 * 3_600 * S, "26 h"),
        (5_400 * S, "90 min"),
        (1_500_000, "1500 ms"),
        (1, "1 us"),
    ],
)
def test_the_largest_unit_that_is_exact_is_written(us: int, text: str) -> None:
    assert format_duration(Duration(us)) == text


@pytest.mark.parametrize("us", [-1, US_MAX + 1])
def test_no_duration_is_negative_or_past_64_bits(us: int) -> None:
    with pytest.raises(InvariantBroken):
        Duration(us)


def test_durations_compare_by_length() -> None:
    assert parse_duration("59 s") < parse_duration("1 min") == parse_duration("PT60S")
    assert parse_duration("1.5 s").seconds == 1.5
