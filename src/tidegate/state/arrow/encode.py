"""The conversion of what operators yield to record batches of the output schema.

Every value is checked when it is yielded, so that the row that yields a wrong one is the row that fails.
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
class OutputColumn:
    """One column: `fits` is quick and True only for what Arrow takes; `convert` returns that or raises."""

    name: str
    kind: str
    fits: Fits
    convert: Convert


def output_column(field: pa.Field) -> OutputColumn:
    """Return the check and the conversion of a field's values."""
    kind = _WORDS.get(field.type, str(field.type))
    return OutputColumn(field.name, kind, _fits(field.type, field.nullable), _convert(field))


def _fits(kind: pa.DataType, is_nullable: bool) -> Fits:
    """Return a quick check that is True only for values that Arrow takes as they are."""
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
    """Return whether a str can be encoded as UTF-8: half of a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _convert(field: pa.Field) -> Convert:
    """Return the exact conversion: to the form that Arrow takes, and checked by Arrow."""
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
    """Return the conversion of dataclasses and moments inside values of a type."""
    if kinds.is_timestamp(kind):
        return _time
    if kinds.is_integer(kind):
        return _whole
    if kinds.is_struct(kind):
        return _struct(kind)
    if kinds.is_map(kind):
        key, value = _plain(kind.key_type), _plain(kind.item_type)
        return lambda output: [
            (_inner(key, k), _inner(value, v))
            for k, v in (output.items() if isinstance(output, Mapping) else output)
        ]
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        element = _plain(kind.value_type)
        return lambda output: [_inner(element, one) for one in output]
    return lambda value: value


def _struct(kind: pa.StructType) -> Convert:
    fields = [kind.field(number) for number in range(kind.num_fields)]
    names = [field.name for field in fields]
    inner = [_plain(field.type) for field in fields]

    def convert(output: Any) -> dict[str, Any]:
        if isinstance(output, Mapping):
            unknown = [str(name) for name in output if name not in names]
            if unknown:
                raise ValueError(f"unknown: {', '.join(unknown)}")
            values = [output.get(name) for name in names]
        elif isinstance(output, tuple):
            if len(output) != len(names):
                raise ValueError(f"{len(output)} values for {', '.join(names)}")
            values = list(output)
        elif dataclasses.is_dataclass(output):
            values = [getattr(output, name) for name in names]
        else:
            raise TypeError("a record is a dataclass, a dict or a tuple")
        return {name: _inner(one, value) for name, one, value in zip(names, inner, values, strict=True)}

    return convert


def _inner(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _whole(value: Any) -> Any:
    """Return a whole number as a plain int; Arrow itself would truncate fractions."""
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
    """Raised for output of an operator that does not fit its output schema; dead letters show the name."""


class OutputCollector:
    """Collects rows of output, checked one by one, and makes record batches of them."""

    def __init__(self, schema: pa.Schema, out_type: type | None) -> None:
        self._schema = schema
        self._names = tuple(schema.names)
        self._columns: tuple[OutputColumn, ...] = tuple(output_column(field) for field in schema)
        self._fits = tuple(column.fits for column in self._columns)
        self._out_type = out_type
        self._by_attribute = _getter(attrgetter, self._names)
        self._by_name = _getter(itemgetter, self._names)
        self.rows: list[Row] = []

    def take(self, output: Any) -> None:
        """Add what `process` or `on_timer` returned: None, one row, or an iterable of rows."""
        if type(output) is GeneratorType:
            for row in output:
                self.add(row)
        elif output is None:
            return
        elif isinstance(output, tuple | dict) or (self._out_type and isinstance(output, self._out_type)):
            self.add(output)
        elif isinstance(output, Iterable) and not isinstance(output, str | bytes | Mapping):
            for row in output:
                self.add(row)
        else:
            self.add(output)

    def add(self, output: Any) -> None:
        """Add one row; OutputWrong where it does not fit the output."""
        row = self._by_attribute(output) if type(output) is self._out_type else self._row_of(output)
        if not all(map(call, self._fits, row)):
            row = self._converted(row)
        self.rows.append(row)

    def batch(self) -> pa.RecordBatch:
        """Return the collected rows as one batch, and clear them."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self._names)
        arrays = [
            pa.array(values, type=field.type) for values, field in zip(columns, self._schema, strict=True)
        ]
        self.rows = []
        return pa.record_batch(arrays, schema=self._schema)

    def _row_of(self, output: Any) -> Row:
        if isinstance(output, tuple):
            if len(output) != len(self._names):
                raise OutputWrong(
                    f"a tuple of {len(output)} values, where the output has {self._columns_text()}"
                )
            return output
        if isinstance(output, Mapping):
            if output.keys() != set(self._names):
                raise OutputWrong(
                    f"{_difference(output, self._names)}; the output has {self._columns_text()}"
                )
            return self._by_name(output)
        if self._out_type is not None and isinstance(output, self._out_type):
            return self._by_attribute(output)
        expected = f"{self._out_type.__name__}, " if self._out_type else ""
        raise OutputWrong(
            f"{_shown(output)} is no row; give {expected}a dict or a tuple of {self._columns_text()}"
        )

    def _converted(self, row: Row) -> Row:
        """Return the row converted for Arrow; OutputWrong names a column that does not fit."""
        values = []
        for column, value in zip(self._columns, row, strict=True):
            try:
                values.append(column.convert(value))
            except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
                reason = f"column '{column.name}' takes {column.kind}, not {_shown(value)} ({error})"
                raise OutputWrong(reason) from error
        return tuple(values)

    def _columns_text(self) -> str:
        return ", ".join(f"{column.name} {column.kind}" for column in self._columns)


def cast_batches(output: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return the output of `process_batch` as batches of the schema; OutputWrong where it does not fit."""
    if output is None:
        return []
    if isinstance(output, list):
        return [batch for part in output for batch in cast_batches(part, schema)]
    table = _as_table(output)
    if set(table.column_names) != set(schema.names) or len(table.column_names) != len(schema.names):
        expected = ", ".join(f"{field.name} {field.type}" for field in schema)
        raise OutputWrong(f"{_difference(table.column_names, schema.names)}; the output has {expected}")
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


def _as_table(output: Any) -> pa.Table:
    """Return a Table, a RecordBatch, a dict of arrays or an Arrow stream as a table."""
    if isinstance(output, pa.Table):
        return output
    if isinstance(output, pa.RecordBatch):
        return pa.Table.from_batches([output])
    try:
        if isinstance(output, Mapping):
            return pa.table(dict(output))
        if hasattr(output, "__arrow_c_stream__"):
            return pa.table(output)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise OutputWrong(f"the columns cannot be read: {error}") from error
    raise OutputWrong(f"{_shown(output)} holds no columns; give a RecordBatch, a Table or a dict of arrays")


def _getter(kind: Callable[..., Any], names: tuple[str, ...]) -> Getter:
    if len(names) == 1:
        one = kind(*names)
        return lambda output: (one(output),)
    getter: Getter = kind(*names)
    return getter


def _difference(found: Iterable[str], expected: Iterable[str]) -> str:
    found, expected = list(found), list(expected)
    missing = [name for name in expected if name not in found]
    unknown = [str(name) for name in found if name not in expected]
    parts = [f"{', '.join(missing)} missing"] if missing else []
    parts += [f"{', '.join(unknown)} unknown"] if unknown else []
    return " and ".join(parts) or "a column is named twice"


def _shown(value: Any) -> str:
    text = repr(value)
    name = type(value).__name__
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"a {name}"
    return f"{text if len(text) <= 80 else text[:77] + '…'} ({name})"
