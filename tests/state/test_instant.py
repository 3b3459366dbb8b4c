"""Moments reckon as ints, with timedelta and with datetime."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from tidegate.errors import ValueInvalid
from tidegate.state.instant import Moment, time_ms

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_767_268_800_000


def test_a_moment_adds_and_takes_away_lengths_of_time() -> None:
    noon = Moment(NOON_MS)
    assert noon + timedelta(minutes=30) == Moment(NOON_MS + 1_800_000)
    assert timedelta(minutes=30) + noon == NOON_MS + 1_800_000
    assert noon - timedelta(hours=1) == NOON_MS - 3_600_000
    assert noon + 1 == NOON_MS + 1
    assert isinstance(noon + 1, Moment)
    assert isinstance(noon - timedelta(hours=1), Moment)


def test_two_moments_are_so_many_milliseconds_apart_and_a_datetime_a_timedelta() -> None:
    assert Moment(NOON_MS + 5) - Moment(NOON_MS) == 5
    assert Moment(NOON_MS + 5) - NOON == timedelta(milliseconds=5)
    assert NOON - Moment(NOON_MS - 5) == timedelta(milliseconds=5)


def test_a_moment_compares_with_datetimes_of_any_zone() -> None:
    noon = Moment(NOON_MS)
    assert noon == NOON
    assert noon == NOON.astimezone(timezone(timedelta(hours=9)))
    assert noon == NOON.replace(tzinfo=None)
    assert noon < NOON + timedelta(microseconds=1)
    assert noon > NOON - timedelta(microseconds=1)
    assert noon >= NOON
    assert noon <= NOON
    assert noon != NOON + timedelta(seconds=1)
    assert noon.datetime() == NOON
    assert str(noon) == "2026-01-01T12:00:00.000+00:00"


def test_a_moment_beyond_the_calendar_is_shown_as_a_number() -> None:
    assert str(Moment(2**60)) == f"{2**60} ms"


def test_a_moment_is_found_in_a_dict_like_its_int() -> None:
    assert {NOON_MS: "noon"}[Moment(NOON_MS)] == "noon"


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (NOON_MS, NOON_MS),
        (Moment(NOON_MS), NOON_MS),
        (NOON, NOON_MS),
        (NOON.replace(tzinfo=None), NOON_MS),
        (NOON + timedelta(microseconds=1), NOON_MS + 1),
        (NOON_MS + 0.25, NOON_MS + 1),
        (np.int64(NOON_MS), NOON_MS),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 0),
    ],
)
def test_times_as_users_write_them_never_become_earlier(at: float | datetime, expected: int) -> None:
    assert time_ms(at) == expected


@pytest.mark.parametrize("given", ["soon", None, float("nan"), float("inf"), b"5"])
def test_what_is_no_time_is_refused_in_words(given: Any) -> None:
    with pytest.raises(ValueInvalid, match="is no time; give milliseconds"):
        time_ms(given)
