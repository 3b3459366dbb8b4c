"""Access paths: the rows of a table that a scan reads.

Rows come in key order, by an index in the order of the index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidegate.model.tables import Row, Value


@dataclass(frozen=True, slots=True)
class FullScan:
    """Every row (of the user, where rows belong to users)."""


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """The rows with these whole primary keys, if they exist; each at most once, in key order."""

    keys: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Values of the leading columns of the primary key, then bounds of the next column.

    `prefix` may have fewer columns than the key, and may be empty. None is no bound; `low_in` and `high_in`
    include the bounds themselves.
    """

    prefix: Row = ()
    low: Value = None
    low_in: bool = True
    high: Value = None
    high_in: bool = True


@dataclass(frozen=True, slots=True)
class IndexSpan:
    """The same for a secondary index, by its name.

    NULL equals nothing and is within no bounds, as in SQL: with None in `prefix` there are no rows.
    """

    index: str
    prefix: Row = ()
    low: Value = None
    low_in: bool = True
    high: Value = None
    high_in: bool = True


Access: TypeAlias = FullScan | KeyLookup | KeySpan | IndexSpan
