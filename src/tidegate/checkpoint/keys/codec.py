"""The codec of keys: the bytes under which a key's state is stored, and its key group.

The bytes of a key are those of its columns, one after the other, in the format of column_types.py. They sort
as the keys do, column by column, null first; no key is a prefix of another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from tidegate.checkpoint.keys import spark_hash
from tidegate.checkpoint.keys.column_types import NULL, VALUE, column_type_named
from tidegate.errors import StateInvalid, ValueInvalid
from tidegate.storage.ordered_bytes import short

# Spark's own limit on grouping columns is far higher; a key of more columns is a mistake.
COLUMNS_MAX = 64


@dataclass(frozen=True, slots=True)
class StateKeyColumn:
    """One column of a key: its name, and its type in SQL."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class KeyType:
    """The columns of a key, in order."""

    columns: tuple[StateKeyColumn, ...]

    @classmethod
    def from_arrow(
        cls, names: Iterable[str], schema: pa.Schema, *, operator: str = "(not named yet)"
    ) -> KeyType:
        """Return the key type of named columns; StateInvalid, with a remedy, for one that cannot be a key."""
        columns = []
        for name in names:
            place = schema.get_field_index(name)
            if place < 0:
                reason = (
                    f"the key '{name}' is no column, or more than one. There are: {', '.join(schema.names)}."
                )
                raise StateInvalid(operator=operator, reason=reason)
            columns.append(StateKeyColumn(name, _column_type_of(name, schema.field(place).type, operator)))
        if not 0 < len(columns) <= COLUMNS_MAX:
            reason = f"a key has 1 to {COLUMNS_MAX} columns, not {len(columns)}."
            raise StateInvalid(operator=operator, reason=reason)
        return cls(tuple(columns))

    def to_json(self) -> list[list[str]]:
        """Return the columns for JSON."""
        return [[column.name, column.kind] for column in self.columns]

    @classmethod
    def from_json(cls, stored: list[list[str]]) -> KeyType:
        """Return the key type from what `to_json` returned."""
        return cls(tuple(StateKeyColumn(name, kind) for name, kind in stored))

    def __str__(self) -> str:
        return ", ".join(f"{column.name} {column.kind}" for column in self.columns)


class StateKeyCodec:
    """Encodes and decodes the keys of one type; a key of several columns is a tuple."""

    def __init__(self, key_type: KeyType) -> None:
        self.key_type = key_type
        self._types = [column_type_named(column.kind) for column in key_type.columns]
        self._single = self._types[0] if len(self._types) == 1 else None

    def encode(self, key: Any) -> bytes:
        """Return the bytes of one key; ValueInvalid for one that is not of the type."""
        single = self._single
        try:
            if single is not None:
                return NULL if key is None else VALUE + single.put(key)
            parts = zip(self._types, self._parts(key), strict=True)
            return b"".join([NULL if part is None else VALUE + kind.put(part) for kind, part in parts])
        except (TypeError, ValueError, OverflowError) as error:
            raise self._refused(key, error) from error

    def encode_columns(self, arrays: Sequence[pa.Array]) -> list[bytes]:
        """Return the bytes of many keys, encoded column by column."""
        return self.encode_array(arrays).to_pylist()  # type: ignore[no-any-return]

    def encode_array(self, arrays: Sequence[pa.Array]) -> pa.Array:
        """Return the bytes of many keys as an Arrow array, to which prefixes can be joined."""
        columns = [
            kind.put_column(whole_column(array)) for kind, array in zip(self._types, arrays, strict=True)
        ]
        return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, b"")

    def decode(self, stored: bytes, at: int = 0) -> tuple[Any, int]:
        """Return the key that begins at an index, and the index after it; StorageCorrupt for other bytes."""
        parts: list[Any] = []
        for kind in self._types:
            tag = stored[at : at + 1]
            if tag == VALUE:
                part, at = kind.take(stored, at + 1)
            elif tag == NULL:
                part, at = None, at + 1
            else:
                raise short(stored, at)
            parts.append(part)
        return (parts[0] if self._single is not None else tuple(parts)), at

    def end_of(self, stored: bytes, at: int = 0) -> int:
        """Return the index after the key that begins at an index."""
        for kind in self._types:
            tag = stored[at : at + 1]
            if tag == VALUE:
                at = kind.end_of(stored, at + 1)
            elif tag == NULL:
                at += 1
            else:
                raise short(stored, at)
        return at

    def groups_of(self, arrays: Sequence[pa.Array], max_parallelism: int) -> npt.NDArray[np.int32]:
        """Return the key groups of many keys."""
        return spark_hash.groups_of_hashes(self.hash_columns(arrays), max_parallelism)

    def hash_columns(self, arrays: Sequence[pa.Array]) -> spark_hash.Hashes:
        """Return the hashes of many keys, unsigned."""
        hashes = np.full(len(arrays[0]), spark_hash.SEED, np.uint64)
        for kind, array in zip(self._types, arrays, strict=True):
            hashes = kind.hash_column(whole_column(array), hashes)
        return hashes

    def _parts(self, key: Any) -> Sequence[Any]:
        if self._single is not None:
            return (key,)
        if not isinstance(key, tuple | list) or len(key) != len(self._types):
            raise TypeError(f"a tuple of {len(self._types)} is expected")
        return key

    def _refused(self, key: Any, error: Exception) -> ValueInvalid:
        return ValueInvalid(place=f"the key {key!r} as ({self.key_type})", reason=str(error))


def whole_column(array: Any) -> pa.Array:
    """Return a column as one array of plain values."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array.dictionary_decode() if at.is_dictionary(array.type) else array


_SQL_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date32(): "date",
}


def _column_type_of(name: str, arrow_type: pa.DataType, operator: str) -> str:
    if at.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if arrow_type in _SQL_TYPES:
        return _SQL_TYPES[arrow_type]
    if at.is_timestamp(arrow_type) and arrow_type.unit == "us":
        return "timestamp" if arrow_type.tz else "timestamp_ntz"
    if at.is_decimal128(arrow_type):
        return f"decimal({arrow_type.precision},{arrow_type.scale})"
    raise StateInvalid(operator=operator, reason=_why_no_key(name, arrow_type))


def _why_no_key(name: str, arrow_type: pa.DataType) -> str:
    if at.is_floating(arrow_type):
        return f"the key '{name}' is {arrow_type}, which rounds; cast it to decimal, bigint or string."
    if at.is_struct(arrow_type):
        return f"the key '{name}' is a struct; name its fields as several key columns."
    if at.is_nested(arrow_type):
        return f"the key '{name}' is {arrow_type}; use a string of it, for example to_json('{name}')."
    return f"the key '{name}' is {arrow_type}, which is no key; cast it to string or bigint."
