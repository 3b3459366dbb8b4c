"""The types of key columns: ordered bytes of their values, and Spark's hashes of their columns.

    boolean                         1 byte        date                        4 bytes: days since 1970
    tinyint smallint int bigint     8 bytes       timestamp, timestamp_ntz    8 bytes: µs since 1970
    string, binary                  the byte strings of storage/ordered_bytes.py
    decimal(p, s)                   its unscaled value, in 8 bytes up to 18 digits, else in 16

Each value has the prefix 0x01; null is 0x00 alone, and sorts first.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.checkpoint.keys import spark_hash
from tidegate.checkpoint.keys.spark_hash import Hashes
from tidegate.errors import InvariantBroken
from tidegate.model.epoch import EPOCH, NAIVE_EPOCH, date_of, day_of, us_of
from tidegate.storage.ordered_bytes import (
    END,
    end_of_text,
    put_number,
    put_text,
    short,
    take_number,
    take_text,
)

NULL = b"\x00"
VALUE = b"\x01"


class KeyColumnType(Protocol):
    """The codec of one type of key column; values are never None here."""

    def put(self, value: Any) -> bytes:
        """Return the bytes of a value; TypeError, ValueError or OverflowError for one of another type."""
        ...

    def take(self, stored: bytes, at: int) -> tuple[Any, int]:
        """Return the value that begins at an index, and the index after it."""
        ...

    def end_of(self, stored: bytes, at: int) -> int:
        """Return the index after the value that begins at an index."""
        ...

    def put_column(self, column: pa.Array) -> pa.Array:
        """Return the bytes of a whole column, with the prefix of each value."""
        ...

    def hash_column(self, column: pa.Array, seeds: Hashes) -> Hashes:
        """Return the hashes of a whole column, each with its own seed; that of null is its seed."""
        ...


@dataclass(frozen=True, slots=True)
class IntegerColumnType:
    """Types whose values are stored as integers from `low` to `high`, in `width` bytes."""

    width: int
    low: int
    high: int
    to_number: Callable[[Any], int]
    to_value: Callable[[int], Any]
    numbers: Callable[[pa.Array], npt.NDArray[Any]]
    is_long: bool

    def put(self, value: Any) -> bytes:
        """Return an integer of fixed width, without the prefix."""
        return put_number(self._number(value), self.width)

    def take(self, stored: bytes, at: int) -> tuple[Any, int]:
        """Return the value and the place after it."""
        number = take_number(stored, at, self.width)
        if not self.low <= number <= self.high:
            raise short(stored, at)
        try:
            return self.to_value(number), at + self.width
        except (OverflowError, ValueError):
            # SQL has times that Python has no datetime for; they stay numbers.
            return number, at + self.width

    def end_of(self, stored: bytes, at: int) -> int:
        """Return the place after the value."""
        if at + self.width > len(stored):
            raise short(stored, at)
        return at + self.width

    def put_column(self, column: pa.Array) -> pa.Array:
        """Return prefix and integer of a column."""
        table = np.empty((len(column), 1 + self.width), np.uint8)
        table[:, 0] = VALUE[0]
        table[:, 1:] = _ordered_bytes(self.numbers(column), self.width)
        return with_nulls(column, rows_as_binary(table))

    def hash_column(self, column: pa.Array, seeds: Hashes) -> Hashes:
        """Return the hashes of a column."""
        numbers = self.numbers(column)
        if self.width > 8:
            texts = list(map(spark_hash.wide_bytes, wide_numbers(numbers)))
            hashes = spark_hash.hash_texts(texts, seeds)
        else:
            hashes = (spark_hash.hash_longs if self.is_long else spark_hash.hash_ints)(numbers, seeds)
        return spark_hash.keep_where_null(column, hashes, seeds)

    def _number(self, value: Any) -> int:
        number = value if type(value) is int and self.to_number is _integer else self.to_number(value)
        if not self.low <= number <= self.high:
            raise OverflowError(f"it is not from {self.low} to {self.high}")
        return number


@dataclass(frozen=True, slots=True)
class BytesColumnType:
    """Types whose values are stored as byte strings."""

    to_bytes: Callable[[Any], bytes]
    to_value: Callable[[bytes], Any]

    def put(self, value: Any) -> bytes:
        """Return the byte string with its terminator."""
        return put_text(self.to_bytes(value))

    def take(self, stored: bytes, at: int) -> tuple[Any, int]:
        """Return the value and the place after it."""
        content, end = take_text(stored, at)
        try:
            return self.to_value(content), end
        except UnicodeDecodeError as error:
            raise short(stored, at) from error

    def end_of(self, stored: bytes, at: int) -> int:
        """Return the place after the value."""
        return end_of_text(stored, at)

    def put_column(self, column: pa.Array) -> pa.Array:
        """Return prefix, bytes and terminator of a column."""
        texts = _binary(column)
        if _has_zero(texts):
            texts = pc.replace_substring(texts, pattern=b"\x00", replacement=b"\x00\xff")
        return with_nulls(column, pc.binary_join_element_wise(VALUE, texts, END, b""))

    def hash_column(self, column: pa.Array, seeds: Hashes) -> Hashes:
        """Return the hashes of a column."""
        hashes = spark_hash.hash_texts(pc.fill_null(_binary(column), b"").to_pylist(), seeds)
        return spark_hash.keep_where_null(column, hashes, seeds)


def with_nulls(column: pa.Array, encoded: pa.Array) -> pa.Array:
    """Return the encoded column with the null byte where the column is null."""
    if not column.null_count:
        return encoded
    return pc.if_else(column.is_null(), pa.scalar(NULL, encoded.type), encoded)


def rows_as_binary(table: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the rows of a table of bytes as an Arrow array of byte strings; nothing is copied."""
    count, width = table.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(table)])


