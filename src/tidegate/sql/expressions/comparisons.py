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
    Kind,
    Piece,
    Run,
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


def compare(operator_text: str, left: Piece, right: Piece) -> Piece:
    """Return `left operator right`."""
    if left.constant and not right.constant:
        return compare(_TURNED[operator_text], right, left)
    kind = mixed([left, right], f"'{operator_text}'")
    left, right = _alike(left, kind), _alike(right, kind)
    tests = _DOUBLE_TESTS if kind == DOUBLE else _TESTS
    made = call(BOOLEAN, operator_text, tests[operator_text], left, right)
    if made.constant or left.column is None or not right.constant or _is_nan(right.value):
        return made
    holds = _column_holds(operator_text, left.column, right.value, kind == DOUBLE)
    is_exact = operator_text == "=" and kind != DOUBLE and left.kind == kind
    equal = (left.column, right.value) if is_exact else None
    return replace(made, holds=holds, equal=equal)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and isnan(value)


def mixed(pieces: Sequence[Piece], place: str) -> Kind:
    """Return the kind in which DuckDB mixes the pieces, or refuse."""

    def both(left: Piece, right: Piece) -> Piece:
        kind = combine(left, right)
        if kind is None or INTERVAL in (left.kind, right.kind):
            reason = f"{place} cannot mix {left.kind} and {right.kind} in a live query."
            raise refuse(reason, "Cast one side, for example CAST(x AS TEXT).")
        larger = right if right.literal and not left.literal else left
        return replace(larger, kind=kind, literal=left.literal and right.literal)

    return reduce(both, pieces).kind


def _alike(piece: Piece, kind: Kind) -> Piece:
    """Cast for a comparison; numbers of different DECIMALs compare exactly as they are."""
    is_exact = kind.name == "DECIMAL" and piece.kind.name in ("TINYINT", "INT", "BIGINT", "DECIMAL")
    return piece if is_exact else cast(piece, kind)


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


def distinct(left: Piece, right: Piece, *, negated: bool) -> Piece:
    """Return IS DISTINCT FROM, where NULL is a value like others; negated: IS NOT DISTINCT FROM."""
    kind = mixed([left, right], "IS DISTINCT FROM")
    left, right = _alike(left, kind), _alike(right, kind)
    run, other_run = left.run, right.run
    same = _DOUBLE_TESTS["="] if kind == DOUBLE else operator.eq

    def differs(row: Row) -> bool:
        value, other = run(row), other_run(row)
        if value is None or other is None:
            return (value is not other) is not negated
        return same(value, other) is negated

    return _made("IS NOT DISTINCT" if negated else "IS DISTINCT", differs, left, right)


def _made(name: str, run: Run, *parts: Piece, kind: Kind = BOOLEAN, holds: Run | None = None) -> Piece:
    """Return a piece that sees the NULLs of its parts itself; of constants it is one, too."""
    if all(part.constant for part in parts):
        return constant(run(()), kind)
    return Piece(kind, f"{name}({','.join(part.key for part in parts)})", run, holds=holds)


def is_null(piece: Piece) -> Piece:
    """Return IS NULL."""
    run = piece.run
    return _made("IS NULL", lambda row: run(row) is None, piece, holds=lambda row: run(row) is None)


def is_truth(piece: Piece, wanted: bool) -> Piece:
    """Return IS TRUE or IS FALSE."""
    piece = truth(piece, "IS TRUE")
    run = piece.run
    return _made(f"IS {wanted}", lambda row: run(row) is wanted, piece)


def negate(piece: Piece) -> Piece:
    """Return NOT."""
    piece = truth(piece, "NOT")
    run = piece.run
    made = call(BOOLEAN, "NOT", operator.not_, piece)
    return made if made.constant else replace(made, holds=lambda row: run(row) is False)


