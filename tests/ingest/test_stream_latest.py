"""Rows of a stream that someone follows: what a write replaces, within little memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.streams.factories import make_store, make_table
from tidegate.ingest import stream_latest
from tidegate.ingest.row_writer import StreamWriter
from tidegate.model.changes import Changes
from tidegate.model.tables import Row, Table
from tidegate.storage.group_commit import Staging
from tidegate.streams.store import StreamStore
from tidegate.testing.clock import ManualClock

TABLE = make_table(primary_key=("id",), ttl_seconds=60)


class Follows:
    """Notes what it is told while it wants to know it."""

    def __init__(self) -> None:
        self.is_on = True
        self.told: list[tuple[str, str, object, object]] = []

    def wants(self, table: Table) -> bool:
        return self.is_on and table == TABLE

    def stage(self, staging: Staging, changes: Changes) -> None:
        """Add nothing."""

    def durable(self, changes: Changes) -> None:
        for op, old, new in changes.rows:
            self.told.append((changes.user, op, old and old[1], new and new[1]))

    def take(self) -> Iterator[tuple[str, str, object, object]]:
        told, self.told = self.told, []
        return iter(told)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[StreamStore]:
    made = make_store(tmp_path, clock)
    yield made
    made.close()


@pytest.mark.parametrize("bytes_max", [stream_latest.NEWEST_BYTES_MAX, 1])
def test_changes_of_a_followed_stream_name_what_was_replaced(
    store: StreamStore, clock: ManualClock, bytes_max: int
) -> None:
    """Also where the rows of one user alone are remembered."""
    follower = Follows()
    writer = StreamWriter(store, [follower])
    writer._latest = stream_latest.LatestRows(store, bytes_max)

    def append(user: str, *rows: Row) -> list[tuple[str, str, object, object]]:
        writer.append(TABLE, user, rows)
        return list(follower.take())

    follower.is_on = False
    assert append("alice", (1, "a")) == []
    follower.is_on = True
    assert append("bob", (1, "b")) == [("bob", "insert", None, "b")]
    assert append("alice", (1, "c"), (1, "d")) == [
        ("alice", "update", "a", "c"),
        ("alice", "update", "c", "d"),
    ]
    assert append("bob", (1, "e")) == [("bob", "update", "b", "e")]
    # what is written while nobody follows is known afterwards
    follower.is_on = False
    append("bob", (1, "f"))
    follower.is_on = True
    assert append("bob", (1, "g")) == [("bob", "update", "f", "g")]
    # a delete of a row that was replaced since takes nothing away
    seen = store.read(TABLE, "alice").rows
    assert append("alice", (1, "h")) == [("alice", "update", "d", "h")]
    writer.delete(TABLE, "alice", seen)
    assert list(follower.take()) == []
    writer.delete(TABLE, "alice", store.read(TABLE, "alice").rows)
    assert list(follower.take()) == [("alice", "delete", "h", None)]
    assert append("alice", (1, "i")) == [("alice", "insert", None, "i")]
    # rows that are over count as gone
    clock.advance(59.9)
    assert append("alice", (1, "j")) == [("alice", "update", "i", "j")]
    clock.advance(60)
    assert store.read(TABLE, "alice").rows == []
    assert append("alice", (1, "k")) == [("alice", "insert", None, "k")]
    assert len(writer._latest) == (2 if bytes_max > 1 else 1)
