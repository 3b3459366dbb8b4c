"""Rows into tables: takes rows and edits, gives changes for the committer, keeps nothing.

One statement is one change of the committer: all its rows, and whatever its followers add, are in one
atomic batch or none of it is. A follower either adds puts of its own to that batch (`stage`) or learns of
the rows once they are durable (`durable`), in commit order and before the writer gets its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tidegate.ingest.stream_latest import NewestRows, UserRows
from tidegate.model.changes import Change, Changes
from tidegate.model.tables import Row, Table
from tidegate.storage.group_commit import Staging
from tidegate.streams.store import StreamStore
from tidegate.tables.store import TableStore, Written

Edit = Callable[[Row], Row | None]


class Follower(Protocol):
    """Someone who wants to know what happens to the rows of tables."""

    def wants(self, table: Table) -> bool:
        """Return whether the changes of a table are wanted now; on the committer's thread."""
        ...

    def stage(self, staging: Staging, changes: Changes) -> None:
        """Add puts to the batch that the rows are in; what it raises refuses the statement."""
        ...

    def durable(self, changes: Changes) -> None:
        """Learn of rows that are on the disk; must not raise."""
        ...


class RowWriter:
    """Returns the changes that write rows of USER and SHARED tables; any thread may ask."""

    def __init__(self, store: TableStore, followers: Sequence[Follower] = ()) -> None:
        self._store = store
        self._followers = tuple(followers)

    def insert(
        self, table: Table, user: str, rows: Sequence[Row], *, upsert: bool
    ) -> Callable[[Staging], int]:
        """Return the change that adds rows; it answers with their number."""

        def stage(staging: Staging) -> int:
            wanted = self._wanted(table)
            written = self._store.stage_insert(
                staging, table, user, rows, upsert=upsert, wants_changes=bool(wanted)
            )
            return self._follow(staging, table, user, written, wanted)

        return stage

    def edit_keys(self, table: Table, user: str, keys: Sequence[Row], edit: Edit) -> Callable[[Staging], int]:
        """Return the change that edits rows by their keys, as they are when it is staged.

        `edit` gives the new row, or the same row where it is not to be changed; the columns of the key stay.
        """

        def stage(staging: Staging) -> int:
            wanted = self._wanted(table)
            rows: list[Change] = []
            count = 0
            for key in keys:
                written = self._store.stage_update_key(
                    staging, table, user, key, edit, wants_changes=bool(wanted)
                )
                count += written.count
                rows.extend(written.changes)
            return self._follow(staging, table, user, Written(count, rows), wanted)

        return stage

    def delete_keys(
        self, table: Table, user: str, keys: Sequence[Row], matches: Callable[[Row], bool]
    ) -> Callable[[Staging], int]:
        """Return the change that removes rows by their keys, where they still match when it is staged."""

        def stage(staging: Staging) -> int:
            wanted = self._wanted(table)
            rows: list[Change] = []
            count = 0
            for key in keys:
                written = self._store.stage_delete_key(
                    staging, table, user, key, matches=matches, wants_changes=bool(wanted)
                )
                count += written.count
                rows.extend(written.changes)
            return self._follow(staging, table, user, Written(count, rows), wanted)

        return stage

    def replace(
        self, table: Table, user: str, edits: Sequence[tuple[Row, Row | None]]
    ) -> Callable[[Staging], int | None]:
        """Return the change that replaces whole rows; it answers None where one is not what it was."""

        def stage(staging: Staging) -> int | None:
            wanted = self._wanted(table)
            written = self._store.stage_edits(staging, table, user, edits, wants_changes=bool(wanted))
            return None if written is None else self._follow(staging, table, user, written, wanted)

        return stage

    def _wanted(self, table: Table) -> list[Follower]:
        return [follower for follower in self._followers if follower.wants(table)]

    def _follow(
        self, staging: Staging, table: Table, user: str, written: Written, wanted: list[Follower]
    ) -> int:
        if written.changes:
            changes = Changes(table, user, written.changes)
            for follower in wanted:
                follower.stage(staging, changes)
                staging.when_durable(_told(follower, changes))
        return written.count


def _told(follower: Follower, changes: Changes) -> Callable[[], None]:
    return lambda: follower.durable(changes)


class StreamWriter:
    """Adds rows to STREAM tables and takes them away; blocking, any thread may call."""

    def __init__(
        self,
        streams: StreamStore,
        followers: Sequence[Follower] = (),
        counted: Callable[[int, int], None] = lambda _rows, _size_bytes: None,
    ) -> None:
        """`counted` is told the rows and bytes of every append."""
        self._streams = streams
        self._followers = tuple(followers)
        self._counted = counted
        self._newest = NewestRows(streams)

    def append(self, table: Table, user: str, rows: Sequence[Row]) -> int:
        """Add rows; they are as durable as the table says when this returns."""
        before: list[UserRows] = []

        def notify(stored: list[Row]) -> None:
            if before:
                self._tell(table, user, before[0].appended(stored), before[0])
            else:
                self._tell(table, user, [Change("insert", None, row) for row in stored])

        appended = self._streams.append(table, user, rows, notify, lambda: self._load(table, user, before))
        self._counted(appended.count, appended.size_bytes)
        return appended.count

    def delete(self, table: Table, user: str, rows: Sequence[Row]) -> int:
        """Hide rows, as they were read."""
        before: list[UserRows] = []

        def notify(hidden: list[Row]) -> None:
            if before:
                self._tell(table, user, before[0].deleted(hidden), before[0])

        return self._streams.delete(table, user, rows, notify, lambda: self._load(table, user, before))

    def _load(self, table: Table, user: str, before: list[UserRows]) -> None:
        """Read what a write is going to replace, where someone wants to know it; under the table's lock.

        Nobody begins to follow the table until the write is notified: that takes the same lock.
        """
        if not table.primary_key:
            return
        if any(follower.wants(table) for follower in self._followers):
            before.append(self._newest.load(table, user))
        else:
            self._newest.forget(table.id, user)

    def _tell(self, table: Table, user: str, rows: list[Change], newest: UserRows | None = None) -> None:
        if newest is not None:
            self._newest.keep(newest)
        for follower in self._followers:
            if follower.wants(table):
                follower.durable(Changes(table, user, rows))