def all_of(pieces: Sequence[Piece]) -> Piece:
    """Return AND: false if any is false, else NULL if any is NULL; from left to right, as far as needed."""
    parts = [truth(piece, "AND") for piece in pieces]
    equal = next((part.equal for part in parts if part.equal), None)
    made = _made("AND", _joined([part.run for part in parts], False), *parts)
    if made.constant:
        return made
    tests = [holds_of(part) for part in parts]
    if len(tests) == 2:
        one, two = tests
        return replace(made, equal=equal, holds=lambda row: one(row) and two(row))
    return replace(made, equal=equal, holds=lambda row: all(test(row) for test in tests))


def any_of(pieces: Sequence[Piece]) -> Piece:
    """Return OR: true if any is true, else NULL if any is NULL; from left to right, as far as needed."""
    parts = [truth(piece, "OR") for piece in pieces]
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


def among(piece: Piece, choices: Sequence[Piece]) -> Piece:
    """Return IN (…): NULL when nothing is equal and something is NULL."""
    kind = mixed([piece, *choices], "IN")
    piece, choices = cast(piece, kind), [cast(choice, kind) for choice in choices]
    if any(not choice.constant for choice in choices) or kind == DOUBLE:
        return any_of([compare("=", piece, choice) for choice in choices])
    values = frozenset(choice.value for choice in choices if choice.value is not None)
    has_null = any(choice.value is None for choice in choices)
    run = piece.run

    def found(row: Row) -> bool | None:
        value = run(row)
        if value is None:
            return None
        return True if value in values else (None if has_null else False)

    return _made("IN", found, piece, *choices, holds=lambda row: run(row) in values)


def between(piece: Piece, low: Piece, high: Piece) -> Piece:
    """Return BETWEEN, both ends in."""
    kind = mixed([piece, low, high], "BETWEEN")
    piece, low, high = (_alike(part, kind) for part in (piece, low, high))
    return all_of([compare(">=", piece, low), compare("<=", piece, high)])


def case(conditions: Sequence[Piece], results: Sequence[Piece], otherwise: Piece) -> Piece:
    """Return the result of the first condition that is true; later ones are not calculated."""
    kind = mixed([*results, otherwise], "CASE")
    conditions = [truth(condition, "CASE WHEN") for condition in conditions]
    results, otherwise = [cast(result, kind) for result in results], cast(otherwise, kind)
    branches = [
        (holds_of(condition), result.run) for condition, result in zip(conditions, results, strict=True)
    ]
    last = otherwise.run

    def choose(row: Row) -> Any:
        for test, run in branches:
            if test(row):
                return run(row)
        return last(row)

    return _made("CASE", choose, *conditions, *results, otherwise, kind=kind)


def coalesce(pieces: Sequence[Piece]) -> Piece:
    """Return the first value that is not NULL; later ones are not calculated."""
    kind = mixed(pieces, "COALESCE")
    pieces = [cast(piece, kind) for piece in pieces]
    runs = [piece.run for piece in pieces]

    def first(row: Row) -> Any:
        for run in runs:
            value = run(row)
            if value is not None:
                return value
        return None

    return _made("COALESCE", first, *pieces, kind=kind)


def null_if(piece: Piece, other: Piece) -> Piece:
    """Return NULLIF: the first value, or NULL where both are equal."""
    kind = piece.kind
    equal, run = compare("=", piece, other).run, piece.run
    return _made("NULLIF", lambda row: None if equal(row) else run(row), piece, other, kind=kind)


def extreme(pieces: Sequence[Piece], *, greatest: bool) -> Piece:
    """Return GREATEST or LEAST of the values that are not NULL; of equal ones, the first."""
    name = "GREATEST" if greatest else "LEAST"
    kind = mixed(pieces, name)
    pieces = [cast(piece, kind) for piece in pieces]
    runs = [piece.run for piece in pieces]
    pick = max if greatest else min
    rank: Callable[[Any], Any] | None = (lambda v: (isnan(v), v)) if kind == DOUBLE else None

    def chosen(row: Row) -> Any:
        values = [value for run in runs if (value := run(row)) is not None]
        return pick(values, key=rank) if values else None

    return _made(name, chosen, *pieces, kind=kind)
