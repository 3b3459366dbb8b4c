"""Pushdown: the comparisons of a statement that decide which files or rows of a table it needs.

They compare a plain column with a constant, joined by AND, in the WHERE of the one SELECT that reads the
table; sqlglot finds them. Every row of the table has to meet them to be part of the answer. Whatever is not
plainly safe is left out: a missed comparison costs time, a wrong one costs rows.

A comparison is used where it means the same to the table as to DuckDB. A constant is converted to the
column's own type exactly, by DuckDB where the meaning depends on it (texts of times, casts); what cannot be
converted exactly is left to DuckDB alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

from tidegate.model.schemas import DECIMAL_PRECISION_MAX, ColumnType
from tidegate.model.tables import Value
from tidegate.model.times import TIME_US_MAX, TIME_US_MIN
from tidegate.model.values import BIGINT_MAX, BIGINT_MIN, INT_MAX, INT_MIN
from tidegate.query.quoting import quote_text
from tidegate.query.scans.source import Comparison, TableHeader

# More comparisons than this in one WHERE are ignored: the first ones already exclude what can be excluded.
BOUNDS_MAX = 64
IN_VALUES_MAX = 256

_CASTS = {
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMPNTZ": "TIMESTAMP",
    "TIMESTAMPTZ": "TIMESTAMPTZ",
    "INT": "INTEGER",
    "BIGINT": "BIGINT",
    "DOUBLE": "DOUBLE",
    "TEXT": "VARCHAR",
    "VARCHAR": "VARCHAR",
}
_UNITS = frozenset({"SECOND", "MINUTE", "HOUR", "DAY", "WEEK"})
_NUMBER = re.compile(r"\d+(\.\d+)?")
_FLIPPED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class _NotUsable(Exception):
    """This part of the statement cannot be pushed down."""


@dataclass(frozen=True, slots=True)
class Constant:
    """SQL text with parameters as $1, $2, … of the statement; `rises` if it grows with the clock."""

    sql: str
    rises: bool = False


@dataclass(frozen=True, slots=True)
class BoundTable:
    """A table whose comparisons are looked for: `columns` are all of it, `ordered` those that are of use."""

    namespace: str
    name: str
    columns: tuple[str, ...]
    ordered: frozenset[str]


@dataclass(frozen=True, slots=True)
class ColumnBound:
    """A column compared with constants, of which one must hold: more than one only for IN.

    DuckDB gives one type to the column and to all `peers`: the constants of the same IN or BETWEEN.
    """

    column: str
    operator: str
    constants: tuple[Constant, ...]
    peers: tuple[Constant, ...] = ()


def find_bounds(sql: str, table: BoundTable, parameter_count: int) -> list[ColumnBound]:
    """Return the comparisons that every row of this table must meet to have any part in the answer."""
    found = _plain_use(sql, table, parameter_count)
    return [] if found is None else _bounds_of(*found, table)


def find_filter(sql: str, table: BoundTable, parameter_count: int) -> str:
    """Return the WHERE of the SELECT that reads the table, as text; '' where there is none."""
    found = _plain_use(sql, table, parameter_count)
    where = None if found is None else found[0].args.get("where")
    return "" if where is None else str(where.this.sql(dialect="duckdb"))


def _plain_use(sql: str, table: BoundTable, parameter_count: int) -> tuple[Any, Any] | None:
    """Return the one SELECT that reads the table, and the table in it; None if there is no plain one."""
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        tree = sqlglot.parse_one(_number_parameters(sql, parameter_count), dialect="duckdb")
        return _only_select_of(tree, table)
    except (_NotUsable, SqlglotError, RecursionError):
        return None


def _number_parameters(sql: str, parameter_count: int) -> str:
    """Return the text with ? written as $1, $2, … in its order, which the tree does not keep."""
    import sqlglot
    from sqlglot.tokens import TokenType

    marks = [t for t in sqlglot.tokenize(sql, dialect="duckdb") if t.token_type == TokenType.PLACEHOLDER]
    if not marks:
        return sql
    if len(marks) != parameter_count:
        raise _NotUsable
    for number, token in reversed(list(enumerate(marks, start=1))):
        if sql[token.start : token.end + 1] != "?":
            raise _NotUsable
        sql = f"{sql[: token.start]}${number}{sql[token.end + 1 :]}"
    return sql


def _only_select_of(tree: Any, target: BoundTable) -> tuple[Any, Any]:
    """Return the SELECT that reads the table, and the table in it; _NotUsable unless it is a plain one."""
    from sqlglot import exp

    place = (target.namespace.lower(), target.name.lower())
    found = [table for table in tree.find_all(exp.Table) if (table.db.lower(), table.name.lower()) == place]
    if len(found) != 1 or tree.find(exp.TableSample) is not None or tree.find(exp.Pivot) is not None:
        raise _NotUsable
    table = found[0]
    alias = table.args.get("alias")
    extras = {key for key, value in table.args.items() if value} - {"this", "db", "alias"}
    if extras or (alias is not None and alias.args.get("columns")):
        raise _NotUsable
    select = table.parent.parent if isinstance(table.parent, exp.From | exp.Join) else None
    if not isinstance(select, exp.Select) or select.args.get("laterals"):
        raise _NotUsable
    for join in select.args.get("joins") or ():
        # Rows that fail the WHERE may be left out under these joins, and under no others: those of the first
        # table, and those of a table that is not itself on the side that a LEFT JOIN fills with nulls.
        sides = {""} if join is table.parent else {"", "LEFT"}
        if join.args.get("method") or join.side not in sides or join.kind not in {"", "INNER", "CROSS"}:
            raise _NotUsable
    return select, table


def _bounds_of(select: Any, place: Any, table: BoundTable) -> list[ColumnBound]:
    from sqlglot import exp

    where = select.args.get("where")
    if where is None:
        return []
    every = [name.lower() for name in table.columns]
    columns = {name.lower(): name for name in table.ordered if every.count(name.lower()) == 1}
    names = {place.alias_or_name.lower()}
    alone = not select.args.get("joins")
    # An alias of an output may stand for its expression in WHERE.
    aliases = {output.alias.lower() for output in select.expressions if output.alias}
    if any(star.args.get("replace") or star.args.get("rename") for star in select.find_all(exp.Star)):
        return []

    def column_of(node: Any) -> str:
        if (
            not isinstance(node, exp.Column)
            or node.args.get("db")
            or not isinstance(node.this, exp.Identifier)
        ):
            raise _NotUsable
        name, qualifier = node.name.lower(), node.table.lower()
        clash = name in aliases if not qualifier else qualifier in every
        if clash or name not in columns or not (qualifier in names or (alone and not qualifier)):
            raise _NotUsable
        return columns[name]

    bounds: list[ColumnBound] = []
    for part in _conjuncts(where.this):
        try:
            bounds.extend(_bounds_in(part, column_of))
        except _NotUsable:
            continue
    return bounds[:BOUNDS_MAX]


def _conjuncts(node: Any) -> list[Any]:
    from sqlglot import exp

    parts, stack = [], [node]
    while stack:
        part = stack.pop()
        if isinstance(part, exp.And):
            stack += [part.expression, part.this]
        elif isinstance(part, exp.Paren):
            stack.append(part.this)
        else:
            parts.append(part)
    return parts


def _bounds_in(node: Any, column_of: Any) -> list[ColumnBound]:
    from sqlglot import exp

    operators = {exp.EQ: "=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
    operator = operators.get(type(node))
    if operator is not None:
        if isinstance(node.this, exp.Column):
            return [ColumnBound(column_of(node.this), operator, (_constant(node.expression),))]
        return [ColumnBound(column_of(node.expression), _FLIPPED[operator], (_constant(node.this),))]
    if isinstance(node, exp.Between) and not node.args.get("symmetric"):
        column = column_of(node.this)
        low, high = _constant(node.args["low"]), _constant(node.args["high"])
        return [
            ColumnBound(column, ">=", (low,), (low, high)),
            ColumnBound(column, "<=", (high,), (low, high)),
        ]
    if isinstance(node, exp.In) and {key for key, value in node.args.items() if value} == {
        "this",
        "expressions",
    }:
        if len(node.expressions) > IN_VALUES_MAX:
            raise _NotUsable
        constants = tuple(_constant(value) for value in node.expressions)
        return [ColumnBound(column_of(node.this), "=", constants, constants)]
    raise _NotUsable


def _constant(node: Any) -> Constant:
    """Return a constant of one of the few forms whose meaning is certain; raise _NotUsable for others."""
    from sqlglot import exp

    if isinstance(node, exp.Paren):
        return _constant(node.this)
    if isinstance(node, exp.Literal):
        if node.is_string:
            return Constant(quote_text(node.this))
        if _NUMBER.fullmatch(node.this):
            return Constant(node.this)
    if isinstance(node, exp.Placeholder) and str(node.this).isdecimal():
        return Constant(f"${node.this}")
    if isinstance(node, exp.Boolean):
        return Constant("true" if node.this else "false")
    if isinstance(node, exp.Neg):
        inner = _constant(node.this)
        if not inner.rises:
            return Constant(f"(-{inner.sql})")
    if isinstance(node, exp.Anonymous) and node.name.lower() == "now" and not node.expressions:
        return Constant("now()", rises=True)
    if type(node) is exp.CurrentTimestamp and not node.this:
        return Constant("now()", rises=True)
    if type(node) is exp.Cast:
        return _cast(node)
    if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
        left = _constant(node.this)
        sign = "+" if isinstance(node, exp.Add) else "-"
        return Constant(f"({left.sql} {sign} {_interval(node.expression)})", left.rises)
    raise _NotUsable


def _cast(node: Any) -> Constant:
    target = node.args["to"]
    kind = _CASTS.get(target.this.value if hasattr(target.this, "value") else str(target.this))
    if kind is None or target.expressions or {k for k, v in node.args.items() if v} - {"this", "to", "_type"}:
        raise _NotUsable
    inner = _constant(node.this)
    return Constant(f"CAST({inner.sql} AS {kind})", inner.rises)


def _interval(node: Any) -> str:
    from sqlglot import exp

    amount, unit = node.this, node.args.get("unit")
    if not isinstance(amount, exp.Literal) or not amount.this.isdecimal() or not isinstance(unit, exp.Var):
        raise _NotUsable
    name = unit.name.upper().removesuffix("S")
    if name not in _UNITS:
        raise _NotUsable
    return f"INTERVAL {quote_text(f'{amount.this} {name.lower()}')}"


_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_EXACT = Context(prec=100, traps=[Inexact, InvalidOperation])
# How many digits DuckDB gives a whole number beside a decimal one.
_WHOLE_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INTEGER": 10, "BIGINT": 19}


def bound_table(table: TableHeader) -> BoundTable:
    """Return the table with the columns whose comparisons it can use."""
    namespace, _, name = table.full_name.partition(".")
    return BoundTable(namespace, name, tuple(name for name, _ in table.columns), table.compared)


def find_comparisons(
    cursor: Any, sql: str, table: TableHeader, params: Sequence[Any]
) -> tuple[Comparison, ...]:
    """Return the comparisons that every row of the table must meet to have any part in the answer."""
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
        return ()  # an impossible constant: the statement itself fails, if it gets there


def _evaluate(
    cursor: Any, bounds: list[ColumnBound], columns: dict[str, ColumnType], params: Sequence[Any]
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
    exact = [
        _exact_sql(constant.sql, columns[bound.column]) for bound in usable for constant in bound.constants
    ]
    sql = f"SELECT {', '.join(exact)}"
    answers = iter(cursor.execute(sql, used_params(cursor, sql, params)).fetchall()[0])
    found = []
    for bound in usable:
        kind = columns[bound.column]
        values = [_value(next(answers), kind) for _ in bound.constants]
        if None not in values:
            found.append(Comparison(bound.column, bound.operator, tuple(dict.fromkeys(values))))
    return tuple(found)


def _is_usable(bound: ColumnBound, constant: Constant, kind: ColumnType, types: dict[str, str]) -> bool:
    """Return whether DuckDB compares the column, as it is, with the constant turned into its type."""
    # The clock advances until the statement runs, so of comparisons with it only lower bounds are safe.
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
    """Return precision and scale of a number's type; None where it has none."""
    matched = _DECIMAL.fullmatch(constant_type)
    if matched is not None:
        return int(matched[1]), int(matched[2])
    whole = _WHOLE_DIGITS.get(constant_type)
    return None if whole is None else (whole, 0)


