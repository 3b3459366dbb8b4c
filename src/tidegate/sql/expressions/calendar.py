"""Days and microseconds since 1970 as calendar parts and back, in UTC, in the Gregorian calendar throughout.

Python's own dates end with the year 9999; DuckDB's do not, and an expression may pass that.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidegate.errors import InvariantBroken
from tidegate.model.epoch import DAY_US, SECOND_US
from tidegate.sql.expressions.types import RowFault, UnsupportedInLive

# What DuckDB holds, without the two values that mean infinity.
DAY_LIMIT = 2**31 - 2
MICROSECOND_LIMIT = 2**63 - 2

_DATE = r"(\d{4})([-/])(\d{1,2})\2(\d{1,2})"
_ONLY_DATE = re.compile(rf"\s*{_DATE}\s*", re.ASCII)
_FIRST_DATE = re.compile(rf"\s*{_DATE}", re.ASCII)
_CLOCK = r"(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?"
_ZONE = r"(Z|[+-]\d{2}(?::?\d{2})?)?"
_MOMENT = re.compile(rf"\s*{_DATE}(?:[ T]{_CLOCK}\s*{_ZONE})?\s*", re.ASCII)
# What DuckDB reads beside: infinities, the epoch, years of other lengths, zones by name.
_ELSEWHERE = re.compile(
    r"\s*(?:[+-]?inf|epoch|-?\d+[-/ ]\d+[-/ ]\d+\s*\(bc\)|-\d+[-/ ]\d|\d+ \d+ \d|\d{5,}[-/]\d|\d{1,3}[-/]\d"
    r"|\d{4}[-/]\d{1,2}[-/]\d{1,2}[ t]\d+:\d+.* [a-z]|.*[+-]\d+:\d+:\d)",
    re.IGNORECASE,
)


class Interval(NamedTuple):
    """A span of the calendar: its parts are added one after the other."""

    months: int
    days: int
    microseconds: int

    def negated(self) -> Interval:
        """Return the span backwards."""
        return Interval(-self.months, -self.days, -self.microseconds)


def civil(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a day's number; the year before 1 is 0."""
    era, of_era = divmod(days + 719_468, 146_097)
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * of_year + 2) // 153
    day = of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year_of_era + era * 400 + (month <= 2), month, day


def days_of(year: int, month: int, day: int) -> int:
    """Return the number of a day."""
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + of_year - 719_468


def month_length(year: int, month: int) -> int:
    """Return the number of days of a month."""
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def add_interval(microseconds: int, span: Interval) -> int:
    """Add months (the day is cut to the month's last), then days, then microseconds."""
    if span.months:
        days, clock = divmod(microseconds, DAY_US)
        year, month, day = civil(days)
        year, month = divmod(year * 12 + month - 1 + span.months, 12)
        day = min(day, month_length(year, month + 1))
        microseconds = days_of(year, month + 1, day) * DAY_US + clock
    moved = microseconds + span.days * DAY_US + span.microseconds
    if -MICROSECOND_LIMIT <= moved <= MICROSECOND_LIMIT:
        return moved
    raise RowFault("adding the interval overflows TIMESTAMP")


def midnight(days: int) -> int:
    """Return the moment at which a day begins."""
    moment = days * DAY_US
    if -MICROSECOND_LIMIT <= moment <= MICROSECOND_LIMIT:
        return moment
    raise RowFault("the DATE is out of the range of TIMESTAMP")


def parse_date(text: str) -> int:
    """Read 'YYYY-MM-DD', also with a time behind it, which does not count."""
    matched = _ONLY_DATE.fullmatch(text)
    if matched is None:
        # Midnight at the end of a day, 24:00, still is that day.
        parse_timestamp(text, zoned=False, sql_type="DATE")
        matched = _FIRST_DATE.match(text)
    if matched is None:
        raise InvariantBroken(reason=f"'{text}' was read as a timestamp, and has no date")
    return _day(text, matched, "DATE")


def _day(text: str, matched: re.Match[str], sql_type: str) -> int:
    year, month, day = int(matched[1]), int(matched[3]), int(matched[4])
    if not 1 <= month <= 12 or not 1 <= day <= month_length(year, month):
        raise RowFault(f"'{text}' is no {sql_type}")
    return days_of(year, month, day)


def parse_timestamp(text: str, *, zoned: bool, sql_type: str = "TIMESTAMP") -> int:
    """Read a date or 'YYYY-MM-DD HH:MM[:SS[.ffffff]][zone]'; without `zoned` the zone does not count."""
    matched = _MOMENT.fullmatch(text) if len(text) <= 64 else None
    if matched is None:
        if _ELSEWHERE.match(text):
            raise UnsupportedInLive(f"'{text[:64]}' is a {sql_type} that live queries do not read")
        forms = "'YYYY-MM-DD' or 'YYYY-MM-DD HH:MM[:SS[.ffffff]][Z|+HH[:MM]]'"
        raise RowFault(f"'{text[:64]}' is no {sql_type} like {forms}")
    moment = _day(text, matched, sql_type) * DAY_US
    if matched[5] is None:
        return moment
    hour, minute, second = int(matched[5]), int(matched[6]), int(matched[7] or 0)
    fraction = int((matched[8] or "0").ljust(6, "0")[:6])
    is_midnight = hour == 24 and not minute and not second and not fraction
    if (hour > 23 and not is_midnight) or minute > 59 or second > 59:
        raise RowFault(f"'{text}' is no {sql_type}")
    moment += ((hour * 60 + minute) * 60 + second) * SECOND_US + fraction
    return moment - _zone_microseconds(matched[9]) if zoned else moment


def _zone_microseconds(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    if int(digits[:2]) > 15 or int(digits[2:]) > 59:
        raise UnsupportedInLive(f"the zone {zone} is one that live queries do not read")
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    return (-minutes if zone[0] == "-" else minutes) * 60 * SECOND_US


def date_text(days: int) -> str:
    """Write a date as DuckDB does; years before 1 carry their era."""
    year, month, day = civil(days)
    if year > 0:
        return f"{year:04}-{month:02}-{day:02}"
    return f"{1 - year:04}-{month:02}-{day:02} (BC)"


def timestamp_text(microseconds: int) -> str:
    """Write a timestamp as DuckDB does: the fraction of a second without its last zeros."""
    days, clock = divmod(microseconds, DAY_US)
    seconds, fraction = divmod(clock, SECOND_US)
    tail = f".{fraction:06}".rstrip("0") if fraction else ""
    hour, minute = divmod(seconds // 60, 60)
    return f"{date_text(days)} {hour:02}:{minute:02}:{seconds % 60:02}{tail}"
