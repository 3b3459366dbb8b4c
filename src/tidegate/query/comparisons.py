"""The comparisons of a statement with a table's columns, as values of those columns.

Takes the statement and a table, gives comparisons that mean the same to the table as to DuckDB. A constant
is turned into the column's own type exactly, by DuckDB where it has a hand in the meaning (texts that stand
for times, casts); what cannot be turned exactly is left to DuckDB alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

from tidegate.model.coercions import BIGINT_MAX, BIGINT_MIN, INT_MAX, INT_MIN
from tidegate.model.schemas import DECIMAL_PRECISION_MAX, ColumnType
from tidegate.model.tables import Value
from tidegate.model.timeranges import TIME_US_MAX, TIME_US_MIN
from tidegate.query.bounds import Bound, BoundTable, Constant, find_bounds
from tidegate.query.constants import TIME_TYPES, alike, constant_types, is_whole, used_params
from tidegate.query.wanted import Comparison, SourceTable

_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_EXACT = Context(prec=100, traps=[Inexact, InvalidOperation])
# How many digits DuckDB gives a whole number beside a decimal one.
_WHOLE_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INTEGER": 10, "BIGINT": 19}


def bound_table(table: SourceTable) -> BoundTable:
    """Name the columns whose comparisons the table can use."""
    namespace, _, name = table.full_name.partition(".")
    return BoundTable(namespace, name, tuple(name for name, _ in table.columns), table.compared)


def find_comparisons(
    cursor: Any, sql: str, table: SourceTable, params: Sequence[Any]
) -> tuple[Comparison, ...]:
    """Give the comparisons that every row of the table must meet to have any part in the answer."""
    import duckdb

    bounds = find_bounds(sql, bound_table(table), len(params)) if table.compared else []
    if not bounds:
        return ()
    try:
        return _evaluate(cursor, bounds, dict(table.columns), params)
    except (
        duckdb.BinderException,
        duckdb.ConversionException,
        duckdb.InvalidInputException,
        duckdb.OutOfRangeException,
    ):
        return ()  # a constant that cannot be: the statement itself says so, if it comes to that


def _evaluate(
    cursor: Any, bounds: list[Bound], columns: dict[str, ColumnType], params: Sequence[Any]
) -> tuple[Comparison, ...]:
    types = constant_types(cursor, bounds, params)
    usable = [
        bound
        for bound in bounds
        if alike({types[constant.sql] for constant in bound.peers})
        and all(_is_usable(bound, constant, columns[bound.column], types) for constant in bound.constants)
    ]
    if not usable:
        return ()
    asked = [_asked(constant.sql, columns[bound.column]) for bound in usable for constant in bound.constants]
    sql = f"SELECT {', '.join(asked)}"
    answers = iter(cursor.execute(sql, used_params(cursor, sql, params)).fetchall()[0])
    found = []
    for bound in usable:
        kind = columns[bound.column]
        values = [_value(next(answers), kind) for _ in bound.constants]
        if None not in values:
            found.append(Comparison(bound.column, bound.operator, tuple(dict.fromkeys(values))))
    return tuple(found)


def _is_usable(bound: Bound, constant: Constant, kind: ColumnType, types: dict[str, str]) -> bool:
    """Say whether DuckDB compares the column, as it is, with the constant turned into its type."""
    # The clock goes on until the statement runs, so only a lower bound by the clock is safe now.
    if constant.rises and bound.operator not in {">", ">="}:
        return False
    found = types[constant.sql]
    match kind.name:
        case "INT" | "BIGINT":
            return is_whole(found)
        case "DOUBLE":
            return is_whole(found) or found == "DOUBLE" or _DECIMAL.fullmatch(found) is not None
        case "DECIMAL":
            digits = _digits(found)
            return digits is not None and _joined_digits(kind, *digits) <= DECIMAL_PRECISION_MAX
        case "TEXT":
            return found == "VARCHAR"
        case "UUID":
            return found in {"UUID", "VARCHAR"}
        case "DATE":
            return found in {"DATE", "VARCHAR"}
        case "TIMESTAMP":
            return found in TIME_TYPES
        case "BOOLEAN":
            return found == "BOOLEAN"
        case "BYTES":
            return found == "BLOB"
    return False


def _digits(constant_type: str) -> tuple[int, int] | None:
    """Give precision and scale of a number's type; None where it has none."""
    matched = _DECIMAL.fullmatch(constant_type)
    if matched is not None:
        return int(matched[1]), int(matched[2])
    whole = _WHOLE_DIGITS.get(constant_type)
    return None if whole is None else (whole, 0)


def _joined_digits(kind: ColumnType, precision: int, scale: int) -> int:
    """Give how many digits a decimal type needs to hold both; beyond the most, DuckDB drops some."""
    return max(kind.precision - kind.scale, precision - scale) + max(kind.scale, scale)


def _asked(constant: str, kind: ColumnType) -> str:
    """Give what DuckDB is asked for, in a type that reaches Python exactly."""
    match kind.name:
        case "TIMESTAMP":
            return f"epoch_us(CAST({constant} AS TIMESTAMPTZ))"
        case "DOUBLE":
            return f"CAST({constant} AS DOUBLE)"
        case "DATE" | "UUID":
            return f"CAST({constant} AS VARCHAR)"
    return constant


def _value(answer: Any, kind: ColumnType) -> Value:
    """Give a constant as the column's type holds it; None where it does not, or is null."""
    if answer is None:
        return None
    match kind.name:
        case "INT" | "BIGINT":
            low, high = (INT_MIN, INT_MAX) if kind.name == "INT" else (BIGINT_MIN, BIGINT_MAX)
            return int(answer) if low <= answer <= high else None
        case "DOUBLE":
            return float(answer) if math.isfinite(answer) else None
        case "DECIMAL":
            return _decimal(Decimal(answer), kind)
        case "TIMESTAMP":
            return int(answer) if TIME_US_MIN <= answer <= TIME_US_MAX else None
        case "DATE":
            return _day(answer)
        case "UUID":
            return _uuid(answer)
    return answer  # type: ignore[no-any-return]


def _decimal(value: Decimal, kind: ColumnType) -> Decimal | None:
    """Give the number at the column's scale; None where it has more digits than the column."""
    try:
        fitted = value.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    except (Inexact, InvalidOperation):
        return None
    return fitted if len(fitted.as_tuple().digits) <= kind.precision else None


def _day(text: str) -> int | None:
    from datetime import date

    from tidegate.model.coercions import EPOCH_ORDINAL

    if _DAY.fullmatch(text) is None:
        return None
    try:
        return date.fromisoformat(text).toordinal() - EPOCH_ORDINAL
    except ValueError:
        return None


def _uuid(text: str) -> str | None:
    """Give a UUID that is written as everywhere; other spellings are left to DuckDB."""
    from uuid import UUID

    try:
        return text if str(UUID(text)) == text else None
    except ValueError:
        return None
