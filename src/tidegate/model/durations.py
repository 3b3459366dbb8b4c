"""Durations: lengths of time in whole microseconds, and their text.

A number and a unit (`"100 days"`, `"1.5 h"`, `"250 ms"`) or ISO 8601 (`"PT5S"`, `"P1DT2H"`, `"P2W"`). A day
is 24 hours. Months and years are refused: they have no fixed length. Parsing is exact; what is not a whole
number of microseconds is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from tidegate.errors import DurationInvalid, InvariantBroken
from tidegate.model.epoch import DAY_US, SECOND_US
from tidegate.model.names import shorten

US_MAX = 2**63 - 1  # durations are added to stored 64-bit times
TEXT_CHARS_MAX = 64  # every duration up to US_MAX fits, and a megabyte of digits is refused

# The first spelling of each unit is the one that `format_duration` writes.
_SPELLINGS: dict[int, tuple[str, ...]] = {
    7 * DAY_US: ("weeks", "week", "w"),
    DAY_US: ("days", "day", "d"),
    3_600 * SECOND_US: ("h", "hr", "hrs", "hour", "hours"),
    60 * SECOND_US: ("min", "mins", "minute", "minutes"),
    SECOND_US: ("s", "sec", "secs", "second", "seconds"),
    1_000: ("ms", "millisecond", "milliseconds"),
    1: ("us", "\u00b5s", "\u03bcs", "microsecond", "microseconds"),
}
_UNIT_US = {spelling: us for us, spellings in _SPELLINGS.items() for spelling in spellings}
_WITHOUT_LENGTH = {"mo", "mon", "month", "months", "y", "yr", "yrs", "year", "years"}

_PLAIN = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[^\W\d_]+)")
_NUMBER = r"[0-9]+(?:[.,][0-9]+)?"
_ISO = re.compile(
    rf"P(?:({_NUMBER})Y)?(?:({_NUMBER})M)?(?:({_NUMBER})W)?(?:({_NUMBER})D)?"
    rf"(?:T(?=[0-9])(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?"
)
_ISO_US = (7 * DAY_US, DAY_US, 3_600 * SECOND_US, 60 * SECOND_US, SECOND_US)


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A length of time, zero or more whole microseconds; `str` writes it as `parse_duration` reads it."""

    us: int

    def __post_init__(self) -> None:
        if not 0 <= self.us <= US_MAX:
            raise InvariantBroken(reason=f"a duration of {self.us} µs")

    @property
    def seconds(self) -> float:
        return self.us / SECOND_US

    def __str__(self) -> str:
        return format_duration(self)


def parse_duration(text: str) -> Duration:
    """Return the duration of a text, exactly, or raise DurationInvalid with the reason."""
    if len(text) > TEXT_CHARS_MAX:
        raise _invalid(text, f"it is longer than {TEXT_CHARS_MAX} characters")
    trimmed = text.strip()
    if not trimmed:
        raise _invalid(text, "it is empty")
    if "-" in trimmed or "\u2212" in trimmed:
        raise _invalid(text, "it is negative, and time only passes")
    us = _iso_us(text, trimmed.upper()) if trimmed[0] in "Pp" else _plain_us(text, trimmed)
    if us.denominator != 1:
        raise _invalid(text, "it is not a whole number of microseconds")
    if us > US_MAX:
        raise _invalid(text, "it is longer than 292,000 years")
    return Duration(int(us))


def format_duration(duration: Duration) -> str:
    """Return exact text: a whole number of the largest unit, up to days, that divides the duration."""
    if duration.us == 0:
        return "0 s"
    unit_us = next(us for us in _SPELLINGS if us <= DAY_US and duration.us % us == 0)
    count = duration.us // unit_us
    unit = _SPELLINGS[unit_us][0]
    return f"{count} {'day' if (count, unit) == (1, 'days') else unit}"


def _plain_us(text: str, trimmed: str) -> Fraction:
    matched = _PLAIN.fullmatch(trimmed)
    if not matched:
        bare = re.fullmatch(r"[0-9.]+", trimmed)
        raise _invalid(text, "it has no unit" if bare else "it is not a number and a unit")
    unit = matched["unit"].lower()
    if unit == "m":
        raise _invalid(text, "'m' may mean minutes or months; write 'min'")
    if unit in _WITHOUT_LENGTH:
        raise _invalid(text, "months and years have no fixed length; write days")
    if unit not in _UNIT_US:
        raise _invalid(text, f"'{matched['unit']}' is not a unit of time")
    return Fraction(matched["number"]) * _UNIT_US[unit]


def _iso_us(text: str, trimmed: str) -> Fraction:
    matched = _ISO.fullmatch(trimmed)
    numbers = matched.groups() if matched else ()
    if not any(numbers):
        raise _invalid(text, "it begins like ISO 8601 but is not of the form P1DT2H3M4S")
    if numbers[0] or numbers[1]:
        raise _invalid(text, "months and years have no fixed length; write days")
    parts = [(n.replace(",", "."), us) for n, us in zip(numbers[2:], _ISO_US, strict=True) if n]
    if any("." in number for number, _ in parts[:-1]):
        raise _invalid(text, "only the last part may have a fraction")
    return sum((Fraction(number) * us for number, us in parts), Fraction(0))


def _invalid(text: str, reason: str) -> DurationInvalid:
    return DurationInvalid(text=shorten(text), reason=reason)
