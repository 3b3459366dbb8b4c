"""Points: takes the equalities of a WHERE, gives the primary key they ask for, when they are nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from tidegate.errors import ValueInvalid
from tidegate.model.tables import Row, Table
from tidegate.query.filling import Sources, check_column, simple_value
from tidegate.sql.statements import Literal, Param, Simple

# Values that a column of a type holds as they are, so that equality is the same here and in DuckDB.
_EXACT: dict[str, tuple[type, ...]] = {
    "BOOLEAN": (bool,),
    "INT": (int,),
    "BIGINT": (int,),
    "DECIMAL": (int, Decimal),
    "DOUBLE": (int, float, Decimal),
    "TEXT": (str,),
    "UUID": (str,),
    "DATE": (str,),
    "TIMESTAMP": (str,),
    "BYTES": (bytes,),
}


def key_of(
    table: Table, equals: Mapping[str, Simple] | None, params: Sequence[Any], sources: Sources
) -> Row | None:
    """Give the primary key, or None where the rows have to be looked for."""
    if equals is None or not table.primary_key or len(equals) != len(table.primary_key):
        return None
    known = {check_column(table, name).name: simple for name, simple in equals.items()}
    if set(known) != set(table.primary_key):
        return None
    if not all(_is_exact(simple, table, name, params) for name, simple in known.items()):
        return None
    try:
        return tuple(
            simple_value(known[name], check_column(table, name), params, sources)
            for name in table.primary_key
        )
    except ValueInvalid:
        return None  # DuckDB compares what the column itself cannot hold, and says so where it cannot


def _is_exact(simple: Simple, table: Table, name: str, params: Sequence[Any]) -> bool:
    """Say whether a value means the same to the column as to DuckDB: NULL equals nothing, 1 is not '1'."""
    if not isinstance(simple, (Literal, Param)):
        return False
    value = params[simple.number - 1] if isinstance(simple, Param) else simple.value
    return type(value) in _EXACT.get(check_column(table, name).type.name, ())
