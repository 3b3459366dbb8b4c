"""The live socket: schema, snapshot, then every change once; and what it says to those who ask wrongly."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.accounts import Office
from tests.server.live_client import WAIT_SECONDS, Tables, live, metric, silent, was_closed
from tidegate.testing.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose pages are small, whose history is short and whose patience is little."""
    limits = {
        "TIDEGATE_LIVE_PAGE_ROWS_MAX": "10",
        "TIDEGATE_LIVE_SUBSCRIPTIONS_PER_CONNECTION_MAX": "4",
        "TIDEGATE_LIVE_HISTORY_CHANGES_MAX": "50",
        "TIDEGATE_LIVE_SEND_SECONDS_MAX": "1",
        "TIDEGATE_LIVE_PING_SECONDS": "3600",
        "TIDEGATE_AUTH_REFRESH_SECONDS": "0.1",
    }
    with running_server(tmp_path_factory.mktemp("live") / "home", environ=limits) as running:
        yield running


def test_a_subscriber_gets_schema_snapshot_in_pages_and_changes(
    server: RunningServer, tables: Tables
) -> None:
    """Case 11."""
    name = tables.make()
    values = ", ".join(f"({number}, 'a', {number})" for number in range(25))
    tables.run(f"INSERT INTO {name} VALUES {values}")

    async def follow() -> None:
        async with live(server, server.token) as socket:
            found = await socket.subscribe(f"SELECT * FROM {name}")
            assert found["columns"] == [
                {"name": "id", "type": "BIGINT"},
                {"name": "room", "type": "TEXT"},
                {"name": "n", "type": "BIGINT"},
            ]
            assert found["rows"] == [[number, "a", number] for number in range(25)]
            assert found["pages"] == 3
            assert 0 < found["seq"] < 2**53
            tables.run(f"INSERT INTO {name} VALUES (25, 'b', 1), (26, NULL, 2)")
            tables.run(f"UPDATE {name} SET n = n + 1 WHERE id = 25")
            tables.run(f"UPSERT INTO {name} VALUES (26, 'x', 3)")
            tables.run(f"DELETE FROM {name} WHERE id = 25")
            messages = [await socket.next() for _ in range(5)]
            seqs = [message["seq"] for message in messages]
            assert seqs == [found["seq"] + step for step in range(1, 6)]
            assert [(one["op"], one["row"], one.get("old")) for one in messages] == [
                ("insert", [25, "b", 1], None),
                ("insert", [26, None, 2], None),
                ("update", [25, "b", 2], [25, "b", 1]),
                ("update", [26, "x", 3], [26, None, 2]),
                ("delete", [25, "b", 2], None),
            ]

    asyncio.run(follow())


def test_rows_enter_and_leave_the_filter(server: RunningServer, tables: Tables) -> None:
    """Case 11."""
    name = tables.make()

    async def follow() -> None:
        async with live(server, server.token) as socket:
            sql = f"SELECT id, n * 2 AS double FROM {name} WHERE room = ? AND n > 5"
            found = await socket.subscribe(sql, params=["a"])
            assert [column["name"] for column in found["columns"]] == ["id", "double"]
            for statement in (
                f"INSERT INTO {name} VALUES (1, 'a', 1), (2, 'b', 9)",
                f"UPDATE {name} SET n = 7 WHERE id = 1",
                f"UPDATE {name} SET n = 8 WHERE id = 1",
                f"UPDATE {name} SET room = 'a' WHERE id = 2",
                f"UPDATE {name} SET n = NULL WHERE id = 1",
                f"DELETE FROM {name}",
            ):
                tables.run(statement)
            assert await socket.change() == ("insert", [1, 14])
            assert await socket.change() == ("update", [1, 16], [1, 14])
            assert await socket.change() == ("insert", [2, 18])
            assert await socket.change() == ("delete", [1, 16])
            assert await socket.change() == ("delete", [2, 18])
            assert await socket.nothing_more()

    asyncio.run(follow())


