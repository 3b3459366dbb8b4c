"""Digests: takes the columns of a key, gives the expressions by which the JVM makes 16 bytes of them.

A digest is two 64-bit hashes: `xxhash64` over, for each key column in order, whether it is null and then its
value; and the same behind the number SALT. Whole numbers of every width count as bigint, floats as double;
-0.0 is 0.0, and NaN is NaN. Of a struct every field counts, of an array its length and each element, of a map
its entries by their keys; a null anywhere is another key than no null. Strings count by their bytes, whatever
their collation. Two keys have one digest by a chance of 2^-128 a pair, unless somebody chooses them so:
`content_hash` is for keys that strangers choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.dedup.identity import SALT

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

# Bytes of the SHA-256 that are kept; nobody finds two contents of one hash in 2^64 tries.
CONTENT_HASH_BYTES = 16

# Where the hash of an array begins; the second of a pair begins with SALT, as that of the whole key does.
_SEED = 42
_NULL_TEXT = "-"

Typed = tuple["Column", "DataType"]


class UnsupportedKeyType(Exception):
    """A column is of a type that is no key."""


@dataclass(frozen=True, slots=True)
class ContentHash:
    """A key that is the content of columns; made by `content_hash`."""

    columns: tuple[str | Column, ...]


def content_hash(*columns: str | Column) -> ContentHash:
    """Return a key for `deduplicate(on=…)` that is the content of columns.

    Of all columns where none is named.

    It is the beginning of the SHA-256 of their values: nobody can make two contents that have one key. It
    costs the JVM several times as much as a key that is named by its columns.
    """
    return ContentHash(columns)


def hash_pair(columns: Sequence[Typed]) -> tuple[Column, Column]:
    """Return the two bigint columns of a key's digest; NoKey says which type is none."""
    from pyspark.sql import functions as sql

    first = [part for column, kind in columns for part in _parts(column, kind, _SEED)]
    second = [part for column, kind in columns for part in _parts(column, kind, SALT)]
    return sql.xxhash64(*first), sql.xxhash64(sql.lit(SALT), *second)


def content_digest(columns: Sequence[Typed]) -> Column:
    """Return the binary column with 16 bytes of the SHA-256 of columns' values.

    NoKey says which type is none.

    The values are written one after the other, each behind its length, so that no two contents are one text.
    """
    from pyspark.sql import functions as sql

    text = sql.concat(sql.lit(""), *(_text(column, kind) for column, kind in columns))
    whole = sql.sha2(text.cast("binary"), 256)
    return sql.unhex(sql.substring(whole, 1, 2 * CONTENT_HASH_BYTES))


def _parts(column: Column, kind: DataType, seed: int) -> list[Column]:
    """Return what is hashed of a column: whether it is null, then what makes up its value."""
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
    """Return a value as text that no other value has, and that tells where it ends."""
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
            # Adding nothing makes -0.0 to 0.0.
            plain = (column.cast("double") + sql.lit(0.0)).cast("string")
        case types.TimestampType():
            plain = sql.unix_micros(column).cast("string")
        case _:
            _check_plain(kind)
            plain = column.cast("string")
    return sql.coalesce(sql.concat(sql.octet_length(plain), sql.lit(":"), plain), sql.lit(_NULL_TEXT))


def _entries(column: Column) -> Column:
    """Return a map's entries in the order of their keys: two equal maps may hold them in another one."""
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
