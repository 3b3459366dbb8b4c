"""The checks of table definitions: columns, keys, times to live, options."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from tidegate.errors import ColumnNotFound, NameInvalid, RequestInvalid, SchemaInvalid, ValueInvalid
from tidegate.model.names import check_table_name, shorten
from tidegate.model.schemas import Column, Schema
from tidegate.model.tables import (
    STREAM_COLUMNS,
    DefaultKind,
    Durability,
    Table,
    TableColumn,
    TableKind,
)
from tidegate.model.values import from_json
from tidegate.tables.key_codec import KEY_TYPES

TABLES_MAX = 10_000  # per tenant: every definition is kept in memory
NAMESPACES_MAX = 1_000  # per tenant, for the same reason
INDEXES_MAX = 16  # per table: each one makes every write dearer
KEY_COLUMNS_MAX = 16  # of a primary key or an index; a hash distinguishes as well as more columns do
TTL_SECONDS_MAX = 100 * 366 * 86_400  # a hundred years; times beyond are mistakes in the unit
NEAR_NAMES_MAX = 10  # an error lists no more names than people read

_FITS = {
    DefaultKind.NOW: ("TIMESTAMP", "DATE"),
    DefaultKind.SNOWFLAKE_ID: ("BIGINT",),
    DefaultKind.UUID_V7: ("UUID", "TEXT"),
}
_STREAM_NAMES = frozenset(name for name, _ in STREAM_COLUMNS)


@dataclass(frozen=True, slots=True)
class NewTable:
    """The request of a CREATE TABLE."""

    namespace: str
    name: str
    kind: TableKind
    columns: tuple[TableColumn, ...]
    primary_key: tuple[str, ...] = ()
    ttl_seconds: int | None = None
    durability: Durability = Durability.BUFFERED


def check_table(new: NewTable) -> tuple[tuple[TableColumn, ...], tuple[str, ...]]:
    """Return the columns and the primary key of a new table; SchemaInvalid and others say what is wrong."""
    check_table_name(new.name)
    Schema(tuple(check_column(column, new.kind) for column in new.columns))
    key = check_key(new.columns, new.primary_key, "the primary key")
    if not key and new.kind != TableKind.STREAM:
        raise SchemaInvalid(
            reason=f"a {new.kind} table needs a primary key", hint="Write PRIMARY KEY behind a column."
        )
    if new.kind == TableKind.STREAM:
        check_ttl(new.ttl_seconds)
    else:
        _check_no_stream_options(new)
    # A column of the primary key always has a value.
    columns = tuple(
        msgspec.structs.replace(column, required=True) if column.name in key else column
        for column in new.columns
    )
    return columns, key


def check_column(column: TableColumn, kind: TableKind) -> Column:
    """Return the column of a schema; NameInvalid or SchemaInvalid for a wrong name or default."""
    plain = Column(column.name, column.type, column.required)
    if kind == TableKind.STREAM and column.name.lower() in _STREAM_NAMES:
        rule = f"Every row of a stream carries {' and '.join(sorted(_STREAM_NAMES))} already."
        raise NameInvalid(name=column.name, noun="column", reason="it is taken in streams", rule=rule)
    for value in (column.missing, column.default.value if column.default else None):
        try:
            from_json(value, column.type)
        except ValueInvalid as problem:
            reason = (
                f"the default of column '{shorten(column.name)}' does not fit: {problem.values['reason']}"
            )
            raise SchemaInvalid(reason=reason) from problem
    if column.default is not None:
        fits = _FITS.get(column.default.kind)
        if fits is not None and column.type.name not in fits:
            reason = (
                f"column '{shorten(column.name)}' is {column.type}, but its default "
                f"{column.default.kind.upper()}() is {' or '.join(fits)}"
            )
            raise SchemaInvalid(reason=reason)
    return plain


def check_key(columns: Iterable[TableColumn], named: tuple[str, ...], noun: str) -> tuple[str, ...]:
    """Return the names of a key's columns as the table spells them; SchemaInvalid says what is wrong."""
    by_name = {column.name.lower(): column for column in columns}
    found: list[TableColumn] = []
    for name in named:
        column = by_name.get(name.lower())
        if column is None:
            raise SchemaInvalid(reason=f"{noun} names column '{shorten(name)}', which is not there")
        if column in found:
            raise SchemaInvalid(reason=f"{noun} names column '{column.name}' twice")
        if column.type.name not in KEY_TYPES:
            raise SchemaInvalid(
                reason=f"column '{column.name}' is {column.type}, which has no order for {noun}",
                hint="Leave it out, or keep what identifies a row in a column of its own.",
            )
        found.append(column)
    if len(found) > KEY_COLUMNS_MAX:
        raise SchemaInvalid(reason=f"{noun} has {len(found)} columns, and {KEY_COLUMNS_MAX} is the most")
    return tuple(column.name for column in found)


def check_ttl(ttl_seconds: int | None) -> int:
    """Return the time to live of a stream's rows; RequestInvalid where it is missing or out of range."""
    if ttl_seconds is None:
        raise RequestInvalid(
            reason="A STREAM table needs a time to live.",
            hint="Write WITH (ttl_seconds = 3600), or CREATE USER TABLE for rows that stay.",
        )
    if isinstance(ttl_seconds, bool) or not isinstance(ttl_seconds, int):
        raise RequestInvalid(reason=f"ttl_seconds is a whole number of seconds, not {ttl_seconds!r}.")
    if not 1 <= ttl_seconds <= TTL_SECONDS_MAX:
        raise RequestInvalid(
            reason=f"ttl_seconds is {ttl_seconds}, but must be between 1 and {TTL_SECONDS_MAX}.",
            hint="It says how many seconds a row lives.",
        )
    return ttl_seconds


def _check_no_stream_options(new: NewTable) -> None:
    if new.ttl_seconds is not None:
        raise RequestInvalid(
            reason=f"Rows of a {new.kind} table stay until they are deleted: it takes no ttl_seconds.",
            hint="CREATE STREAM TABLE makes a table whose rows go after a time.",
        )
    if new.durability != Durability.BUFFERED:
        raise RequestInvalid(
            reason=f"Every write to a {new.kind} table is synced: it takes no durability.",
            hint="Leave the option out.",
        )


def column_position(table: Table, name: str) -> int:
    """Return the position of a column in a row of the table.

    Case is ignored, as no two names differ by it alone. The columns that every row of a stream has come after
    its own.
    """
    names = [shown for shown, _ in table.shown_columns]
    if name in names:
        return names.index(name)
    lower = [shown.lower() for shown in names]
    if name.lower() in lower:
        return lower.index(name.lower())
    raise ColumnNotFound(table=table.full_name, column=shorten(name), known=near_names(name, names))


def near_names(name: str, known: Iterable[str]) -> str:
    """Return the known names that are most similar to one, nearest first; (none) where there are none."""
    listed = sorted(known)
    near = difflib.get_close_matches(name.lower(), listed, n=NEAR_NAMES_MAX, cutoff=0.6)
    shown = (near or listed)[:NEAR_NAMES_MAX]
    more = ", …" if not near and len(listed) > NEAR_NAMES_MAX else ""
    return ", ".join(shown) + more if shown else "(none)"
