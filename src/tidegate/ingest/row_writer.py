"""Writes of rows to USER, SHARED and STREAM tables, and the followers of their changes.

One statement is one change of the committer: all its rows, and whatever its followers add, are in one
atomic write batch or none of it is. A follower either adds puts of its own to that batch (`stage`) or is
notified of the rows once they are durable (`durable`), in commit order and before the writer gets its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tidegate.ingest.stream_latest import LatestRows, UserRows
from tidegate.model.changes import Change, Changes
from tidegate.model.tables import Row, Table
from tidegate.storage.group_commit import Staging
from tidegate.streams.store import StreamStore
from tidegate.tables.store import TableStore, WriteResult

Edit = Callable[[Row], Row | None]


class Follower(Protocol):
    """A consumer of the changes of tables inside the server: change feeds and live queries."""

    def wants(self, table: Table) -> bool:
        """True if the follower needs the changes of a table now; on the committer's thread."""
        ...

    def stage(self, staging: Staging, changes: Changes) -> None:
        """Add puts to the write batch of the rows; an error that it raises refuses the statement."""
        ...

    def durable(self, changes: Changes) -> None:
        """Take changes that are durable; must not raise."""
        ...


class RowWriter:
    """Returns the changes that write rows of USER and SHARED tables. Threads: any."""

    def __init__(self, store: TableStore, followers: Sequence[Follower] = ()) -> None:
        self._store = store
        self._followers = tuple(followers)

    def insert(
        self, table: Table, user: str, rows: Sequence[Row], *, upsert: bool
    ) -> Callable[[Staging], int]:
        """Return the change that adds rows; it returns their number."""

        def stage(staging: Staging) -> int:
            followers = self._followers_of(table)
            written = self._store.stage_insert(
                staging, table, user, rows, upsert=upsert, wants_changes=bool(followers)
            )
            return self._follow(staging, table, user, written, followers)

        return stage

    def edit_keys(self, table: Table, user: str, keys: Sequence[Row], edit: Edit) -> Callable[[Staging], int]:
        """Return the change that edits rows by their keys, as they are when it is staged.

        `edit` returns the new row, or the same row where it does not change; the columns of the key stay.
        """

        def stage_key(staging: Staging, key: Row, wants_changes: bool) -> WriteResult:
            return self._store.stage_update_key(staging, table, user, key, edit, wants_changes=wants_changes)

        return lambda staging: self._stage_keys(staging, table, user, keys, stage_key)

    def delete_keys(
        self, table: Table, user: str, keys: Sequence[Row], matches: Callable[[Row], bool]
    ) -> Callable[[Staging], int]:
        """Return the change that removes rows by their keys, where they still match when it is staged."""

        def stage_key(staging: Staging, key: Row, wants_changes: bool) -> WriteResult:
            return self._store.stage_delete_key(
                staging, table, user, key, matches=matches, wants_changes=wants_changes
            )

        return lambda staging: self._stage_keys(staging, table, user, keys, stage_key)

    def replace(
        self, table: Table, user: str, edits: Sequence[tuple[Row, Row | None]]
    ) -> Callable[[Staging], int | None]:
        """Return the change that replaces whole rows; it returns None where a row is not as expected."""

        def stage(staging: Staging) -> int | None:
            followers = self._followers_of(table)
            written = self._store.stage_edits(staging, table, user, edits, wants_changes=bool(followers))
            return None if written is None else self._follow(staging, table, user, written, followers)

        return stage

    def _stage_keys(
        self,
        staging: Staging,
        table: Table,
        user: str,
        keys: Sequence[Row],
        stage_key: Callable[[Staging, Row, bool], WriteResult],
    ) -> int:
        """Stage a write of each key as one change for the followers; return the number of rows."""
        followers = self._followers_of(table)
        rows: list[Change] = []
        count = 0
        for key in keys:
            written = stage_key(staging, key, bool(followers))
            count += written.count
            rows.extend(written.changes)
        return self._follow(staging, table, user, WriteResult(count, rows), followers)

    def _followers_of(self, table: Table) -> list[Follower]:
        return [follower for follower in self._followers if follower.wants(table)]

    def _follow(
        self, staging: Staging, table: Table, user: str, written: WriteResult, followers: list[Follower]
    ) -> int:
        if written.changes:
            changes = Changes(table, user, written.changes)
            for follower in followers:
                follower.stage(staging, changes)
                staging.when_durable(_notification(follower, changes))
        return written.count


def _notification(follower: Follower, changes: Changes) -> Callable[[], None]:
    return lambda: follower.durable(changes)


class StreamWriter:
    """Appends rows to STREAM tables and deletes them; blocking. Threads: any."""

    def __init__(
        self,
        streams: StreamStore,
        followers: Sequence[Follower] = (),
        counted: Callable[[int, int], None] = lambda _rows, _size_bytes: None,
    ) -> None:
        """`counted` is called with the rows and bytes of every append."""
        self._streams = streams
        self._followers = tuple(followers)
        self._counted = counted
        self._latest = LatestRows(streams)

    def append(self, table: Table, user: str, rows: Sequence[Row]) -> int:
        """Append rows; on return they are as durable as the table's settings say."""
        before: list[UserRows] = []

        def notify(stored: list[Row]) -> None:
            if before:
                self._notify(table, user, before[0].appended(stored), before[0])
            else:
                self._notify(table, user, [Change("insert", None, row) for row in stored])

        appended = self._streams.append(table, user, rows, notify, lambda: self._load(table, user, before))
        self._counted(appended.count, appended.size_bytes)
        return appended.count

    def delete(self, table: Table, user: str, rows: Sequence[Row]) -> int:
        """Delete rows, given as they were read."""
        before: list[UserRows] = []

        def notify(hidden: list[Row]) -> None:
            if before:
                self._notify(table, user, before[0].deleted(hidden), before[0])

        return self._streams.delete(table, user, rows, notify, lambda: self._load(table, user, before))

    def erase(self, table: Table, user: str) -> int:
        """Remove all rows of a user with their files; followers get the deletes. Return how many files."""
        rows: list[Row] = []

        def read() -> None:
            if any(follower.wants(table) for follower in self._followers):
                rows.extend(self._streams.read(table, user).rows)

        def notify() -> None:
            self._latest.forget(table.id, user)
            if rows:
                self._notify(table, user, [Change("delete", row, None) for row in rows])

        return self._streams.remove_user(table, user, read, notify)

    def _load(self, table: Table, user: str, before: list[UserRows]) -> None:
        """Read the rows that a write may replace, if there are followers; under the table's lock.

        No follower can be added before the write is notified: that takes the same lock.
        """
        if not table.primary_key:
            return
        if any(follower.wants(table) for follower in self._followers):
            before.append(self._latest.load(table, user))
        else:
            self._latest.forget(table.id, user)

    def _notify(self, table: Table, user: str, rows: list[Change], latest: UserRows | None = None) -> None:
        if latest is not None:
            self._latest.keep(latest)
        for follower in self._followers:
            if follower.wants(table):
                follower.durable(Changes(table, user, rows))
