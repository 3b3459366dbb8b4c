"""The interface between a statement and the tables that it reads: scan requests and scan plans.

`VisibleTables` finds what one statement of one caller may read. Its tables plan how to read what is requested
(`access`) and read it (`scan`). A table may return more rows than are requested, never fewer: DuckDB applies
the whole WHERE afterwards.
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
class ScanRequest:
    """What a statement uses of a table: only rows that meet all comparisons can be part of the answer.

    `columns` are names in small letters, None for all; `last` asks for the newest n rows and no others.
    """

    columns: frozenset[str] | None = None
    comparisons: tuple[Comparison, ...] = ()
    last: int | None = None


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """How a table reads what is requested: `description` is for EXPLAIN, `access_path` for its `scan`."""

    description: str
    columns: tuple[str, ...]
    access_path: Any = None
    # So few rows that it is not worth binding the statement before they are read.
    is_small: bool = False


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The rows of a table, and warnings about them."""

    rows: pa.Table
    warnings: tuple[str, ...] = ()


class ScanBudget:
    """The limits of what one statement reads from all its tables: memory, time and cancellation."""

    def __init__(self, check: Callable[[], None], memory_mb: int) -> None:
        self._check = check
        self._memory_mb = memory_mb
        self._size_bytes = 0

    def charge(self, size_bytes: int) -> None:
        """Count what was read; raise when the statement was cancelled or holds more than it may."""
        self._check()
        self._size_bytes += size_bytes
        if self._size_bytes > self._memory_mb * BYTES_PER_MB:
            raise SqlInvalid(
                reason=f"the rows that it reads take more than {self._memory_mb} MB of memory.",
                hint="Compare the primary key, an indexed column or _time in WHERE, name fewer columns, "
                "or raise query.memory_mb.",
            )


class TableHeader(Protocol):
    """The name and the columns of a table."""

    @property
    def full_name(self) -> str: ...

    @property
    def columns(self) -> tuple[tuple[str, ColumnType], ...]: ...

    @property
    def compared(self) -> frozenset[str]:
        """Columns whose comparisons `SourceTable.access` can use."""
        ...


class SourceTable(TableHeader, Protocol):
    """A table as one caller sees it."""

    @property
    def kind(self) -> str: ...

    def access(self, request: ScanRequest) -> ScanPlan:
        """Return how to read what is requested; reads nothing."""
        ...

    def scan(self, plan: ScanPlan, budget: ScanBudget) -> ScanResult:
        """Read the columns of a plan, in all rows that were requested, and maybe more."""
        ...


def chosen_columns(columns: Iterable[str], names: frozenset[str] | None) -> tuple[str, ...]:
    """Return the columns to read, in order: one at least, so that rows can be counted."""
    every = tuple(columns)
    if names is None:
        return every
    return tuple(name for name in every if name.lower() in names) or every[:1]
