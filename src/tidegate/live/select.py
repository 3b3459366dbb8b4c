"""Selects: what a feed asks of a compiled SELECT."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row, Value


class Select(Protocol):
    """A compiled SELECT over one table; equal keys mean equal filters and equal projections.

    `equality` is a column's position and the value that every row that matches has there, or None.
    """

    @property
    def columns(self) -> Sequence[tuple[str, ColumnType]]: ...

    @property
    def filter_key(self) -> Hashable: ...

    @property
    def shape_key(self) -> Hashable: ...

    @property
    def equality(self) -> tuple[int, Value] | None: ...

    def matches(self, row: Row) -> bool: ...

    def project(self, row: Row) -> Row: ...
