"""Times as ISO 8601 text, from and to microseconds since 1970-01-01 UTC."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from tidegate.errors import TimeRangeInvalid
from tidegate.model.epoch import MICROSECOND, NAIVE_EPOCH, SECOND_US
from tidegate.model.names import shorten

TIME_US_MIN = -62_135_596_800_000_000  # 0001-01-01T00:00:00Z, the first moment of ISO 8601 text
TIME_US_MAX = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999Z, the last one

_TIME_HINT = (
    "Write ISO 8601: '2026-01-31', '2026-01-31T12:00:00Z' or '2026-01-31T12:00:00+02:00'; no zone is UTC."
)
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,9}))?)?"
    r" ?(?:[Zz]|([+-])([0-9]{2})(?::?([0-9]{2}))?)?)?"
)


def parse_time(text: str) -> int:
    """Return the moment of ISO 8601 text, in microseconds; without a zone it is UTC.

    Exact: a fraction finer than a microsecond is refused, not rounded.
    """
    matched = _TIME.fullmatch(text.strip())
    if not matched:
        raise _not_a_time(text, "is not an ISO 8601 time")
    *fields, fraction, sign, zone_hours, zone_minutes = matched.groups(default="0")
    if fraction[6:].strip("0"):
        raise _not_a_time(text, "is finer than a microsecond")
    year, month, day, hour, minute, second = map(int, fields)
    try:
        local = datetime(year, month, day, hour, minute, second, int(fraction[:6].ljust(6, "0")))
    except ValueError as error:
        raise _not_a_time(text, f"is not a time: {error}") from error
    if int(zone_hours) > 23 or int(zone_minutes) > 59:
        raise _not_a_time(text, "has a zone offset of a day or more")
    offset_us = (int(zone_hours) * 60 + int(zone_minutes)) * 60_000_000
    moment_us = (local - NAIVE_EPOCH) // MICROSECOND - (-offset_us if sign == "-" else offset_us)
    if not TIME_US_MIN <= moment_us <= TIME_US_MAX:
        raise _not_a_time(text, "is outside the years 1 to 9999 in UTC")
    return moment_us


def format_time(moment_us: int) -> str:
    """Return ISO 8601 text in UTC with 'Z' and 0, 3 or 6 digits of a second: as few as are exact."""
    if not TIME_US_MIN <= moment_us <= TIME_US_MAX:
        raise TimeRangeInvalid(reason=f"{moment_us} µs is outside the years 1 to 9999", hint=_TIME_HINT)
    whole_ms, whole_seconds = moment_us % 1_000 == 0, moment_us % SECOND_US == 0
    digits = "seconds" if whole_seconds else "milliseconds" if whole_ms else "microseconds"
    return (NAIVE_EPOCH + timedelta(microseconds=moment_us)).isoformat(timespec=digits) + "Z"


def _not_a_time(text: str, reason: str) -> TimeRangeInvalid:
    return TimeRangeInvalid(reason=f"'{shorten(text)}' {reason}", hint=_TIME_HINT)