def test_streams_are_followed_too(server: RunningServer, tables: Tables) -> None:
    name = tables.make("STREAM", "room TEXT, typing BOOLEAN) WITH (ttl_seconds = 600")
    tables.run(f"INSERT INTO {name} VALUES ('a', true), ('b', true)")

    async def follow() -> None:
        async with live(server, server.token) as socket:
            found = await socket.subscribe(f"SELECT room FROM {name} WHERE typing")
            assert found["rows"] == [["a"], ["b"]]
            tables.run(f"INSERT INTO {name} VALUES ('c', true), ('d', false)")
            assert await socket.change() == ("insert", ["c"])
            assert await socket.nothing_more()

    asyncio.run(follow())


def test_a_user_sees_own_rows_alone(server: RunningServer, office: Office, tables: Tables) -> None:
    name = tables.make("USER")
    alice, bob = office.person("writer"), office.person("writer")
    Tables(alice.http).run(f"INSERT INTO {name} VALUES (1, 'alice', 1)")

    async def follow() -> None:
        async with live(server, alice.token) as hers, live(server, bob.token) as his:
            assert (await hers.subscribe(f"SELECT * FROM {name}"))["rows"] == [[1, "alice", 1]]
            assert (await his.subscribe(f"SELECT * FROM {name}"))["rows"] == []
            Tables(bob.http).run(f"INSERT INTO {name} VALUES (1, 'bob', 1)")
            Tables(alice.http).run(f"INSERT INTO {name} VALUES (2, 'alice', 2)")
            assert await his.change() == ("insert", [1, "bob", 1])
            assert await hers.change() == ("insert", [2, "alice", 2])
            assert await his.nothing_more()
            assert await hers.nothing_more()
            await his.send("subscribe", id="b", sql=f"EXECUTE AS '{alice.name}' (SELECT * FROM {name})")
            assert await his.refusal() == ("FORBIDDEN", "b")

    asyncio.run(follow())


def test_a_writer_cannot_follow_what_it_cannot_read(
    server: RunningServer, office: Office, tables: Tables
) -> None:
    name = tables.make()

    async def follow() -> None:
        async with live(server, office.person("writer").token) as socket:
            await socket.send("subscribe", id="a", sql=f"SELECT * FROM {name}")
            assert await socket.refusal() == ("FORBIDDEN", "a")

    asyncio.run(follow())


def test_who_comes_back_goes_on_where_they_were(server: RunningServer, tables: Tables) -> None:
    """Case 11: nothing is sent twice or left out; where too much happened, that is said."""
    name = tables.make()

    async def resume(seq: int) -> list[str]:
        async with live(server, server.token) as socket:
            await socket.send("subscribe", id="a", sql=f"SELECT * FROM {name}", fromSeq=seq)
            kinds: list[str] = []
            while "change" not in kinds and "snapshot" not in kinds:
                message = await socket.next()
                kinds.append(message["type"])
            return [*kinds, json.dumps(message.get("row", message.get("rows")))]

    async def follow() -> None:
        async with live(server, server.token) as socket:
            seq = (await socket.subscribe(f"SELECT * FROM {name}"))["seq"]
        tables.run(f"INSERT INTO {name} VALUES (1, 'a', 1)")
        assert await resume(seq) == ["schema", "change", '[1, "a", 1]']
        again = ["schema", "lagged", "snapshot", '[[1, "a", 1]]']
        assert await resume(seq + 2) == again, "a number that was never given"
        assert await resume(1) == again, "a number from before"
        for number in range(60):
            tables.run(f"UPDATE {name} SET n = {number} WHERE id = 1")
        assert await resume(seq) == ["schema", "lagged", "snapshot", '[[1, "a", 59]]']

    asyncio.run(follow())


