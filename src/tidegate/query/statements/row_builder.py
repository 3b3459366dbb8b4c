"""The rows of an INSERT: whole rows with defaults, checked by type.

Values are checked a column at a time, so that a thousand rows cost little more than one. NOW() is the same in
all rows of a statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import ColumnNotFound, SqlInvalid, ValueInvalid
from tidegate.model.clock import Clock
from tidegate.model.epoch import DAY_US
from tidegate.model.ids import SnowflakeSource, UuidSource
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import DefaultKind, Row, Table, TableColumn, Value
from tidegate.model.values import coerce, coerce_column, from_arrow, from_json
from tidegate.sql.statements import Cell, FunctionCall, Literal, Param, Simple, UseDefault

# Rows of one statement: they are held in memory, and written in one batch.
STATEMENT_ROWS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class DefaultSources:
    """The sources of default values: clock and ids."""

    clock: Clock
    ids: SnowflakeSource
    uuids: UuidSource
    now_us: int | None = None

    def of_a_statement(self) -> DefaultSources:
        """Return these for one statement: NOW() is one moment in all its rows and columns."""
        return DefaultSources(self.clock, self.ids, self.uuids, self.clock.now_us())

    def many(self, kind: DefaultKind, column_type: ColumnType, count: int) -> list[Value]:
        """Return the values of a call in so many rows."""
        if kind == DefaultKind.NOW:
            now_us = self.clock.now_us() if self.now_us is None else self.now_us
            return [now_us // DAY_US if column_type == ColumnType.DATE else now_us] * count
        if kind == DefaultKind.SNOWFLAKE_ID:
            return [self.ids.take()] if count == 1 else self.ids.take_many(count).tolist()
        return [self.uuids.take() for _ in range(count)]


class RowBuilder:
    """The columns that one INSERT names, bound to a table; valid while its definition stays the same."""

    def __init__(self, table: Table, names: Sequence[str] | None) -> None:
        self.table = table
        inputs = table.names if names is None else names
        self.names = tuple(check_column(table, name).name for name in inputs)
        self._columns: list[tuple[TableColumn, int | None]] = []
        places = {name: place for place, name in enumerate(self.names)}
        if len(places) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise SqlInvalid(reason=f"column '{twice}' is named twice.", hint="Name each column once.")
        for column in table.columns:
            self._columns.append((column, places.get(column.name)))
        # What a single row needs of each column, prepared once: most statements are one small row.
        self._quick = [(column, place, column.type, place_of(column)) for column, place in self._columns]

    def from_cells(
        self, rows: Sequence[Sequence[Cell]], params: Sequence[Any], sources: DefaultSources
    ) -> list[Row]:
        """Return the rows of a VALUES list."""
        self._check_width(len(rows[0]))
        if len(rows) == 1:
            return [self._one(rows[0], params, sources)]
        cells = list(zip(*rows, strict=True))
        count = len(rows)

        def column_of(column: TableColumn, place: int | None) -> list[Value]:
            if place is None:
                return self._default(column, count, sources)
            return self._column(cells[place], column, params, sources)

        return self._zipped(column_of)

    def _one(self, cells: Sequence[Cell], params: Sequence[Any], sources: DefaultSources) -> Row:
        row: list[Value] = []
        for column, place, kind, label in self._quick:
            cell = None if place is None else cells[place]
            if type(cell) is Param:
                row.append(coerce(params[cell.number - 1], kind, label))
            elif type(cell) is Literal:
                row.append(coerce(cell.value, kind, label))
            elif type(cell) is FunctionCall:
                row.append(checked_call(cell, column, sources, 1)[0])
            else:
                row.append(self._default(column, 1, sources)[0])
        return tuple(row)

    def from_many(
        self, row: Sequence[Cell], many: Sequence[Sequence[Any]], width: int, sources: DefaultSources
    ) -> list[Row]:
        """Return a row for each list of parameters; `width` is how many parameters the statement has."""
        self._check_width(len(row))
        count = len(many)
        for number, values in enumerate(many, start=1):
            if len(values) != width:
                reason = f"values for its parameters: {width} wanted, {len(values)} given in row {number}."
                raise SqlInvalid(reason=reason, hint="Give each row one value for each ? or $n.")
        inputs = list(zip(*many, strict=True))

        def column_of(column: TableColumn, place: int | None) -> list[Value]:
            if place is None:
                return self._default(column, count, sources)
            cell = row[place]
            if isinstance(cell, Param):
                return coerce_column(inputs[cell.number - 1], column.type, place_of(column))
            if isinstance(cell, Literal):
                return [coerce(cell.value, column.type, place_of(column))] * count
            if isinstance(cell, UseDefault):
                return self._default(column, count, sources)
            return checked_call(cell, column, sources, count)

        return self._zipped(column_of)

    def from_table(self, rows: pa.Table, sources: DefaultSources) -> list[Row]:
        """Return the rows of Arrow columns, in the order of the columns of this builder."""
        self._check_width(rows.num_columns)

        def column_of(column: TableColumn, place: int | None) -> list[Value]:
            if place is None:
                return self._default(column, rows.num_rows, sources)
            return from_arrow(rows.column(place), column.type, place_of(column))

        return self._zipped(column_of)

    def _zipped(self, column_of: Any) -> list[Row]:
        return list(zip(*(column_of(column, place) for column, place in self._columns), strict=True))

    def _check_width(self, width: int) -> None:
        if width != len(self.names):
            names = ", ".join(self.names)[:200]
            reason = f"a row has {width} values for {len(self.names)} columns ({names})."
            raise SqlInvalid(reason=reason, hint="Give each row one value for each column.")

    def _column(
        self, cells: Sequence[Cell], column: TableColumn, params: Sequence[Any], sources: DefaultSources
    ) -> list[Value]:
        """Return the values of one column; those of NOW() and defaults fit already, the rest is checked."""
        ready = {
            index: self._made(cell, column, sources)
            for index, cell in enumerate(cells)
            if type(cell) is not Literal and type(cell) is not Param
        }
        inputs = [
            cell.value if type(cell) is Literal else params[cell.number - 1] if type(cell) is Param else None
            for cell in cells
        ]
        values = coerce_column(inputs, column.type, place_of(column))
        for index, value in ready.items():
            values[index] = value
        return values

    def _made(self, cell: Cell, column: TableColumn, sources: DefaultSources) -> Value:
        if isinstance(cell, FunctionCall):
            return checked_call(cell, column, sources, 1)[0]
        return self._default(column, 1, sources)[0]

    def _default(self, column: TableColumn, count: int, sources: DefaultSources) -> list[Value]:
        default = column.default
        if default is None:
            return [None] * count
        if default.kind == DefaultKind.VALUE:
            return [from_json(default.value, column.type)] * count
        return sources.many(default.kind, column.type, count)


def check_required(table: Table, rows: Sequence[Row]) -> None:
    """Raise ValueInvalid for a row without a required value; the engine's rows are checked by its store."""
    for position, column in enumerate(table.columns):
        if column.required:
            for number, row in enumerate(rows, start=1):
                if row[position] is None:
                    raise ValueInvalid(place=place_of(column), reason=f"row {number} has no value")


