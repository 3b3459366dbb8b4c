"""Erasure of a user's rows on RocksDB: rows, index entries, counters, streams; it can stop anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.contract.test_engine import open_engine
from tests.ingest.bench import Bench, build
from tests.streams.factories import log_files, make_store
from tidegate.errors import NotReady
from tidegate.ingest import row_erasure
from tidegate.ingest.row_erasure import RowErasure
from tidegate.ingest.row_writer import StreamWriter
from tidegate.model.tables import Table, TableColumn, TableKind
from tidegate.storage.engine import KeyRange
from tidegate.streams.store import StreamStore

COLUMNS = (TableColumn("id", "BIGINT", required=True), TableColumn("t", "TEXT"))
ROWS = [(number, f"text {number}") for number in range(25)]
EVERYTHING = KeyRange(b"", b"\xff" * 8)


class Ground:
    """Tables of each kind with rows of alice, alicette and bob."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.bench = bench
        self.streams: StreamStore = make_store(folder, bench.clock)
        self.appends = StreamWriter(self.streams)
        stores = (bench.tables, bench.store, self.streams)
        self.erasure = RowErasure(stores, bench.writer, self.appends, bench.engine, bench.committer)
        self.notes = bench.table(COLUMNS, kind=TableKind.USER, name="notes")
        self.tags = bench.table(COLUMNS, kind=TableKind.USER, name="tags")
        self.shared = bench.table(COLUMNS, name="all")
        self.typing = bench.table(COLUMNS, (), TableKind.STREAM, "typing")
        self.notes = bench.run(
            lambda staging: bench.tables.stage_add_index(staging, self.notes, "by_text", ("t",))
        )
        for user in ("alice", "alicette", "bob"):
            bench.insert(self.notes, ROWS, user)
            bench.insert(self.tags, ROWS[:3], user)
            self.appends.append(self.typing, user, ROWS[:2])
        bench.insert(self.shared, ROWS)

    def now(self, table: Table) -> Table:
        found = self.bench.tables.by_id(table.id)
        assert found is not None
        return found

    def keys_of(self, user: str) -> int:
        mark = user.encode() + b"\x00"
        return sum(mark in key for key, _ in self.bench.engine.scan(EVERYTHING))

    def rows_of(self, user: str) -> int:
        tables = (self.notes, self.tags)
        held = sum(len(self.bench.rows(self.now(table), user)) for table in tables)
        return held + len(self.streams.read(self.typing, user).rows)


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    monkeypatch.setattr(row_erasure, "ERASE_ROWS", 10)
    bench = build(open_engine("rocksdb", tmp_path / "engine"))
    made = Ground(bench, tmp_path)
    yield made
    made.streams.close()
    bench.close()
    bench.engine.close()


def never() -> None:
    """Go on."""


def test_rows_entries_and_files_of_the_user_are_gone_and_no_others(ground: Ground, tmp_path: Path) -> None:
    others = ground.rows_of("bob"), ground.keys_of("bob"), ground.rows_of("alicette")
    assert ground.keys_of("alice") == 2 * 25 + 3  # rows and index entries
    erased = ground.erasure.erase("default", "alice", never)
    assert (erased.rows, erased.logs) == (28, 1)
    assert erased.tables == ("app.notes", "app.tags", "app.typing")
    assert (ground.keys_of("alice"), ground.rows_of("alice")) == (0, 0)
    assert (ground.rows_of("bob"), ground.keys_of("bob"), ground.rows_of("alicette")) == others
    assert sorted(file.name for file in log_files(tmp_path)) == ["alicette.log", "bob.log"]
    assert len(ground.bench.rows(ground.shared)) == 25
    assert ground.bench.store.counts(ground.notes).rows == 50
    again = ground.erasure.erase("default", "alice", never)
    assert (again.rows, again.logs, again.tables) == (0, 0, ())


def test_other_tenants_keep_the_rows_of_that_name(ground: Ground) -> None:
    assert ground.erasure.erase("acme", "alice", never).rows == 0
    assert ground.rows_of("alice") == 30
    assert ground.erasure.tables_with_rows("acme", "alice") == []


def test_tables_with_rows_are_found_until_they_are_empty(ground: Ground) -> None:
    found = ground.erasure.tables_with_rows
    assert found("default", "alice") == ["app.notes", "app.tags", "app.typing"]
    assert found("default", "alic") == []
    ground.appends.erase(ground.typing, "alice")
    assert found("default", "alice") == ["app.notes", "app.tags"]
    ground.erasure.erase("default", "alice", never)
    assert found("default", "alice") == []


def test_stopped_at_any_step_a_repeat_removes_the_rest(ground: Ground) -> None:
    class Stop:
        def __init__(self, left: int) -> None:
            self.left = left

        def __call__(self) -> None:
            if self.left == 0:
                raise NotReady(reason="stopped")
            self.left -= 1

    steps = 0
    while True:
        left_before = ground.rows_of("alice")
        try:
            ground.erasure.erase("default", "alice", Stop(steps))
        except NotReady:
            steps += 1
            assert ground.rows_of("alice") <= left_before
            assert ground.bench.store.counts(ground.notes).rows == 50 + len(
                ground.bench.rows(ground.now(ground.notes), "alice")
            )
            continue
        break
    assert steps > 4
    assert (ground.keys_of("alice"), ground.rows_of("alice")) == (0, 0)
    assert ground.rows_of("bob") == 30


def test_a_column_that_is_added_meanwhile_stops_nothing(ground: Ground) -> None:
    added: list[bool] = []

    def add_once() -> None:
        if not added and len(ground.bench.rows(ground.now(ground.notes), "alice")) == 15:
            added.append(True)
            column = TableColumn("more", "TEXT")
            ground.bench.run(
                lambda staging: ground.bench.tables.stage_add_column(
                    staging, ground.now(ground.notes), column
                )
            )

    assert ground.erasure.erase("default", "alice", add_once).rows == 28
    assert added
    assert ground.keys_of("alice") == 0


def test_a_table_that_is_dropped_meanwhile_stops_nothing(ground: Ground) -> None:
    dropped: list[bool] = []

    def drop_once() -> None:
        if not dropped:
            dropped.append(True)
            for table in (ground.notes, ground.typing):
                ground.bench.run(partial(ground.bench.tables.stage_drop, table=table))
            ground.streams.drop(ground.typing)

    ground.erasure.erase("default", "alice", drop_once)
    assert ground.erasure.tables_with_rows("default", "alice") == []


def test_topics_that_follow_a_table_get_each_delete(ground: Ground) -> None:
    topic = ground.bench.topic()
    ground.bench.route(topic, ground.tags, "key", ops=["delete"])
    ground.erasure.erase("default", "alice", never)
    messages = ground.bench.messages(topic)
    assert [(one["op"], one["payload"]) for one in messages] == [("DELETE", {"id": n}) for n in range(3)]


def test_definitions_of_before_are_not_needed(ground: Ground) -> None:
    """A table that was altered since the caller looked."""
    old = ground.notes
    ground.bench.run(
        lambda staging: ground.bench.tables.stage_add_column(staging, old, TableColumn("later", "TEXT"))
    )
    ground.bench.insert(ground.now(old), [(99, "new", "x")], "alice")
    assert ground.erasure.erase("default", "alice", never).rows == 29
    assert ground.keys_of("alice") == 0
