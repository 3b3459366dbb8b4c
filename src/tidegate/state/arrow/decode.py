"""The conversion of Arrow columns to Python values of a type, a whole column at once.

A null where the type has no None is a fault of its row: the error is stored under the row's number, and the
list has None there.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import typing
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from tidegate.errors import ValueInvalid
from tidegate.model.epoch import EPOCH
from tidegate.state.serializers.signatures import hints_of, optional_inner, type_text, unwrapped

Faults: TypeAlias = dict[int, ValueInvalid]
Rows: TypeAlias = "npt.NDArray[np.int64] | None"  # the row of each value; None: value n is of row n
Convert: TypeAlias = Callable[[pa.Array, Rows, Faults], "list[Any]"]
Plain: TypeAlias = Callable[[pa.Array], "list[Any]"]

# What Python's datetime holds, in µs since 1970: from the year 1 to the end of 9999.
DATETIME_US_MIN = -62_135_596_800_000_000
DATETIME_US_STOP = 253_402_300_800_000_000


def converter(python_type: Any, arrow_type: pa.DataType, path: str) -> Convert | None:
    """Return the function that converts an Arrow type to a Python type; None where they do not fit."""
    python_type = unwrapped(python_type)
    if python_type is Any:
        return lambda array, _rows, _faults: typing.cast("list[Any]", array.to_pylist())
    if at.is_dictionary(arrow_type):
        inner = converter(python_type, arrow_type.value_type, path)
        return inner and _decoded(inner)
    optional = optional_inner(python_type)
    kind = unwrapped(python_type if optional is None else optional)
    plain = _leaf(kind, arrow_type)
    if plain is not None:
        convert = _of_leaf(plain)
    else:
        nested = _nested(kind, arrow_type, path)
        if nested is None:
            return None
        convert = _where_valid(nested)
    if kind is dt.datetime:
        convert = _in_range(convert, arrow_type, path)
    return convert if optional is not None else _required(convert, type_text(kind), path)


def fault(row: int, path: str, reason: str) -> ValueInvalid:
    """Return the error of one row, with its number and field in the message and in the values."""
    return ValueInvalid(place=f"row {row}, field '{path}'", reason=reason, row=row, field=path)


def _row_of(index: int, rows: Rows) -> int:
    return index if rows is None else int(rows[index])


def _required(convert: Convert, name: str, path: str) -> Convert:
    def required(array: pa.Array, rows: Rows, faults: Faults) -> list[Any]:
        if array.null_count:
            for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
                row = _row_of(index, rows)
                faults.setdefault(row, fault(row, path, f"it is null, and {name} has no None"))
        return convert(array, rows, faults)

    return required


def _decoded(convert: Convert) -> Convert:
    return lambda array, rows, faults: convert(array.dictionary_decode(), rows, faults)


def _of_leaf(plain: Plain) -> Convert:
    return lambda array, _rows, _faults: plain(array)


def _where_valid(convert: Convert) -> Convert:
    """Return a converter for valid values only, with None for nulls: children of a null are no faults."""

    def valid(array: pa.Array, rows: Rows, faults: Faults) -> list[Any]:
        if not array.null_count:
            return convert(array, rows, faults)
        places = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
        values: list[Any] = [None] * len(array)
        found = convert(array.drop_null(), places if rows is None else rows[places], faults)
        for place, value in zip(places.tolist(), found, strict=True):
            values[place] = value
        return values

    return valid


# ---- leaves -----------------------------------------------------------------------------------------------


def _leaf(kind: Any, arrow_type: pa.DataType) -> Plain | None:
    """Return the function that converts arrays to a type without parts; null becomes None."""
    if kind is int:
        return (
            _pylist if at.is_integer(arrow_type) else _milliseconds if at.is_timestamp(arrow_type) else None
        )
    if kind is float:
        if at.is_float32(arrow_type) or at.is_float64(arrow_type):
            return _pylist
        return _floats if at.is_integer(arrow_type) or at.is_decimal(arrow_type) else None
    if kind is bool:
        return _pylist if at.is_boolean(arrow_type) else None
    if kind is str:
        texts = at.is_string(arrow_type) or at.is_large_string(arrow_type) or at.is_string_view(arrow_type)
        return _pylist if texts else None
    if kind is bytes:
        return _pylist if _is_bytes(arrow_type) else None
    if kind is dt.datetime:
        return (_instants if arrow_type.tz else _datetimes) if at.is_timestamp(arrow_type) else None
    if kind is dt.date:
        return _dates if at.is_date32(arrow_type) else None
    if kind is Decimal:
        return _pylist if at.is_decimal(arrow_type) else _decimals if at.is_integer(arrow_type) else None
    return None


def _is_bytes(arrow_type: pa.DataType) -> bool:
    return bool(
        at.is_binary(arrow_type)
        or at.is_large_binary(arrow_type)
        or at.is_binary_view(arrow_type)
        or at.is_fixed_size_binary(arrow_type)
    )


def _pylist(array: pa.Array) -> list[Any]:
    return typing.cast("list[Any]", array.to_pylist())


def _floats(array: pa.Array) -> list[Any]:
    return _pylist(array.cast(pa.float64(), safe=False))


def _decimals(array: pa.Array) -> list[Any]:
    return [None if value is None else Decimal(value) for value in array.to_pylist()]


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    if array.null_count:
        for place in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[place] = None
    return values


def _microseconds(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return times as µs since 1970, rounded down; 0 for null."""
    counts = pc.fill_null(array.cast(pa.int64()), 0).to_numpy()
    factor = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}[array.type.unit]
    found: npt.NDArray[np.int64] = counts // 1000 if array.type.unit == "ns" else counts * factor
    return found


