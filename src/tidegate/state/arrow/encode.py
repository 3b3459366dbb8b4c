"""Rows that come out: takes what operators yield, gives record batches of the output schema.

Every value is judged when it is yielded, so that the row that made a wrong one is the row that fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter, call, itemgetter
from types import GeneratorType
from typing import Any

import pyarrow as pa

from tidegate.state.columns_out import Column, column_of

Row = tuple[Any, ...]
Getter = Callable[[Any], Row]


class OutputWrong(Exception):
    """What an operator gave is no row of its output; says why."""


class RowsOut:
    """Collects rows, judged one by one, and makes record batches of them."""

    def __init__(self, schema: pa.Schema, out_type: type | None) -> None:
        self._schema = schema
        self._names = tuple(schema.names)
        self._columns: tuple[Column, ...] = tuple(column_of(field) for field in schema)
        self._fits = tuple(column.fits for column in self._columns)
        self._out_type = out_type
        self._by_attribute = _getter(attrgetter, self._names)
        self._by_name = _getter(itemgetter, self._names)
        self.rows: list[Row] = []

    def take(self, made: Any) -> None:
        """Take what `process` or `on_timer` returned: None, one row, or several in anything that iterates."""
        if type(made) is GeneratorType:
            for row in made:
                self.add(row)
        elif made is None:
            return
        elif isinstance(made, tuple | dict) or (self._out_type and isinstance(made, self._out_type)):
            self.add(made)
        elif isinstance(made, Iterable) and not isinstance(made, str | bytes | Mapping):
            for row in made:
                self.add(row)
        else:
            self.add(made)

    def add(self, made: Any) -> None:
        """Take one row; OutputWrong where it does not fit the output."""
        row = self._by_attribute(made) if type(made) is self._out_type else self._row_of(made)
        if not all(map(call, self._fits, row)):
            row = self._converted(row)
        self.rows.append(row)

    def batch(self) -> pa.RecordBatch:
        """Give the rows collected so far as one batch, and begin anew."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self._names)
        arrays = [
            pa.array(values, type=field.type) for values, field in zip(columns, self._schema, strict=True)
        ]
        self.rows = []
        return pa.record_batch(arrays, schema=self._schema)

    def _row_of(self, made: Any) -> Row:
        if isinstance(made, tuple):
            if len(made) != len(self._names):
                raise OutputWrong(f"a tuple of {len(made)} values, where the output has {self._wanted()}")
            return made
        if isinstance(made, Mapping):
            if made.keys() != set(self._names):
                raise OutputWrong(f"{_difference(made, self._names)}; the output has {self._wanted()}")
            return self._by_name(made)
        if self._out_type is not None and isinstance(made, self._out_type):
            return self._by_attribute(made)
        wanted = f"{self._out_type.__name__}, " if self._out_type else ""
        raise OutputWrong(f"{_shown(made)} is no row; give {wanted}a dict or a tuple of {self._wanted()}")

    def _converted(self, row: Row) -> Row:
        """Turn each value into what Arrow takes; OutputWrong names the column that cannot."""
        values = []
        for column, value in zip(self._columns, row, strict=True):
            try:
                values.append(column.convert(value))
            except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
                reason = f"column '{column.name}' takes {column.kind}, not {_shown(value)} ({error})"
                raise OutputWrong(reason) from error
        return tuple(values)

    def _wanted(self) -> str:
        return ", ".join(f"{column.name} {column.kind}" for column in self._columns)


def cast_batches(made: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Give what `process_batch` returned or yielded as batches of the schema; OutputWrong says why not."""
    if made is None:
        return []
    if isinstance(made, list):
        return [batch for part in made for batch in cast_batches(part, schema)]
    table = _as_table(made)
    if set(table.column_names) != set(schema.names) or len(table.column_names) != len(schema.names):
        wanted = ", ".join(f"{field.name} {field.type}" for field in schema)
        raise OutputWrong(f"{_difference(table.column_names, schema.names)}; the output has {wanted}")
    columns = []
    for field in schema:
        column = table.column(field.name)
        try:
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
        except pa.ArrowException as error:
            reason = f"column '{field.name}' takes {field.type}, not {column.type} ({error})"
            raise OutputWrong(reason) from error
        if not field.nullable and column.null_count:
            raise OutputWrong(f"column '{field.name}' is never null, and has {column.null_count} nulls")
    batches: list[pa.RecordBatch] = pa.Table.from_arrays(columns, schema=schema).to_batches()
    return batches


def _as_table(made: Any) -> pa.Table:
    """Give any of the shapes that hold columns as a table."""
    if isinstance(made, pa.Table):
        return made
    if isinstance(made, pa.RecordBatch):
        return pa.Table.from_batches([made])
    try:
        if isinstance(made, Mapping):
            return pa.table(dict(made))
        if hasattr(made, "__arrow_c_stream__"):
            return pa.table(made)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise OutputWrong(f"the columns cannot be read: {error}") from error
    raise OutputWrong(f"{_shown(made)} holds no columns; give a RecordBatch, a Table or a dict of arrays")


def _getter(kind: Callable[..., Any], names: tuple[str, ...]) -> Getter:
    if len(names) == 1:
        one = kind(*names)
        return lambda made: (one(made),)
    getter: Getter = kind(*names)
    return getter


def _difference(found: Iterable[str], wanted: Iterable[str]) -> str:
    found, wanted = list(found), list(wanted)
    missing = [name for name in wanted if name not in found]
    unknown = [str(name) for name in found if name not in wanted]
    parts = [f"{', '.join(missing)} missing"] if missing else []
    parts += [f"{', '.join(unknown)} unknown"] if unknown else []
    return " and ".join(parts) or "a column is there twice"


def _shown(value: Any) -> str:
    text = repr(value)
    name = type(value).__name__
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"a {name}"
    return f"{text if len(text) <= 80 else text[:77] + '…'} ({name})"
