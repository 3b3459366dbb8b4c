"""Times as microseconds and days as numbers, both since 1970-01-01 UTC."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
MICROSECOND = timedelta(microseconds=1)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAIVE_EPOCH = datetime(1970, 1, 1)  # without a zone, for times that are in UTC and do not say so
EPOCH_ORDINAL = date(1970, 1, 1).toordinal()


def us_of(value: datetime) -> int:
    """Return a time as microseconds; one without a zone is in UTC."""
    return (value - (EPOCH if value.tzinfo else NAIVE_EPOCH)) // MICROSECOND


def day_of(value: date) -> int:
    """Return a date as the number of its day."""
    return value.toordinal() - EPOCH_ORDINAL


def date_of(day: int) -> date:
    """Return the date of a day's number."""
    return date.fromordinal(day + EPOCH_ORDINAL)