def test_one_statement_larger_than_the_history_reaches_those_who_are_up_to_date(
    server: RunningServer, tables: Tables
) -> None:
    name = tables.make()

    async def follow() -> None:
        async with live(server, server.token) as socket:
            await socket.subscribe(f"SELECT * FROM {name}")
            values = ", ".join(f"({number}, 'a', 0)" for number in range(300))
            tables.run(f"INSERT INTO {name} VALUES {values}")
            assert [(await socket.change())[1][0] for _ in range(300)] == list(range(300))

    asyncio.run(follow())


def test_a_dropped_table_ends_the_subscription(server: RunningServer, tables: Tables) -> None:
    name = tables.make()

    async def follow() -> None:
        async with live(server, server.token) as socket:
            await socket.subscribe(f"SELECT * FROM {name}")
            tables.run(f"DROP TABLE {name}")
            assert await socket.refusal() == ("TABLE_NOT_FOUND", "a")
            tables.run(f"CREATE SHARED TABLE {name} (id BIGINT PRIMARY KEY)")
            tables.run(f"INSERT INTO {name} VALUES (1)")
            assert (await socket.subscribe(f"SELECT * FROM {name}"))["rows"] == [[1]]

    asyncio.run(follow())


def test_an_added_column_is_told_with_a_new_snapshot(server: RunningServer, tables: Tables) -> None:
    name = tables.make()
    tables.run(f"INSERT INTO {name} VALUES (1, 'a', 1)")

    async def follow() -> None:
        async with live(server, server.token) as socket:
            await socket.subscribe(f"SELECT * FROM {name}")
            tables.run(f"ALTER TABLE {name} ADD COLUMN extra TEXT DEFAULT 'e'")
            schema = await socket.next()
            assert [column["name"] for column in schema["columns"]] == ["id", "room", "n", "extra"]
            assert (await socket.next())["type"] == "lagged"
            assert [row[:3] for row in (await socket.snapshot())["rows"]] == [[1, "a", 1]]
            tables.run(f"INSERT INTO {name} VALUES (2, 'b', 2, 'f')")
            assert await socket.change() == ("insert", [2, "b", 2, "f"])

    asyncio.run(follow())


def test_what_is_unsubscribed_is_told_no_more(server: RunningServer, tables: Tables) -> None:
    name = tables.make()

    async def follow() -> None:
        async with live(server, server.token) as socket:
            await socket.subscribe(f"SELECT * FROM {name}", "a")
            await socket.subscribe(f"SELECT id FROM {name}", "b")
            await socket.send("unsubscribe", id="a")
            assert await socket.next() == {"type": "unsubscribed", "id": "a"}
            tables.run(f"INSERT INTO {name} VALUES (1, 'a', 1)")
            assert await socket.change() == ("insert", [1])
            assert await socket.nothing_more()
            await socket.send("unsubscribe", id="a")
            assert await socket.refusal() == ("REQUEST_INVALID", "a")
            assert (await socket.subscribe(f"SELECT n FROM {name}", "a"))["rows"] == [[1]]

    asyncio.run(follow())


@pytest.mark.parametrize(
    ("message", "code", "name"),
    [
        ("{", "REQUEST_MALFORMED", None),
        ("[]", "REQUEST_INVALID", None),
        ('{"type": "dance", "id": "q"}', "REQUEST_INVALID", "q"),
        ('{"type": "subscribe", "id": "q"}', "REQUEST_INVALID", "q"),
        ('{"type": "subscribe", "id": "", "sql": "SELECT 1"}', "REQUEST_INVALID", ""),
        ('{"type": "subscribe", "id": "q", "sql": "SELECT 1", "fromSeq": -1}', "REQUEST_INVALID", "q"),
        ('{"type": "subscribe", "id": "q", "sql": "SELECT 1", "more": 1}', "REQUEST_INVALID", "q"),
        ('{"type": "subscribe", "id": "q", "sql": "SELEC 1"}', "SQL_INVALID", "q"),
        ('{"type": "subscribe", "id": "q", "sql": "DELETE FROM a.b"}', "SQL_UNSUPPORTED", "q"),
        ('{"type": "subscribe", "id": "q", "sql": "SELECT * FROM nothing.here"}', "NAMESPACE_NOT_FOUND", "q"),
        ('{"type": "subscribe", "id": "q", "sql": "SELECT * FROM live.missing"}', "TABLE_NOT_FOUND", "q"),
        ('{"type": "unsubscribe", "id": "nobody"}', "REQUEST_INVALID", "nobody"),
        ('{"type": "auth", "token": "x"}', "REQUEST_INVALID", None),
        (b"\x00\x01", "REQUEST_INVALID", None),
    ],
)
def test_a_wrong_message_is_answered_and_the_socket_stays(
    server: RunningServer, tables: Tables, message: str | bytes, code: str, name: str | None
) -> None:
    tables.run("CREATE NAMESPACE IF NOT EXISTS live")

    async def follow() -> None:
        async with live(server, server.token) as socket:
            await socket.connection.send(message)
            assert await socket.refusal() == (code, name)
            assert await socket.nothing_more()

    asyncio.run(follow())


