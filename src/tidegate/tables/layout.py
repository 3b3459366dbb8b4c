"""The layout of a table: what is derived once from its definition and used for every row.

These are the keys, the index entries, the checks and the reader of its rows. After an ALTER a table has
another definition, and so another layout.
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
from tidegate.tables.key_codec import TableKeyCodec

KEY_BYTES_MAX = 1024  # of a primary key: it is part of every index entry too, and keys are held in memory
INDEX_KEY_BYTES_MAX = 4096  # of the columns of an index entry; longer texts are not looked up by value
ROW_BYTES_MAX = 16 * 1024 * 1024  # as stored; larger things are files


@dataclass(frozen=True, slots=True)
class IndexLayout:
    """The prefix, columns and codec of the entries of one index."""

    id: int
    name: str
    positions: tuple[int, ...]
    prefix: bytes
    codec: TableKeyCodec


class TableLayout:
    """The keys, index entries, checks and reader of a table's rows; immutable."""

    def __init__(self, table: Table) -> None:
        if table.kind == TableKind.STREAM:
            raise InvariantBroken(reason=f"{table.full_name} is a stream: its rows are not in the engine")
        kinds = [column.type for column in table.columns]
        self.table = table
        self.key_positions = table.key_positions
        self.prefix = keys.row_prefix(table.id)
        self.codec = TableKeyCodec([kinds[position] for position in self.key_positions], nullable=False)
        self.indexes = tuple(_index_layout(table, index) for index in table.indexes)
        self._kinds = kinds
        self._required = tuple(position for position, column in enumerate(table.columns) if column.required)
        missing = tuple(from_json(column.missing, column.type) for column in table.columns)
        decimals = [position for position, kind in enumerate(kinds) if kind.name == "DECIMAL"]
        self._reader = RowReader(table.schema_id, missing, decimals)

    def scope(self, user: str) -> bytes:
        """Return the scope of this user's rows, before the columns of their keys."""
        return keys.scope_of(user, is_scoped=self.table.is_scoped)

    def row_key(self, user: str, key: Row) -> bytes:
        """Return the key of the row with this primary key."""
        if len(key) != len(self.key_positions):
            raise InvariantBroken(
                reason=f"a key of {self.table.full_name} has {len(self.key_positions)} values"
            )
        return self.prefix + self.scope(user) + self.codec.encode(key)

    def row_keys(self, user: str, rows: Sequence[Row]) -> list[bytes]:
        """Return the keys of rows that are stored already, without checks."""
        columns = [[row[position] for row in rows] for position in self.key_positions]
        return self.codec.encode_columns(self.prefix + self.scope(user), columns)

    def is_stored(self, stored: bytes, key: bytes, row: Row) -> bool:
        """Return whether stored bytes are this row; here NaN equals NaN, and 0 differs from -0."""
        if encode_row(self.table.schema_id, row) == stored:
            return True
        # A row that is older than the last columns has other bytes.
        return encode_values(self.row(stored, key)) == encode_values(row)

    def checked_keys(self, user: str, rows: Sequence[Row]) -> list[bytes]:
        """Return the keys of rows that are to be written; ValueInvalid names a row that may not be."""
        if set(map(len, rows)) != {len(self._kinds)}:
            raise InvariantBroken(reason=f"a row of {self.table.full_name} has {len(self._kinds)} values")
        columns: list[Sequence[Value]] = list(zip(*rows, strict=True))
        for position in self._required:
            if None in columns[position]:
                self._refuse(columns[position].index(None), position, "a value is required, and it is NULL")
        key_columns = [columns[position] for position in self.key_positions]
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
        """Return the stored form of rows; ValueInvalid for one that is too large."""
        schema_id = self.table.schema_id
        found = [encode_row(schema_id, row) for row in rows]
        longest = max(map(len, found))
        if longest > ROW_BYTES_MAX:
            number = next(number for number, stored in enumerate(found) if len(stored) == longest)
            reason = f"it has {longest} bytes, and {ROW_BYTES_MAX} is the most"
            raise ValueInvalid(place=self._row_place(number), reason=reason)
        return found

    def row(self, stored: bytes, key: bytes) -> Row:
        """Return the row of stored bytes; columns that were added later have their `missing` values."""
        return self._reader.row(stored, lambda: f"a row of {self.table.full_name}, key {key.hex()}")

    def rows(self, pairs: Iterable[tuple[bytes, bytes]]) -> list[Row]:
        """Return the rows of keys and stored bytes."""
        read, found = self._reader.row, []
        key = b""

        def place() -> str:
            return f"a row of {self.table.full_name}, key {key.hex()}"

        for key, stored in pairs:  # noqa: B007 - `place` reads it
            found.append(read(stored, place))
        return found

    def entries(self, row_key: bytes, row: Row, scope: bytes) -> list[bytes]:
        """Return the keys of a row's index entries, one for each index."""
        suffix = row_key[len(self.prefix) + len(scope) :]
        return [self.entry(index, scope, suffix, row) for index in self.indexes]

    def entry(self, index: IndexLayout, scope: bytes, suffix: bytes, row: Row) -> bytes:
        """Return the key of a row's entry in one index."""
        columns = index.codec.encode([row[position] for position in index.positions])
        if len(columns) > INDEX_KEY_BYTES_MAX:
            reason = f"its columns have {len(columns)} bytes in a row, and {INDEX_KEY_BYTES_MAX} is the most"
            raise ValueInvalid(place=f"Index '{index.name}'", reason=reason)
        return b"".join((index.prefix, scope, columns, suffix))

    def row_exists(self, row: Row) -> RowExists:
        """Return the error for a key that exists already."""
        parts = []
        for position in self.key_positions:
            shown = to_json(row[position], self._kinds[position])
            parts.append(f"{self.table.columns[position].name} = {shorten(str(shown))}")
        return RowExists(table=self.table.full_name, key=", ".join(parts))

    def duplicate_key(self, row: Row) -> RowExists:
        """Return the error for a key that occurs twice in one statement."""
        problem = self.row_exists(row)
        hint = "Two rows of the statement have this key; UPSERT takes the last of them. Nothing was written."
        return RowExists(**problem.values, hint=hint)

    def _refuse(self, number: int, position: int, reason: str) -> None:
        column = self.table.columns[position]
        where = f"Column '{shorten(column.name)}' ({column.type}), row {number + 1}"
        raise ValueInvalid(place=where, reason=reason)

    def _row_place(self, number: int) -> str:
        return f"Table '{self.table.full_name}', row {number + 1}"


def _index_layout(table: Table, index: TableIndex) -> IndexLayout:
    positions = positions_of(table.names, index.columns)
    codec = TableKeyCodec([table.columns[position].type for position in positions], nullable=True)
    return IndexLayout(index.id, index.name, positions, keys.index_prefix(table.id, index.id), codec)


class TableLayouts:
    """A cache of the newest layout of each table; for any thread."""

    def __init__(self) -> None:
        self._last: dict[int, TableLayout] = {}

    def of(self, table: Table) -> TableLayout:
        """Return the layout of a table."""
        layout = self._last.get(table.id)
        if layout is None or layout.table is not table:
            layout = self._last[table.id] = TableLayout(table)
        return layout
