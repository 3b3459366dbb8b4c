"""Results of SQL statements on the wire."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from tidegate.model.wire.struct import WireStruct
from tidegate.model.wire.topics import ColumnResponse


class SqlResult(WireStruct):
    """The result of one of several statements."""

    columns: list[ColumnResponse]
    rows: list[list[Any]]
    row_count: int
    warnings: list[str] | UnsetType = UNSET


class SqlResponse(WireStruct):
    """The rows of a statement, or how many it wrote; of several statements, the last one's and all."""

    columns: list[ColumnResponse]
    rows: list[list[Any]]
    row_count: int
    took_ms: float
    warnings: list[str] | UnsetType = UNSET
    results: list[SqlResult] | UnsetType = UNSET
