"""Comparisons, three-valued logic and choices between values.

Text is compared by code points, which is the order of its UTF-8 bytes; NaN is equal to itself and greater
than every other DOUBLE; a NULL on either side gives NULL.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from math import isnan
from typing import Any

from tidegate.model.tables import Row
from tidegate.sql.expressions.casts import cast, holds_of, truth
from tidegate.sql.expressions.types import (
    BOOLEAN,
    DOUBLE,
    INTERVAL,
    CompiledExpr,
    Run,
    SqlType,
    call,
    combine,
    constant,
    refuse,
)

Test = Callable[[Any, Any], bool]

_TESTS: dict[str, Test] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# With NaN as the greatest value, equal to itself.
_DOUBLE_TESTS: dict[str, Test] = {
    "=": lambda a, b: a == b or (isnan(a) and isnan(b)),
    "<>": lambda a, b: a != b and not (isnan(a) and isnan(b)),
    "<": lambda a, b: a < b or (isnan(b) and not isnan(a)),
    "<=": lambda a, b: a <= b or isnan(b),
    ">": lambda a, b: a > b or (isnan(a) and not isnan(b)),
    ">=": lambda a, b: a >= b or isnan(a),
}
_TURNED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compare(operator_text: str, left: CompiledExpr, right: CompiledExpr) -> CompiledExpr:
    """Return `left operator right`."""
    if left.constant and not right.constant:
        return compare(_TURNED[operator_text], right, left)
    sql_type = mixed([left, right], f"'{operator_text}'")
    left, right = _alike(left, sql_type), _alike(right, sql_type)
    tests = _DOUBLE_TESTS if sql_type == DOUBLE else _TESTS
    made = call(BOOLEAN, operator_text, tests[operator_text], left, right)
    if made.constant or left.column is None or not right.constant or _is_nan(right.value):
        return made
    holds = _column_holds(operator_text, left.column, right.value, sql_type == DOUBLE)
    is_exact = operator_text == "=" and sql_type != DOUBLE and left.sql_type == sql_type
    equal = (left.column, right.value) if is_exact else None
    return replace(made, holds=holds, equal=equal)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and isnan(value)


def mixed(exprs: Sequence[CompiledExpr], place: str) -> SqlType:
    """Return the type in which DuckDB mixes the expressions, or refuse."""

    def both(left: CompiledExpr, right: CompiledExpr) -> CompiledExpr:
        sql_type = combine(left, right)
        if sql_type is None or INTERVAL in (left.sql_type, right.sql_type):
            reason = f"{place} cannot mix {left.sql_type} and {right.sql_type} in a live query."
            raise refuse(reason, "Cast one side, for example CAST(x AS TEXT).")
        larger = right if right.literal and not left.literal else left
        return replace(larger, sql_type=sql_type, literal=left.literal and right.literal)

    return reduce(both, exprs).sql_type


def _alike(expr: CompiledExpr, sql_type: SqlType) -> CompiledExpr:
    """Cast for a comparison; numbers of different DECIMALs compare exactly as they are."""
    is_exact = sql_type.name == "DECIMAL" and expr.sql_type.name in ("TINYINT", "INT", "BIGINT", "DECIMAL")
    return expr if is_exact else cast(expr, sql_type)


def _column_holds(operator_text: str, position: int, value: Any, is_double: bool) -> Run:
    """Return the quickest test of a column against a constant that is neither NULL nor NaN."""
    if is_double and operator_text in (">", ">="):
        test = _DOUBLE_TESTS[operator_text]
        return lambda row: (v := row[position]) is not None and test(v, value)
    made: dict[str, Run] = {
        "=": lambda row: row[position] == value,
        "<>": lambda row: (v := row[position]) is not None and v != value,
        "<": lambda row: (v := row[position]) is not None and v < value,
        "<=": lambda row: (v := row[position]) is not None and v <= value,
        ">": lambda row: (v := row[position]) is not None and v > value,
        ">=": lambda row: (v := row[position]) is not None and v >= value,
    }
    return made[operator_text]


def distinct(left: CompiledExpr, right: CompiledExpr, *, negated: bool) -> CompiledExpr:
    """Return IS DISTINCT FROM, where NULL is a value like others; negated: IS NOT DISTINCT FROM."""
    sql_type = mixed([left, right], "IS DISTINCT FROM")
    left, right = _alike(left, sql_type), _alike(right, sql_type)
    run, other_run = left.run, right.run
    same = _DOUBLE_TESTS["="] if sql_type == DOUBLE else operator.eq

    def differs(row: Row) -> bool:
        value, other = run(row), other_run(row)
        if value is None or other is None:
            return (value is not other) is not negated
        return same(value, other) is negated

    return _made("IS NOT DISTINCT" if negated else "IS DISTINCT", differs, left, right)


def _made(
    name: str, run: Run, *parts: CompiledExpr, sql_type: SqlType = BOOLEAN, holds: Run | None = None
) -> CompiledExpr:
    """Return an expression that handles NULLs itself; of constants it is a constant."""
    if all(part.constant for part in parts):
        return constant(run(()), sql_type)
    return CompiledExpr(sql_type, f"{name}({','.join(part.key for part in parts)})", run, holds=holds)


def is_null(expr: CompiledExpr) -> CompiledExpr:
    """Return IS NULL."""
    run = expr.run
    return _made("IS NULL", lambda row: run(row) is None, expr, holds=lambda row: run(row) is None)


def is_truth(expr: CompiledExpr, target: bool) -> CompiledExpr:
    """Return IS TRUE or IS FALSE."""
    expr = truth(expr, "IS TRUE")
    run = expr.run
    return _made(f"IS {target}", lambda row: run(row) is target, expr)


def negate(expr: CompiledExpr) -> CompiledExpr:
    """Return NOT."""
    expr = truth(expr, "NOT")
    run = expr.run
    made = call(BOOLEAN, "NOT", operator.not_, expr)
    return made if made.constant else replace(made, holds=lambda row: run(row) is False)


def all_of(exprs: Sequence[CompiledExpr]) -> CompiledExpr:
    """Return AND: false if any is false, else NULL if any is NULL; from left to right, as far as needed."""
    parts = [truth(expr, "AND") for expr in exprs]
    equal = next((part.equal for part in parts if part.equal), None)
    made = _made("AND", _joined([part.run for part in parts], False), *parts)
    if made.constant:
        return made
    tests = [holds_of(part) for part in parts]
    if len(tests) == 2:
        one, two = tests
        return replace(made, equal=equal, holds=lambda row: one(row) and two(row))
    return replace(made, equal=equal, holds=lambda row: all(test(row) for test in tests))


def any_of(exprs: Sequence[CompiledExpr]) -> CompiledExpr:
    """Return OR: true if any is true, else NULL if any is NULL; from left to right, as far as needed."""
    parts = [truth(expr, "OR") for expr in exprs]
    made = _made("OR", _joined([part.run for part in parts], True), *parts)
    if made.constant:
        return made
    tests = [holds_of(part) for part in parts]
    if len(tests) == 2:
        one, two = tests
        return replace(made, holds=lambda row: one(row) or two(row))
    return replace(made, holds=lambda row: any(test(row) for test in tests))


def _joined(runs: list[Run], decisive: bool) -> Run:
    def joined(row: Row) -> Any:
        is_unknown = False
        for run in runs:
            value = run(row)
            if value is decisive:
                return decisive
            is_unknown = is_unknown or value is None
        return None if is_unknown else not decisive

    return joined


def among(expr: CompiledExpr, choices: Sequence[CompiledExpr]) -> CompiledExpr:
    """Return IN (…): NULL when nothing is equal and something is NULL."""
    sql_type = mixed([expr, *choices], "IN")
    expr, choices = cast(expr, sql_type), [cast(choice, sql_type) for choice in choices]
    if any(not choice.constant for choice in choices) or sql_type == DOUBLE:
        return any_of([compare("=", expr, choice) for choice in choices])
    values = frozenset(choice.value for choice in choices if choice.value is not None)
    has_null = any(choice.value is None for choice in choices)
    run = expr.run

    def found(row: Row) -> bool | None:
        value = run(row)
        if value is None:
            return None
        return True if value in values else (None if has_null else False)

    return _made("IN", found, expr, *choices, holds=lambda row: run(row) in values)


def between(expr: CompiledExpr, low: CompiledExpr, high: CompiledExpr) -> CompiledExpr:
    """Return BETWEEN, both ends in."""
    sql_type = mixed([expr, low, high], "BETWEEN")
    expr, low, high = (_alike(part, sql_type) for part in (expr, low, high))
    return all_of([compare(">=", expr, low), compare("<=", expr, high)])


def case(
    conditions: Sequence[CompiledExpr], results: Sequence[CompiledExpr], otherwise: CompiledExpr
) -> CompiledExpr:
    """Return the result of the first condition that is true; later ones are not calculated."""
    sql_type = mixed([*results, otherwise], "CASE")
    conditions = [truth(condition, "CASE WHEN") for condition in conditions]
    results, otherwise = [cast(result, sql_type) for result in results], cast(otherwise, sql_type)
    branches = [
        (holds_of(condition), result.run) for condition, result in zip(conditions, results, strict=True)
    ]
    last = otherwise.run

    def choose(row: Row) -> Any:
        for test, run in branches:
            if test(row):
                return run(row)
        return last(row)

    return _made("CASE", choose, *conditions, *results, otherwise, sql_type=sql_type)


def coalesce(exprs: Sequence[CompiledExpr]) -> CompiledExpr:
    """Return the first value that is not NULL; later ones are not calculated."""
    sql_type = mixed(exprs, "COALESCE")
    exprs = [cast(expr, sql_type) for expr in exprs]
    runs = [expr.run for expr in exprs]

    def first(row: Row) -> Any:
        for run in runs:
            value = run(row)
            if value is not None:
                return value
        return None

    return _made("COALESCE", first, *exprs, sql_type=sql_type)


def null_if(expr: CompiledExpr, other: CompiledExpr) -> CompiledExpr:
    """Return NULLIF: the first value, or NULL where both are equal."""
    sql_type = expr.sql_type
    equal, run = compare("=", expr, other).run, expr.run
    return _made("NULLIF", lambda row: None if equal(row) else run(row), expr, other, sql_type=sql_type)


def extreme(exprs: Sequence[CompiledExpr], *, greatest: bool) -> CompiledExpr:
    """Return GREATEST or LEAST of the values that are not NULL; of equal ones, the first."""
    name = "GREATEST" if greatest else "LEAST"
    sql_type = mixed(exprs, name)
    exprs = [cast(expr, sql_type) for expr in exprs]
    runs = [expr.run for expr in exprs]
    pick = max if greatest else min
    rank: Callable[[Any], Any] | None = (lambda v: (isnan(v), v)) if sql_type == DOUBLE else None

    def chosen(row: Row) -> Any:
        values = [value for run in runs if (value := run(row)) is not None]
        return pick(values, key=rank) if values else None

    return _made(name, chosen, *exprs, sql_type=sql_type)
