"""A stop under load: what is stored was acknowledged, and what was acknowledged is stored; nothing else.

A request that gets another answer, or none because its connection ended, is not stored, not even later.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.server.sql_client import Client
from tidegate.testing.server import RunningServer, running_server

CONNECTIONS = 32
# Requests that a client sends before it reads the first answer.
PIPELINED = 4
# Answers before the stop: every connection has some of each kind.
ANSWERS_BEFORE = 400

TABLES = (
    "CREATE NAMESPACE load;"
    "CREATE SHARED TABLE load.shared (id BIGINT PRIMARY KEY);"
    "CREATE SHARED TABLE load.selected (id BIGINT PRIMARY KEY);"
    "CREATE USER TABLE load.mine (id BIGINT PRIMARY KEY);"
    "CREATE STREAM TABLE load.stream (id BIGINT) WITH (ttl_seconds = 86400, durability = 'fsync');"
    "CREATE STREAM TABLE load.buffered (id BIGINT) WITH (ttl_seconds = 86400);"
    "CREATE TOPIC load.events PARTITIONS 2;"
    "CREATE TOPIC load.changes;"
    "ALTER TOPIC load.changes ADD SOURCE load.mine ON INSERT WITH (payload = 'full')"
)
WRITES = {
    "shared": "INSERT INTO load.shared VALUES (?)",
    "selected": "INSERT INTO load.selected SELECT ?::BIGINT",
    "mine": "INSERT INTO load.mine VALUES (? + 0)",
    "stream": "INSERT INTO load.stream VALUES (?)",
    "buffered": "INSERT INTO load.buffered VALUES (?)",
    "sql": "PUBLISH INTO load.events VALUES (?)",
}


class Journal:
    """What was sent, and which of it was answered how."""

    def __init__(self) -> None:
        self.sent: dict[int, str] = {}
        self.acknowledged: set[int] = set()
        self.refused: dict[int, str] = {}
        self.answers = 0
        self.is_busy = asyncio.Event()

    def note(self, number: int, status: int, content: bytes) -> None:
        self.answers += 1
        if status == 200:
            self.acknowledged.add(number)
        else:
            self.refused[number] = json.loads(content)["error"]["code"]
        if self.answers == ANSWERS_BEFORE:
            self.is_busy.set()


def request_of(server: RunningServer, kind: str, number: int) -> bytes:
    path = "/api/v1/sql"
    body: dict[str, object] = {"messages": [{"payload": number}]}
    if kind == "publish":
        path = "/api/v1/topics/load.events/publish"
    else:
        body = {"sql": WRITES[kind], "params": [number]}
    content = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Authorization: Bearer {server.token}",
        f"Content-Length: {len(content)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content


async def write_until_closed(
    server: RunningServer, journal: Journal, kinds: Iterator[str], numbers: Iterator[int]
) -> None:
    """Send requests over one connection, some before the first is answered, until the server ends it."""
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    waiting: list[int] = []
    try:
        while True:
            while len(waiting) < PIPELINED:
                number, kind = next(numbers), next(kinds)
                journal.sent[number] = kind
                waiting.append(number)
                writer.write(request_of(server, kind, number))
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            assert length is not None
            content = await reader.readexactly(int(length[1]))
            journal.note(waiting.pop(0), int(head[9:12]), content)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.transport.abort()


async def load_and_stop(server: RunningServer, signals: int) -> Journal:
    journal, numbers = Journal(), itertools.count(1)
    kinds = itertools.cycle([*WRITES, "publish"])
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(write_until_closed(server, journal, kinds, numbers))
        await journal.is_busy.wait()
        for _ in range(signals):
            os.kill(server.child.pid, signal.SIGTERM)
    return journal


def stored_in(client: Client) -> list[int]:
    found: list[int] = []
    for kind in ("shared", "selected", "mine", "stream", "buffered"):
        found += [row[0] for row in client.rows(f"SELECT id FROM load.{kind}")]
    for partition in (0, 1):
        body: dict[str, object] = {"partition": partition, "limit": 1_000, "from": "earliest"}
        while True:
            answer = client.http.post("/topics/load.events/consume", json=body)
            assert answer.status_code == 200, answer.text
            messages = answer.json()["messages"]
            if not messages:
                break
            found += [message["payload"] for message in messages]
            body["from"] = {"offset": messages[-1]["offset"] + 1}
    return found


@pytest.mark.parametrize(("grace_seconds", "signals"), [("0", 1), ("0.3", 1), ("10", 1), ("10", 2)])
def test_stored_is_what_was_acknowledged_and_nothing_else(
    tmp_path: Path, grace_seconds: str, signals: int
) -> None:
    environ = {"TIDEGATE_SERVER_GRACE_SECONDS": grace_seconds, "TIDEGATE_QUERY_ROWS_MAX": "1000000"}
    with running_server(tmp_path / "home", environ=environ) as server:
        Client(server).run(TABLES)
        journal = asyncio.run(load_and_stop(server, signals))
        assert server.child.wait(60) == 0
    with running_server(tmp_path / "home", environ=environ) as server:
        stored = stored_in(Client(server))
    assert len(stored) == len(set(stored))
    lost = sorted(journal.acknowledged - set(stored))
    assert [(journal.sent[number], number) for number in lost] == []
    late = sorted(set(stored) - journal.acknowledged)
    assert [(journal.sent[number], journal.refused.get(number, "no answer")) for number in late] == []
    assert set(journal.refused.values()) <= {"NOT_READY"}
    written = (tmp_path / "home.server.log").read_text()
    assert "Traceback" not in written
    assert "close timed out" not in written
