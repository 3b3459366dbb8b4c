"""One value as a column of its type holds it, or the reason why it does not fit.

Takes what JSON, SQL literals and Python give, gives a `Value` of `model.tables`, keeps nothing. The
front is `model.values`, which says where a value stood.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from uuid import UUID

import msgspec

from tidegate.errors import TimeRangeInvalid
from tidegate.model.names import shorten
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Value
from tidegate.model.timeranges import TIME_US_MAX, TIME_US_MIN, parse_time

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
BIGINT_MIN, BIGINT_MAX = -(1 << 63), (1 << 63) - 1
DAY_MIN, DAY_MAX = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31: the days that ISO 8601 text can say
NUMBER_CHARS_MAX = 400  # the longest plain text of a DOUBLE has 326; more is a mistake, and slow to read

_EPOCH = datetime(1970, 1, 1)
EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_DAY_US = 86_400_000_000
_MICROSECOND = timedelta(microseconds=1)
_BEYOND = 10**20  # outside every whole number that is kept; turning more digits into one is slow
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_NOT_NUMBERS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf}
_NOT_NUMBERS["-infinity"] = -math.inf
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_USUAL_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][012][0-9]:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3}(?:[0-9]{3})?)?Z"
)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# More digits than any DECIMAL has; what would be rounded, or grows beyond them, raises.
_EXACT = Context(prec=100, traps=[Inexact, InvalidOperation])
_STEPS = {scale: Decimal(1).scaleb(-scale) for scale in range(39)}
_CEILINGS = {digits: Decimal(10) ** digits for digits in range(39)}


class Refusal(Exception):
    """Why a value does not fit; becomes a ValueInvalid that also says where."""


def _boolean(value: object, _kind: ColumnType) -> Value:
    if type(value) is bool:
        return value
    raise Refusal(f"{_shown(value)} is neither true nor false")


def _integer(value: object, kind: ColumnType) -> Value:
    whole = _whole(value, kind.name)
    low, high = (INT_MIN, INT_MAX) if kind.name == "INT" else (BIGINT_MIN, BIGINT_MAX)
    if not low <= whole <= high:
        raise Refusal(f"{_shown(value)} is outside {low} to {high}")
    return whole


def _whole(value: object, name: str) -> int:
    if type(value) is int:
        return value
    if isinstance(value, str) and len(value) <= NUMBER_CHARS_MAX and _WHOLE.fullmatch(value):
        return int(value)
    if isinstance(value, float | Decimal) and math.isfinite(value) and -_BEYOND < value < _BEYOND:
        if value == int(value):
            return int(value)
        raise Refusal(f"{_shown(value)} is not a whole number")
    article = "an INT" if name == "INT" else "a BIGINT"
    raise Refusal(f"{_shown(value)} is not {article}")


def _double(value: object, _kind: ColumnType) -> Value:
    if type(value) is float:
        return value
    if isinstance(value, str) and len(value) <= NUMBER_CHARS_MAX:
        lower = value.lower()
        if lower in _NOT_NUMBERS:
            return _NOT_NUMBERS[lower]
        if _WHOLE.fullmatch(value):
            return _exact_double(int(value))
        if _NUMBER.fullmatch(value):
            return _finite(float(value), value)
    if type(value) is int:
        return _exact_double(value)
    if isinstance(value, Decimal):
        return _finite(float(value), value) if value.is_finite() else float(value)
    raise Refusal(f"{_shown(value)} is not a number")


def _exact_double(whole: int) -> float:
    try:
        found = float(whole)
    except OverflowError as problem:
        raise Refusal(f"{_shown(whole)} is too large for a DOUBLE") from problem
    if int(found) != whole:
        raise Refusal(f"{_shown(whole)} has more digits than a DOUBLE keeps")
    return found


def _finite(found: float, value: object) -> float:
    if math.isinf(found):
        raise Refusal(f"{_shown(value)} is too large for a DOUBLE")
    return found


def _decimal(value: object, kind: ColumnType) -> Value:
    number = _number(value)
    try:
        found = number.quantize(_STEPS[kind.scale], context=_EXACT)
    except Inexact as problem:
        raise Refusal(f"{_shown(value)} has more than {kind.scale} digits after the point") from problem
    except InvalidOperation as problem:
        raise Refusal(f"{_shown(value)} is too large for {kind}") from problem
    if found.copy_abs() >= _CEILINGS[kind.precision - kind.scale]:
        raise Refusal(f"{_shown(value)} is too large for {kind}")
    return found if found else found.copy_abs()  # there is no zero below zero


def _number(value: object) -> Decimal:
    number: Decimal | None = None
    if type(value) is int:
        number = Decimal(value)
    elif type(value) is float:
        number = Decimal(repr(value))
    elif isinstance(value, Decimal):
        number = value
    elif isinstance(value, str) and len(value) <= NUMBER_CHARS_MAX and _NUMBER.fullmatch(value):
        number = Decimal(value)
    if number is None or not number.is_finite():
        raise Refusal(f"{_shown(value)} is not a number")
    return number


def _text(value: object, _kind: ColumnType) -> Value:
    if not isinstance(value, str):
        raise Refusal(f"{_shown(value)} is not text")
    if not is_unicode(value):
        raise Refusal(f"{_shown(value)} has half of a surrogate pair, which no text has")
    return value


def is_unicode(text: str) -> bool:
    """Say whether a text has a UTF-8 form."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bytes(value: object, _kind: ColumnType) -> Value:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        raise Refusal(f"{_shown(value)} is neither bytes nor base64 text")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as problem:
        raise Refusal(f"{_shown(value)} is not base64: {problem}") from problem


