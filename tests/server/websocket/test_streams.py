"""The live socket on streams: rows that replace others, go, and are left out; and what it refuses."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.server.accounts import Office
from tests.server.live_client import Tables, live
from tidegate.testing.server import RunningServer

PRESENCE = "device TEXT PRIMARY KEY, state TEXT) WITH (ttl_seconds = {}"


def test_a_row_of_a_stream_that_replaces_another_is_an_update_or_leaves_the_filter(
    server: RunningServer, tables: Tables
) -> None:
    name = tables.make("STREAM", PRESENCE.format(60))
    tables.run(f"INSERT INTO {name} VALUES ('phone', 'online')")

    async def follow() -> None:
        async with live(server, server.token) as all_rows, live(server, server.token) as online:
            sql = f"SELECT device, state FROM {name}"
            assert (await all_rows.subscribe(sql))["rows"] == [["phone", "online"]]
            found = await online.subscribe(f"{sql} WHERE state = 'online'")
            assert found["rows"] == [["phone", "online"]]
            tables.run(f"INSERT INTO {name} VALUES ('phone', 'away')")
            tables.run(f"INSERT INTO {name} VALUES ('desk', 'away'), ('desk', 'online'), ('desk', 'busy')")
            tables.run(f"DELETE FROM {name} WHERE device = 'desk'")
            tables.run(f"INSERT INTO {name} VALUES ('desk', 'online')")
            assert [await all_rows.change() for _ in range(6)] == [
                ("update", ["phone", "away"], ["phone", "online"]),
                ("insert", ["desk", "away"]),
                ("update", ["desk", "online"], ["desk", "away"]),
                ("update", ["desk", "busy"], ["desk", "online"]),
                ("delete", ["desk", "busy"]),
                ("insert", ["desk", "online"]),
            ]
            assert [await online.change() for _ in range(4)] == [
                ("delete", ["phone", "online"]),
                ("insert", ["desk", "online"]),
                ("delete", ["desk", "online"]),
                ("insert", ["desk", "online"]),
            ]
            assert await all_rows.nothing_more()
            assert await online.nothing_more()

    asyncio.run(follow())


def test_a_row_that_is_over_is_not_replaced(server: RunningServer, tables: Tables) -> None:
    name = tables.make("STREAM", PRESENCE.format(1))

    async def follow() -> None:
        async with live(server, server.token) as socket:
            await socket.subscribe(f"SELECT device, state FROM {name}")
            tables.run(f"INSERT INTO {name} VALUES ('phone', 'online')")
            await asyncio.sleep(1.01)
            tables.run(f"INSERT INTO {name} VALUES ('phone', 'away')")
            assert await socket.change() == ("insert", ["phone", "online"])
            assert await socket.change() == ("insert", ["phone", "away"])

    asyncio.run(follow())


def test_keys_of_a_stream_are_the_users_own(server: RunningServer, office: Office, tables: Tables) -> None:
    name = tables.make("STREAM", PRESENCE.format(60))
    alice, bob = office.person("writer"), office.person("writer")
    hers, his = Tables(alice.http), Tables(bob.http)
    hers.run(f"INSERT INTO {name} VALUES ('phone', 'online')")

    async def follow() -> None:
        async with live(server, alice.token) as socket:
            await socket.subscribe(f"SELECT device, state FROM {name}")
            his.run(f"INSERT INTO {name} VALUES ('phone', 'busy')")
            hers.run(f"INSERT INTO {name} VALUES ('phone', 'away')")
            assert await socket.change() == ("update", ["phone", "away"], ["phone", "online"])
            async with live(server, bob.token) as other:
                assert (await other.subscribe(f"SELECT state FROM {name}"))["rows"] == [["busy"]]
                his.run(f"INSERT INTO {name} VALUES ('phone', 'gone')")
                assert await other.change() == ("update", ["gone"], ["busy"])
            assert await socket.nothing_more()

    asyncio.run(follow())


def test_a_snapshot_names_what_is_damaged_in_its_last_message(server: RunningServer, tables: Tables) -> None:
    name = tables.make("STREAM", "n BIGINT) WITH (ttl_seconds = 600, durability = 'fsync'")
    tables.run(f"INSERT INTO {name} VALUES (1)")
    tables.run(f"INSERT INTO {name} VALUES (2)")
    # The older of two where the minute, and so the window, changed between the rows.
    log = min(server.home.glob(f"**/{name.replace('.', '/')}/**/*.log"))
    content = bytearray(log.read_bytes())
    content[len(content) // 4] ^= 0xFF
    log.write_bytes(content)

    async def follow() -> None:
        async with live(server, server.token) as socket:
            await socket.send("subscribe", id="a", sql=f"SELECT n FROM {name}")
            assert (await socket.next())["type"] == "schema"
            page = await socket.next()
            assert (page["rows"], page["last"]) == ([[2]], True)
            (warning,) = page["warnings"]
            assert "left out" in warning
            await socket.send("subscribe", id="b", sql=f"SELECT n FROM {tables.make()}")
            assert (await socket.next())["type"] == "schema"
            assert "warnings" not in await socket.next()

    asyncio.run(follow())


@pytest.mark.parametrize(
    ("statement", "code", "words"),
    [
        ("SELECT * FROM {} LAST 3", "SQL_UNSUPPORTED", "LAST reads STREAM tables"),
        ("SELECT * FROM posts", "SQL_UNSUPPORTED", "'posts' has no namespace"),
        ("SELECT * FORM {}", "SQL_INVALID", "line 1, column 15"),
        ("SELECT id FROM {} WHERE n = = 1", "SQL_INVALID", "near '='"),
    ],
)
def test_what_is_wrong_with_a_select_is_said(
    server: RunningServer, tables: Tables, statement: str, code: str, words: str
) -> None:
    name = tables.make()

    async def follow() -> None:
        async with live(server, server.token) as socket:
            await socket.send("subscribe", id="a", sql=statement.format(name))
            error = (await socket.next())["error"]
            assert error["code"] == code
            assert words in error["message"]
            assert "sqlglot" not in error["message"]

    asyncio.run(follow())


def test_names_that_are_words_of_sql_are_followed(server: RunningServer, tables: Tables) -> None:
    words = ("if", "between", "map", "drop", "current_user")
    columns = ", ".join(f'"{word}" BIGINT' for word in words)
    name = tables.make("SHARED", f"id BIGINT PRIMARY KEY, {columns}")

    async def follow() -> None:
        async with live(server, server.token) as socket:
            where = "if = 1 AND id BETWEEN 1 AND 9 AND between BETWEEN 1 AND 2 AND if(map = 3, true, false)"
            found = await socket.subscribe(f"SELECT {', '.join(words)} FROM {name} t WHERE {where}")
            assert [column["name"] for column in found["columns"]] == list(words)
            tables.run(f"INSERT INTO {name} VALUES (1, 1, 2, 3, 4, 5), (2, 1, 3, 3, 4, 5)")
            assert await socket.change() == ("insert", [1, 2, 3, 4, 5])
            assert await socket.nothing_more()

    asyncio.run(follow())


def test_an_error_with_an_id_is_never_about_one_that_goes_on(server: RunningServer, tables: Tables) -> None:
    name = tables.make()

    async def follow() -> None:
        async with live(server, server.token) as socket:
            await socket.subscribe(f"SELECT id FROM {name}")
            await socket.send("subscribe", id="a", sql=f"SELECT n FROM {name}")
            again = await socket.next()
            assert "'a' is in use" in again["error"]["message"]
            assert "id" not in again
            await socket.send("subscribe", id="a")
            assert await socket.refusal() == ("REQUEST_INVALID", None)
            tables.run(f"INSERT INTO {name} VALUES (1, 'a', 1)")
            assert await socket.change() == ("insert", [1])

    asyncio.run(follow())


def test_a_plain_request_is_told_that_it_is_a_socket(http: httpx.Client) -> None:
    answer = http.get("/api/v1/live")
    assert answer.status_code == 422
    assert "WebSocket" in answer.json()["error"]["message"]
