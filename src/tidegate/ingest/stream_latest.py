"""The latest rows of STREAM tables by key, which turn appends and deletes into inserts, updates and deletes.

In a stream with a primary key a later row replaces an earlier one, and a delete may come after its row was
replaced. Followers need to know that, and the log alone does not have it. So the current rows of a user are
read once, under the table's lock and before the first write that has a follower, and kept up to date from
then on.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from tidegate.errors import InvariantBroken
from tidegate.model.changes import Change
from tidegate.model.tables import Row, Table, Value
from tidegate.streams.store import StreamStore

# Memory for the rows of all users together; those of the last writer stay, whatever their size.
NEWEST_BYTES_MAX = 64 * 1024 * 1024
# Memory of a row beside its texts: two tuples, an entry of a dict, and its numbers.
ROW_BYTES = 300


class UserRows:
    """The current rows of a user in a table, by key, the oldest first; guarded by the table's lock."""

    def __init__(self, table: Table, user: str, rows: Sequence[Row]) -> None:
        self.table = table
        self.user = user
        self.size_bytes = 0
        self._keys = table.key_positions
        self._ttl_us = (table.ttl_seconds or 0) * 1_000_000
        self._rows: dict[Row, Row] = {}
        for row in rows:
            self._put(self._key(row), row)

    def appended(self, rows: Sequence[Row]) -> list[Change]:
        """Apply appended rows; return the changes. Rows expire by the time of the newest one."""
        changes: list[Change] = []
        for row in rows:
            time_us = _time_us(row)
            self._expire(time_us - self._ttl_us)
            key = self._key(row)
            old = self._rows.get(key)
            if old is not None and _time_us(old) > time_us:
                continue  # the clock was set back: readers still see the other row as the newer one
            self._put(key, row)
            changes.append(Change("insert", None, row) if old is None else Change("update", old, row))
        return changes

    def deleted(self, rows: Sequence[Row]) -> list[Change]:
        """Apply deleted rows; return the changes. Rows that were replaced before make none."""
        changes: list[Change] = []
        for row in rows:
            key = self._key(row)
            now = self._rows.get(key)
            if now is not None and _number(now) <= _number(row):
                self._take(key)
                changes.append(Change("delete", now, None))
        return changes

    def _key(self, row: Row) -> Row:
        return tuple([row[place] for place in self._keys])

    def _put(self, key: Row, row: Row) -> None:
        self._take(key)
        self._rows[key] = row
        self.size_bytes += _size_bytes(row)

    def _take(self, key: Row) -> None:
        old = self._rows.pop(key, None)
        if old is not None:
            self.size_bytes -= _size_bytes(old)

    def _expire(self, until_us: int) -> None:
        while self._rows:
            key, row = next(iter(self._rows.items()))
            if _time_us(row) > until_us:
                return
            self._take(key)


class LatestRows:
    """A cache of the rows of users whose writes have followers, limited in size. Threads: any."""

    def __init__(self, streams: StreamStore, bytes_max: int = NEWEST_BYTES_MAX) -> None:
        self._streams = streams
        self._bytes_max = bytes_max
        # Guards the two below; taken inside the lock of a table, never around it.
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[int, str], tuple[UserRows, int]] = OrderedDict()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def load(self, table: Table, user: str) -> UserRows:
        """Return a user's current rows; under the table's lock, before a write."""
        with self._lock:
            cached = self._held.get((table.id, user))
        if cached is not None and cached[0].table == table:
            return cached[0]
        return UserRows(table, user, self._streams.read(table, user).rows)

    def keep(self, rows: UserRows) -> None:
        """Store the rows of `load` after the write; the least recently used ones are evicted."""
        with self._lock:
            self._drop(rows.table.id, rows.user)
            self._held[rows.table.id, rows.user] = (rows, rows.size_bytes)
            self._size_bytes += rows.size_bytes
            while self._size_bytes > self._bytes_max and len(self._held) > 1:
                self._drop(*next(iter(self._held)))

    def forget(self, table_id: int, user: str) -> None:
        """Drop a user's rows: a write without followers makes them stale."""
        with self._lock:
            self._drop(table_id, user)

    def _drop(self, table_id: int, user: str) -> None:
        cached = self._held.pop((table_id, user), None)
        if cached is not None:
            self._size_bytes -= cached[1]


def _size_bytes(row: Row) -> int:
    return ROW_BYTES + sum([len(value) for value in row if isinstance(value, str | bytes)])


def _time_us(row: Row) -> int:
    return _whole(row[-1])


def _number(row: Row) -> int:
    return _whole(row[-2])


def _whole(value: Value) -> int:
    if isinstance(value, int):
        return value
    raise InvariantBroken(reason="a row of a stream has no number or no time")