def _joined_digits(kind: ColumnType, precision: int, scale: int) -> int:
    """Return how many digits a decimal type needs to hold both; beyond the most, DuckDB drops some."""
    return max(kind.precision - kind.scale, precision - scale) + max(kind.scale, scale)


def _exact_sql(constant: str, kind: ColumnType) -> str:
    """Return the SQL of a constant in a type that is converted to Python exactly."""
    match kind.name:
        case "TIMESTAMP":
            return f"epoch_us(CAST({constant} AS TIMESTAMPTZ))"
        case "DOUBLE":
            return f"CAST({constant} AS DOUBLE)"
        case "DATE" | "UUID":
            return f"CAST({constant} AS VARCHAR)"
    return constant


def _value(answer: Any, kind: ColumnType) -> Value:
    """Return a constant as the column's type holds it; None where it does not, or is null."""
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
    """Return the number at the column's scale; None where it has more digits than the column."""
    try:
        fitted = value.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    except (Inexact, InvalidOperation):
        return None
    return fitted if len(fitted.as_tuple().digits) <= kind.precision else None


def _day(text: str) -> int | None:
    from datetime import date

    from tidegate.model.epoch import day_of

    if _DAY.fullmatch(text) is None:
        return None
    try:
        return day_of(date.fromisoformat(text))
    except ValueError:
        return None


