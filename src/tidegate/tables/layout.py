"""What is worked out once for a table and used for every row: keys, index entries, checks, reading.

Takes a table, gives its `Shape`, keeps the last one of each table. A shape belongs to one definition: an
ALTER makes another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate.errors import InvariantBroken, RowExists, ValueInvalid
from tidegate.model.names import shorten
from tidegate.model.tables import Row, Table, TableIndex, TableKind, Value, positions_of
from tidegate.model.values import from_json, to_json
from tidegate.storage.row_codec import RowReader, encode_row, encode_values
from tidegate.tables import keys
from tidegate.tables.key_codec import KeyCodec

KEY_BYTES_MAX = 1024  # of a primary key: it stands in every index entry too, and keys are kept in memory
INDEX_KEY_BYTES_MAX = 4096  # of the columns of an index entry; longer texts are not looked up by value
ROW_BYTES_MAX = 16 * 1024 * 1024  # as stored; larger things are files


@dataclass(frozen=True, slots=True)
class IndexShape:
    """Where the entries of one index lie."""

    id: int
    name: str
    positions: tuple[int, ...]
    prefix: bytes
    codec: KeyCodec


class Shape:
    """A table as its rows need it; nothing of it changes."""

    def __init__(self, table: Table) -> None:
        if table.kind == TableKind.STREAM:
            raise InvariantBroken(reason=f"{table.full_name} is a stream: its rows are not in the engine")
        kinds = [column.type for column in table.columns]
        self.table = table
        self.key_positions = table.key_positions
        self.prefix = keys.row_prefix(table.id)
        self.codec = KeyCodec([kinds[position] for position in self.key_positions], nullable=False)
        self.indexes = tuple(_index_shape(table, index) for index in table.indexes)
        self._kinds = kinds
        self._required = tuple(place for place, column in enumerate(table.columns) if column.required)
        missing = tuple(from_json(column.missing, column.type) for column in table.columns)
        decimals = [place for place, kind in enumerate(kinds) if kind.name == "DECIMAL"]
        self._reader = RowReader(table.schema_id, missing, decimals)

    def scope(self, user: str) -> bytes:
        """Return what stands before the columns in keys of this user's rows."""
        return keys.scope_of(user, is_scoped=self.table.is_scoped)

    def row_key(self, user: str, key: Row) -> bytes:
        """Return where the row with this primary key lies."""
        if len(key) != len(self.key_positions):
            raise InvariantBroken(
                reason=f"a key of {self.table.full_name} has {len(self.key_positions)} values"
            )
        return self.prefix + self.scope(user) + self.codec.encode(key)

    def row_keys(self, user: str, rows: Sequence[Row]) -> list[bytes]:
        """Return where rows lie that are there."""
        columns = [[row[place] for row in rows] for place in self.key_positions]
        return self.codec.encode_columns(self.prefix + self.scope(user), columns)

    def is_stored(self, stored: bytes, key: bytes, row: Row) -> bool:
        """Return whether stored bytes are this row; NaN is the same as NaN here, and 0 is not -0."""
        if encode_row(self.table.schema_id, row) == stored:
            return True
        # A row that is older than the last columns has other bytes.
        return encode_values(self.row(stored, key)) == encode_values(row)

    def checked_keys(self, user: str, rows: Sequence[Row]) -> list[bytes]:
        """Return where rows lie that are to be written, or say which of them may not be."""
        if set(map(len, rows)) != {len(self._kinds)}:
            raise InvariantBroken(reason=f"a row of {self.table.full_name} has {len(self._kinds)} values")
        columns: list[Sequence[Value]] = list(zip(*rows, strict=True))
        for place in self._required:
            if None in columns[place]:
                self._refuse(columns[place].index(None), place, "a value is required, and it is NULL")
        key_columns = [columns[place] for place in self.key_positions]
        nan = self.codec.find_nan(key_columns)
        if nan is not None:
            self._refuse(nan[1], self.key_positions[nan[0]], "NaN cannot be part of a primary key")
        prefix = self.prefix + self.scope(user)
        found = self.codec.encode_columns(prefix, key_columns)
        if not self.codec.is_fixed:
            self._check_lengths([len(key) - len(prefix) for key in found])
        return found

    def _check_lengths(self, lengths: list[int]) -> None:
        longest = max(lengths)
        if longest > KEY_BYTES_MAX:
            reason = f"the primary key has {longest} bytes, and {KEY_BYTES_MAX} is the most"
            raise ValueInvalid(place=self._row_place(lengths.index(longest)), reason=reason)

    def encoded(self, rows: Sequence[Row]) -> list[bytes]:
        """Return rows as they are stored."""
        schema_id = self.table.schema_id
        found = [encode_row(schema_id, row) for row in rows]
        longest = max(map(len, found))
        if longest > ROW_BYTES_MAX:
            number = next(number for number, stored in enumerate(found) if len(stored) == longest)
            reason = f"it has {longest} bytes, and {ROW_BYTES_MAX} is the most"
            raise ValueInvalid(place=self._row_place(number), reason=reason)
        return found

    def row(self, stored: bytes, key: bytes) -> Row:
        """Return the row of stored bytes, with columns that came later filled in."""
        return self._reader.row(stored, lambda: f"a row of {self.table.full_name}, key {key.hex()}")

    def rows(self, pairs: Iterable[tuple[bytes, bytes]]) -> list[Row]:
        """Return the rows of keys and stored bytes."""
        read, found = self._reader.row, []
        key = b""

        def place() -> str:
            return f"a row of {self.table.full_name}, key {key.hex()}"

        for key, stored in pairs:  # noqa: B007 - `place` tells it
            found.append(read(stored, place))
        return found

    def entries(self, row_key: bytes, row: Row, scope: bytes) -> list[bytes]:
        """Return the keys of a row's index entries, one for each index."""
        suffix = row_key[len(self.prefix) + len(scope) :]
        return [self.entry(index, scope, suffix, row) for index in self.indexes]

    def entry(self, index: IndexShape, scope: bytes, suffix: bytes, row: Row) -> bytes:
        """Return the key of a row's entry in one index."""
        columns = index.codec.encode([row[place] for place in index.positions])
        if len(columns) > INDEX_KEY_BYTES_MAX:
            reason = f"its columns have {len(columns)} bytes in a row, and {INDEX_KEY_BYTES_MAX} is the most"
            raise ValueInvalid(place=f"Index '{index.name}'", reason=reason)
        return b"".join((index.prefix, scope, columns, suffix))

    def taken(self, row: Row) -> RowExists:
        """Return the error for a key that is there already."""
        parts = []
        for place in self.key_positions:
            shown = to_json(row[place], self._kinds[place])
            parts.append(f"{self.table.columns[place].name} = {shorten(str(shown))}")
        return RowExists(table=self.table.full_name, key=", ".join(parts))

    def twice(self, row: Row) -> RowExists:
        """Return the error for a key that two rows of one statement have."""
        problem = self.taken(row)
        hint = "Two rows of the statement have this key; UPSERT takes the last of them. Nothing was written."
        return RowExists(**problem.values, hint=hint)

    def _refuse(self, number: int, place: int, reason: str) -> None:
        column = self.table.columns[place]
        where = f"Column '{shorten(column.name)}' ({column.type}), row {number + 1}"
        raise ValueInvalid(place=where, reason=reason)

    def _row_place(self, number: int) -> str:
        return f"Table '{self.table.full_name}', row {number + 1}"


def _index_shape(table: Table, index: TableIndex) -> IndexShape:
    positions = positions_of(table.names, index.columns)
    codec = KeyCodec([table.columns[place].type for place in positions], nullable=True)
    return IndexShape(index.id, index.name, positions, keys.index_prefix(table.id, index.id), codec)


class Shapes:
    """The shapes of the tables that are in use; for any thread."""

    def __init__(self) -> None:
        self._last: dict[int, Shape] = {}

    def of(self, table: Table) -> Shape:
        """Return the shape of a table."""
        shape = self._last.get(table.id)
        if shape is None or shape.table is not table:
            shape = self._last[table.id] = Shape(table)
        return shape

    def forget(self, table_id: int) -> None:
        """Drop what is kept of a table that is gone."""
        self._last.pop(table_id, None)
