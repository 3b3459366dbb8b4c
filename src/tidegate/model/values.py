"""Values of columns: coerced from JSON, SQL, Python and Arrow, and written as JSON and Arrow, without loss.

A `Value` is what `model.tables` says for each type. What does not fit its column exactly is refused with
ValueInvalid: nothing is cut or rounded, but for decimal fractions in a DOUBLE, which become the nearest one.
None passes everywhere; who requires a value checks that.

Values as JSON shows them have one form everywhere (answers of SQL, payloads, live changes, defaults): a
DECIMAL is text without an exponent, BYTES are base64, a DATE is `YYYY-MM-DD`, a TIMESTAMP is ISO 8601 in UTC,
a DOUBLE that is not finite is null. All other types are JSON as they are.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from uuid import UUID

import msgspec

from tidegate.errors import TimeRangeInvalid, ValueInvalid
from tidegate.model.epoch import DAY_US, MICROSECOND, NAIVE_EPOCH, SECOND_US, date_of, day_of
from tidegate.model.json_limits import HARMLESS_BYTES_MAX, find_unreadable
from tidegate.model.names import shorten
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Value
from tidegate.model.times import TIME_US_MAX, TIME_US_MIN, format_time, parse_time

if TYPE_CHECKING:
    import pyarrow as pa

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
BIGINT_MIN, BIGINT_MAX = -(1 << 63), (1 << 63) - 1
DAY_MIN, DAY_MAX = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31: the days of ISO 8601 text
ARROW_TIMES_MIN = 32  # below this many moments Python is quicker than a call of Arrow
NUMBER_CHARS_MAX = 400  # the longest plain text of a DOUBLE has 326; more is a mistake, and slow to read

_BEYOND = 10**20  # outside the range of every whole number type; converting more digits is slow
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_NOT_NUMBERS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf}
_NOT_NUMBERS["-infinity"] = -math.inf
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_USUAL_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][012][0-9]:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3}(?:[0-9]{3})?)?Z"
)
# As many digits of a second as are exact: 0, 3 or 6.
_WHOLE_SECOND = r"\.000000Z$"
_WHOLE_MILLISECOND = r"(\.\d{3})000Z$"
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# More digits than any DECIMAL has; rounding and overflow raise.
_EXACT = Context(prec=100, traps=[Inexact, InvalidOperation])
_STEPS = {scale: Decimal(1).scaleb(-scale) for scale in range(39)}
_CEILINGS = {digits: Decimal(10) ** digits for digits in range(39)}


class Refusal(Exception):
    """Why a value does not fit; becomes a ValueInvalid that also names the place."""


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
    return found if found else found.copy_abs()  # a DECIMAL has no negative zero


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
    """Return whether a text has a UTF-8 form."""
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
        return _readable_json(value)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as problem:
        raise Refusal(f"{_shown(value)} cannot be written as JSON: {problem}") from problem
    _text(text, kind)
    return _readable_json(text)


def _readable_json(text: str) -> str:
    """Return JSON text; refuse what not every reader of a change feed could read."""
    if 4 * len(text) > HARMLESS_BYTES_MAX and (why := find_unreadable(text.encode())):
        raise Refusal(f"{_shown(text)} is not readable for every client: {why}")
    return text


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
        if moment_us % DAY_US:
            raise Refusal(f"{_shown(value)} is a moment within a day, not a day")
        return moment_us // DAY_US
    if isinstance(value, date):
        return day_of(value)
    if isinstance(value, str) and _DATE.fullmatch(value):
        try:
            return day_of(date.fromisoformat(value))
        except ValueError as problem:
            raise Refusal(f"{_shown(value)} is not a day: {problem}") from problem
    raise Refusal(f"{_shown(value)} is not a day such as 2026-01-31")


def _timestamp(value: object, _kind: ColumnType) -> Value:
    if isinstance(value, datetime):
        return _moment_us(value)
    if isinstance(value, date):
        return day_of(value) * DAY_US
    if isinstance(value, str):
        try:
            return _usual_time(value) if _USUAL_TIME.fullmatch(value) else parse_time(value)
        except TimeRangeInvalid as problem:
            raise Refusal(str(problem.values["reason"])) from problem
    raise Refusal(f"{_shown(value)} is not a time such as 2026-01-31T12:00:00Z")


def _usual_time(text: str) -> int:
    """Return the moment of a text as `format_time` writes it, four times as quickly as `parse_time`."""
    try:
        since = datetime.fromisoformat(text[:-1]) - NAIVE_EPOCH
    except ValueError:
        return parse_time(text)  # raises with the reason
    return since.days * DAY_US + since.seconds * SECOND_US + since.microseconds


def _moment_us(value: datetime) -> int:
    offset = value.utcoffset() or timedelta(0)
    if getattr(value, "nanosecond", 0):  # pandas has nanoseconds
        raise Refusal(f"{_shown(value)} is finer than a microsecond")
    moment_us = (value.replace(tzinfo=None) - NAIVE_EPOCH - offset) // MICROSECOND
    if not TIME_US_MIN <= moment_us <= TIME_US_MAX:
        raise Refusal(f"{_shown(value)} is outside the years 1 to 9999")
    return moment_us


def _shown(value: object) -> str:
    """Return a value as an error shows it."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    if isinstance(value, str):
        return f"'{shorten(value)}'"
    if isinstance(value, int) and abs(value) >= 10**40:
        return "the number"  # not thousands of digits
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


