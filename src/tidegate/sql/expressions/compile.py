"""The compiler of live queries: a filter and a projection over one row, with DuckDB's results.

They are compiled once and run on every changed row, without DuckDB. What cannot be made equal to DuckDB is
refused when the query is compiled. A value that cannot be calculated for one row (an overflow, a text that is
no number) would end a DuckDB statement; here the row does not match, or the column is NULL, and the fault is
counted and kept: the other rows are not affected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from tidegate.errors import SqlInvalid
from tidegate.model.names import shorten
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row, Value
from tidegate.model.times import TIME_US_MAX, TIME_US_MIN
from tidegate.model.values import DAY_MAX, DAY_MIN
from tidegate.sql.expressions.casts import holds_of, truth
from tidegate.sql.expressions.dialect import Last, parse_live
from tidegate.sql.expressions.functions import PLAIN_HINT
from tidegate.sql.expressions.tree import TreeCompiler, parameter_expr
from tidegate.sql.expressions.types import (
    INTERVAL,
    CompiledExpr,
    RowFault,
    Run,
    UnsupportedInLive,
    column,
    column_type_of,
    refuse,
)
from tidegate.sql.parser.lexer import fold

LAST_MAX = 1_000_000_000

# sqlglot takes DATE 'x'::TEXT for DATE ('x'::TEXT).
_TYPED_THEN_CAST = re.compile(r"\b[a-z_]+\s+'(?:[^']|'')*'\s*::", re.IGNORECASE)
_FILTER_HEAD = "SELECT * FROM t WHERE "

# What a row may raise beside RowFault: a number without bounds, a document nested too deep.
_FAULTS = (RowFault, ArithmeticError, ValueError, RecursionError)
# What a column of dates or times can hold, and text of ISO 8601 can say.
_TIME_LIMITS = {
    "DATE": (DAY_MIN, DAY_MAX),
    "TIMESTAMP": (TIME_US_MIN, TIME_US_MAX),
    "TIMESTAMPTZ": (TIME_US_MIN, TIME_US_MAX),
}
_CLAUSES = {
    "distinct": "DISTINCT",
    "group": "GROUP BY",
    "having": "HAVING",
    "joins": "JOIN",
    "laterals": "LATERAL",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "order": "ORDER BY",
    "qualify": "QUALIFY",
    "sample": "SAMPLE",
    "windows": "WINDOW",
    "with_": "WITH",
}


@dataclass(frozen=True)
class RowColumns:
    """The columns of a row, in order, named as SELECT * gives them."""

    columns: tuple[tuple[str, ColumnType], ...]


class Faults:
    """Counts rows whose value could not be calculated, and keeps what the first of them said."""

    def __init__(self) -> None:
        self.faults = 0
        self.first_fault: str | None = None

    def note(self, problem: Exception) -> None:
        """Count one more."""
        self.faults += 1
        if self.first_fault is None:
            self.first_fault = str(problem) or type(problem).__name__


class LiveFilter(Faults):
    """A compiled filter: called with a row, True if the expression is true (not false, not NULL)."""

    def __init__(self, expr: CompiledExpr | None) -> None:
        super().__init__()
        made = truth(expr, "WHERE") if expr is not None else None
        self.key = made.key if made is not None else "TRUE"
        self.equality = made.equal if made is not None else None
        self.holds: Callable[[Row], bool] = holds_of(made) if made is not None else lambda _row: True

    def __call__(self, row: Row) -> bool:
        try:
            return self.holds(row)
        except _FAULTS as problem:
            self.note(problem)
            return False


class LiveSelect(Faults):
    """A compiled SELECT over one table; `matches` and `project` never raise for what a row holds.

    `filter_key` and `shape_key` are equal for equal filters and projections over the same columns.
    `equality` is a column's position and the only value with which a row can match, if there is one.
    """

    def __init__(
        self, name: tuple[str, str], shown: Sequence[tuple[str, CompiledExpr]], where: CompiledExpr | None
    ) -> None:
        super().__init__()
        self.namespace, self.table = name
        self.columns = [(title, column_type_of(expr)) for title, expr in shown]
        self.last: int | None = None
        self._filter = LiveFilter(where)
        self.filter_key: Hashable = self._filter.key
        self.shape_key: Hashable = tuple((title, expr.key) for title, expr in shown)
        self.equality: tuple[int, Value] | None = self._filter.equality
        self._holds = self._filter.holds
        self._runs = [_shown_value(expr) for _, expr in shown]
        self._whole = _projection([expr for _, expr in shown], self._runs)

    def matches(self, row: Row) -> bool:
        """True if the WHERE is true for a row; one that it cannot compute does not match, and is counted."""
        try:
            return self._holds(row)
        except _FAULTS as problem:
            self.note(problem)
            return False

    def project(self, row: Row) -> Row:
        """Return what the SELECT shows of a row; a value that cannot be computed is NULL, and is counted."""
        try:
            return self._whole(row)
        except _FAULTS:
            return tuple(self._value(run, row) for run in self._runs)

    def _value(self, run: Callable[[Row], Any], row: Row) -> Value:
        try:
            return run(row)  # type: ignore[no-any-return]
        except _FAULTS as problem:
            self.note(problem)
            return None


def _shown_value(expr: CompiledExpr) -> Run:
    """Return the function that gives a shown value; a time that no column holds is a fault."""
    run, limits = expr.run, _TIME_LIMITS.get(expr.sql_type.name)
    if limits is None or expr.column is not None:
        return run
    low, high = limits

    def checked(row: Row) -> Any:
        value = run(row)
        if value is None or low <= value <= high:
            return value
        raise UnsupportedInLive(
            f"a {expr.sql_type} is outside the years 1 to 9999, which live queries do not show"
        )

    return checked


def _projection(exprs: Sequence[CompiledExpr], runs: Sequence[Run]) -> Callable[[Row], Row]:
    """Return the quickest function that makes the row that is shown."""
    positions = [expr.column for expr in exprs if expr.column is not None]
    if len(positions) == len(exprs) > 1:
        return itemgetter(*positions)
    if len(runs) == 1:
        only = runs[0]
        return lambda row: (only(row),)
    return lambda row: tuple([run(row) for run in runs])


def _check_typed_texts(sql: str) -> None:
    if _TYPED_THEN_CAST.search(sql):
        raise refuse("A typed text before '::' is not available live.", "Write CAST(DATE '…' AS …).")


def compile_filter(sql_expression: str, shape: RowColumns, params: Sequence[object]) -> LiveFilter:
    """Compile a WHERE expression over the columns of a row; SqlUnsupported names what is not supported."""
    _check_typed_texts(sql_expression)
    tree, last = parse_live(_FILTER_HEAD + sql_expression, len(params), _folded(shape))
    _check_clauses(tree)
    if last is not None:
        raise refuse("A filter has no LAST.")
    where = tree.args.get("where")
    if where is None:
        raise SqlInvalid(reason="the filter is empty.")
    compiler = _compiler(shape, set(), params)
    expr = _guarded(lambda: compiler.build(where.this))
    _check_parameters(compiler, params)
    return LiveFilter(expr)


def compile_select(sql: str, shape: RowColumns, params: Sequence[object]) -> LiveSelect:
    """Compile SELECT … FROM ns.t [alias] [WHERE …] [LAST n]; SqlUnsupported names what is not supported."""
    _check_typed_texts(sql)
    tree, last = parse_live(sql, len(params), _folded(shape))
    table, qualifiers = _check_clauses(tree)
    _check_namespace(table)
    compiler = _compiler(shape, qualifiers, params)
    shown = _guarded(lambda: _shown_columns(tree.expressions, shape, compiler))
    where = tree.args.get("where")
    condition = _guarded(lambda: compiler.build(where.this)) if where is not None else None
    made = LiveSelect((_folded_name(table.args.get("db")), _folded_name(table.this)), shown, condition)
    if last is not None:
        made.last = _last_count(last, compiler)
    _check_parameters(compiler, params)
    return made


def check_select(sql: str, parameter_count: int) -> None:
    """Raise what is wrong with the clauses of a live query whose table is not known."""
    tree, _ = parse_live(sql, parameter_count)
    _check_namespace(_check_clauses(tree)[0])


def _folded(shape: RowColumns) -> frozenset[str]:
    return frozenset(fold(name) for name, _ in shape.columns)


def _compiler(shape: RowColumns, qualifiers: set[str], params: Sequence[object]) -> TreeCompiler:
    exprs = [
        (name, column(position, name, column_type))
        for position, (name, column_type) in enumerate(shape.columns)
    ]
    return TreeCompiler({fold(name): expr for name, expr in exprs}, qualifiers, params)


def _guarded(build: Callable[[], Any]) -> Any:
    try:
        return build()
    except RecursionError as problem:
        raise refuse(
            "The expression is nested too deeply.", "Split it, or use IN for long lists."
        ) from problem


def _last_count(last: Last, compiler: TreeCompiler) -> int:
    count: object = last.number
    if last.is_parameter:
        compiler.parameters_used.add(last.number)
        count = parameter_expr(_parameter(compiler, last.number), last.number).value
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= LAST_MAX:
        raise SqlInvalid(
            reason=f"LAST takes a whole number from 1 to {LAST_MAX:,}, not {shorten(str(count))}."
        )
    return count


def _parameter(compiler: TreeCompiler, number: int) -> object:
    values = compiler.values
    if not 1 <= number <= len(values):
        raise SqlInvalid(reason=f"parameter ${number} has no value: {len(values)} were given.")
    return values[number - 1]


def _check_parameters(compiler: TreeCompiler, params: Sequence[object]) -> None:
    unused = set(range(1, len(params) + 1)) - compiler.parameters_used
    if unused:
        listed = ", ".join(f"${number}" for number in sorted(unused))
        raise SqlInvalid(reason=f"{len(params)} values were given, and nothing in it takes {listed}.")


def _check_clauses(tree: Any) -> tuple[Any, set[str]]:
    """Return the table of a plain SELECT and the names by which its columns may be called, or refuse."""
    allowed = "A live query is SELECT … FROM <namespace>.<table> [WHERE …] [LAST n], over one table"
    name = type(tree).__name__
    if name != "Select":
        what = {"Union": "UNION", "Except": "EXCEPT", "Intersect": "INTERSECT"}.get(name, name.upper())
        raise refuse(f"{allowed}; {what} is not part of it.", PLAIN_HINT)
    used = {key for key, value in tree.args.items() if value} - {"expressions", "from_", "where"}
    for key in sorted(used):
        raise refuse(f"{allowed}; {_CLAUSES.get(key, key.strip('_').upper())} is not part of it.", PLAIN_HINT)
    source = tree.args.get("from_")
    if source is None:
        raise refuse(f"{allowed}; this one names no table.")
    table = source.this
    if type(table).__name__ != "Table" or type(table.this).__name__ != "Identifier":
        raise refuse(f"{allowed}; a subquery or a function in FROM is not part of it.", PLAIN_HINT)
    extras = {key for key, value in table.args.items() if value} - {"this", "db", "alias"}
    alias = table.args.get("alias")
    if extras or (alias is not None and alias.args.get("columns")):
        what = "JOIN" if "joins" in extras else f"'{shorten(table.sql(dialect='duckdb'))}'"
        raise refuse(f"{allowed}; {what} is not part of it.", PLAIN_HINT)
    if alias is not None:
        return table, {fold(alias.name)}
    return table, {fold(table.name), fold(f"{table.db}.{table.name}")}


def _check_namespace(table: Any) -> None:
    if table.args.get("db") is None:
        reason = "A live query names its table as <namespace>.<table>"
        raise refuse(f"{reason}, and '{shorten(table.name)}' has no namespace.")


def _folded_name(identifier: Any) -> str:
    return str(identifier.name if identifier.args.get("quoted") else fold(identifier.name))


def _shown_columns(
    nodes: Sequence[Any], shape: RowColumns, compiler: TreeCompiler
) -> list[tuple[str, CompiledExpr]]:
    """Return names and expressions of what the SELECT shows."""
    shown: list[tuple[str, CompiledExpr]] = []
    for node in nodes:
        star = _star(node)
        if star is not None:
            if any(star.args.values()):
                raise refuse(
                    "SELECT * takes no EXCLUDE, REPLACE or RENAME in a live query.", "List the columns."
                )
            every = compiler.columns
            shown += [(name, every[fold(name)]) for name, _ in shape.columns]
            continue
        is_named = type(node).__name__ == "Alias"
        expr = compiler.build(node.this if is_named else node)
        if expr.sql_type == INTERVAL:
            raise refuse("An INTERVAL cannot be shown by a live query.", "Add it to a TIMESTAMP or a DATE.")
        if is_named:
            title = node.alias
        elif expr.column is not None and type(node).__name__ == "Column":
            title = shape.columns[expr.column][0]
        else:
            title = node.sql(dialect="duckdb")
        shown.append((title, expr))
    if not shown:
        raise SqlInvalid(reason="it selects no column.")
    return shown


def _star(node: Any) -> Any:
    """Return the star of * or t.*, else None."""
    name = type(node).__name__
    if name == "Star":
        return node
    return node.this if name == "Column" and type(node.this).__name__ == "Star" else None
