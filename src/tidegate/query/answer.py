"""The rows of a statement, as Arrow and as JSON values.

JSON: whole numbers and DOUBLE are numbers (NaN and the infinities are null), DECIMAL is text so that no
digit is lost, TIMESTAMP is ISO 8601 in UTC with 'Z', DATE is 'YYYY-MM-DD', BYTES is base64, lists are
arrays, structs and maps are objects. JSON columns are text, as they are stored.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# DuckDB's names on the left, the names of our types on the right; others keep DuckDB's name.
TYPE_NAMES = {
    "INTEGER": "INT",
    "VARCHAR": "TEXT",
    "BLOB": "BYTES",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP",
    '"NULL"': "NULL",
}

# As many digits of a second as are exact: 0, 3 or 6.
_WHOLE_SECOND = r"\.000000Z$"
_WHOLE_MILLISECOND = r"(\.\d{3})000Z$"


class QueryAnswer:
    """All rows of one statement; nothing of it changes."""

    def __init__(self, table: pa.Table, type_names: list[str]) -> None:
        self._table = table
        self._type_names = type_names
        self.columns = [
            {"name": name, "type": TYPE_NAMES.get(kind, kind)}
            for name, kind in zip(table.column_names, type_names, strict=True)
        ]

    @property
    def row_count(self) -> int:
        return int(self._table.num_rows)

    def arrow(self) -> pa.Table:
        """Give the rows as DuckDB made them; timestamps are in UTC, to the microsecond."""
        return self._table

    def json_rows(self) -> list[list[Any]]:
        """Give the rows as values that any JSON writer takes."""
        columns = [
            _json_column(column, "HUGEINT" in name)
            for column, name in zip(self._table.columns, self._type_names, strict=True)
        ]
        return [list(row) for row in zip(*columns, strict=True)]


def _json_column(column: pa.ChunkedArray, whole: bool) -> list[Any]:
    """Give the values of a column; `whole`: Arrow has no 128-bit integers, so they come as decimals."""
    kind = column.type
    if pa.types.is_floating(kind):
        finite = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
        return _numbers(finite)
    if pa.types.is_integer(kind):
        return _numbers(column)
    if pa.types.is_timestamp(kind):
        return _times(column).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_dictionary(kind):
        return _json_column(column.cast(kind.value_type), whole)
    if pa.types.is_string(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return column.to_pylist()  # type: ignore[no-any-return]
    convert = _converter(kind, whole)
    return [None if value is None else convert(value) for value in column.to_pylist()]


def _numbers(column: pa.ChunkedArray) -> list[Any]:
    if column.null_count:
        return column.to_pylist()  # type: ignore[no-any-return]
    return column.to_numpy().tolist()  # type: ignore[no-any-return]


def _times(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # Moments without a zone are written out sixty times faster than moments in UTC, which they are here.
    text = column.cast(pa.timestamp("us"), safe=False).cast(pa.string())
    marked = pc.binary_join_element_wise(pc.replace_substring(text, " ", "T", max_replacements=1), "Z", "")
    short = pc.replace_substring_regex(marked, pattern=_WHOLE_SECOND, replacement="Z")
    return pc.replace_substring_regex(short, pattern=_WHOLE_MILLISECOND, replacement=r"\1Z")


def _converter(kind: pa.DataType, whole: bool) -> Callable[[Any], Any]:
    """Give the function that turns one value of a type, as Arrow gives it to Python, into JSON."""
    if pa.types.is_decimal(kind):
        return int if whole and kind.scale == 0 and kind.precision == 38 else "{:f}".format
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _nullable(_converter(kind.value_type, whole))
        return lambda values: [inner(value) for value in values]
    if pa.types.is_struct(kind):
        fields = {
            kind.field(i).name: _nullable(_converter(kind.field(i).type, whole))
            for i in range(kind.num_fields)
        }
        return lambda values: {name: convert(values[name]) for name, convert in fields.items()}
    if pa.types.is_map(kind):
        key, value = _converter(kind.key_type, whole), _nullable(_converter(kind.item_type, whole))
        return lambda pairs: {_key(key(k)): value(v) for k, v in pairs}
    if pa.types.is_timestamp(kind):
        return lambda value: _times(pa.chunked_array([pa.array([value], kind)]))[0].as_py()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: base64.b64encode(value).decode("ascii")
    if pa.types.is_floating(kind):
        return lambda value: value if math.isfinite(value) else None
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return lambda value: value.isoformat()
    if pa.types.is_interval(kind):
        return _interval
    return lambda value: value


def _nullable(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _key(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _interval(value: Any) -> str:
    """Give an ISO 8601 duration."""
    seconds = value.nanoseconds / 1_000_000_000
    return f"P{value.months}M{value.days}DT{seconds:.6f}".rstrip("0").rstrip(".") + "S"