def check_column(table: Table, name: str) -> TableColumn:
    """Return a column of a table by its name; case does not count, as no two names differ in it alone."""
    lower = name.lower()
    for column in table.columns:
        if column.name == name or column.name.lower() == lower:
            return column
    raise ColumnNotFound(table=table.full_name, column=name[:80], known=", ".join(table.names)[:1000])


def place_of(column: TableColumn) -> str:
    """Return a column's name in errors."""
    return f"Column '{column.name}' ({column.type})"


def checked_call(call: FunctionCall, column: TableColumn, sources: DefaultSources, count: int) -> list[Value]:
    """Return the values of NOW() and its like for a column that can hold them."""
    taken = {
        DefaultKind.NOW: (ColumnType.TIMESTAMP, ColumnType.DATE),
        DefaultKind.SNOWFLAKE_ID: (ColumnType.BIGINT,),
        DefaultKind.UUID_V7: (ColumnType.UUID, ColumnType.TEXT),
    }[call.kind]
    if column.type not in taken:
        reason = f"{call.kind.upper()}() gives {taken[0]}"
        raise ValueInvalid(place=place_of(column), reason=reason)
    return sources.many(call.kind, column.type, count)


def simple_value(
    simple: Simple, column: TableColumn, params: Sequence[Any], sources: DefaultSources
) -> Value:
    """Return the value of a constant, a parameter or a call, as the column holds it."""
    if isinstance(simple, FunctionCall):
        return checked_call(simple, column, sources, 1)[0]
    value = params[simple.number - 1] if isinstance(simple, Param) else simple.value
    return coerce(value, column.type, place_of(column))
