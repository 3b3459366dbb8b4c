"""Removal of all rows of one user, in every USER and STREAM table of a tenant.

Rows of USER tables are deleted as a DELETE would: with their index entries, in write batches of ERASE_ROWS,
and followers (topics, live queries) get each delete. Of STREAM tables the user's log files are unlinked, the
oldest window first, and what is in memory is discarded; live queries get the deletes. Then the engine frees
the disk room of the deleted keys, and the trash of streams is emptied.

Each step removes something and needs no earlier one: a process that is killed leaves the rest of the rows,
and the next call removes them. The caller makes sure that nobody writes rows of the user meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from tidegate.errors import TableChanged
from tidegate.ingest.row_writer import RowWriter, StreamWriter
from tidegate.model.tables import Table, TableKind
from tidegate.storage.engine import Engine
from tidegate.storage.group_commit import GroupCommitter
from tidegate.streams.store import StreamStore
from tidegate.tables.access_paths import FullScan
from tidegate.tables.definitions import TableDirectory
from tidegate.tables.store import TableStore

ERASE_ROWS = 1_000  # of one write batch: other writes wait for it for milliseconds

Pause = Callable[[], None]


@dataclass(frozen=True, slots=True)
class ErasedRows:
    """What was removed: rows of USER tables, log files of STREAM tables, and the names of these tables."""

    rows: int
    logs: int
    tables: tuple[str, ...]


class RowErasure:
    """Finds and removes the rows of a user. Every call blocks. Threads: any, one for each user."""

    def __init__(
        self,
        stores: tuple[TableDirectory, TableStore, StreamStore],
        rows: RowWriter,
        appends: StreamWriter,
        engine: Engine,
        committer: GroupCommitter,
    ) -> None:
        self._directory, self._store, self._streams = stores
        self._rows = rows
        self._appends = appends
        self._engine = engine
        self._committer = committer

    def tables_with_rows(self, tenant: str, user: str) -> list[str]:
        """Return the names of the tables in which rows belong to a user's name."""
        return [table.full_name for table in self._scoped(tenant) if self._has_rows(table, user)]

    def erase(self, tenant: str, user: str, pause: Pause) -> ErasedRows:
        """Remove all rows of a user, durably; `pause` is called between steps and may raise to stop."""
        rows = logs = 0
        tables: list[str] = []
        for table in self._scoped(tenant):
            pause()
            count = self._erase_stream(table, user) if table.kind == TableKind.STREAM else 0
            logs += count
            if table.kind == TableKind.USER:
                count = self._erase_rows(table, user, pause)
                rows += count
            if count:
                tables.append(table.full_name)
        pause()
        self._streams.sweep()
        return ErasedRows(rows, logs, tuple(tables))

    def _scoped(self, tenant: str) -> list[Table]:
        return sorted(
            (table for table in self._directory.of(tenant) if table.is_scoped),
            key=lambda table: table.full_name,
        )

    def _has_rows(self, table: Table, user: str) -> bool:
        if table.kind == TableKind.USER:
            return self._store.has_rows(self._engine, table, user)
        try:
            return bool(self._streams.read(table, user, last=1).rows)
        except TableChanged:
            return False  # dropped meanwhile

    def _erase_stream(self, table: Table, user: str) -> int:
        try:
            return self._appends.erase(table, user)
        except TableChanged:
            return 0  # dropped meanwhile

    def _erase_rows(self, table: Table, user: str, pause: Pause) -> int:
        count = 0
        while True:
            now = self._directory.by_id(table.id)
            if now is None:
                return count  # dropped meanwhile
            try:
                for erased in self._erase_chunks(now, user, pause):
                    count += erased
            except TableChanged:
                continue  # altered meanwhile: the rest is read with its columns of now
            if count:
                for span in self._store.spans_of(now, user):
                    self._engine.compact(span)
            return count

    def _erase_chunks(self, table: Table, user: str, pause: Pause) -> Iterator[int]:
        """Delete the rows of a table, batch by batch, and yield the number of each."""
        positions = table.key_positions
        # One snapshot for all: a new scan after each batch would walk over all that was deleted before.
        with closing(self._engine.snapshot()) as snapshot:
            for chunk in self._store.scan(snapshot, table, user, FullScan(), ERASE_ROWS):
                pause()
                keys = [tuple(row[position] for position in positions) for row in chunk]
                change = self._rows.delete_keys(table, user, keys, lambda _row: True)
                yield self._committer.submit(change).result()
