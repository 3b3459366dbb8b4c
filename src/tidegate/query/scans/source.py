"""What a statement wants of a table, and what a table offers to read: the words between the two.

A `Source` is what one statement of one caller may read. Its tables say how they would read what is wanted
(`access`) and read it (`scan`). A table may give more rows than are wanted, never fewer: DuckDB applies the
whole WHERE afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.errors import SqlInvalid
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Value

if TYPE_CHECKING:
    import pyarrow as pa

BYTES_PER_MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column compared with values of its own type, of which one must hold: more than one only for '='."""

    column: str
    operator: str  # one of = < <= > >=
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a statement uses of a table: every row has to meet all comparisons to have a part in the answer.

    `columns` are names in small letters, None for all; `last` asks for the newest n rows and no others.
    """

    columns: frozenset[str] | None = None
    comparisons: tuple[Comparison, ...] = ()
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How a table reads what is wanted: `words` for people, `way` for its own `scan`."""

    words: str
    columns: tuple[str, ...]
    way: Any = None
    # So few rows that it is not worth looking at the statement before they are read.
    is_small: bool = False


@dataclass(frozen=True, slots=True)
class Scanned:
    """The rows of a table, and what the reader should be told about them."""

    rows: pa.Table
    warnings: tuple[str, ...] = ()


class Pace:
    """Counts what one statement gathers from all its tables, and stops it at its limits."""

    def __init__(self, check: Callable[[], None], memory_mb: int) -> None:
        self._check = check
        self._memory_mb = memory_mb
        self._size_bytes = 0

    def step(self, size_bytes: int) -> None:
        """Note what came; raises when the statement was broken off or holds more than it may."""
        self._check()
        self._size_bytes += size_bytes
        if self._size_bytes > self._memory_mb * BYTES_PER_MB:
            raise SqlInvalid(
                reason=f"the rows that it reads take more than {self._memory_mb} MB of memory.",
                hint="Compare the primary key, an indexed column or _time in WHERE, name fewer columns, "
                "or raise query.memory_mb.",
            )


class SourceTable(Protocol):
    """A table as one caller sees it."""

    @property
    def full_name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def columns(self) -> tuple[tuple[str, ColumnType], ...]: ...

    @property
    def compared(self) -> frozenset[str]:
        """Columns whose comparisons `access` can use."""
        ...

    def access(self, wanted: Wanted) -> Plan:
        """Return how to read what is wanted; reads nothing."""
        ...

    def scan(self, plan: Plan, pace: Pace) -> Scanned:
        """Read it: the columns of the plan, all rows that are wanted, and maybe more."""
        ...


class Source(Protocol):
    """What one statement of one caller may read; all engine tables are of one moment."""

    def find(self, namespace: str, name: str) -> SourceTable | None:
        """Return a table by its name in small letters; None where there is none."""
        ...

    def known(self) -> list[str]:
        """List the full names of all tables."""
        ...

    def close(self) -> None: ...


def chosen_columns(columns: Iterable[str], wanted: frozenset[str] | None) -> tuple[str, ...]:
    """Return the columns to read, in order: one at least, so that rows can be counted."""
    every = tuple(columns)
    if wanted is None:
        return every
    return tuple(name for name in every if name.lower() in wanted) or every[:1]
