"""Functions of numbers: a half is rounded away from zero; roots and powers that have no value give NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from tidegate.model.schemas import DECIMAL_PRECISION_MAX
from tidegate.sql.expressions.arithmetic import NUMBERS, arithmetic
from tidegate.sql.expressions.casts import cast, round_away
from tidegate.sql.expressions.types import (
    BOOLEAN,
    DOUBLE,
    INTEGER_BITS,
    TINYINT,
    CompiledExpr,
    SqlType,
    call,
    checker,
    decimal_checker,
    decimal_type,
    refuse,
    scaled,
)

# Beyond this many digits a DOUBLE is not changed by rounding, or is zero.
_ROUND_DIGITS_MAX = 400


def number_of(expr: CompiledExpr, name: str) -> CompiledExpr:
    """Return an argument that must be a number, or refuse it."""
    if expr.sql_type.name in NUMBERS:
        return expr
    raise refuse(f"{name}() takes a number, not {expr.sql_type}.", "Cast it: CAST(x AS DOUBLE).")


def _absolute(args: Sequence[CompiledExpr]) -> CompiledExpr:
    expr = number_of(args[0], "abs")
    if expr.sql_type.name in INTEGER_BITS:
        check = checker(expr.sql_type, "abs()")
        return call(expr.sql_type, "abs", lambda value: check(abs(value)), expr)
    return call(expr.sql_type, "abs", Decimal.copy_abs if expr.sql_type.name == "DECIMAL" else abs, expr)


def _sign(args: Sequence[CompiledExpr]) -> CompiledExpr:
    return call(TINYINT, "sign", lambda value: (value > 0) - (value < 0), number_of(args[0], "sign"))


def _stepped(
    name: str, rounding: str, step: Callable[[float], int]
) -> Callable[[Sequence[CompiledExpr]], CompiledExpr]:
    """Return floor() or ceil(): DECIMAL stays DECIMAL, all others become DOUBLE."""

    def whole(value: float) -> float:
        return math.copysign(float(step(value)), value) if math.isfinite(value) else value

    def build(args: Sequence[CompiledExpr]) -> CompiledExpr:
        expr = number_of(args[0], name)
        if expr.sql_type.name != "DECIMAL":
            return call(DOUBLE, name, whole, cast(expr, DOUBLE))
        if expr.sql_type.scale == 0:
            return expr
        sql_type = decimal_type(expr.sql_type.precision, 0)
        return call(sql_type, name, lambda v: scaled(v, Decimal(1), rounding), expr)

    return build


def _round(args: Sequence[CompiledExpr]) -> CompiledExpr:
    expr = number_of(args[0], "round")
    digits = _round_digits(args[1]) if len(args) == 2 else 0
    if expr.sql_type == DOUBLE:
        act = round_away if len(args) == 1 else _rounded_double(digits)
        return call(DOUBLE, f"round {digits if len(args) == 2 else ''}", act, expr)
    if expr.sql_type.name == "DECIMAL":
        return _rounded_decimal(expr, digits)
    return expr if digits >= 0 else _rounded_integer(expr, -digits)


def _round_digits(expr: CompiledExpr) -> int:
    if not expr.constant or expr.sql_type.name not in INTEGER_BITS:
        raise refuse("round() takes a whole number as its second argument in a live query, as a constant.")
    return max(min(int(expr.value), _ROUND_DIGITS_MAX), -_ROUND_DIGITS_MAX)


def _rounded_double(digits: int) -> Callable[[float], float]:
    power = math.inf if abs(digits) > 308 else 10.0 ** abs(digits)

    def after_point(value: float) -> float:
        rounded = round_away(value * power) / power
        return rounded if math.isfinite(rounded) else value

    def before_point(value: float) -> float:
        rounded = round_away(value / power) * power
        return rounded if math.isfinite(rounded) else (0.0 if math.isfinite(value) else value)

    return after_point if digits >= 0 else before_point


def _rounded_decimal(expr: CompiledExpr, digits: int) -> CompiledExpr:
    if digits >= expr.sql_type.scale:
        return expr
    whole = expr.sql_type.precision - expr.sql_type.scale
    if -digits > whole:
        # DuckDB gives 0 here, for NULL, too.
        raise refuse(f"round() has nothing to keep of {expr.sql_type} to {digits} digits.")
    # Without digits after the point there is no room for the one that rounding may add.
    precision = min(expr.sql_type.precision + (expr.sql_type.scale == 0), DECIMAL_PRECISION_MAX)
    sql_type = decimal_type(precision, max(digits, 0))
    unit, check = Decimal(1).scaleb(-digits), decimal_checker(sql_type, "round()")
    target = Decimal(1).scaleb(-sql_type.scale)

    def rounded(value: Decimal) -> Decimal:
        return check(scaled(scaled(value, unit), target))

    return call(sql_type, f"round {digits}", rounded, expr)


def _rounded_integer(expr: CompiledExpr, zeros: int) -> CompiledExpr:
    check, power = checker(expr.sql_type, "round()"), 10 ** min(zeros, 40)

    def rounded(value: int) -> int:
        whole = (abs(value) + power // 2) // power * power
        return check(whole if value >= 0 else -whole)

    return call(expr.sql_type, f"round -{zeros}", rounded, expr)


def power_of(left: float, right: float) -> float:
    """Raise to a power as C does: no value is NaN, too large is an infinity."""
    try:
        return math.pow(left, right)
    except OverflowError:
        is_negative = left < 0 and math.fmod(right, 2.0) in (1.0, -1.0)
        return -math.inf if is_negative else math.inf
    except ValueError:
        if left != 0:
            return math.nan
        is_odd = math.fmod(right, 2.0) in (1.0, -1.0)
        return math.copysign(math.inf, left) if is_odd else math.inf


def _root(value: float) -> float:
    return math.sqrt(value) if value >= 0 else math.nan


def _doubles(
    name: str, function: Callable[..., Any], sql_type: SqlType = DOUBLE
) -> Callable[[Sequence[CompiledExpr]], CompiledExpr]:
    return lambda args: call(sql_type, name, function, *(cast(number_of(arg, name), DOUBLE) for arg in args))


def power(left: CompiledExpr, right: CompiledExpr) -> CompiledExpr:
    """Return `left ** right`."""
    return _doubles("power", power_of)([left, right])


def _modulo(args: Sequence[CompiledExpr]) -> CompiledExpr:
    return arithmetic("%", args[0], args[1])


FUNCTIONS: dict[str, tuple[int, int, Callable[[Sequence[CompiledExpr]], CompiledExpr]]] = {
    "abs": (1, 1, _absolute),
    "sign": (1, 1, _sign),
    "floor": (1, 1, _stepped("floor", ROUND_FLOOR, math.floor)),
    "ceil": (1, 1, _stepped("ceil", ROUND_CEILING, math.ceil)),
    "ceiling": (1, 1, _stepped("ceil", ROUND_CEILING, math.ceil)),
    "round": (1, 2, _round),
    "sqrt": (1, 1, _doubles("sqrt", _root)),
    "power": (2, 2, _doubles("power", power_of)),
    "pow": (2, 2, _doubles("power", power_of)),
    "mod": (2, 2, _modulo),
    "isnan": (1, 1, _doubles("isnan", math.isnan, BOOLEAN)),
    "isinf": (1, 1, _doubles("isinf", math.isinf, BOOLEAN)),
}
