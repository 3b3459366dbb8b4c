"""Pages of a snapshot as messages; blocking, and away from the event loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tidegate.live.messages import RowWriter, snapshot_messages
from tidegate.model.tables import Row

if TYPE_CHECKING:
    from tidegate.query.live_rows import SnapshotReader


class SnapshotPages:
    """Reads one page ahead, so that the last message of a snapshot says that it is the last."""

    def __init__(self, subscription_id: str, writer: RowWriter, reader: SnapshotReader) -> None:
        self._id = subscription_id
        self._writer = writer
        self._seq = reader.seq
        self._warnings = reader.warnings
        self._pages: Iterator[Sequence[Row]] = iter(reader)
        self._next: Sequence[Row] | None = None
        self.is_done = False

    def next_messages(self) -> list[bytes]:
        """Give the next page as frames; an empty snapshot is one message without rows."""
        page = self._next if self._next is not None else next(self._pages, ())
        self._next = next(self._pages, None)
        self.is_done = self._next is None
        warnings = self._warnings if self.is_done else ()
        return snapshot_messages(
            self._id, self._writer, page, self._seq, last=self.is_done, warnings=warnings
        )
