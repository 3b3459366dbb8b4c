"""Arithmetic: the type of the result as DuckDB infers it, whole numbers and DECIMAL checked for overflow."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from tidegate.model.schemas import DECIMAL_PRECISION_MAX
from tidegate.sql.expressions.calendar import DAY_LIMIT, Interval, add_interval, midnight
from tidegate.sql.expressions.casts import cast
from tidegate.sql.expressions.types import (
    BIGINT,
    DATE,
    DOUBLE,
    EXACT,
    INT,
    INTEGER_BITS,
    INTERVAL,
    TIMES,
    TIMESTAMP,
    CompiledExpr,
    RowFault,
    SqlType,
    UnsupportedInLive,
    as_decimal,
    call,
    checker,
    combine,
    constant,
    decimal_checker,
    decimal_type,
    in_range,
    refuse,
    scaled,
)

Binary = Callable[[Any, Any], Any]

NUMBERS = frozenset({*INTEGER_BITS, "DOUBLE", "DECIMAL"})
# A product that may fit 18 digits stays in 64 bits, and is only then found to overflow.
_DIGITS_OF_64_BITS = 18

_ACTS = {"+": "addition", "-": "subtraction", "*": "multiplication"}


def arithmetic(sign: str, left: CompiledExpr, right: CompiledExpr) -> CompiledExpr:
    """Return `left sign right`, of numbers, dates and intervals."""
    names = {left.sql_type.name, right.sql_type.name}
    if names & {*TIMES, "INTERVAL"}:
        return _of_times(sign, left, right)
    if not names <= NUMBERS:
        found = f"{left.sql_type} and {right.sql_type}"
        reason = f"'{sign}' takes numbers, dates and intervals in a live query, not {found}."
        raise refuse(reason, "Cast to a number first: CAST(x AS DOUBLE).")
    if sign == "/":
        return call(DOUBLE, sign, divide, cast(left, DOUBLE), cast(right, DOUBLE))
    if sign == "//":
        return _whole_division(left, right)
    sql_type = combine(left, right) if sign == "%" or "DECIMAL" not in names or "DOUBLE" in names else None
    if sql_type is None:
        return _of_decimals(sign, left, right)
    if sql_type == DOUBLE:
        return call(DOUBLE, sign, _DOUBLES[sign], cast(left, DOUBLE), cast(right, DOUBLE))
    if sql_type.name == "DECIMAL":
        return call(sql_type, sign, _decimal_rest, cast(left, sql_type), cast(right, sql_type))
    return call(sql_type, sign, _of_integers(sign, sql_type), cast(left, sql_type), cast(right, sql_type))


def _of_integers(sign: str, sql_type: SqlType) -> Binary:
    limit = 1 << (INTEGER_BITS[sql_type.name] - 1)
    act = _ACTS.get(sign, "")

    def checked(result: int) -> int:
        if -limit <= result < limit:
            return result
        raise RowFault(f"{act} overflows {sql_type}")

    made: dict[str, Binary] = {
        "+": lambda a, b: checked(a + b),
        "-": lambda a, b: checked(a - b),
        "*": lambda a, b: checked(a * b),
        "%": lambda a, b: _rest(a, b, -limit),
    }
    return made[sign]


def _quotient(left: int, right: int, lowest: int) -> int:
    """Divide towards zero."""
    if right == 0:
        raise RowFault("division by zero")
    if right == -1 and left == lowest:
        raise RowFault("division overflows")
    result = abs(left) // abs(right)
    return result if (left < 0) == (right < 0) else -result


def _rest(left: int, right: int, lowest: int) -> int:
    return left - right * _quotient(left, right, lowest)


def _decimal_rest(left: Decimal, right: Decimal) -> Decimal:
    if not right:
        raise RowFault("division by zero")
    made = EXACT.remainder(left, right)
    return made if made else made.copy_abs()  # zero has no sign


def divide(left: float, right: float) -> float:
    """Divide as IEEE 754 does: by zero it gives an infinity, or NaN."""
    if right:
        return left / right
    if not left or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _float_rest(left: float, right: float) -> float:
    if math.isinf(left) or not right:
        return math.nan
    return math.fmod(left, right)


_DOUBLES: dict[str, Binary] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "%": _float_rest,
}


def _whole_division(left: CompiledExpr, right: CompiledExpr) -> CompiledExpr:
    sql_type = combine(left, right)
    if sql_type is not None and sql_type.name in INTEGER_BITS:
        lowest = -1 << (INTEGER_BITS[sql_type.name] - 1)
        return call(
            sql_type, "//", lambda a, b: _quotient(a, b, lowest), cast(left, sql_type), cast(right, sql_type)
        )

    def divided(one: float, other: float) -> float:
        if not other:
            raise RowFault("division by zero")
        return one / other

    return call(DOUBLE, "//", divided, cast(left, DOUBLE), cast(right, DOUBLE))


def _of_decimals(sign: str, left: CompiledExpr, right: CompiledExpr) -> CompiledExpr:
    one, two = as_decimal(left.sql_type), as_decimal(right.sql_type)
    if sign == "*":
        return _product(left, right, one, two)
    scale = max(one.scale, two.scale)
    whole = max(one.precision - one.scale, two.precision - two.scale)
    sql_type = decimal_type(min(whole + scale + 1, DECIMAL_PRECISION_MAX), scale)
    check = decimal_checker(sql_type, _ACTS[sign])
    # Both get the scale of the result, and must fit it, before they are added.
    left, right = cast(left, sql_type), cast(right, sql_type)
    act = EXACT.add if sign == "+" else EXACT.subtract
    return call(sql_type, sign, lambda a, b: check(act(a, b)), left, right)


def _product(left: CompiledExpr, right: CompiledExpr, one: SqlType, two: SqlType) -> CompiledExpr:
    scale, precision = one.scale + two.scale, one.precision + two.precision
    if scale > DECIMAL_PRECISION_MAX:
        raise refuse(
            f"A product of {one} and {two} needs {scale} digits after the point.", "Cast one to DOUBLE."
        )
    is_short = max(one.precision, two.precision) <= _DIGITS_OF_64_BITS and scale < _DIGITS_OF_64_BITS
    sql_type = decimal_type(min(precision, _DIGITS_OF_64_BITS if is_short else DECIMAL_PRECISION_MAX), scale)
    check, unit = decimal_checker(sql_type, "multiplication"), Decimal(1).scaleb(-scale)

    def multiply(a: Any, b: Any) -> Decimal:
        return scaled(check(EXACT.multiply(a, b)), unit)

    return call(sql_type, "*", multiply, left, right)


def minus(expr: CompiledExpr) -> CompiledExpr:
    """Return `-expression`."""
    if expr.sql_type == INTERVAL:
        return constant(expr.value.negated(), INTERVAL)
    if expr.literal and expr.sql_type in (INT, BIGINT):
        return integer_literal(-expr.value)
    if expr.sql_type.name not in NUMBERS:
        raise refuse(f"'-' takes a number in a live query, not {expr.sql_type}.")
    if expr.sql_type.name in INTEGER_BITS:
        check = checker(expr.sql_type, "negation")
        return call(expr.sql_type, "-", lambda value: check(-value), expr)
    return call(expr.sql_type, "-", EXACT.minus if expr.sql_type.name == "DECIMAL" else lambda v: -v, expr)


def integer_literal(value: int) -> CompiledExpr:
    """Return a whole number as written."""
    if not in_range(value, BIGINT):
        raise refuse(f"The number {value} does not fit BIGINT.", "Write it as a text and cast it to DECIMAL.")
    return constant(value, INT if in_range(value, INT) else BIGINT, literal=True)


def _of_times(sign: str, left: CompiledExpr, right: CompiledExpr) -> CompiledExpr:
    pair = (left.sql_type.name, right.sql_type.name)
    if sign == "+" and left.sql_type.name not in TIMES:
        left, right, pair = right, left, pair[::-1]
    if sign in "+-" and pair[0] in TIMES and pair[1] == "INTERVAL":
        return _moved(left, right.value if sign == "+" else right.value.negated())
    if sign in "+-" and pair[0] == "DATE" and pair[1] in ("INT", "TINYINT"):
        act: Binary = (lambda a, b: _day(a + b)) if sign == "+" else (lambda a, b: _day(a - b))
        return call(DATE, sign, act, left, right)
    if sign == "-" and pair == ("DATE", "DATE"):
        return call(BIGINT, sign, lambda a, b: a - b, left, right)
    reason = f"A live query cannot calculate {left.sql_type} {sign} {right.sql_type}."
    hint = "Times: TIMESTAMP or DATE ± INTERVAL, DATE ± INT, DATE - DATE; epoch(x) gives seconds to subtract."
    raise refuse(reason, hint)


def _day(days: int) -> int:
    if -DAY_LIMIT < days < DAY_LIMIT:
        return days
    if in_range(days, INT):
        raise UnsupportedInLive(
            "live queries do not have the first and the last DATE, which stand for infinity"
        )
    raise RowFault("the DATE is out of range")


def _moved(expr: CompiledExpr, span: Interval) -> CompiledExpr:
    key = f"+{tuple(span)}"
    if expr.sql_type == DATE:
        return call(TIMESTAMP, key, lambda days: add_interval(midnight(days), span), expr)
    return call(expr.sql_type, key, lambda moment: add_interval(moment, span), expr)
