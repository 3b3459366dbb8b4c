"""A time in milliseconds since 1970: an int with the arithmetic of datetime."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any, overload

from tidegate.errors import ValueInvalid
from tidegate.model.epoch import EPOCH

_MILLISECOND = dt.timedelta(milliseconds=1)


class Moment(int):
    """A time in milliseconds since 1970-01-01 UTC: an int that adds and compares with timedelta and datetime.

    A datetime without a zone is taken as UTC. `moment - moment` is a number of milliseconds, as with ints.
    """

    __slots__ = ()

    def datetime(self) -> dt.datetime:
        """Return the same time as a datetime in UTC."""
        return EPOCH + self * _MILLISECOND

    def __add__(self, other: int | dt.timedelta) -> Moment:
        added = _length_ms(other)
        return NotImplemented if added is None else Moment(int(self) + added)

    __radd__ = __add__

    @overload  # type: ignore[override]
    def __sub__(self, other: Moment) -> int: ...  # type: ignore[overload-overlap]
    @overload
    def __sub__(self, other: dt.datetime) -> dt.timedelta: ...
    @overload
    def __sub__(self, other: int | dt.timedelta) -> Moment: ...
    def __sub__(self, other: Any) -> Any:
        if isinstance(other, dt.datetime):
            return self.datetime() - _aware(other)
        if isinstance(other, Moment):
            return int(self) - int(other)
        removed = _length_ms(other)
        return NotImplemented if removed is None else Moment(int(self) - removed)

    def __rsub__(self, other: Any) -> Any:
        if isinstance(other, dt.datetime):
            return _aware(other) - self.datetime()
        return int.__rsub__(self, other)

    def __eq__(self, other: object) -> bool:
        return bool(_as_number(self) == _as_number(other))

    def __ne__(self, other: object) -> bool:
        return bool(_as_number(self) != _as_number(other))

    def __lt__(self, other: Any) -> Any:
        return _as_number(self) < _as_number(other)

    def __le__(self, other: Any) -> Any:
        return _as_number(self) <= _as_number(other)

    def __gt__(self, other: Any) -> Any:
        return _as_number(self) > _as_number(other)

    def __ge__(self, other: Any) -> Any:
        return _as_number(self) >= _as_number(other)

    __hash__ = int.__hash__

    def __str__(self) -> str:
        try:
            return self.datetime().isoformat(timespec="milliseconds")
        except OverflowError:
            return f"{int(self)} ms"


def time_ms(at: float | dt.datetime) -> int:
    """Return the milliseconds of a time as users write it: ms since 1970, a Moment, or a datetime.

    A part of a millisecond rounds up: a timer never fires before its time.
    """
    if isinstance(at, dt.datetime):
        return -((EPOCH - _aware(at)) // _MILLISECOND)
    try:
        return int(at) if isinstance(at, int) else math.ceil(at)
    except (TypeError, ValueError, OverflowError) as problem:
        reason = f"{at!r} is no time; give milliseconds since 1970 or a datetime"
        raise ValueInvalid(place="a timer", reason=reason) from problem


def _aware(at: dt.datetime) -> dt.datetime:
    return at if at.tzinfo else at.replace(tzinfo=dt.UTC)


def _as_number(other: object) -> Any:
    """Return what an int compares with: a datetime as its milliseconds, anything else as it is."""
    if isinstance(other, Moment):
        return int(other)
    return (_aware(other) - EPOCH) / _MILLISECOND if isinstance(other, dt.datetime) else other


def _length_ms(other: object) -> int | None:
    if isinstance(other, dt.timedelta):
        return round(other / _MILLISECOND)
    return int(other) if isinstance(other, int) else None
