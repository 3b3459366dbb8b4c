"""Columns that come out: take the fields of an output schema, give what judges and converts values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from tidegate.state.moment import Moment

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
    """Give what judges the values of a field."""
    kind = _WORDS.get(field.type, str(field.type))
    return Column(field.name, kind, _fits(field.type, field.nullable), _convert(field))


def _fits(kind: pa.DataType, is_nullable: bool) -> Fits:
    """Give a quick check that says yes only to values that Arrow takes as they are."""
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
    """Say whether a str is text that UTF-8 can hold: half of a surrogate pair is not."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _convert(field: pa.Field) -> Convert:
    """Give the exact way: the value in the shape that Arrow takes, after Arrow has tried it."""
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
    """Give what takes dataclasses and moments apart inside a value of a type."""
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
    """Give a whole number as a plain int; Arrow itself would cut off what follows the point."""
    if isinstance(value, float | np.floating) and not float(value).is_integer():
        raise ValueError("it is no whole number")
    return int(value) if isinstance(value, int | float | np.number) else value


def _time(value: Any) -> Any:
    if isinstance(value, Moment):
        return value.datetime()
    if isinstance(value, int):
        raise TypeError("an int does not say its unit; give a datetime or Moment(milliseconds)")
    return value
