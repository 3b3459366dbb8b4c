"""Subscriptions to a real server: every change once, through cut connections and killed servers."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tidegate
from tests.sdk.sockets import Passage
from tidegate.errors import SqlInvalid, SqlUnsupported, TableNotFound, TokenWrong
from tidegate.sdk.client import Client, RowChange
from tidegate.testing.server import RunningServer, running_server

WAIT_SECONDS_MAX = 60.0
END = -1
Follower = Callable[..., "Mirror"]


class Mirror:
    """What a subscriber believes the table holds; a row that comes twice, or goes twice, is a mistake."""

    def __init__(self) -> None:
        self.rows: dict[int, str] = {}
        self.mistakes: list[RowChange] = []
        self.kinds: list[str] = []
        self.arrived: queue.Queue[int] = queue.Queue()
        self.thread: threading.Thread | None = None

    def take(self, change: RowChange) -> bool:
        """Take one change; say whether more are wanted."""
        self.kinds.append(change.kind)
        if change.kind == "lagged":
            self.rows.clear()
            return True
        key, text = change.row["id"], change.row["text"]
        is_there = key in self.rows
        if is_there != (change.kind in ("update", "delete")):
            self.mistakes.append(change)
        if change.kind == "update" and (change.old or {}).get("text") != self.rows.get(key):
            self.mistakes.append(change)
        if change.kind == "delete":
            del self.rows[key]
        else:
            self.rows[key] = text
        self.arrived.put(key)
        return bool(key != END)

    def wait_for(self, key: int) -> None:
        while self.arrived.get(timeout=WAIT_SECONDS_MAX) != key:
            pass

    def join(self) -> None:
        assert self.thread is not None
        self.thread.join(WAIT_SECONDS_MAX)
        assert not self.thread.is_alive()


def blocking(table: str, **place: object) -> Mirror:
    mirror = Mirror()

    def follow() -> None:
        with tidegate.connect(**place) as client:  # type: ignore[arg-type]
            for change in client.subscribe(f"SELECT id, text FROM {table}"):
                if not mirror.take(change):
                    break

    mirror.thread = threading.Thread(target=follow, daemon=True)
    mirror.thread.start()
    return mirror


def waiting(table: str, **place: object) -> Mirror:
    mirror = Mirror()

    async def follow() -> None:
        async with tidegate.connect_async(**place) as client:  # type: ignore[arg-type]
            async for change in client.subscribe(f"SELECT id, text FROM {table}"):
                if not mirror.take(change):
                    break

    mirror.thread = threading.Thread(target=lambda: asyncio.run(follow()), daemon=True)
    mirror.thread.start()
    return mirror


BOTH = pytest.mark.parametrize("follow", [blocking, waiting])


def made(client: Client, name: str) -> str:
    table = f"live.{name}"
    client.sql("CREATE NAMESPACE IF NOT EXISTS live")
    client.sql(f"CREATE SHARED TABLE {table} (id BIGINT PRIMARY KEY, text TEXT)")
    client.sql(f"INSERT INTO {table} (id, text) VALUES (1, 'one'), (2, 'two')")
    return table


def held(client: Client, table: str) -> dict[int, str]:
    return {row[0]: row[1] for row in client.sql(f"SELECT id, text FROM {table}").rows}


@contextmanager
def passage(server: RunningServer) -> Iterator[Passage]:
    way = Passage(server.url)
    try:
        yield way
    finally:
        way.close()


@BOTH
def test_rows_and_their_changes_arrive_once_and_in_order(
    client: Client, server: RunningServer, follow: Follower
) -> None:
    """Case 11: snapshot, then inserts, updates with old values and deletes."""
    table = made(client, f"order_{follow.__name__}")
    mirror = follow(table, home=server.home)
    mirror.wait_for(2)
    client.sql(f"UPDATE {table} SET text = 'uno' WHERE id = 1")
    client.sql(f"DELETE FROM {table} WHERE id = 2")
    client.sql(f"UPSERT INTO {table} (id, text) VALUES (1, 'eins'), ({END}, 'end')")
    mirror.join()
    assert mirror.mistakes == []
    assert mirror.kinds == ["snapshot", "snapshot", "update", "delete", "update", "insert"]
    assert mirror.rows == held(client, table)


@BOTH
def test_a_cut_connection_goes_on_behind_the_last_change(
    client: Client, server: RunningServer, follow: Follower
) -> None:
    """Case 11: reconnect with the last sequence number resumes, and nothing is told twice or missed."""
    table = made(client, f"cut_{follow.__name__}")
    with passage(server) as way:
        mirror = follow(table, url=way.url, token=server.token)
        mirror.wait_for(2)
        for round_number in range(4):
            way.cut()
            first = 10 * round_number + 10
            for key in range(first, first + 5):
                client.sql(f"INSERT INTO {table} (id, text) VALUES (?, ?)", [key, f"row {key}"])
            mirror.wait_for(first + 4)
        client.sql(f"INSERT INTO {table} (id, text) VALUES ({END}, 'end')")
        mirror.join()
        assert way.count == 5
    assert mirror.mistakes == []
    assert "lagged" not in mirror.kinds
    assert mirror.rows == held(client, table)


def test_a_killed_server_is_waited_for_and_nothing_is_lost_in_silence(tmp_path: Path) -> None:
    """Case 11: rows that were written while nobody listened are told, or that changes were missed."""
    home = tmp_path / "home"
    with running_server(home) as first, tidegate.connect(home=home) as client:
        table = made(client, "kill")
        mirrors = [follow(table, home=home) for follow in (blocking, waiting)]
        for mirror in mirrors:
            mirror.wait_for(2)
        client.sql(f"INSERT INTO {table} (id, text) VALUES (3, 'three')")
        for mirror in mirrors:
            mirror.wait_for(3)
        first.kill()
    with running_server(home), tidegate.connect(home=home) as client:
        client.sql(f"INSERT INTO {table} (id, text) VALUES (4, 'four')")
        client.sql(f"DELETE FROM {table} WHERE id = 1")
        for mirror in mirrors:
            mirror.wait_for(4)
        client.sql(f"INSERT INTO {table} (id, text) VALUES ({END}, 'end')")
        for mirror in mirrors:
            mirror.join()
            assert mirror.mistakes == []
            assert mirror.rows == held(client, table) == {2: "two", 3: "three", 4: "four", END: "end"}


def test_a_number_that_was_kept_goes_on_in_another_program(client: Client) -> None:
    table = made(client, "kept")
    with client.subscribe(f"SELECT id FROM {table}") as changes:
        seq = [next(changes), next(changes)][-1].seq
        assert seq == changes.seq is not None
    client.sql(f"DELETE FROM {table} WHERE id = 2")
    with client.subscribe(f"SELECT id FROM {table}", from_seq=seq) as changes:
        change = next(changes)
    assert (change.kind, change.row) == ("delete", {"id": 2})


def test_rows_that_are_there_are_left_out_and_nothing_after_that(client: Client) -> None:
    table = made(client, "none")
    with client.subscribe(f"SELECT * FROM {table} WHERE id > ?", [1], snapshot=False) as changes:
        client.sql(f"INSERT INTO {table} (id, text) VALUES (0, 'zero'), (3, 'three')")
        assert next(changes).row == {"id": 3, "text": "three"}


def test_a_large_snapshot_comes_whole_and_once(client: Client) -> None:
    table = made(client, "large")
    client.insert(table, [{"id": 10 + n, "text": "x" * 100} for n in range(5000)])
    with client.subscribe(f"SELECT id FROM {table}") as changes:
        first = [next(changes) for _ in range(5002)]
        assert len({change.row["id"] for change in first}) == 5002
        assert [change.seq is None for change in first] == [True] * 5001 + [False]
        client.sql(f"DELETE FROM {table} WHERE id = 10")
        assert next(changes).kind == "delete"


def test_refusals_are_the_classes_that_the_server_raised(client: Client, server: RunningServer) -> None:
    table = made(client, "refused")
    with pytest.raises(TableNotFound):
        next(client.subscribe("SELECT * FROM live.nowhere"))
    with pytest.raises((SqlInvalid, SqlUnsupported)):
        next(client.subscribe(f"SELECT count(*) FROM {table}"))
    with tidegate.connect(server.url, token="wrong") as stranger, pytest.raises(TokenWrong):
        next(stranger.subscribe(f"SELECT * FROM {table}"))
    with client.subscribe(f"SELECT id FROM {table}") as changes:
        client.sql(f"DROP TABLE {table}")
        with pytest.raises(TableNotFound):
            list(changes)