Json: TypeAlias = bool | int | float | str | None


def coerce(value: object, kind: ColumnType, place: str) -> Value:
    """Return the value as a column of this type holds it, or raise ValueInvalid; None passes."""
    if value is None:
        return None
    try:
        return COERCERS[kind.name](value, kind)
    except Refusal as refusal:
        raise ValueInvalid(place=place, reason=str(refusal)) from refusal


def coerce_column(values: Sequence[object], kind: ColumnType, place: str) -> list[Value]:
    """Return many values as `coerce` does, far quicker; the error names the row, from 1."""
    kinds = set(map(type, values))
    kinds.discard(type(None))
    if _is_ready(values, kind.name, kinds):
        return cast("list[Value]", list(values))
    convert = COERCERS[kind.name]
    found: list[Value] = []
    for value in values:
        try:
            found.append(None if value is None else convert(value, kind))
        except Refusal as refusal:
            reason = f"in row {len(found) + 1}, {refusal}"
            raise ValueInvalid(place=place, reason=reason) from refusal
    return found


def _is_ready(values: Sequence[Any], name: str, kinds: set[type]) -> bool:
    """Return whether Python values already are what the column type holds."""
    if not kinds:
        return True
    if name in ("BIGINT", "INT") and kinds == {int}:
        low, high = (INT_MIN, INT_MAX) if name == "INT" else (BIGINT_MIN, BIGINT_MAX)
        there = values if None not in values else [value for value in values if value is not None]
        return bool(low <= min(there) and max(there) <= high)
    if name == "TEXT" and kinds == {str}:
        return is_unicode("".join(value for value in values if value is not None))
    return (name == "DOUBLE" and kinds == {float}) or (name == "BOOLEAN" and kinds == {bool})


def to_arrow(values: Sequence[Value], kind: ColumnType) -> pa.Array:
    """Return an array of the type `kind.to_arrow()`."""
    import pyarrow as pa

    return pa.array(values, kind.to_arrow())


def from_arrow(array: pa.Array | pa.ChunkedArray, kind: ColumnType, place: str) -> list[Value]:
    """Return the values of an array of any type whose values all fit the column, or raise ValueInvalid."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    try:
        plain = _from_like_arrow(array, kind.name)
    except pa.ArrowInvalid as problem:
        raise ValueInvalid(place=place, reason=shorten(str(problem))) from problem
    if plain is None:
        return coerce_column(_python_values(array, place), kind, place)
    if kind.name == "INT":
        return coerce_column(plain, kind, place)
    if kind.name in ("DATE", "TIMESTAMP"):
        _check_years(plain, kind.name, place)
    return plain


def _from_like_arrow(array: Any, name: str) -> list[Value] | None:
    """Return the values of an array of nearly the column's type; None for other types."""
    import pyarrow as pa

    kind, is_kind = array.type, pa.types
    if name in ("INT", "BIGINT") and is_kind.is_integer(kind):
        return _numbers(array.cast(pa.int64()))
    if name == "DOUBLE" and is_kind.is_floating(kind):
        return _numbers(array.cast(pa.float64()))
    if name == "BOOLEAN" and is_kind.is_boolean(kind):
        return _listed(array)
    if name == "TEXT" and (is_kind.is_string(kind) or is_kind.is_large_string(kind)):
        return _listed(array)
    if name == "BYTES" and (is_kind.is_binary(kind) or is_kind.is_large_binary(kind)):
        return _listed(array)
    if name == "DATE" and is_kind.is_date32(kind):
        return _numbers(array.cast(pa.int32()))
    if name == "TIMESTAMP" and (is_kind.is_timestamp(kind) or is_kind.is_date32(kind)):
        # A cast between zones keeps the moment; one to a coarser unit raises when it would lose a part.
        return _numbers(array.cast(pa.timestamp("us")).cast(pa.int64()))
    return None


