"""The changes of one statement to the rows of one table."""

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


class InsertedRows(Sequence[Change]):
    """Inserted rows as changes; each change is made only when it is read, because few readers do."""

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
    def __getitem__(self, index: int) -> Change: ...

    @overload
    def __getitem__(self, index: slice) -> list[Change]: ...

    def __getitem__(self, index: int | slice) -> Change | list[Change]:
        if isinstance(index, slice):
            return [Change("insert", None, row) for row in self.rows[index]]
        return Change("insert", None, self.rows[index])


@dataclass(frozen=True, slots=True)
class Changes:
    """The rows that one statement changed, in order; `user` is whose rows they are ('' in a SHARED table)."""

    table: Table
    user: str
    rows: Sequence[Change]
