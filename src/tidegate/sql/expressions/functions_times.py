"""Functions of dates and times, in UTC."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.model.epoch import DAY_US, SECOND_US
from tidegate.sql.expressions.calendar import (
    Interval,
    civil,
    days_of,
    midnight,
)
from tidegate.sql.expressions.types import (
    BIGINT,
    DATE,
    DOUBLE,
    INTERVAL,
    TIMES,
    TIMESTAMP,
    TIMESTAMPTZ,
    CompiledExpr,
    call,
    constant,
    refuse,
)

_MINUTE, _HOUR = 60 * SECOND_US, 3_600 * SECOND_US

# Months, days and microseconds of one.
_UNITS: dict[str, tuple[int, int, int]] = {
    "year": (12, 0, 0),
    "quarter": (3, 0, 0),
    "month": (1, 0, 0),
    "week": (0, 7, 0),
    "day": (0, 1, 0),
    "hour": (0, 0, _HOUR),
    "minute": (0, 0, _MINUTE),
    "second": (0, 0, SECOND_US),
    "millisecond": (0, 0, 1_000),
    "microsecond": (0, 0, 1),
}
_INTERVAL_PART = re.compile(r"\s*([+-]?\d{1,9})\s*([a-z]+)\s*", re.ASCII)
_COUNT_MAX = 1_000_000  # of a unit in an interval: longer than any calendar that a row has


def interval(text: str, unit: str | None) -> CompiledExpr:
    """Return an INTERVAL constant: INTERVAL 3 DAY, INTERVAL '1 day 2 hours'."""
    whole = f"{text} {unit}" if unit else text
    parts, place = [0, 0, 0], 0
    while place < len(whole):
        matched = _INTERVAL_PART.match(whole.lower(), place)
        steps = _UNITS.get(_singular(matched[2])) if matched else None
        if matched is None or steps is None or abs(int(matched[1])) > _COUNT_MAX:
            raise refuse(
                f"INTERVAL '{whole}' is not taken in a live query.",
                f"Write whole numbers (to {_COUNT_MAX}) of {', '.join(_UNITS)}: INTERVAL '1 day 2 hours'.",
            )
        parts = [total + int(matched[1]) * step for total, step in zip(parts, steps, strict=True)]
        place = matched.end()
    return constant(Interval(*parts), INTERVAL)


def _singular(word: str) -> str:
    return word.removesuffix("s")


def _time_of(expr: CompiledExpr, name: str) -> CompiledExpr:
    if expr.sql_type.name in TIMES:
        return expr
    raise refuse(
        f"{name}() takes a DATE or a TIMESTAMP, not {expr.sql_type}.", "Cast it: CAST(x AS TIMESTAMP)."
    )


def _split(expr: CompiledExpr) -> Callable[[Any], tuple[int, int]]:
    """Return the function that splits a value into its day and the microseconds since midnight."""
    if expr.sql_type == DATE:
        return lambda days: (days, 0)
    return lambda moment: divmod(moment, DAY_US)


def _era_year(days: int, _clock: int) -> int:
    """Return the year of a moment, in its era: before the year 1 they are counted backwards."""
    year = civil(days)[0]
    return year if year > 0 else 1 - year


def _iso_week(days: int) -> int:
    thursday = days - (days + 3) % 7 + 3
    year, _, _ = civil(thursday)
    return (thursday - days_of(year, 1, 1)) // 7 + 1


_PARTS: dict[str, Callable[[int, int], int]] = {
    "year": lambda days, _clock: civil(days)[0],
    "quarter": lambda days, _clock: (civil(days)[1] - 1) // 3 + 1,
    "month": lambda days, _clock: civil(days)[1],
    "day": lambda days, _clock: civil(days)[2],
    "week": lambda days, _clock: _iso_week(days),
    "dow": lambda days, _clock: (days + 4) % 7,
    "isodow": lambda days, _clock: (days + 3) % 7 + 1,
    "doy": lambda days, _clock: days - days_of(civil(days)[0], 1, 1) + 1,
    "hour": lambda _days, clock: clock // _HOUR,
    "minute": lambda _days, clock: clock // _MINUTE % 60,
    "second": lambda _days, clock: clock // SECOND_US % 60,
    "millisecond": lambda _days, clock: clock % _MINUTE // 1_000,
    "microsecond": lambda _days, clock: clock % _MINUTE,
}
_PART_NAMES = {"dayofweek": "dow", "weekday": "dow", "dayofyear": "doy", "dayofmonth": "day"}


def part(name: str, expr: CompiledExpr, *, function: str = "date_part") -> CompiledExpr:
    """Return one part of a date or time, such as its year."""
    expr = _time_of(expr, function)
    word = name.lower()
    word = _PART_NAMES.get(word, word if word in _PARTS else _singular(word))
    if word == "epoch":
        return _epoch([expr])
    get = _era_year if word == "year" and expr.sql_type == TIMESTAMPTZ else _PARTS.get(word)
    if get is None:
        raise refuse(
            f"There is no part '{name}' of a time in a live query.", f"There are: {', '.join(_PARTS)}, epoch."
        )
    split = _split(expr)
    if expr.is_null and function in ("date_part", "extract"):
        return constant(None, DOUBLE)  # the user may have meant a fraction
    return call(BIGINT, f"part {word}", lambda value: get(*split(value)), expr)


def _named_part(args: Sequence[CompiledExpr]) -> CompiledExpr:
    return part(_constant_name(args[0], "date_part"), args[1])


def _constant_name(expr: CompiledExpr, function: str) -> str:
    if not expr.constant or not isinstance(expr.value, str):
        raise refuse(f"{function}() takes the name of the part as a text constant in a live query.")
    return expr.value


def _first_day(unit: str, days: int) -> int:
    year, month, _ = civil(days)
    if unit == "week":
        return days - (days + 3) % 7
    month = {"year": 1, "quarter": (month - 1) // 3 * 3 + 1, "month": month}[unit]
    return days_of(year, month, 1)


def _truncate(args: Sequence[CompiledExpr]) -> CompiledExpr:
    """Return date_trunc(): of a DATE, too, it is a TIMESTAMP."""
    name, expr = _constant_name(args[0], "date_trunc"), _time_of(args[1], "date_trunc")
    unit = name.lower() if name.lower() in _UNITS else _singular(name.lower())
    if unit not in _UNITS:
        raise refuse(
            f"date_trunc() has no unit '{name}' in a live query.", f"There are: {', '.join(_UNITS)}."
        )
    sql_type = TIMESTAMP if expr.sql_type == DATE else expr.sql_type
    split, (months, days_long, step) = _split(expr), _UNITS[unit]

    def cut(value: int) -> int:
        days, clock = split(value)
        if months or days_long == 7:
            return midnight(_first_day(unit, days))
        return midnight(days) + (clock - clock % step if step else 0)

    return call(sql_type, f"date_trunc {unit}", cut, expr)


def _epoch(args: Sequence[CompiledExpr]) -> CompiledExpr:
    expr = _time_of(args[0], "epoch")
    if expr.sql_type == DATE:
        return call(DOUBLE, "epoch", lambda days: days * 86_400.0, expr)
    act = _zoned_seconds if expr.sql_type == TIMESTAMPTZ else lambda moment: float(moment) / 1_000_000.0
    return call(DOUBLE, "epoch", act, expr)


def _zoned_seconds(moment: int) -> float:
    """Add milliseconds and microseconds as DuckDB does, to the last bit."""
    return moment // 1_000 / 1_000.0 + moment % 1_000 / 1_000_000.0


def _epoch_in(name: str, per_second: int) -> Callable[[Sequence[CompiledExpr]], CompiledExpr]:
    step = SECOND_US // per_second

    def build(args: Sequence[CompiledExpr]) -> CompiledExpr:
        expr = _time_of(args[0], name)
        if expr.sql_type == DATE:
            act = midnight if step == 1 else (lambda days: days * 86_400 * per_second)
            return call(BIGINT, name, act, expr)
        return call(BIGINT, name, lambda moment: _nearest(moment, step), expr)

    return build


def _nearest(moment: int, step: int) -> int:
    """Divide, and round a half away from zero."""
    rounded = (abs(moment) + step // 2) // step
    return rounded if moment >= 0 else -rounded


def _direct(name: str) -> Callable[[Sequence[CompiledExpr]], CompiledExpr]:
    return lambda args: part(name, args[0], function=name)


FUNCTIONS: dict[str, tuple[int, int, Callable[[Sequence[CompiledExpr]], CompiledExpr]]] = {
    **{name: (1, 1, _direct(name)) for name in (*_PARTS, *_PART_NAMES) if name not in ("dow", "doy")},
    "date_part": (2, 2, _named_part),
    "datepart": (2, 2, _named_part),
    "date_trunc": (2, 2, _truncate),
    "datetrunc": (2, 2, _truncate),
    "epoch": (1, 1, _epoch),
    "epoch_ms": (1, 1, _epoch_in("epoch_ms", 1_000)),
    "epoch_us": (1, 1, _epoch_in("epoch_us", 1_000_000)),
}
