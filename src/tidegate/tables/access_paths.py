"""Ways to the rows of a table: takes what a statement asks for, gives which keys are read, keeps nothing.

Rows come in key order, whichever way is taken; an index gives them in its own order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidegate.model.tables import Row, Value


@dataclass(frozen=True, slots=True)
class Whole:
    """Every row (of the user, where rows belong to users)."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The rows with these whole primary keys, where they are there; each at most once, in key order."""

    keys: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Values of the leading columns of the primary key, then bounds of the column that comes next.

    `prefix` may have fewer columns than the key, and may be empty. None is no bound; `low_in` and `high_in`
    say whether a bound itself is in.
    """

    prefix: Row = ()
    low: Value = None
    low_in: bool = True
    high: Value = None
    high_in: bool = True


@dataclass(frozen=True, slots=True)
class IndexSpan:
    """The same in a secondary index, by its name.

    NULL equals nothing and is in no bounds, as in SQL: a None in `prefix` gives no rows.
    """

    index: str
    prefix: Row = ()
    low: Value = None
    low_in: bool = True
    high: Value = None
    high_in: bool = True


Access: TypeAlias = Whole | Keys | KeySpan | IndexSpan
