"""The filter of a live query: what one SELECT sees of a change.

The WHERE is evaluated here, for the old row and for the new one, by the compiled SELECT
(`sql/expressions/compile.py`); with `filter_groups.py`, once for all subscriptions with the same SELECT.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from tidegate.live.wire import RowEncoder
from tidegate.model.changes import Change
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row, Value


class CompiledSelect(Protocol):
    """A compiled SELECT over one table; equal keys mean equal filters and equal projections.

    `matches` and `project` raise nothing, whatever a row holds. `equality` is a column's position and the
    value that every matching row has there, or None.
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


class ChangeFilter:
    """Turns a change of the table into what one SELECT sees: nothing, or an insert, update or delete."""

    def __init__(self, select: CompiledSelect) -> None:
        self.select = select
        self._write = RowEncoder(select.columns).write

    def apply(self, seq: int, change: Change) -> bytes | None:
        """Return the message behind its front; None where neither the old nor the new row is selected.

        A row that begins to match is an insert, one that no longer matches a delete of what it was. One that
        continues to match is an update, also where the shown columns stay the same: a client that counts
        changes sees each.
        """
        select = self.select
        old, new = change.old, change.new
        matched = old is not None and select.matches(old)
        if new is not None and select.matches(new):
            if not matched or old is None:
                return b'insert","row":%b,"seq":%d}' % (self._write(select.project(new)), seq)
            shown = (self._write(select.project(new)), self._write(select.project(old)), seq)
            return b'update","row":%b,"old":%b,"seq":%d}' % shown
        if matched and old is not None:
            return b'delete","row":%b,"seq":%d}' % (self._write(select.project(old)), seq)
        return None