def _milliseconds(array: pa.Array) -> list[Any]:
    return _with_nulls(array, (_microseconds(array) // 1000).tolist())


def _datetimes(array: pa.Array) -> list[Any]:
    return _with_nulls(array, _microseconds(array).view("datetime64[us]").tolist())


def _instants(array: pa.Array) -> list[Any]:
    spans = _microseconds(array).view("timedelta64[us]").tolist()
    return _with_nulls(array, list(map(EPOCH.__add__, spans)))


def _dates(array: pa.Array) -> list[Any]:
    days = pc.fill_null(array.cast(pa.int32()), 0).to_numpy()
    return _with_nulls(array, days.astype("datetime64[D]").tolist())


def _in_range(convert: Convert, arrow_type: pa.DataType, path: str) -> Convert:
    """Return a converter for which times outside the range of datetime are faults of their rows."""

    def within(array: pa.Array, rows: Rows, faults: Faults) -> list[Any]:
        micros = _microseconds(array)
        outside = (micros < DATETIME_US_MIN) | (micros >= DATETIME_US_STOP)
        if outside.any():
            for index in np.flatnonzero(outside).tolist():
                row = _row_of(index, rows)
                faults.setdefault(row, fault(row, path, "it lies outside the years 1 to 9999"))
            array = pc.if_else(pa.array(outside), pa.scalar(None, arrow_type), array)
        return convert(array, rows, faults)

    return within


# ---- types with parts -------------------------------------------------------------------------------------


def _nested(kind: Any, arrow_type: pa.DataType, path: str) -> Convert | None:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        lists = at.is_list(arrow_type) or at.is_large_list(arrow_type)
        return _lists(arguments[0], arrow_type.value_type, path) if lists else None
    if origin is dict:
        return _dicts(arguments, arrow_type, path) if at.is_map(arrow_type) else None
    if not at.is_struct(arrow_type):
        return None
    if origin is tuple:
        names = [f"_{number}" for number in range(1, len(arguments) + 1)]
        members = list(zip(names, arguments, strict=True))
        return _struct(None, members, arrow_type, path) if len(members) == arrow_type.num_fields else None
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = hints_of(kind)
        return _struct(kind, list(hints.items()), arrow_type, path)
    return None


def _struct(
    record: type | None, members: list[tuple[str, Any]], arrow_type: pa.DataType, path: str
) -> Convert | None:
    """Return a converter of structs: to records by the names of fields, to tuples by their order."""
    parts: list[tuple[int, Convert]] = []
    for number, (name, kind) in enumerate(members):
        index = number if record is None else arrow_type.get_field_index(name)
        convert = None if index < 0 else converter(kind, arrow_type.field(index).type, f"{path}.{name}")
        if convert is None:
            return None
        parts.append((index, convert))
    names = [name for name, _ in members]

    def structs(array: pa.Array, rows: Rows, faults: Faults) -> list[Any]:
        children = array.flatten()
        known = len(faults)
        columns = [convert(children[index], rows, faults) for index, convert in parts]
        if record is None:
            return list(zip(*columns, strict=True))
        if len(faults) == known:
            return list(map(record, *columns)) if _is_positional(record) else _by_name(record, names, columns)
        # The batch is converted again without the rows that do not fit; no constructor sees their values.
        return [None] * len(array)

    return structs


def _is_positional(record: Any) -> bool:
    return all(field.init and not field.kw_only for field in dataclasses.fields(record))


def _by_name(record: type, names: list[str], columns: list[list[Any]]) -> list[Any]:
    return [record(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def _parted(array: pa.Array, rows: Rows) -> tuple[list[int], Rows]:
    """Return the ends of the lists among the flat values, and the row of each flat value."""
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    own = np.arange(len(array)) if rows is None else rows
    return np.concatenate(([0], np.cumsum(lengths))).tolist(), np.repeat(own, lengths)


def _lists(element: Any, value_type: pa.DataType, path: str) -> Convert | None:
    convert = converter(element, value_type, f"{path}[]")
    if convert is None:
        return None

    def lists(array: pa.Array, rows: Rows, faults: Faults) -> list[Any]:
        ends, flat_rows = _parted(array, rows)
        flat = convert(array.flatten(), flat_rows, faults)
        return [flat[start:stop] for start, stop in pairwise(ends)]

    return lists


def _dicts(arguments: tuple[Any, ...], arrow_type: pa.DataType, path: str) -> Convert | None:
    keys = converter(arguments[0], arrow_type.key_type, f"{path}.key")
    entries = converter(arguments[1], arrow_type.item_type, f"{path}.value")
    if keys is None or entries is None:
        return None
    pairs = pa.struct([("key", arrow_type.key_type), ("value", arrow_type.item_type)])

    def dicts(array: pa.Array, rows: Rows, faults: Faults) -> list[Any]:
        lists = array.cast(pa.list_(pairs))
        ends, flat_rows = _parted(lists, rows)
        key_column, value_column = lists.flatten().flatten()
        flat = list(
            zip(keys(key_column, flat_rows, faults), entries(value_column, flat_rows, faults), strict=True)
        )
        return [dict(flat[start:stop]) for start, stop in pairwise(ends)]

    return dicts
