"""Columns that come out: take the fields of an output schema, give what judges and converts values.

Rows that come out: takes what operators yield, gives record batches of the output schema.

Every value is judged when it is yielded, so that the row that made a wrong one is the row that fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from operator import attrgetter, call, itemgetter
from types import GeneratorType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from tidegate.state.instant import Moment

Fits = Callable[[Any], bool]
Convert = Callable[[Any], Any]

_WORDS = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `fits` is quick, and sure when it says yes; `convert` gives what Arrow takes or raises."""

    name: str
    kind: str
    fits: Fits
    convert: Convert


def column_of(field: pa.Field) -> Column:
    """Return what judges the values of a field."""
    kind = _WORDS.get(field.type, str(field.type))
    return Column(field.name, kind, _fits(field.type, field.nullable), _convert(field))


def _fits(kind: pa.DataType, is_nullable: bool) -> Fits:
    """Return a quick check that says yes only to values that Arrow takes as they are."""
    if kinds.is_signed_integer(kind):
        stop = 1 << (kind.bit_width - 1)
        return lambda v: (type(v) is int and -stop <= v < stop) or (v is None and is_nullable)
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return lambda v: (type(v) is str and (v.isascii() or _is_text(v))) or (v is None and is_nullable)
    exact: type | None = None
    if kinds.is_floating(kind):
        exact = float
    elif kinds.is_boolean(kind):
        exact = bool
    elif kinds.is_binary(kind) or kinds.is_large_binary(kind):
        exact = bytes
    elif kinds.is_date(kind):
        exact = date
    elif kinds.is_timestamp(kind) and kind.unit == "us":
        exact = datetime
    if exact is None:
        return lambda v: v is None and is_nullable
    return lambda v: type(v) is exact or (v is None and is_nullable)


def _is_text(value: str) -> bool:
    """Return whether a str is text that UTF-8 can hold: half of a surrogate pair is not."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _convert(field: pa.Field) -> Convert:
    """Return the exact way: the value in the shape that Arrow takes, after Arrow has tried it."""
    plain = _plain(field.type)

    def convert(value: Any) -> Any:
        if value is None:
            if not field.nullable:
                raise ValueError("it is never null")
            return None
        value = plain(value)
        pa.array([value], type=field.type)
        return value

    return convert


def _plain(kind: pa.DataType) -> Convert:
    """Return what takes dataclasses and moments apart inside a value of a type."""
    if kinds.is_timestamp(kind):
        return _time
    if kinds.is_integer(kind):
        return _whole
    if kinds.is_struct(kind):
        return _struct(kind)
    if kinds.is_map(kind):
        key, value = _plain(kind.key_type), _plain(kind.item_type)
        return lambda made: [
            (_inner(key, k), _inner(value, v))
            for k, v in (made.items() if isinstance(made, Mapping) else made)
        ]
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        element = _plain(kind.value_type)
        return lambda made: [_inner(element, one) for one in made]
    return lambda value: value


def _struct(kind: pa.StructType) -> Convert:
    fields = [kind.field(number) for number in range(kind.num_fields)]
    names = [field.name for field in fields]
    inner = [_plain(field.type) for field in fields]

    def convert(made: Any) -> dict[str, Any]:
        if isinstance(made, Mapping):
            unknown = [str(name) for name in made if name not in names]
            if unknown:
                raise ValueError(f"unknown: {', '.join(unknown)}")
            values = [made.get(name) for name in names]
        elif isinstance(made, tuple):
            if len(made) != len(names):
                raise ValueError(f"{len(made)} values for {', '.join(names)}")
            values = list(made)
        elif dataclasses.is_dataclass(made):
            values = [getattr(made, name) for name in names]
        else:
            raise TypeError("a record is a dataclass, a dict or a tuple")
        return {name: _inner(one, value) for name, one, value in zip(names, inner, values, strict=True)}

    return convert


def _inner(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _whole(value: Any) -> Any:
    """Return a whole number as a plain int; Arrow itself would cut off what follows the point."""
    if isinstance(value, float | np.floating) and not float(value).is_integer():
        raise ValueError("it is no whole number")
    return int(value) if isinstance(value, int | float | np.number) else value


def _time(value: Any) -> Any:
    if isinstance(value, Moment):
        return value.datetime()
    if isinstance(value, int):
        raise TypeError("an int does not say its unit; give a datetime or Moment(milliseconds)")
    return value


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
        """Return the rows collected so far as one batch, and begin anew."""
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
    """Return what `process_batch` returned or yielded as batches of the schema; OutputWrong says why not."""
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
    """Return any of the shapes that hold columns as a table."""
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
