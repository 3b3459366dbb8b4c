"""The digests of keys: the expressions by which the JVM computes 16 bytes from the columns of a key.

A digest is two 64-bit hashes: `xxhash64` over, for each key column in order, whether it is null and then its
value; and the same after the number SALT. Integers of every width count as bigint, floats as double; -0.0 is
0.0, and NaN is NaN. Of a struct every field counts, of an array its length and each element, of a map its
entries by their keys; a null anywhere is another key than no null. Strings count by their bytes, whatever
their collation. Two keys have one digest with a probability of 2^-128 per pair, unless somebody chooses them
so: `content_hash` is for keys that strangers choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.dedup.identity import SALT

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

# Bytes of the SHA-256 that are stored; two contents of one hash are not found in fewer than 2^64 attempts.
CONTENT_HASH_BYTES = 16

# The start value of an array's hash; the second of a pair starts with SALT, as that of the whole key does.
_SEED = 42
_NULL_TEXT = "-"

Typed = tuple["Column", "DataType"]


class UnsupportedKeyType(Exception):
    """The type of a column that cannot be in a key."""


@dataclass(frozen=True, slots=True)
class ContentHash:
    """The key of `content_hash`: the content of columns."""

    columns: tuple[str | Column, ...]


def content_hash(*columns: str | Column) -> ContentHash:
    """Return a key for `deduplicate(on=…)` that is the content of columns, of all where none is named.

    It is the beginning of the SHA-256 of their values: no attacker can make two contents with one key. It
    costs the JVM several times as much as a key of named columns.
    """
    return ContentHash(columns)


def hash_pair(columns: Sequence[Typed]) -> tuple[Column, Column]:
    """Return the two bigint columns of a key's digest; UnsupportedKeyType names one that cannot be hashed."""
    from pyspark.sql import functions as sql

    first = [part for column, kind in columns for part in _parts(column, kind, _SEED)]
    second = [part for column, kind in columns for part in _parts(column, kind, SALT)]
    return sql.xxhash64(*first), sql.xxhash64(sql.lit(SALT), *second)


def content_digest(columns: Sequence[Typed]) -> Column:
    """Return the binary column with 16 bytes of the SHA-256 of columns' values.

    The values are concatenated, each after its length, so that different contents are different texts.
    UnsupportedKeyType names a type that cannot be in a key.
    """
    from pyspark.sql import functions as sql

    text = sql.concat(sql.lit(""), *(_text(column, kind) for column, kind in columns))
    whole = sql.sha2(text.cast("binary"), 256)
    return sql.unhex(sql.substring(whole, 1, 2 * CONTENT_HASH_BYTES))


def _parts(column: Column, kind: DataType, seed: int) -> list[Column]:
    """Return the columns that are hashed for a column: whether it is null, then the parts of its value."""
    from pyspark.sql import functions as sql
    from pyspark.sql import types

    is_null = column.isNull()
    match kind:
        case types.NullType():
            return [is_null]
        case types.StructType():
            fields = [
                part
                for field in kind.fields
                for part in _parts(column.getField(field.name), field.dataType, seed)
            ]
            return [is_null, *fields]
        case types.ArrayType():
            return [is_null, sql.array_size(column), _folded(column, kind.elementType, seed)]
        case types.MapType():
            return [is_null, _folded(_entries(column), _entry_type(kind), seed)]
        case types.IntegralType():
            return [is_null, column.cast("bigint")]
        case types.FloatType():
            return [is_null, column.cast("double")]
        case types.StringType():
            return [is_null, column.cast("string")]
    _check_plain(kind)
    return [is_null, column]


def _folded(column: Column, kind: DataType, seed: int) -> Column:
    """Return one hash of an array's elements in their order."""
    from pyspark.sql import functions as sql

    return sql.aggregate(
        column,
        sql.lit(seed).cast("bigint"),
        lambda hashed, one: sql.xxhash64(hashed, *_parts(one, kind, seed)),
    )


def _text(column: Column, kind: DataType) -> Column:
    """Return a value as a text of known length that no other value has."""
    from pyspark.sql import functions as sql
    from pyspark.sql import types

    match kind:
        case types.NullType():
            return sql.lit(_NULL_TEXT)
        case types.StructType():
            fields = [_text(column.getField(field.name), field.dataType) for field in kind.fields]
            text = sql.concat(sql.lit("("), *fields, sql.lit(")"))
            return sql.when(column.isNull(), sql.lit(_NULL_TEXT)).otherwise(text)
        case types.ArrayType():
            elements = sql.transform(column, lambda one: _text(one, kind.elementType))
            text = sql.concat(
                sql.array_size(column), sql.lit("["), sql.array_join(elements, ""), sql.lit("]")
            )
            return sql.when(column.isNull(), sql.lit(_NULL_TEXT)).otherwise(text)
        case types.MapType():
            entries = types.ArrayType(_entry_type(kind))
            return _text(sql.when(column.isNotNull(), _entries(column)), entries)
        case types.BinaryType():
            plain = sql.hex(column)
        case types.FloatType() | types.DoubleType():
            # Adding 0.0 turns -0.0 into 0.0.
            plain = (column.cast("double") + sql.lit(0.0)).cast("string")
        case types.TimestampType():
            plain = sql.unix_micros(column).cast("string")
        case _:
            _check_plain(kind)
            plain = column.cast("string")
    return sql.coalesce(sql.concat(sql.octet_length(plain), sql.lit(":"), plain), sql.lit(_NULL_TEXT))


def _entries(column: Column) -> Column:
    """Return a map's entries in the order of their keys: equal maps may have them in different orders."""
    from pyspark.sql import functions as sql

    keys = sql.array_sort(sql.map_keys(column))
    return sql.transform(keys, lambda key: sql.struct(key.alias("key"), column[key].alias("value")))


def _entry_type(kind: DataType) -> DataType:
    from pyspark.sql import types

    if not isinstance(kind, types.MapType):
        raise UnsupportedKeyType(kind.simpleString())
    return types.StructType(
        [types.StructField("key", kind.keyType), types.StructField("value", kind.valueType)]
    )


def _check_plain(kind: DataType) -> None:
    from pyspark.sql import types

    plain = (
        types.NumericType
        | types.BooleanType
        | types.StringType
        | types.BinaryType
        | types.DateType
        | types.TimestampType
        | types.TimestampNTZType
        | types.DayTimeIntervalType
        | types.YearMonthIntervalType
    )
    if not isinstance(kind, plain):
        raise UnsupportedKeyType(kind.simpleString())
