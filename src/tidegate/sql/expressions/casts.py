"""Casts as DuckDB does them: CAST fails for a value that does not fit, TRY_CAST is NULL for it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any, NoReturn

from tidegate.model.epoch import DAY_US
from tidegate.model.schemas import DECIMAL_PRECISION_MAX
from tidegate.sql.expressions.calendar import (
    date_text,
    midnight,
    parse_date,
    parse_timestamp,
    timestamp_text,
)
from tidegate.sql.expressions.types import (
    BOOLEAN,
    EXACT,
    INTEGER_BITS,
    TEXT,
    CompiledExpr,
    RowFault,
    Run,
    SqlType,
    UnsupportedInLive,
    call,
    checker,
    constant,
    decimal_checker,
    refuse,
    scaled,
)

Convert = Callable[[Any], Any]

_WHITE = " \t\n\v\f\r"
# Digits may be grouped with single underscores, as in SQL itself.
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_NUMBER = re.compile(rf"([+-]?)({_DIGITS})?(?:\.({_DIGITS})?)?(?:[eE]([+-]?[0-9]{{1,4}}))?")
_OTHER_RADIX = re.compile(r"[+-]?0[xXbBoO][0-9a-fA-F_]+")
_INFINITE = {"inf": math.inf, "infinity": math.inf, "nan": math.nan}
_TRUE, _FALSE = frozenset({"true", "t", "yes", "y", "1"}), frozenset({"false", "f", "no", "n", "0"})
_UUID_HEX = re.compile(r"[0-9a-f]{32}")
_BYTE = re.compile(r"\\x([0-9A-Fa-f]{2})|([\x00-\x5b\x5d-\x7f])|(.)", re.DOTALL)
_DIGITS_OF_64_BITS = 18
_EXPONENT_MAX = 400  # beyond any DOUBLE; keeps a text from asking for a number of a million digits


def cast(expr: CompiledExpr, sql_type: SqlType, *, attempt: bool = False) -> CompiledExpr:
    """Return the expression converted to a type; `attempt`: NULL in place of a fault."""
    if expr.sql_type == sql_type:
        return replace(expr, literal=False) if expr.literal else expr
    if expr.is_null:
        return constant(None, sql_type)
    if expr.sql_type.name == "NULL":
        return replace(expr, sql_type=sql_type)
    convert = converter(expr.sql_type, sql_type)
    if convert is None:
        return replace(expr, sql_type=sql_type, key=f"{sql_type.mark}({expr.key})", literal=False, type=None)
    name = f"{'TRY_' if attempt else ''}CAST AS {sql_type.mark}"
    return call(sql_type, name, _attempted(convert) if attempt else convert, expr)


def truth(expr: CompiledExpr, place: str) -> CompiledExpr:
    """Return the expression as a BOOLEAN, where DuckDB casts it implicitly."""
    if expr.sql_type == BOOLEAN:
        return expr
    is_text = expr.sql_type == TEXT and expr.literal
    if is_text or expr.sql_type.name in INTEGER_BITS or expr.sql_type.name == "NULL":
        return cast(expr, BOOLEAN)
    raise refuse(f"{place} needs a BOOLEAN, and this is {expr.sql_type}.", "Write a comparison.")


def holds_of(expr: CompiledExpr) -> Run:
    """Return the function that is True where a BOOLEAN expression is true."""
    run = expr.run
    return expr.holds or (lambda row: run(row) is True)


def _attempted(convert: Convert) -> Convert:
    def attempt(value: Any) -> Any:
        try:
            return convert(value)
        except UnsupportedInLive:
            raise
        except RowFault:
            return None

    return attempt


def converter(source: SqlType, target: SqlType) -> Convert | None:
    """Return the function from one type to another, None where the value stays as it is."""
    if source == target or (source.name, target.name) in _SAME:
        return None
    made = _CONVERTERS.get((source.name, target.name))
    if made is None:
        raise refuse(f"A live query cannot cast {source} to {target}.", "Cast over TEXT, if DuckDB takes it.")
    return made(source, target)


_SAME = {("TIMESTAMP", "TIMESTAMPTZ"), ("TIMESTAMPTZ", "TIMESTAMP"), ("UUID", "TEXT"), ("JSON", "TEXT")}
_SAME |= {("TINYINT", "INT"), ("TINYINT", "BIGINT"), ("INT", "BIGINT")}


def _to_integer(source: SqlType, target: SqlType) -> Convert:
    check = checker(target, f"a cast from {source}")
    if source.name == "DOUBLE":
        return lambda value: check(_nearest(value, target))
    if source.name == "DECIMAL":
        return lambda value: check(int(value.quantize(Decimal(1), ROUND_HALF_UP, EXACT)))
    if source == TEXT:
        return lambda value: check(_integer_of_text(value, target))
    return lambda value: check(int(value))


def _nearest(value: float, target: SqlType) -> int:
    if not math.isfinite(value):
        raise RowFault(f"{value} is no {target}")
    return round(value)


def _integer_of_text(text: str, target: SqlType) -> int:
    stripped = text.strip(_WHITE)
    digits = stripped[1:] if stripped[:1] in ("+", "-") else stripped
    if digits.isascii() and digits.isdigit():
        if len(digits) > 40:
            _fail(text, target)
        return int(stripped)
    number = _number(text, target)
    if number.adjusted() > DECIMAL_PRECISION_MAX:
        _fail(text, target)
    return int(number.quantize(Decimal(1), ROUND_HALF_UP, EXACT))


def _number(text: str, target: SqlType) -> Decimal:
    """Read a number exactly."""
    matched = _NUMBER.fullmatch(text.strip(_WHITE))
    if matched is None and _OTHER_RADIX.fullmatch(text.strip(_WHITE)):
        raise UnsupportedInLive(f"'{text[:40]}' is a {target} that live queries do not read")
    if matched is None or not (matched[2] or matched[3]):
        _fail(text, target)
    if matched[4] and target.name == "DECIMAL":
        raise UnsupportedInLive(f"'{text[:40]}' has an exponent, which live queries do not read as {target}")
    try:
        number = Decimal(matched[0].replace("_", ""))
    except InvalidOperation:
        _fail(text, target)
    if abs(number.adjusted()) > _EXPONENT_MAX and number:
        _fail(text, target)
    return number


def _fail(text: str, target: SqlType) -> NoReturn:
    shown = text if len(text) <= 40 else text[:40] + "…"
    raise RowFault(f"'{shown}' is no {target}")


def _to_double(source: SqlType, _target: SqlType) -> Convert:
    if source.name == "DECIMAL" and source.precision > _DIGITS_OF_64_BITS and source.scale == 0:
        return _double_of_halves
    return _double_of_text if source == TEXT else float


def _double_of_halves(value: Decimal) -> float:
    """Convert a whole number of 128 bits as DuckDB does, half by half, each rounded by itself."""
    high, low = divmod(int(value), 1 << 64)
    if high == -1:
        return -float((1 << 64) - 1 - low) - 1.0
    return float(low) + float(high) * float(1 << 64)


def _double_of_text(text: str) -> float:
    stripped = text.strip(_WHITE)
    sign = -1.0 if stripped[:1] == "-" else 1.0
    special = _INFINITE.get(stripped.lstrip("+-").lower()) if len(stripped) <= 9 else None
    if special is not None and stripped[1:2] not in ("+", "-"):
        return sign * special
    matched = _NUMBER.fullmatch(stripped)
    if matched is None or not (matched[2] or matched[3]):
        _fail(text, SqlType("DOUBLE"))
    return float(matched[0].replace("_", ""))


def _to_decimal(source: SqlType, target: SqlType) -> Convert:
    unit = Decimal(1).scaleb(-target.scale)
    check = decimal_checker(target, f"a cast from {source}")

    def fit(value: Decimal) -> Decimal:
        return check(scaled(value, unit))

    if source == BOOLEAN and target.precision == target.scale:
        raise refuse(f"A live query cannot cast BOOLEAN to {target}.", "Cast it to INT first.")
    if source.name == "DOUBLE":
        return _decimal_of_double(target, check)
    if source == TEXT:
        return lambda value: fit(_bounded(_number(value, target), target))
    return lambda value: fit(Decimal(value))


def _bounded(number: Decimal, target: SqlType) -> Decimal:
    """Raise RowFault for numbers that are too large for the type, before they are written out in digits."""
    if number and number.adjusted() > target.precision:
        raise RowFault(f"{number} does not fit {target}")
    return number


def _decimal_of_double(target: SqlType, check: Callable[[Decimal], Decimal]) -> Convert:
    power, shift = 10.0**target.scale, -target.scale

    def convert(value: float) -> Decimal:
        scaled = value * power
        if not math.isfinite(scaled):
            raise RowFault(f"{value} is no {target}")
        return check(Decimal(int(round_away(scaled))).scaleb(shift, EXACT))

    return convert


def round_away(value: float) -> float:
    """Round to the nearest whole number, a half away from zero."""
    if not math.isfinite(value) or abs(value) >= 1 << 52:
        return value
    whole = math.trunc(value)
    if abs(value - whole) >= 0.5:
        whole += 1 if value > 0 else -1
    return math.copysign(float(whole), value)


def _to_boolean(source: SqlType, _target: SqlType) -> Convert:
    return _boolean_of_text if source == TEXT else bool


def _boolean_of_text(text: str) -> bool:
    word = text.lower() if text.isascii() else text
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    _fail(text, BOOLEAN)


def _to_text(source: SqlType, _target: SqlType) -> Convert:
    if source.name == "DECIMAL":
        return _bare_fraction if source.precision == source.scale else "{:f}".format
    return {
        "BOOLEAN": lambda value: "true" if value else "false",
        "DOUBLE": _text_of_double,
        "DATE": date_text,
        "TIMESTAMP": timestamp_text,
        "TIMESTAMPTZ": lambda value: timestamp_text(value) + "+00",
        "BYTES": _text_of_bytes,
    }.get(source.name, str)


def _text_of_double(value: float) -> str:
    if math.isnan(value):
        # Whether DuckDB writes 'nan' or '-nan' depends on the machine and on where the NaN came from.
        raise UnsupportedInLive("live queries do not write NaN as a text")
    return repr(value)


def _bare_fraction(value: Decimal) -> str:
    """Write a DECIMAL that has no digit before the point without a zero there, as DuckDB does."""
    return f"{value:f}".replace("0.", ".", 1)


def _text_of_bytes(value: bytes) -> str:
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b"\\'\"" else f"\\x{byte:02X}" for byte in value
    )


def _to_bytes(_source: SqlType, target: SqlType) -> Convert:
    def convert(text: str) -> bytes:
        made = bytearray()
        for matched in _BYTE.finditer(text):
            if matched[3] is not None:
                _fail(text, target)
            made += bytes.fromhex(matched[1]) if matched[1] else matched[2].encode()
        return bytes(made)

    return convert


def _to_json(_source: SqlType, target: SqlType) -> Convert:
    def convert(text: str) -> str:
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            _fail(text, target)
        return text

    return convert


def _to_uuid(_source: SqlType, target: SqlType) -> Convert:
    def convert(text: str) -> str:
        bare = text[1:-1] if text[:1] == "{" and text[-1:] == "}" else text
        digits = bare.lower().replace("-", "")  # they are allowed anywhere
        if not _UUID_HEX.fullmatch(digits):
            _fail(text, target)
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    return convert


def _date_of_time(_source: SqlType, _target: SqlType) -> Convert:
    return lambda value: value // DAY_US


def _time_of_date(_source: SqlType, _target: SqlType) -> Convert:
    return midnight


_NUMBERS = ("TINYINT", "INT", "BIGINT", "DOUBLE", "DECIMAL")
_CONVERTERS: dict[tuple[str, str], Callable[[SqlType, SqlType], Convert]] = {
    **{(name, to): _to_integer for name in ("BOOLEAN", "TEXT", *_NUMBERS) for to in INTEGER_BITS},
    **{(name, "DOUBLE"): _to_double for name in ("BOOLEAN", "TEXT", *_NUMBERS)},
    **{(name, "DECIMAL"): _to_decimal for name in ("BOOLEAN", "TEXT", *_NUMBERS)},
    **{(name, "BOOLEAN"): _to_boolean for name in ("TEXT", *_NUMBERS)},
    **{
        (name, "TEXT"): _to_text
        for name in ("BOOLEAN", *_NUMBERS, "DATE", "TIMESTAMP", "TIMESTAMPTZ", "BYTES")
    },
    ("TEXT", "BYTES"): _to_bytes,
    ("TEXT", "JSON"): _to_json,
    ("TEXT", "UUID"): _to_uuid,
    ("TEXT", "DATE"): lambda _source, _target: parse_date,
    ("TEXT", "TIMESTAMP"): lambda _source, _target: lambda text: parse_timestamp(text, zoned=False),
    ("TEXT", "TIMESTAMPTZ"): lambda _source, _target: lambda text: parse_timestamp(text, zoned=True),
    ("TIMESTAMP", "DATE"): _date_of_time,
    ("TIMESTAMPTZ", "DATE"): _date_of_time,
    ("DATE", "TIMESTAMP"): _time_of_date,
    ("DATE", "TIMESTAMPTZ"): _time_of_date,
}
