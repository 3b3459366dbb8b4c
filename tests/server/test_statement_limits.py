"""Statements and parameters that are too much, and callers who may read nothing: refused before DuckDB."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.live_client import live
from tests.server.sql_client import Client, person
from tidegate import connect
from tidegate.errors import SqlInvalid
from tidegate.model.json_limits import DEPTH_MAX
from tidegate.testing.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("limits") / "home") as running:
        yield running


@pytest.fixture(scope="module")
def admin(server: RunningServer) -> Client:
    client = Client(server)
    client.run(
        "CREATE NAMESPACE chat;"
        "CREATE SHARED TABLE chat.shared (id INT PRIMARY KEY, body JSON, text TEXT);"
        "CREATE USER TABLE chat.mine (id INT PRIMARY KEY, n INT);"
        "CREATE STREAM TABLE chat.fleeting (n INT) WITH (ttl_seconds = 60);"
        "CREATE TOPIC app.events"
    )
    return client


@pytest.fixture(scope="module")
def writer(server: RunningServer, admin: Client) -> Client:
    return person(server, admin, "wanda", "writer")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + "1," * 480_000 + "1",
        "SELECT 1 FROM chat.mine WHERE id IN (" + "1," * 480_000 + "1)",
        "EXPLAIN SELECT " + "1," * 480_000 + "1",
        "INSERT INTO chat.mine SELECT " + "1," * 480_000 + "1",
        "UPDATE chat.mine SET n = 1" + "+1" * 480_000,
        "INSERT INTO chat.mine VALUES (1, 1" + "+1" * 480_000 + ")",
    ],
    ids=["select", "in", "explain", "insert", "update", "values"],
)
def test_a_text_of_a_megabyte_is_refused_with_the_limit(admin: Client, writer: Client, sql: str) -> None:
    for client in (admin, writer):
        refused = client.refused(sql)
        assert refused["code"] == "SQL_INVALID"
        assert "more than 20000 words and signs" in refused["message"]


# DuckDB says that they are wrong, and our parser does not see it.
WRONG = "1 +"


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT {WRONG}",
        f"WITH a AS (SELECT 1) SELECT {WRONG}",
        f"VALUES ({WRONG})",
        f"SELECT {WRONG} FROM chat.shared",
        f"SELECT {WRONG} FROM chat.nosuch",
        f"SELECT {WRONG} FROM lake.nosuch",
        f"SELECT {WRONG} FROM system.audit",
        f"SELECT * FROM chat.mine, (SELECT {WRONG} FROM s: chat.shared)",
        f"EXPLAIN SELECT {WRONG}",
        f"EXPLAIN SELECT {WRONG} FROM chat.shared",
        f"INSERT INTO chat.mine SELECT {WRONG}",
        f"INSERT INTO chat.mine SELECT {WRONG} FROM chat.shared",
        f"UPSERT INTO chat.mine FROM chat.shared SELECT {WRONG}",
        f"SELECT * FROM (PIVOT chat.shared ON id IN (1) USING max({WRONG}))",
    ],
)
def test_the_role_is_looked_at_before_the_text_reaches_duckdb(
    admin: Client, writer: Client, sql: str
) -> None:
    assert writer.refused(sql)["code"] == "FORBIDDEN"
    # Who may query is told what is wrong.
    assert admin.refused(sql)["code"] in ("SQL_INVALID", "TABLE_NOT_FOUND")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM chat.mine",
        'FROM "chat"."Mine"',
        "FROM m: chat.mine",
        "SELECT * FROM m : chat.mine JOIN n : chat.mine ON m.id = n.id",
        "TABLE chat.mine",
        "WITH a AS (FROM chat.mine) SELECT * FROM a",
        "SELECT (SELECT count(*) FROM chat.mine)",
        "SELECT * FROM chat.mine, chat.fleeting LAST 1",
        "SELECT * FROM ((chat.mine CROSS JOIN chat.fleeting))",
        "SELECT * FROM (PIVOT chat.mine ON id IN (1, 2) USING max(n))",
        "SELECT * FROM (UNPIVOT chat.mine ON id, n)",
        "SUMMARIZE chat.mine",
        "DESCRIBE SELECT * FROM chat.mine",
        "SELECT extract(year FROM now()) FROM chat.mine",
        "EXPLAIN SELECT * FROM chat.mine",
        "INSERT INTO chat.mine SELECT id + 100, n FROM chat.mine",
        "INSERT INTO chat.mine VALUES (10 + 10, abs(-1))",
        "UPDATE chat.mine SET n = n + length('a') WHERE id > 1000",
        "DELETE FROM chat.mine WHERE id IN (SELECT id FROM chat.mine WHERE n > 1000)",
        "SELECT * FROM system.tables",
    ],
)
def test_a_writer_reads_own_rows_however_the_table_is_named(writer: Client, sql: str) -> None:
    assert writer.send(sql).status_code == 200


def nested(depth: int, kind: str) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


@pytest.mark.parametrize("kind", ["list", "object"])
@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 500, 900])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT ?::VARCHAR",
        "SELECT ?",
        "EXPLAIN SELECT ?::VARCHAR",
        "SELECT * FROM chat.shared WHERE id = ?",
        "SELECT * FROM chat.fleeting LAST ?",
        "INSERT INTO chat.shared SELECT 1, ?::VARCHAR, 'a'",
        "INSERT INTO chat.shared VALUES (1, ?, 'a')",
        "INSERT INTO chat.shared VALUES (1, NULL, ?)",
        "INSERT INTO chat.shared VALUES (1 + 1, ?, 'a')",
        "UPDATE chat.shared SET body = ?",
        "UPDATE chat.shared SET text = 'a' WHERE id = ?",
        "DELETE FROM chat.shared WHERE text = ?::VARCHAR",
        "PUBLISH INTO app.events VALUES (?)",
        "CONSUME FROM app.events LIMIT ?",
        "ACK app.events GROUP 'g' LEASES (?)",
        "EXECUTE AS 'alice' (SELECT ?::VARCHAR)",
    ],
)
def test_a_parameter_that_is_nested_too_deeply_is_refused(
    admin: Client, sql: str, depth: int, kind: str
) -> None:
    answer = admin.send(sql, [nested(depth, kind)])
    assert answer.status_code == 422, answer.text
    error = answer.json()["error"]
    assert error["code"] == "SQL_INVALID"
    assert f"parameter $1 is nested more than {DEPTH_MAX} levels deep" in error["message"]


def test_parameters_within_the_limit_are_taken(server: RunningServer, admin: Client) -> None:
    deep = nested(DEPTH_MAX, "list")
    assert admin.rows("SELECT ?::VARCHAR", [deep]) == [[json.dumps(deep)]]
    wide = [nested(2, "object")] * 5_000
    assert admin.rows("SELECT len(?), ?", [wide, "[" * 1_000]) == [[5_000, "[" * 1_000]]
    with connect(server.url, token=server.token) as client:
        assert client.sql("SELECT ?::VARCHAR", [deep]).rows == [[json.dumps(deep)]]
        with pytest.raises(SqlInvalid, match=r"parameter \$2 is nested more than 128 levels deep"):
            client.sql("SELECT 1, ?, ?::VARCHAR", [1, nested(500, "list")])
        with pytest.raises(SqlInvalid, match=r"parameter \$1 is nested"):
            client.sql_arrow("SELECT ?::VARCHAR", [nested(500, "object")])


def test_a_live_subscription_refuses_them_alone(server: RunningServer, admin: Client) -> None:
    async def follow() -> None:
        async with live(server, server.token) as socket:
            sql, deep = "SELECT * FROM chat.mine WHERE n = ?", nested(500, "list")
            await socket.send("subscribe", id="a", sql=sql, params=[deep])
            message = await socket.next()
            assert (message["type"], message["id"], message["error"]["code"]) == ("error", "a", "SQL_INVALID")
            assert "parameter $1 is nested more than 128 levels deep" in message["error"]["message"]
            columns = ", ".join(["n"] * 2_001)
            await socket.send("subscribe", id="b", sql=f"SELECT {columns} FROM chat.mine")
            message = await socket.next()
            assert "a list of columns has more than 2000" in message["error"]["message"]
            assert (await socket.subscribe("SELECT * FROM chat.mine"))["last"]

    asyncio.run(follow())