def _uuid(text: str) -> str | None:
    """Return a UUID in its usual spelling; None for others, which are left to DuckDB."""
    from uuid import UUID

    try:
        return text if str(UUID(text)) == text else None
    except ValueError:
        return None


TIME_TYPES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "VARCHAR"})


def constant_types(cursor: Any, bounds: list[ColumnBound], params: Sequence[Any]) -> dict[str, str]:
    """Return DuckDB's type of each constant."""
    texts = list(dict.fromkeys(c.sql for bound in bounds for c in (*bound.constants, *bound.peers)))
    sql = f"SELECT {', '.join(f'typeof({text})' for text in texts)}"
    return dict(zip(texts, cursor.execute(sql, used_params(cursor, sql, params)).fetchall()[0], strict=True))


def used_params(cursor: Any, sql: str, params: Sequence[Any]) -> dict[str, Any]:
    """Return the parameters that a text uses, by number."""
    names: set[str] = cursor.extract_statements(sql)[0].named_parameters
    return {name: params[int(name) - 1] for name in names}


def is_whole(kind: str) -> bool:
    """True if a type of DuckDB holds whole numbers and nothing else."""
    return kind.endswith("INT") or kind == "INTEGER"


def alike(kinds: set[str]) -> bool:
    """True if one type for all of them changes none of the comparisons."""
    return len(kinds) <= 1 or all(map(is_whole, kinds)) or kinds <= TIME_TYPES - {"VARCHAR"}
