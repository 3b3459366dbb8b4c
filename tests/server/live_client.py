"""A client of the live socket for tests: rebuilds what it follows, and says at once when that cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tidegate.testing.server import RunningServer

# Far beyond what anything takes: a test that waits this long has failed.
WAIT_SECONDS = 60.0
_numbers = itertools.count()


class Tables:
    """Runs statements as someone."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def run(self, statement: str, *params: Any) -> list[list[Any]]:
        """Return the rows of a statement."""
        answer = self.http.post("/api/v1/sql", json={"sql": statement, "params": list(params)})
        assert answer.status_code == 200, answer.text
        rows: list[list[Any]] = answer.json()["rows"]
        return rows

    def make(self, kind: str = "SHARED", columns: str = "id BIGINT PRIMARY KEY, room TEXT, n BIGINT") -> str:
        """Make a table of its own for a test."""
        name = f"live.t{next(_numbers)}"
        self.run("CREATE NAMESPACE IF NOT EXISTS live")
        self.run(f"CREATE {kind} TABLE {name} ({columns})")
        return name


class Live:
    """One socket."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, kind: str, **fields: Any) -> None:
        """Say something."""
        await self.connection.send(json.dumps({"type": kind, **fields}))

    async def next(self) -> dict[str, Any]:
        """Return the next message."""
        async with asyncio.timeout(WAIT_SECONDS):
            return dict(json.loads(await self.connection.recv()))

    async def refusal(self) -> tuple[str, str | None]:
        """Return the code and the id of the next message, an error."""
        message = await self.next()
        assert message["type"] == "error", message
        return message["error"]["code"], message.get("id")

    async def subscribe(self, sql: str, name: str = "a", **fields: Any) -> dict[str, Any]:
        """Follow a SELECT; give its whole snapshot, whose pages come without anything between."""
        await self.send("subscribe", id=name, sql=sql, **fields)
        schema = await self.next()
        assert schema["type"] == "schema", schema
        return await self.snapshot(schema["columns"])

    async def snapshot(self, columns: list[dict[str, str]] | None = None) -> dict[str, Any]:
        """Take all pages of a snapshot."""
        whole: dict[str, Any] = {"columns": columns, "rows": [], "pages": 0}
        while not whole.get("last"):
            page = await self.next()
            assert page["type"] == "snapshot", page
            whole["rows"] += page["rows"]
            whole["pages"] += 1
            whole |= {"last": page["last"], "seq": page["seq"]}
        return whole

    async def change(self) -> tuple[Any, ...]:
        """Return the next message, a change: operation, row, and the old row of an update."""
        message = await self.next()
        assert message["type"] == "change", message
        if message["op"] == "update":
            return message["op"], message["row"], message["old"]
        assert "old" not in message
        return message["op"], message["row"]

    async def nothing_more(self) -> bool:
        """Return whether nothing is on its way: the answer to a ping is behind all that was sent before."""
        await self.send("ping")
        return bool((await self.next())["type"] == "pong")

    async def end(self) -> int:
        """Wait for the end; give its code."""
        with contextlib.suppress(ConnectionClosed):
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    await self.connection.recv()
        assert self.connection.close_code is not None
        return self.connection.close_code


def live_url(server: RunningServer, path: str = "/api/v1/live") -> str:
    return server.url.replace("http", "ws", 1) + path


@contextlib.asynccontextmanager
async def live(
    server: RunningServer, token: str | None, tls: ssl.SSLContext | None = None, **headers: str
) -> AsyncIterator[Live]:
    """Open a socket; without a token in its headers where there is none."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    async with connect(
        live_url(server),
        additional_headers=sent,
        proxy=None,
        ssl=tls,
        max_size=None,
        compression=None,
        # A busy machine is slow to answer; that it answers at all is what the tests wait for.
        open_timeout=WAIT_SECONDS,
        ping_interval=None,
    ) as connection:
        yield Live(connection)


def silent(server: RunningServer, statement: str | None) -> socket.socket:
    """Open a socket that subscribes, or says nothing, and never reads; the system gives it little room."""
    address = urlsplit(server.url)
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.connect((address.hostname, address.port))
    key = "A" * 22 + "=="
    head = f"GET /api/v1/live HTTP/1.1\r\nHost: {address.netloc}\r\nUpgrade: websocket\r\n"
    head += f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
    bearer = "" if statement is None else f"Authorization: Bearer {server.token}\r\n"
    plain.sendall(f"{head}{bearer}\r\n".encode())
    assert b"101" in plain.recv(64)
    if statement is None:
        return plain
    payload = json.dumps({"type": "subscribe", "id": "a", "sql": statement}).encode()
    assert len(payload) < 126
    plain.sendall(bytes((0x81, 0x80 | len(payload), 0, 0, 0, 0)) + payload)
    return plain


def was_closed(plain: socket.socket) -> bool:
    """Read all that came, and say whether the other side ended it."""
    plain.settimeout(WAIT_SECONDS)
    try:
        while plain.recv(1 << 20):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def metric(http: httpx.Client, name: str) -> float:
    lines = http.get("/metrics").text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))
