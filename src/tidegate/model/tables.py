"""Definitions of USER, SHARED and STREAM tables. They are frozen, and stored as JSON.

A row is a tuple of values in the order of the columns. Columns are only ever added at the end: a row that is
shorter than its table was written before the last columns were added, and reads their `missing` value.

    BOOLEAN bool    INT, BIGINT, DATE (days), TIMESTAMP (microseconds) int    DOUBLE float    BYTES bytes
    DECIMAL Decimal, at the column's scale    TEXT, JSON (its text), UUID (small letters) str
"""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import TypeAlias

import msgspec

from tidegate.errors import NameInvalid
from tidegate.model.names import check_table_name, shorten
from tidegate.model.schemas import ColumnType, parse_type

Value: TypeAlias = bool | int | float | str | bytes | Decimal | None
Row: TypeAlias = tuple[Value, ...]

DEFINITION_VERSION = 1
# Names that a statement uses for something else.
NAMESPACES_TAKEN = frozenset({"lake", "system", "information_schema", "pg_catalog", "main", "temp", "memory"})
# The columns that every stream has behind its own.
STREAM_COLUMNS = (("_seq", ColumnType.BIGINT), ("_time", ColumnType.TIMESTAMP))


class TableKind(StrEnum):
    """Who can read a row, and how long it is kept."""

    USER = "USER"  # a row belongs to the user who wrote it
    SHARED = "SHARED"  # everyone in the tenant sees it
    STREAM = "STREAM"  # a row belongs to its user, and expires after its time to live


class Durability(StrEnum):
    """When an append to a stream is acknowledged."""

    BUFFERED = "buffered"  # it reaches the file within the flush interval
    FSYNC = "fsync"  # it is on the disk


class DefaultKind(StrEnum):
    """The source of a column's value when an insert has none."""

    VALUE = "value"
    NOW = "now"
    SNOWFLAKE_ID = "snowflake_id"
    UUID_V7 = "uuid_v7"


class Default(msgspec.Struct, frozen=True):
    """The value of a column that an insert leaves out; `value` is JSON as `model.values` writes it."""

    kind: DefaultKind
    value: bool | int | float | str | None = None


class TableColumn(msgspec.Struct, frozen=True):
    """A column; `missing` is the value, as JSON, that rows older than the column have."""

    name: str
    type_text: str
    required: bool = False
    default: Default | None = None
    missing: bool | int | float | str | None = None

    @property
    def type(self) -> ColumnType:
        """The type of its values."""
        return _type_of(self.type_text)


class TableIndex(msgspec.Struct, frozen=True):
    """A secondary index; queries use it once it is `ready`: until then it is filled in the background."""

    id: int
    name: str
    columns: tuple[str, ...]
    ready: bool = False


class Table(msgspec.Struct, frozen=True):
    """The definition of one table at one time: an ALTER makes another with the same id."""

    id: int
    tenant: str
    namespace: str
    name: str
    kind: TableKind
    columns: tuple[TableColumn, ...]
    primary_key: tuple[str, ...]
    created_us: int
    # Rises with every added column; rows and frames carry the one that they were written with.
    schema_id: int = 1
    indexes: tuple[TableIndex, ...] = ()
    ttl_seconds: int | None = None
    durability: Durability = Durability.BUFFERED
    # Rows of a stream before this had expired when ttl_seconds changed, and do not come back.
    expired_before_us: int = 0
    version: int = DEFINITION_VERSION

    @property
    def full_name(self) -> str:
        """The name as statements write it."""
        return f"{self.namespace}.{self.name}"

    @property
    def is_scoped(self) -> bool:
        """Whether a row belongs to a user."""
        return self.kind != TableKind.SHARED

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its own columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def key_positions(self) -> tuple[int, ...]:
        """The positions of the primary key's columns in a row."""
        return positions_of(self.names, self.primary_key)

    @property
    def shown_columns(self) -> tuple[tuple[str, ColumnType], ...]:
        """The columns of SELECT *: its own, and those that every stream has."""
        own = tuple((column.name, column.type) for column in self.columns)
        return own + STREAM_COLUMNS if self.kind == TableKind.STREAM else own


@lru_cache(maxsize=1024)
def _type_of(text: str) -> ColumnType:
    return parse_type(text)


@lru_cache(maxsize=4096)
def positions_of(names: tuple[str, ...], chosen: tuple[str, ...]) -> tuple[int, ...]:
    """Return the positions of some columns among all."""
    return tuple(names.index(name) for name in chosen)


def check_namespace(name: str) -> str:
    """Return the name, or raise NameInvalid; a namespace is named like a table."""
    try:
        check_table_name(name)
    except NameInvalid as problem:
        values = {**problem.values, "noun": "namespace"}
        raise NameInvalid(**values) from problem
    if name in NAMESPACES_TAKEN:
        rule = f"These are taken: {', '.join(sorted(NAMESPACES_TAKEN))}."
        raise NameInvalid(name=shorten(name), noun="namespace", reason="it means something else", rule=rule)
    return name
