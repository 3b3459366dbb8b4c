"""The rows of a statement of DuckDB, as Arrow and as JSON values.

JSON: as `model.values` has it for our types. Lists are arrays, structs and maps are objects. JSON columns are
text, as they are stored. Dates and times outside the years 1 to 9999 have as many digits as they need
('99999-01-01', '-0043-03-15': the year before 1 is 0), and the ends of time are 'infinity' and '-infinity',
as DuckDB prints them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import SqlUnsupported
from tidegate.model.values import DAY_MAX, DAY_MIN, base64_text, decimal_text, time_texts

# Our type names for DuckDB's; others keep DuckDB's name.
TYPE_NAMES = {
    "INTEGER": "INT",
    "VARCHAR": "TEXT",
    "BLOB": "BYTES",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP",
    '"NULL"': "NULL",
}

# What Arrow and Python can write: 0001-01-01 to 9999-12-31. DuckDB knows more, and two ends beside.
_SECOND_FIRST, _SECOND_LAST = DAY_MIN * 86_400, DAY_MAX * 86_400 + 86_399
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class QueryAnswer:
    """All rows of one statement, and warnings about them; immutable."""

    def __init__(self, table: pa.Table, type_names: list[str], warnings: Sequence[str] = ()) -> None:
        self._table = table
        self.warnings = list(warnings)
        self._type_names = type_names
        self.columns = [
            {"name": name, "type": TYPE_NAMES.get(kind, kind)}
            for name, kind in zip(table.column_names, type_names, strict=True)
        ]

    @property
    def row_count(self) -> int:
        return int(self._table.num_rows)

    def arrow(self) -> pa.Table:
        """Return the rows as DuckDB made them; timestamps are in UTC, to the microsecond."""
        return self._table

    def json_rows(self) -> list[list[Any]]:
        """Return the rows as values that any JSON writer takes."""
        columns = [
            _json_column(column, "HUGEINT" in name)
            for column, name in zip(self._table.columns, self._type_names, strict=True)
        ]
        return [list(row) for row in zip(*columns, strict=True)]


def _json_column(column: pa.ChunkedArray, whole: bool) -> list[Any]:
    """Return the values of a column; `whole`: Arrow has no 128-bit integers, so they come as decimals."""
    chunks = [_values(chunk, whole) for chunk in column.chunks]
    return chunks[0] if len(chunks) == 1 else [value for chunk in chunks for value in chunk]


def _values(array: pa.Array, whole: bool) -> list[Any]:
    """Return the values of an array, a column at a time down to the leaves of nested types."""
    kind = array.type
    if pa.types.is_floating(kind):
        return _numbers(pc.if_else(pc.is_finite(array), array, pa.scalar(None, kind)))
    if pa.types.is_integer(kind):
        return _numbers(array)
    if pa.types.is_timestamp(kind):
        return _times(array)
    if pa.types.is_date32(kind):
        return _dates(array)
    if pa.types.is_dictionary(kind):
        return _values(array.cast(kind.value_type), whole)
    nested = _nested(array, whole)
    return _plain(array, whole) if nested is None else nested


def _plain(array: pa.Array, whole: bool) -> list[Any]:
    """Return the values of an array that is not nested."""
    try:
        values: list[Any] = array.to_pylist()
    except (OverflowError, ValueError) as problem:
        reason = f"A value of type {array.type} cannot be written as JSON: {problem}."
        raise SqlUnsupported(reason=reason, hint="Cast it to VARCHAR.") from problem
    convert = _converter(array.type, whole)
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _nested(array: pa.Array, whole: bool) -> list[Any] | None:
    """Return the values of a list, a map, a struct or a union; None where the type is not nested."""
    kind = array.type
    if pa.types.is_map(kind):
        return _maps(array, whole)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return list(_parts(array, iter(_values(array.flatten(), whole))))
    if pa.types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        columns = [_values(part, whole) for part in array.flatten()]
        rows = zip(*columns, strict=True) if columns else (() for _ in range(len(array)))
        valid = array.is_valid().to_pylist()
        return [
            dict(zip(names, row, strict=True)) if here else None
            for row, here in zip(rows, valid, strict=True)
        ]
    if pa.types.is_union(kind):
        columns = [_values(array.field(index), whole) for index in range(kind.num_fields)]
        return [columns[code][row] for row, code in enumerate(array.type_codes.to_pylist())]
    return None


def _maps(array: pa.Array, whole: bool) -> list[Any]:
    """Return the objects of an array of maps."""
    # Arrow does not flatten maps: the keys and values of all of them are consecutive, cut at the offsets.
    offsets = array.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    keys = [_key(key) for key in _values(array.keys[first:last], whole)]
    values = _values(array.items[first:last], whole)
    cuts = [slice(start - first, stop - first) for start, stop in pairwise(offsets)]
    valid = array.is_valid().to_pylist()
    return [
        dict(zip(keys[cut], values[cut], strict=True)) if here else None
        for cut, here in zip(cuts, valid, strict=True)
    ]


def _parts(array: pa.Array, values: Iterator[Any]) -> Iterator[list[Any] | None]:
    """Yield the lists of an array from the values of all of them."""
    for length in pc.list_value_length(array).to_pylist():
        yield None if length is None else list(islice(values, length))


def _numbers(array: pa.Array) -> list[Any]:
    if array.null_count:
        return array.to_pylist()  # type: ignore[no-any-return]
    return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _times(array: pa.Array) -> list[Any]:
    unit = array.type.unit
    factor = _PER_SECOND[unit]
    if not _within(array.cast(pa.int64()), _SECOND_FIRST * factor, (_SECOND_LAST + 1) * factor - 1):
        return [_far_time(value, unit) for value in array.cast(pa.int64()).to_pylist()]
    return time_texts(array.cast(pa.timestamp("us"), safe=False))


def _dates(array: pa.Array) -> list[Any]:
    days = array.cast(pa.int32())
    if _within(days, DAY_MIN, DAY_MAX):
        return array.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    return [_far_date(value) for value in days.to_pylist()]


def _within(numbers: pa.Array, first: int, last: int) -> bool:
    """Return whether all numbers, nulls aside, are between two, both in."""
    ends = pc.min_max(numbers).as_py()
    return ends["min"] is None or (first <= ends["min"] and ends["max"] <= last)


def _far_date(days: int | None) -> str | None:
    if days is None:
        return None
    return _end_of_time(days, np.iinfo(np.int32).max) or _written(np.datetime64(days, "D"))


def _far_time(value: int | None, unit: str) -> str | None:
    if value is None:
        return None
    end = _end_of_time(value, np.iinfo(np.int64).max)
    if end is not None:
        return end
    seconds, rest = divmod(value, _PER_SECOND[unit])
    text = _written(np.datetime64(seconds, "s"))
    fraction_us = rest * 1_000_000 // _PER_SECOND[unit]
    if fraction_us == 0:
        return f"{text}Z"
    return f"{text}.{fraction_us // 1000:03}Z" if fraction_us % 1000 == 0 else f"{text}.{fraction_us:06}Z"


def _written(moment: np.datetime64) -> str:
    """Return ISO 8601; a year has four digits at least, also below 0."""
    text = str(moment)
    return f"-{text[1:].zfill(len(text[1:].partition('-')[2]) + 5)}" if text.startswith("-") else text


def _end_of_time(value: int, most: int) -> str | None:
    """Return the name of an end of time, where the value is DuckDB's for one, or None."""
    if abs(value) < most:
        return None
    return "infinity" if value > 0 else "-infinity"


def _converter(kind: pa.DataType, whole: bool) -> Callable[[Any], Any] | None:
    """Return the function that turns one value of a type, as Arrow gives it to Python, into JSON."""
    if pa.types.is_decimal(kind):
        return int if whole and kind.scale == 0 and kind.precision == 38 else decimal_text
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return base64_text
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return lambda value: value.isoformat()
    if pa.types.is_interval(kind):
        return _interval
    return None


def _key(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _interval(value: Any) -> str:
    """Return an ISO 8601 duration."""
    seconds = value.nanoseconds / 1_000_000_000
    return f"P{value.months}M{value.days}DT{seconds:.6f}".rstrip("0").rstrip(".") + "S"