def _ordered_bytes(numbers: npt.NDArray[Any], width: int) -> npt.NDArray[np.uint8]:
    """Return integers as rows of bytes that sort as the integers do."""
    if width == 1:
        return (numbers.astype(np.uint8) ^ np.uint8(0x80)).reshape(-1, 1)
    if width == 16:
        high = (numbers["high"].astype(np.uint64) ^ np.uint64(1 << 63)).astype(">u8")
        parts = [part.view(np.uint8).reshape(-1, 8) for part in (high, numbers["low"].astype(">u8"))]
        return np.concatenate(parts, axis=1)
    turned = numbers.astype(f"i{width}").view(f"u{width}") ^ np.array(1 << (8 * width - 1), f"u{width}")
    found: npt.NDArray[np.uint8] = turned.astype(f">u{width}").view(np.uint8).reshape(-1, width)
    return found


def _binary(column: pa.Array) -> pa.Array:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _has_zero(texts: pa.Array) -> bool:
    """Return whether a column has a byte 0x00."""
    _, offsets, content = texts.buffers()
    if content is None or not len(texts):
        return False
    ends = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
    used = np.frombuffer(content, np.uint8)[ends[0] : ends[-1]]
    return not used.all()


# ---- the types --------------------------------------------------------------------------------------------


def _integer(value: Any) -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise TypeError("it is no integer")


def _truth(value: Any) -> int:
    if isinstance(value, bool | np.bool_):
        return int(value)
    raise TypeError("it is neither True nor False")


def _days(value: Any) -> int:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return day_of(value)
    raise TypeError("it is no date")


def _micros(value: Any) -> int:
    """Return a time as µs since 1970; a naive one is in UTC, a number stays as it is."""
    if isinstance(value, dt.datetime):
        return us_of(value)
    return _integer(value)


def _naive_micros(value: Any) -> int:
    if isinstance(value, dt.datetime) and value.tzinfo:
        raise TypeError("it has a time zone, and the column has none")
    return _micros(value)


def _instant(micros: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=micros)


def _naive(micros: int) -> dt.datetime:
    return NAIVE_EPOCH + dt.timedelta(microseconds=micros)


def _text_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    raise TypeError("it is no text")


def _own_bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError("it is no bytes")


def _column_numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Return a column of integers, truth values, days or µs as numbers; 0 for null."""
    if pa.types.is_timestamp(column.type) or pa.types.is_int64(column.type):
        wide = column.cast(pa.int64())
    else:
        wide = column.cast(pa.int32())
    found: npt.NDArray[Any] = (pc.fill_null(wide, 0) if wide.null_count else wide).to_numpy()
    return found


def _decimal_type(precision: int, scale: int) -> IntegerColumnType:
    is_long = precision <= spark_hash.DECIMAL_LONG_DIGITS_MAX
    arrow_type = pa.decimal128(precision, scale)
    most = 10**precision - 1

    def digits(value: Any) -> int:
        if not isinstance(value, Decimal | int) or isinstance(value, bool):
            raise TypeError("it is no Decimal")
        with localcontext(prec=80):
            unscaled = Decimal(value).scaleb(scale)
            if unscaled != unscaled.to_integral_value():
                raise ValueError(f"it has more than {scale} digits after the point")
            return int(unscaled)

    def value_of(number: int) -> Decimal:
        with localcontext(prec=80):
            return Decimal(number).scaleb(-scale)

    def column_digits(column: pa.Array) -> npt.NDArray[Any]:
        column = column if column.type == arrow_type else column.cast(arrow_type)
        words = np.dtype([("low", "<u8"), ("high", "<i8")])
        content = column.buffers()[1]
        found = np.frombuffer(content, words, len(column), column.offset * 16) if len(column) else None
        found = np.empty(0, words) if found is None else found
        return found["low"].view(np.int64) if is_long else found

    return IntegerColumnType(8 if is_long else 16, -most, most, digits, value_of, column_digits, True)


def wide_numbers(numbers: npt.NDArray[Any]) -> list[int]:
    """Return integers of two words as Python integers."""
    pairs = zip(numbers["high"].tolist(), numbers["low"].tolist(), strict=True)
    return [(high << 64) + low for high, low in pairs]


def _integer_type(
    width: int, bits: int, convert: tuple[Callable[[Any], int], Callable[[int], Any]]
) -> IntegerColumnType:
    edge = 1 << (bits - 1)
    return IntegerColumnType(width, -edge, edge - 1, *convert, _column_numbers, bits == 64)


_COLUMN_TYPES: dict[str, KeyColumnType] = {
    "boolean": IntegerColumnType(1, 0, 1, _truth, bool, _column_numbers, False),
    "tinyint": _integer_type(8, 8, (_integer, int)),
    "smallint": _integer_type(8, 16, (_integer, int)),
    "int": _integer_type(8, 32, (_integer, int)),
    "bigint": _integer_type(8, 64, (_integer, int)),
    "date": _integer_type(4, 32, (_days, date_of)),
    "timestamp": _integer_type(8, 64, (_micros, _instant)),
    "timestamp_ntz": _integer_type(8, 64, (_naive_micros, _naive)),
    "string": BytesColumnType(_text_bytes, bytes.decode),
    "binary": BytesColumnType(_own_bytes, bytes),
}


def column_type_named(name: str) -> KeyColumnType:
    """Return the key column type of an SQL type: `bigint`, `decimal(10,2)`."""
    if name in _COLUMN_TYPES:
        return _COLUMN_TYPES[name]
    if name.startswith("decimal(") and name.endswith(")"):
        precision, scale = map(int, name[8:-1].split(","))
        return _decimal_type(precision, scale)
    raise InvariantBroken(reason=f"there is no kind of key '{name}'")
