"""Changes: what one statement did to the rows of one table, for whoever follows the write path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, overload

from tidegate.model.tables import Row, Table

Op = Literal["insert", "update", "delete"]


class Change(NamedTuple):
    """One row before and after; rows have all columns of the table (a stream's also `_seq` and `_time`)."""

    op: Op
    old: Row | None
    new: Row | None


class Inserted(Sequence[Change]):
    """Rows that were not there before: changes that are made when someone asks for them, which few do."""

    __slots__ = ("rows",)

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Change]:
        return (Change("insert", None, row) for row in self.rows)

    @overload
    def __getitem__(self, place: int) -> Change: ...

    @overload
    def __getitem__(self, place: slice) -> list[Change]: ...

    def __getitem__(self, place: int | slice) -> Change | list[Change]:
        if isinstance(place, slice):
            return [Change("insert", None, row) for row in self.rows[place]]
        return Change("insert", None, self.rows[place])


@dataclass(frozen=True, slots=True)
class Changes:
    """The rows that one statement changed, in order; `user` is whose rows they are ('' in a SHARED table)."""

    table: Table
    user: str
    rows: Sequence[Change]
