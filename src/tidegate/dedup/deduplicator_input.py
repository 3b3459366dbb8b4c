"""The input of a Python consumer: its keys, event times and offsets as columns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as at

from tidegate.checkpoint.keys.codec import KeyType, StateKeyCodec
from tidegate.checkpoint.keys.codec import StateKeyColumn as CodecColumn
from tidegate.checkpoint.keys.spark_hash import groups_of_hashes
from tidegate.dedup import columns
from tidegate.dedup.columns import Longs
from tidegate.dedup.identity import digest_bytes, digest_columns, plain_column
from tidegate.errors import StateInvalid, StateMismatch, ValueInvalid
from tidegate.model.epoch import us_of

# A partition of a source and an offset in it are packed into one 64-bit number: 15 bits and 48 bits.
OFFSET_BITS = 48
PARTITIONS_MAX = 1 << 15
OFFSETS_MAX = 1 << OFFSET_BITS

VOID = "void"

_TYPES = {
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
# Types that are iterable and no list of values: characters, numbers, or members without an order.
_NO_LISTS = (str, bytes, bytearray, memoryview, Mapping, Set)
# The first match counts: in Python a bool is an int, and a datetime is a date.
_FAMILIES: dict[type, tuple[type, ...]] = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (float, np.floating),
    str: (str,),
    bytes: (bytes, bytearray, memoryview),
    dt.datetime: (dt.datetime,),
    dt.date: (dt.date,),
}


@dataclass(frozen=True, slots=True)
class InputKeys:
    """The keys of a call as Arrow columns, and the kind of each; `void` for a column of nothing but None."""

    arrays: list[pa.Array]
    kinds: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.arrays[0])

    def check(self, kinds: tuple[str, ...], operator: str) -> None:
        """Raise StateMismatch for keys of other kinds than those stored: they would all be new."""
        fits = len(kinds) == len(self.kinds)
        fits = fits and all(new in (old, VOID) for new, old in zip(self.kinds, kinds, strict=True))
        if not fits:
            reason = f"its keys are ({', '.join(kinds)}), and this one is ({', '.join(self.kinds)})."
            hint = (
                "Nothing was stored. Give keys of one type in every call; an Arrow column says which it is."
            )
            raise StateMismatch(operator=operator, reason=reason, hint=hint)

    def column(self, kinds: tuple[str, ...], max_parallelism: int, *, exact: bool) -> columns.SegmentKeys:
        """Return the keys as segments store them: digests, or with `exact` the keys themselves."""
        first, second = digest_columns(self.arrays)
        groups = groups_of_hashes(first, max_parallelism)
        if not exact:
            return columns.SegmentKeys.of_digests(digest_bytes(groups, first, second))
        codec = StateKeyCodec(KeyType(tuple(CodecColumn(f"key {at}", kind) for at, kind in enumerate(kinds))))
        arrays = [
            pa.nulls(len(array), _TYPES.get(kind, array.type)) if found == VOID else array
            for array, found, kind in zip(self.arrays, self.kinds, kinds, strict=True)
        ]
        fronts = groups.astype(">u2").tobytes()
        encoded = codec.encode_columns(arrays)
        return columns.SegmentKeys.of_exact(
            [fronts[2 * at : 2 * at + 2] + key for at, key in enumerate(encoded)]
        )


def keys_of(argument: Any) -> InputKeys:
    """Return the columns of keys: an Arrow table or array, or a sequence of values or tuples of values."""
    if isinstance(argument, pa.Table | pa.RecordBatch):
        found = list(argument.columns)
    elif isinstance(argument, pa.Array | pa.ChunkedArray):
        found = [argument]
    else:
        found = _python_columns(as_list(argument, "the keys"))
    if not found:
        raise ValueInvalid(place="the keys", reason="there is no column")
    plain = [plain_column(column) for column in found]
    return InputKeys([array for array, _ in plain], tuple(kind for _, kind in plain))


def _python_columns(keys: list[Any]) -> list[pa.Array]:
    first = next((key for key in keys if key is not None), None)
    if not isinstance(first, tuple):
        return [_array(keys)]
    width = len(first)
    if any(not isinstance(key, tuple) or len(key) != width for key in keys):
        raise ValueInvalid(place="the keys", reason=f"one is a tuple of {width}, and another is not")
    return [_array(list(column)) for column in zip(*keys, strict=True)]


def as_list(argument: Any, place: str) -> list[Any]:
    """Return a caller's argument as a list; ValueInvalid for a single value or an unordered collection."""
    if not isinstance(argument, _NO_LISTS):
        try:
            found: Iterator[Any] = iter(argument)
        except TypeError:
            pass  # raised below
        else:
            return list(found)
    reason = f"they are {_shown(argument)}; give a list, a tuple or an Arrow array, with one for each message"
    raise ValueInvalid(place=place, reason=reason)


def _shown(argument: Any) -> str:
    return "None" if argument is None else f"of type {type(argument).__name__}"


def _check_one_type(values: list[Any]) -> None:
    """Raise ValueInvalid for values whose Arrow type would depend on the other values of the call."""
    kinds = set(map(type, values)) - {type(None)}
    if any(issubclass(kind, Decimal) for kind in kinds):
        reason = "Arrow takes another type for each number of digits of a Python Decimal"
        hint = "Give str(key), or an Arrow column of one type: pa.array(keys, pa.decimal128(18, 2))."
        raise ValueInvalid(place="the keys", reason=reason, hint=hint)
    families = {_family(kind) for kind in kinds}
    if dt.datetime in families:
        has_zone = {value.tzinfo is not None for value in values if isinstance(value, dt.datetime)}
        if len(has_zone) > 1:
            reason = "they are not of one type: datetimes with a zone and without one"
            raise ValueInvalid(place="the keys", reason=reason)
    if len(families) > 1:
        names = " and ".join(sorted(family.__name__ for family in families))
        raise ValueInvalid(place="the keys", reason=f"they are not of one type: {names}")


