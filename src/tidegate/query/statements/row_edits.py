"""The edits of an UPDATE or DELETE: as a SELECT that finds its rows, and as a function of one row."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.errors import SqlInvalid, SqlUnsupported
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row, Table, Value
from tidegate.model.values import coerce, from_arrow
from tidegate.query.quoting import quote_name
from tidegate.query.statements.row_builder import (
    DefaultSources,
    check_column,
    checked_call,
    place_of,
    simple_value,
)
from tidegate.sql.parser.fragments import renumbered
from tidegate.sql.statements import Fragment, FunctionCall, Where

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.sql.expressions.compile import LiveSelect

_DUCK_TYPES = {
    "INT": "INTEGER",
    "TEXT": "VARCHAR",
    "JSON": "VARCHAR",
    "UUID": "VARCHAR",
    "BYTES": "BLOB",
    "TIMESTAMP": "TIMESTAMPTZ",
}


# A name that no statement can have: the prefix of the computed columns of an UPDATE.
_SET = "\x01 set "
_SEVERAL = re.compile(r"unnest|columns", re.IGNORECASE)


class Edits:
    """What one UPDATE (`assigned`, by column) or DELETE (None) does to rows; any thread may ask.

    A plain value is checked by the column's type as in an INSERT; NOW() and its like are made for each row;
    an expression is cast to the column's type.
    """

    def __init__(
        self,
        table: Table,
        assigned: Mapping[str, Fragment] | None,
        where: Where | None,
        params: Sequence[Any],
        sources: DefaultSources,
    ) -> None:
        self.table = table
        self.removes = assigned is None
        self._where = where
        self._sources = sources
        self._values: dict[str, Value] = {}
        self._calls: dict[str, FunctionCall] = {}
        self._expressions: dict[str, Fragment] = {}
        for name, fragment in (assigned or {}).items():
            column = check_column(table, name)
            if isinstance(fragment.simple, FunctionCall):
                checked_call(fragment.simple, column, sources, 1)
                self._calls[name] = fragment.simple
            elif fragment.simple is not None:
                self._values[name] = simple_value(fragment.simple, column, params, sources)
            else:
                self._expressions[name] = fragment
        pieces = [*self._expressions.values(), *([] if where is None else [where.fragment])]
        texts, numbers = renumbered(pieces)
        self._texts = texts[: len(self._expressions)]
        self._condition = texts[-1] if where is not None else None
        self.params = [params[number - 1] for number in numbers]

    @property
    def is_plain(self) -> bool:
        """Whether nothing is computed from the row itself."""
        return not self._expressions

    @property
    def moves_keys(self) -> bool:
        """Whether a column of the primary key is set."""
        names = {*self._values, *self._calls, *self._expressions}
        return bool(names.intersection(self.table.primary_key))

    def find_sql(self) -> str:
        """Return the SELECT of the rows that match, with the values of expressions behind their columns."""
        outputs = [f"{text} AS {quote_name(f'{_SET}{n}')}" for n, text in enumerate(self._casts())]
        # By their names: the table may get another column before this runs.
        own = [quote_name(name) for name, _ in self.table.shown_columns]
        return self._select([*own, *outputs])

    def edited(self, found: pa.Table) -> list[tuple[Row, Row | None]]:
        """Return each row that was found, and what it becomes: None where it is deleted."""
        table, own = self.table, self.table.shown_columns
        if found.num_columns != len(own) + len(self._expressions):
            raise SqlInvalid(reason="an expression in SET gives one value.", hint="Nothing was written.")
        columns = [from_arrow(found.column(place), kind, name) for place, (name, kind) in enumerate(own)]
        old_rows: list[Row] = list(zip(*columns, strict=True))
        if self.removes:
            return [(row, None) for row in old_rows]
        count = len(old_rows)
        for number, name in enumerate(self._expressions):
            column = check_column(table, name)
            values = from_arrow(found.column(len(own) + number), column.type, place_of(column))
            columns[table.names.index(name)] = values
        for name, value in self._values.items():
            columns[table.names.index(name)] = [value] * count
        for name, call in self._calls.items():
            made = checked_call(call, check_column(table, name), self._sources, count) if count else []
            columns[table.names.index(name)] = made
        return list(zip(old_rows, zip(*columns, strict=True), strict=True))

    def on_a_row(self, *, checks_where: bool = True) -> Callable[[Row], Row | None] | None:
        """Return the function that changes one row, or leaves it (None) where it does not match.

        None instead of a function where an expression cannot be compiled: then DuckDB has to compute it.
        """
        where = self._where if checks_where else None
        select = None
        if self._expressions or where is not None:
            select = self._compiled(self._casts() or ["*"])
            if select is None:
                return None
        names = self.table.names
        columns = [check_column(self.table, name) for name in self._expressions]
        positions = [names.index(name) for name in self._expressions]
        fixed = [(names.index(name), value) for name, value in self._values.items()]
        made = [(names.index(name), name, call) for name, call in self._calls.items()]

        def edit(row: Row) -> Row | None:
            if select is not None and where is not None and not _matches(select, row):
                return None
            changed = list(row)
            if select is not None and columns:
                values = select.project(row)
                _check_faults(select)
                for position, column, value in zip(positions, columns, values, strict=True):
                    is_text = column.type in (ColumnType.JSON, ColumnType.UUID)
                    changed[position] = coerce(value, column.type, place_of(column)) if is_text else value
            for position, value in fixed:
                changed[position] = value
            for position, name, call in made:
                changed[position] = checked_call(call, check_column(self.table, name), self._sources, 1)[0]
            return tuple(changed)

        return edit

    def matches(self) -> Callable[[Row], bool] | None:
        """Return the function that is True for a row that matches, or None where it cannot be compiled."""
        if self._where is None:
            return lambda _row: True
        select = self._compiled(["*"])
        return None if select is None else lambda row: _matches(select, row)

    def _compiled(self, outputs: Sequence[str]) -> LiveSelect | None:
        from tidegate.sql.expressions.compile import RowColumns, compile_select

        try:
            return compile_select(self._select(outputs), RowColumns(self.table.shown_columns), self.params)
        except (SqlUnsupported, SqlInvalid):
            return None

    def _casts(self) -> list[str]:
        kinds = [check_column(self.table, name).type for name in self._expressions]
        return [
            f"CAST(({_alone(text)}) AS {_DUCK_TYPES.get(kind.name, str(kind))})"
            for text, kind in zip(self._texts, kinds, strict=True)
        ]

    def _select(self, outputs: Sequence[str]) -> str:
        name = f"{quote_name(self.table.namespace)}.{quote_name(self.table.name)}"
        condition = f" WHERE ({self._condition})" if self._condition is not None else ""
        shown = ", ".join(outputs)
        return f"SELECT {shown} FROM {name}{condition}"  # noqa: S608 - quoted names, parsed pieces


def _alone(text: str) -> str:
    """Return an expression so that DuckDB refuses it where it has several rows or columns."""
    return f"SELECT {text}" if _SEVERAL.search(text) else text


def _matches(select: LiveSelect, row: Row) -> bool:
    matched = select.matches(row)
    _check_faults(select)
    return matched


def _check_faults(select: LiveSelect) -> None:
    """Raise SqlInvalid where a value could not be computed, as DuckDB does; live queries only count it."""
    if select.faults:
        raise SqlInvalid(reason=f"{select.first_fault}.", hint="Nothing was written.")
