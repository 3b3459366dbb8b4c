"""The types of expressions, and compiled expressions.

A type is a type as DuckDB infers it: the column types, and what lies between them (a TIMESTAMP without a
zone, the TINYINT of sign(), the NULL that has no type yet). A compiled expression has its type, the function
that gives its value of a row, and a key that is equal for equal expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from operator import itemgetter
from typing import Any, NamedTuple

from tidegate.errors import SqlUnsupported
from tidegate.model.schemas import DECIMAL_PRECISION_MAX, ColumnType
from tidegate.model.tables import Row, Value

Run = Callable[[Row], Any]

HINT = "docs/reference/live-filters.md lists what may be used in a live query."
# Twice the digits of the widest DECIMAL: a product of two is exact before its range is checked.
EXACT = Context(prec=2 * DECIMAL_PRECISION_MAX + 4)


class RowFault(Exception):
    """A value of one row cannot be calculated: DuckDB would break off the whole statement here."""


class UnsupportedInLive(RowFault):
    """A value that DuckDB has and live queries do not, such as an infinite date: a fault even in TRY_CAST."""


class SqlType(NamedTuple):
    """A type as DuckDB infers it; only DECIMAL has a precision and a scale."""

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        shown = {"TIMESTAMPTZ": "TIMESTAMP"}.get(self.name, self.name)
        return f"DECIMAL({self.precision},{self.scale})" if self.name == "DECIMAL" else shown

    @property
    def mark(self) -> str:
        """Its name in keys: no two types share one."""
        return f"{self.name}({self.precision},{self.scale})" if self.precision else self.name


NULL = SqlType("NULL")
BOOLEAN = SqlType("BOOLEAN")
TINYINT = SqlType("TINYINT")  # what sign() gives
INT = SqlType("INT")
BIGINT = SqlType("BIGINT")
DOUBLE = SqlType("DOUBLE")
TEXT = SqlType("TEXT")
BYTES = SqlType("BYTES")
JSON = SqlType("JSON")
UUID = SqlType("UUID")
DATE = SqlType("DATE")
TIMESTAMP = SqlType("TIMESTAMP")  # without a zone: what DATE + INTERVAL gives
TIMESTAMPTZ = SqlType("TIMESTAMPTZ")  # what a TIMESTAMP column is in a query
INTERVAL = SqlType("INTERVAL")

# A whole number that is combined with a DECIMAL counts as one of this many digits.
INTEGER_DIGITS = {"TINYINT": 3, "INT": 10, "BIGINT": 19}
INTEGER_BITS = {"TINYINT": 8, "INT": 32, "BIGINT": 64}
TIMES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMPTZ"})


@dataclass(frozen=True, slots=True)
class CompiledExpr:
    """A compiled part of an expression; `run` gives its value of a row, None for NULL, or raises RowFault."""

    sql_type: SqlType
    key: str
    run: Run
    constant: bool = False
    value: Any = None  # of a constant
    literal: bool = False  # a text or whole number as written: what it is combined with decides its type
    column: int | None = None  # the position, when it is a plain column
    type: ColumnType | None = None  # of a plain column
    holds: Run | None = None  # whether it is true (not NULL), where that is quicker than run
    equal: tuple[int, Value] | None = None  # it is true only in rows that have this value in this column

    @property
    def is_null(self) -> bool:
        """Whether it is NULL in every row."""
        return self.constant and self.value is None


def refuse(reason: str, hint: str = HINT) -> SqlUnsupported:
    """Return the error for an expression that cannot be used in a live query."""
    return SqlUnsupported(reason=reason, hint=hint)


def sql_type_of(column_type: ColumnType) -> SqlType:
    """Return the type that a column has in a query, where JSON columns are text."""
    if column_type in (ColumnType.TIMESTAMP, ColumnType.JSON):
        return TIMESTAMPTZ if column_type == ColumnType.TIMESTAMP else TEXT
    return SqlType(column_type.name, column_type.precision, column_type.scale)


def column_type_of(expr: CompiledExpr) -> ColumnType:
    """Return the column type of a result; a column keeps its own."""
    sql_type = expr.sql_type
    if expr.type is not None:
        return expr.type
    if sql_type.name == "DECIMAL":
        return ColumnType.decimal(sql_type.precision, sql_type.scale)
    # DuckDB, too, makes an INTEGER column of a NULL without a type.
    shown = {"TIMESTAMPTZ": "TIMESTAMP", "TINYINT": "INT", "NULL": "INT"}.get(sql_type.name, sql_type.name)
    return ColumnType(shown)


def decimal_type(precision: int, scale: int) -> SqlType:
    """Return DECIMAL(precision, scale)."""
    return SqlType("DECIMAL", precision, scale)


def constant(value: Any, sql_type: SqlType, *, literal: bool = False) -> CompiledExpr:
    """Return the expression of a value that is the same for every row."""
    return CompiledExpr(sql_type, f"{sql_type.mark}:{value!r}", lambda _row: value, True, value, literal)


def column(position: int, name: str, column_type: ColumnType) -> CompiledExpr:
    """Return the expression that reads a column."""
    key = f"#{position} {name!r} {column_type}"
    return CompiledExpr(
        sql_type_of(column_type), key, itemgetter(position), column=position, type=column_type
    )


def call(sql_type: SqlType, name: str, function: Callable[..., Any], *args: CompiledExpr) -> CompiledExpr:
    """Return the expression that applies a function; NULL where an argument is, as most functions are."""
    key = f"{name}({','.join(arg.key for arg in args)})"
    if any(arg.is_null for arg in args):
        return constant(None, sql_type)
    if all(arg.constant for arg in args):
        return constant(folded(lambda: function(*(arg.value for arg in args)), name), sql_type)
    return CompiledExpr(sql_type, key, _strict(function, args))


def folded(calculate: Callable[[], Any], name: str) -> Any:
    """Calculate a constant once, at compile time; one that cannot be is refused."""
    try:
        return calculate()
    except RowFault as fault:
        raise refuse(f"'{name}' of these constants cannot be calculated: {fault}.") from fault


def _strict(function: Callable[..., Any], args: tuple[CompiledExpr, ...]) -> Run:
    if len(args) == 1:
        return _strict_one(function, args[0])
    if len(args) == 2:
        return _strict_two(function, *args)
    runs = [arg.run for arg in args]

    def many(row: Row) -> Any:
        values = [run(row) for run in runs]
        return None if None in values else function(*values)

    return many


def _strict_one(function: Callable[[Any], Any], arg: CompiledExpr) -> Run:
    run, position = arg.run, arg.column

    def of_column(row: Row) -> Any:
        value = row[position]  # type: ignore[index]
        return None if value is None else function(value)

    def of_expr(row: Row) -> Any:
        value = run(row)
        return None if value is None else function(value)

    return of_expr if position is None else of_column


def _strict_two(function: Callable[[Any, Any], Any], left: CompiledExpr, right: CompiledExpr) -> Run:
    run, other_run, left_value, right_value = left.run, right.run, left.value, right.value

    def right_constant(row: Row) -> Any:
        value = run(row)
        return None if value is None else function(value, right_value)

    def left_constant(row: Row) -> Any:
        value = other_run(row)
        return None if value is None else function(left_value, value)

    def both(row: Row) -> Any:
        # Both are calculated, as DuckDB does: a fault of one is a fault beside a NULL, too.
        value, other = run(row), other_run(row)
        return None if value is None or other is None else function(value, other)

    if right.constant:
        return right_constant
    return left_constant if left.constant else both


def combine(left: CompiledExpr, right: CompiledExpr) -> SqlType | None:
    """Return the type in which DuckDB compares or mixes two expressions; None where it asks for a cast."""
    if left.sql_type.name == "NULL" or right.sql_type.name == "NULL":
        return right.sql_type if left.sql_type.name == "NULL" else left.sql_type
    for one, other in ((left, right), (right, left)):
        if one.literal and one.sql_type == TEXT:
            return other.sql_type
    for one, other in ((left, right), (right, left)):
        # A whole number as written takes the type of whole numbers beside it, if it fits.
        if one.literal and not other.literal and other.sql_type == TINYINT and in_range(one.value, TINYINT):
            return TINYINT
    return combine_types(left.sql_type, right.sql_type)


def combine_types(left: SqlType, right: SqlType) -> SqlType | None:
    """Return the type that holds the values of both; None where DuckDB asks for a cast."""
    if left == right:
        return left
    names = {left.name, right.name}
    if names <= TIMES:
        return TIMESTAMPTZ if "TIMESTAMPTZ" in names else TIMESTAMP
    if "BOOLEAN" in names:
        other = left if right == BOOLEAN else right
        return other if other.name in INTEGER_BITS else None
    if names <= INTEGER_BITS.keys():
        return max(left, right, key=lambda sql_type: INTEGER_BITS[sql_type.name])
    if names <= {"DOUBLE", "DECIMAL", *INTEGER_BITS}:
        return DOUBLE if "DOUBLE" in names else _combine_decimals(as_decimal(left), as_decimal(right))
    return None


def as_decimal(sql_type: SqlType) -> SqlType:
    """Return the DECIMAL that a number counts as beside a DECIMAL."""
    return sql_type if sql_type.name == "DECIMAL" else decimal_type(INTEGER_DIGITS[sql_type.name], 0)


def _combine_decimals(left: SqlType, right: SqlType) -> SqlType:
    scale = max(left.scale, right.scale)
    whole = max(left.precision - left.scale, right.precision - right.scale)
    if whole + scale > DECIMAL_PRECISION_MAX:
        raise refuse(
            f"{left} and {right} together need more than {DECIMAL_PRECISION_MAX} digits.",
            "Cast one side to a smaller DECIMAL or to DOUBLE.",
        )
    return decimal_type(whole + scale, scale)


def in_range(value: int, sql_type: SqlType) -> bool:
    """True if a whole number fits."""
    limit: int = 1 << (INTEGER_BITS[sql_type.name] - 1)
    return -limit <= value < limit


def checker(sql_type: SqlType, act: str) -> Callable[[int], int]:
    """Return the function that lets whole numbers of a type through; others are a fault."""
    limit = 1 << (INTEGER_BITS[sql_type.name] - 1)

    def check(value: int) -> int:
        if -limit <= value < limit:
            return value
        raise RowFault(f"{act} overflows {sql_type}")

    return check


def scaled(value: Decimal, unit: Decimal, rounding: str = ROUND_HALF_UP) -> Decimal:
    """Return a number at the scale of `unit`; zero has no sign, as in DuckDB."""
    made = value.quantize(unit, rounding, EXACT)
    return made if made else made.copy_abs()


def decimal_checker(sql_type: SqlType, act: str) -> Callable[[Decimal], Decimal]:
    """Return the function that lets numbers of at most the type's digits through; others are a fault."""
    limit = Decimal(10) ** (sql_type.precision - sql_type.scale)

    def check(value: Decimal) -> Decimal:
        if -limit < value < limit:
            return value
        raise RowFault(f"{act} overflows {sql_type}")

    return check