def _family(kind: type) -> type:
    """Return the Python type of a value's type; those of numpy count as Python's, a bool is no number."""
    return next((family for family, kinds in _FAMILIES.items() if issubclass(kind, kinds)), kind)


def _array(values: list[Any]) -> pa.Array:
    _check_one_type(values)
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as problem:
        raise ValueInvalid(place="the keys", reason=f"they are not of one type: {problem}") from problem


def times_of(argument: Any, operator: str, number_us: int) -> Longs:
    """Return event times as microseconds since 1970; a datetime without a zone is taken as UTC.

    A whole number counts `number_us` microseconds.
    """
    if isinstance(argument, pa.Array | pa.ChunkedArray):
        return _arrow_times(argument, operator, number_us)
    values = as_list(argument, "the event times")
    try:
        if set(map(type, values)) == {int}:
            return _scaled(np.array(values, np.int64), number_us)
        plain = _plain(values)
        return np.array([_micros(value, number_us) for value in values], np.int64) if plain is None else plain
    except (TypeError, OverflowError) as problem:
        if any(value is None for value in values):
            raise _no_time(operator) from problem
        raise ValueInvalid(place="an event time", reason=str(problem)) from problem


def _arrow_times(argument: Any, operator: str, number_us: int) -> Longs:
    if argument.null_count:
        raise _no_time(operator)
    array = argument.combine_chunks() if isinstance(argument, pa.ChunkedArray) else argument
    if at.is_timestamp(array.type) and array.type.unit == "ns":
        # A cast truncates towards 1970; times before it must round down, too.
        floored: Longs = np.floor_divide(array.cast(pa.int64()).to_numpy(), 1_000)
        return floored
    if at.is_timestamp(array.type):
        array, number_us = _in_microseconds(array), 1
    elif not at.is_integer(array.type):
        reason = f"it is {array.type}, not a timestamp or a whole number"
        raise ValueInvalid(place="an event time", reason=reason)
    try:
        found: Longs = array.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as problem:
        raise ValueInvalid(place="an event time", reason=str(problem)) from problem
    return _scaled(found, number_us)


def _scaled(numbers: Longs, number_us: int) -> Longs:
    """Return numbers of a unit in microseconds; ValueInvalid if one does not fit."""
    limit = np.iinfo(np.int64).max // number_us
    if len(numbers) and (numbers.max() > limit or numbers.min() < -limit):
        raise ValueInvalid(place="an event time", reason="a number is beyond 64 bits of microseconds")
    return numbers * number_us


def _in_microseconds(array: Any) -> Any:
    try:
        return array.cast(pa.timestamp("us", tz=array.type.tz))
    except pa.ArrowInvalid as problem:
        raise ValueInvalid(place="an event time", reason=str(problem)) from problem


def _micros(value: Any, number_us: int) -> int:
    if isinstance(value, dt.datetime):
        return us_of(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value) * number_us
    raise TypeError(f"{value!r} is neither a datetime nor a whole number")


def _no_time(operator: str) -> StateInvalid:
    reason = "a message has no event time. Leave such messages out, or give them one, before the check."
    return StateInvalid(operator=operator, reason=reason)


def offsets_of(argument: Any) -> Longs:
    """Return offsets as numbers: whole numbers unchanged, a partition and an offset packed into one."""
    if isinstance(argument, pa.Array | pa.ChunkedArray):
        argument = argument.to_pylist()
    values = as_list(argument, "the offsets")
    plain = _plain(values)
    return np.array([_offset(value) for value in values], np.int64) if plain is None else plain


def _plain(values: list[Any]) -> Longs | None:
    """Return values of one plain type as numbers; None where each must be converted by itself."""
    kinds = set(map(type, values))
    try:
        if kinds == {int}:
            return np.array(values, np.int64)
        if kinds == {dt.datetime}:
            found: Longs = pa.array(values, pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
            return found
        if kinds == {tuple} and {tuple(map(type, value)) for value in values} == {(int, int)}:
            pairs = np.array(values, np.int64)
            within = (pairs >= 0) & (pairs < [PARTITIONS_MAX, OFFSETS_MAX])
            return pairs[:, 0] << OFFSET_BITS | pairs[:, 1] if within.all() else None
    except (OverflowError, ValueError, TypeError, pa.ArrowException):
        return None
    return None


def _offset(value: Any) -> int:
    if isinstance(value, tuple) and len(value) == 2:
        return position(*value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return int(value)
    reason = f"{value!r} is neither a whole number of 64 bits nor a partition and an offset"
    raise ValueInvalid(place="an offset", reason=reason)


def position(partition: int, offset: int) -> int:
    """Return a partition and an offset in it packed into one number, as it is stored."""
    whole = all(
        isinstance(one, int | np.integer) and not isinstance(one, bool) for one in (partition, offset)
    )
    if not (whole and 0 <= partition < PARTITIONS_MAX and 0 <= offset < OFFSETS_MAX):
        reason = (
            f"partition {partition}, offset {offset}: below {PARTITIONS_MAX} and {OFFSETS_MAX} is expected"
        )
        raise ValueInvalid(place="an offset", reason=reason)
    return int(partition) << OFFSET_BITS | int(offset)


def check_lengths(lengths: Sequence[int]) -> None:
    """Raise ValueInvalid unless there are as many keys as times and offsets."""
    if len(set(lengths)) > 1:
        reason = f"there are {' and '.join(map(str, lengths))} of them; each message has one of each"
        raise ValueInvalid(place="keys, times and offsets", reason=reason)