def test_ids_are_used_once_and_subscriptions_are_counted(server: RunningServer, tables: Tables) -> None:
    name = tables.make()

    async def follow() -> None:
        async with live(server, server.token) as socket:
            for number in range(4):
                await socket.subscribe(f"SELECT * FROM {name}", f"s{number}")
            await socket.send("subscribe", id="s0", sql=f"SELECT * FROM {name}")
            assert await socket.refusal() == ("REQUEST_INVALID", None)
            await socket.send("subscribe", id="s4", sql=f"SELECT * FROM {name}")
            assert await socket.refusal() == ("TOO_MANY_REQUESTS", "s4")
            await socket.send("unsubscribe", id="s0")
            assert (await socket.next())["type"] == "unsubscribed"
            await socket.subscribe(f"SELECT * FROM {name}", "s4")

    asyncio.run(follow())


def test_a_message_that_is_too_large_ends_the_socket(server: RunningServer) -> None:
    async def follow() -> None:
        async with live(server, server.token) as socket:
            await socket.send("subscribe", id="a", sql="x" * 70_000)
            assert await socket.end() == 1009

    asyncio.run(follow())


def test_a_socket_outlives_the_time_that_a_request_has(home: Path) -> None:
    with running_server(home, environ={"TIDEGATE_SERVER_BODY_SECONDS_MAX": "2"}) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60) as http:
            asyncio.run(_outlive(server, Tables(http)))


async def _outlive(server: RunningServer, tables: Tables) -> None:
    name, address = tables.make(), urlsplit(server.url)
    async with live(server, server.token) as socket:
        await socket.subscribe(f"SELECT * FROM {name}")
        # A connection on which nothing comes is closed when the time is over, twice here.
        for _ in range(2):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            async with asyncio.timeout(WAIT_SECONDS):
                assert await reader.read() == b""
            writer.close()
        tables.run(f"INSERT INTO {name} VALUES (1, 'a', 1)")
        assert await socket.change() == ("insert", [1, "a", 1])


def test_one_that_never_reads_is_closed_and_the_others_get_everything(
    server: RunningServer, tables: Tables, http: httpx.Client
) -> None:
    """Case 12."""
    name = tables.make()
    before = metric(http, "tidegate_live_slow_closed_total")

    async def follow() -> None:
        async with live(server, server.token) as socket:
            await socket.subscribe(f"SELECT id, length(room) FROM {name}")
            lazy = await asyncio.to_thread(silent, server, f"SELECT * FROM {name}")
            deadline = time.monotonic() + 2 * WAIT_SECONDS
            number = 0
            while metric(http, "tidegate_live_slow_closed_total") == before:
                assert time.monotonic() < deadline
                await asyncio.to_thread(
                    tables.run, f"INSERT INTO {name} VALUES (?, ?, 1)", number, "x" * 60_000
                )
                assert await socket.change() == ("insert", [number, 60_000])
                number += 1
            assert await asyncio.to_thread(was_closed, lazy)
            assert await socket.nothing_more()

    asyncio.run(follow())