def _json(value: object, kind: ColumnType) -> Value:
    if isinstance(value, str):
        _text(value, kind)
        _check_json(value)
        return value
    try:
        return _text(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")), kind)
    except (TypeError, ValueError, RecursionError) as problem:
        raise Refusal(f"{_shown(value)} cannot be written as JSON: {problem}") from problem


def _check_json(text: str) -> None:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise Refusal(f"{_shown(text)} is not JSON: {problem}") from problem


def _uuid(value: object, _kind: ColumnType) -> Value:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, str):
        lower = value.lower()
        if _UUID.fullmatch(lower):
            return lower
    raise Refusal(f"{_shown(value)} is not a UUID such as 019d2c3e-7f00-7abc-8def-0123456789ab")


def _date(value: object, _kind: ColumnType) -> Value:
    if isinstance(value, datetime):
        moment_us = _moment_us(value)
        if moment_us % _DAY_US:
            raise Refusal(f"{_shown(value)} is a moment within a day, not a day")
        return moment_us // _DAY_US
    if isinstance(value, date):
        return value.toordinal() - EPOCH_ORDINAL
    if isinstance(value, str) and _DATE.fullmatch(value):
        try:
            return date.fromisoformat(value).toordinal() - EPOCH_ORDINAL
        except ValueError as problem:
            raise Refusal(f"{_shown(value)} is not a day: {problem}") from problem
    raise Refusal(f"{_shown(value)} is not a day such as 2026-01-31")


def _timestamp(value: object, _kind: ColumnType) -> Value:
    if isinstance(value, datetime):
        return _moment_us(value)
    if isinstance(value, date):
        return (value.toordinal() - EPOCH_ORDINAL) * _DAY_US
    if isinstance(value, str):
        try:
            return _usual_time(value) if _USUAL_TIME.fullmatch(value) else parse_time(value)
        except TimeRangeInvalid as problem:
            raise Refusal(str(problem.values["reason"])) from problem
    raise Refusal(f"{_shown(value)} is not a time such as 2026-01-31T12:00:00Z")


def _usual_time(text: str) -> int:
    """Give the moment of a text that `format_time` may have written; four times as quick as `parse_time`."""
    try:
        since = datetime.fromisoformat(text[:-1]) - _EPOCH
    except ValueError:
        return parse_time(text)  # raises, and says what is wrong
    return since.days * _DAY_US + since.seconds * 1_000_000 + since.microseconds


def _moment_us(value: datetime) -> int:
    offset = value.utcoffset() or timedelta(0)
    if getattr(value, "nanosecond", 0):  # pandas knows finer moments than we keep
        raise Refusal(f"{_shown(value)} is finer than a microsecond")
    moment_us = (value.replace(tzinfo=None) - _EPOCH - offset) // _MICROSECOND
    if not TIME_US_MIN <= moment_us <= TIME_US_MAX:
        raise Refusal(f"{_shown(value)} is outside the years 1 to 9999")
    return moment_us


def _shown(value: object) -> str:
    """Give a value as an error repeats it."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    if isinstance(value, str):
        return f"'{shorten(value)}'"
    if isinstance(value, int) and abs(value) >= 10**40:
        return "the number"  # thousands of digits help nobody
    return shorten(repr(value) if isinstance(value, dict | list) else str(value))


COERCERS: dict[str, Callable[[object, ColumnType], Value]] = {
    "BOOLEAN": _boolean,
    "INT": _integer,
    "BIGINT": _integer,
    "DOUBLE": _double,
    "DECIMAL": _decimal,
    "TEXT": _text,
    "BYTES": _bytes,
    "JSON": _json,
    "UUID": _uuid,
    "DATE": _date,
    "TIMESTAMP": _timestamp,
}