def _numbers(array: Any) -> list[Value]:
    """Return numbers; NumPy is ten times as quick as Arrow here, but has no nulls."""
    import pyarrow as pa

    if array.null_count:
        return _listed(array)
    if isinstance(array, pa.ChunkedArray):
        return array.to_numpy().tolist()  # type: ignore[no-any-return]
    return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _listed(array: Any) -> list[Value]:
    return array.to_pylist()  # type: ignore[no-any-return]


def _python_values(array: Any, place: str) -> list[object]:
    try:
        return array.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError) as problem:
        raise ValueInvalid(place=place, reason=shorten(str(problem))) from problem


def _check_years(values: Sequence[Any], name: str, place: str) -> None:
    low, high = (DAY_MIN, DAY_MAX) if name == "DATE" else (TIME_US_MIN, TIME_US_MAX)
    for number, value in enumerate(values, 1):
        if value is not None and not low <= value <= high:
            raise ValueInvalid(place=place, reason=f"in row {number}, it is outside the years 1 to 9999")


def json_writer(kind: ColumnType) -> Callable[[Any], Json] | None:
    """Return the function that writes a value (not None) as JSON; None where values are JSON as they are."""
    return _WRITERS.get(kind.name)


def to_json(value: Value, kind: ColumnType) -> Json:
    """Return a value as JSON shows it."""
    if value is None:
        return None
    write = _WRITERS.get(kind.name)
    return value if write is None else write(value)  # type: ignore[return-value]


def json_column(values: Sequence[Value], kind: ColumnType) -> list[Json]:
    """Return many values as `to_json` does; times far quicker."""
    write = _WRITERS.get(kind.name)
    if write is None:
        return list(values)  # type: ignore[arg-type]
    if write is format_time:
        return json_times(values)
    return [None if value is None else write(value) for value in values]


def from_json(value: Json, kind: ColumnType) -> Value:
    """Return the value that `to_json` wrote."""
    return coerce(value, kind, f"A stored value ({kind})")


def base64_text(value: bytes) -> str:
    """Return bytes as JSON shows them."""
    return base64.b64encode(value).decode("ascii")


# Decimals as JSON shows them: never with an exponent.
decimal_text = "{:f}".format


def json_times(values: Sequence[Any]) -> list[Json]:
    """Return the values of a TIMESTAMP column as JSON shows them."""
    if len(values) < ARROW_TIMES_MIN:
        return [None if value is None else format_time(value) for value in values]
    import pyarrow as pa
    import pyarrow.compute as pc

    moments = pa.array(values, pa.int64())
    ends = pc.min_max(moments).as_py()
    if ends["min"] is not None and (ends["min"] < TIME_US_MIN or ends["max"] > TIME_US_MAX):
        raise TimeRangeInvalid(reason="a moment is outside the years 1 to 9999")
    return cast("list[Json]", time_texts(moments.cast(pa.timestamp("us"))))


def json_dates(values: Sequence[Any]) -> list[Json]:
    """Return the values of a DATE column as JSON shows them."""
    return [None if value is None else iso_date(value) for value in values]


def iso_date(days: int) -> str:
    """Return a DATE as JSON shows it."""
    return date_of(days).isoformat()


def time_texts(moments: pa.Array) -> list[str | None]:
    """Return timestamps in microseconds, in UTC, of the years 1 to 9999, as `format_time` writes them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # Arrow writes moments without a zone sixty times faster than moments in UTC, which they are here.
    text = moments.cast(pa.timestamp("us")).cast(pa.string())
    marked = pc.binary_join_element_wise(pc.replace_substring(text, " ", "T", max_replacements=1), "Z", "")
    short = pc.replace_substring_regex(marked, pattern=_WHOLE_SECOND, replacement="Z")
    short = pc.replace_substring_regex(short, pattern=_WHOLE_MILLISECOND, replacement=r"\1Z")
    return short.to_pylist()  # type: ignore[no-any-return]


# Types that are not in this list are JSON as they are.
_WRITERS: dict[str, Callable[[Any], Json]] = {
    "DOUBLE": lambda value: value if math.isfinite(value) else None,
    "DECIMAL": decimal_text,
    "BYTES": base64_text,
    "DATE": iso_date,
    "TIMESTAMP": format_time,
}
