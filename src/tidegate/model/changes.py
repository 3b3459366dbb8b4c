"""Changes: what one statement did to the rows of one table, for whoever follows the write path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tidegate.model.tables import Row, Table

Op = Literal["insert", "update", "delete"]


class Change(NamedTuple):
    """One row before and after; rows have all columns of the table (a stream's also `_seq` and `_time`)."""

    op: Op
    old: Row | None
    new: Row | None


@dataclass(frozen=True, slots=True)
class Changes:
    """The rows that one statement changed, in order; `user` is whose rows they are ('' in a SHARED table)."""

    table: Table
    user: str
    rows: Sequence[Change]
