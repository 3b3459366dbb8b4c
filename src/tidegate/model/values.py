"""Values of columns: from JSON, SQL, Python and Arrow, and back to JSON and Arrow, without loss.

Takes what a door was given, gives a `Value` as `model.tables` says for each type, keeps nothing. What does
not fit its column exactly is refused with ValueInvalid: nothing is cut or rounded, but for decimal fractions
in a DOUBLE, which are the nearest that there is. None passes everywhere; who requires a value checks that.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tidegate.errors import ValueInvalid
from tidegate.model.coercions import (
    BIGINT_MAX,
    BIGINT_MIN,
    COERCERS,
    DAY_MAX,
    DAY_MIN,
    EPOCH_ORDINAL,
    INT_MAX,
    INT_MIN,
    Refusal,
    is_unicode,
)
from tidegate.model.names import shorten
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Value
from tidegate.model.timeranges import TIME_US_MAX, TIME_US_MIN, format_time

if TYPE_CHECKING:
    import pyarrow as pa

Json: TypeAlias = bool | int | float | str | None


def coerce(value: object, kind: ColumnType, place: str) -> Value:
    """Give the value as a column of this type holds it, or raise ValueInvalid; None passes."""
    if value is None:
        return None
    try:
        return COERCERS[kind.name](value, kind)
    except Refusal as refusal:
        raise ValueInvalid(place=place, reason=str(refusal)) from refusal


def coerce_column(values: Sequence[object], kind: ColumnType, place: str) -> list[Value]:
    """Give many values as `coerce` does, far quicker; the error names the row, from 1."""
    kinds = set(map(type, values))
    kinds.discard(type(None))
    if _is_ready(values, kind.name, kinds):
        return cast("list[Value]", list(values))
    convert = COERCERS[kind.name]
    found: list[Value] = []
    for value in values:
        try:
            found.append(None if value is None else convert(value, kind))
        except Refusal as refusal:
            reason = f"in row {len(found) + 1}, {refusal}"
            raise ValueInvalid(place=place, reason=reason) from refusal
    return found


def _is_ready(values: Sequence[Any], name: str, kinds: set[type]) -> bool:
    """Say whether a column of Python values is already what the column type holds."""
    if not kinds:
        return True
    if name in ("BIGINT", "INT") and kinds == {int}:
        low, high = (INT_MIN, INT_MAX) if name == "INT" else (BIGINT_MIN, BIGINT_MAX)
        there = values if None not in values else [value for value in values if value is not None]
        return bool(low <= min(there) and max(there) <= high)
    if name == "TEXT" and kinds == {str}:
        return is_unicode("".join(value for value in values if value is not None))
    return (name == "DOUBLE" and kinds == {float}) or (name == "BOOLEAN" and kinds == {bool})


def to_arrow(values: Sequence[Value], kind: ColumnType) -> pa.Array:
    """Give an array of the type `kind.to_arrow()`."""
    import pyarrow as pa

    return pa.array(values, kind.to_arrow())


def from_arrow(array: pa.Array | pa.ChunkedArray, kind: ColumnType, place: str) -> list[Value]:
    """Give the values of an array of any type whose values all fit the column, or raise ValueInvalid."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    try:
        plain = _from_like_arrow(array, kind.name)
    except pa.ArrowInvalid as problem:
        raise ValueInvalid(place=place, reason=shorten(str(problem))) from problem
    if plain is None:
        return coerce_column(_python_values(array, place), kind, place)
    if kind.name == "INT":
        return coerce_column(plain, kind, place)
    if kind.name in ("DATE", "TIMESTAMP"):
        _check_years(plain, kind.name, place)
    return plain


def _from_like_arrow(array: Any, name: str) -> list[Value] | None:
    """Give the values where the array holds nearly what the column does; None where it does not."""
    import pyarrow as pa

    kind, is_kind = array.type, pa.types
    if name in ("INT", "BIGINT") and is_kind.is_integer(kind):
        return _numbers(array.cast(pa.int64()))
    if name == "DOUBLE" and is_kind.is_floating(kind):
        return _numbers(array.cast(pa.float64()))
    if name == "BOOLEAN" and is_kind.is_boolean(kind):
        return _listed(array)
    if name == "TEXT" and (is_kind.is_string(kind) or is_kind.is_large_string(kind)):
        return _listed(array)
    if name == "BYTES" and (is_kind.is_binary(kind) or is_kind.is_large_binary(kind)):
        return _listed(array)
    if name == "DATE" and is_kind.is_date32(kind):
        return _numbers(array.cast(pa.int32()))
    if name == "TIMESTAMP" and (is_kind.is_timestamp(kind) or is_kind.is_date32(kind)):
        # A cast between zones keeps the moment; one to a coarser unit raises when it would lose a part.
        return _numbers(array.cast(pa.timestamp("us")).cast(pa.int64()))
    return None


def _numbers(array: Any) -> list[Value]:
    """Give numbers; NumPy is ten times as quick as Arrow here, but has no nulls."""
    import pyarrow as pa

    if array.null_count:
        return _listed(array)
    if isinstance(array, pa.ChunkedArray):
        return array.to_numpy().tolist()  # type: ignore[no-any-return]
    return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _listed(array: Any) -> list[Value]:
    return array.to_pylist()  # type: ignore[no-any-return]


def _python_values(array: Any, place: str) -> list[object]:
    try:
        return array.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError) as problem:
        raise ValueInvalid(place=place, reason=shorten(str(problem))) from problem


def _check_years(values: Sequence[Any], name: str, place: str) -> None:
    low, high = (DAY_MIN, DAY_MAX) if name == "DATE" else (TIME_US_MIN, TIME_US_MAX)
    for number, value in enumerate(values, 1):
        if value is not None and not low <= value <= high:
            raise ValueInvalid(place=place, reason=f"in row {number}, it is outside the years 1 to 9999")


def to_json(value: Value, kind: ColumnType) -> Json:
    """Give the value as JSON shows it: DECIMAL as text, BYTES in base64, times in ISO 8601."""
    if value is None:
        return None
    write = _WRITERS.get(kind.name)
    return value if write is None else write(value)  # type: ignore[return-value]


def json_column(values: Sequence[Value], kind: ColumnType) -> list[Json]:
    """Give many values as `to_json` does."""
    write = _WRITERS.get(kind.name)
    if write is None:
        return list(values)  # type: ignore[arg-type]
    return [None if value is None else write(value) for value in values]


def from_json(value: Json, kind: ColumnType) -> Value:
    """Give the value that `to_json` wrote."""
    return coerce(value, kind, f"A stored value ({kind})")


# Types that are not in this list are JSON as they are.
_WRITERS: dict[str, Callable[[Any], Json]] = {
    "DOUBLE": lambda value: value if math.isfinite(value) else None,
    "DECIMAL": "{:f}".format,
    "BYTES": lambda value: base64.b64encode(value).decode("ascii"),
    "DATE": lambda value: date.fromordinal(value + EPOCH_ORDINAL).isoformat(),
    "TIMESTAMP": format_time,
}
