"""Writers and subscribers at random on one table of a real server: everyone ends with the table's rows.

`python -m tests.server.live_soak 60` goes on for a minute, with another seed each round; a failure names it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.server.live_client import WAIT_SECONDS, Live, Tables, live_url
from tidegate.testing.server import RunningServer, running_server

KEYS = 12
PAD_CHARS = 30_000
# Short enough that whoever stops reading for a moment loses their place.
LIMITS = {"TIDEGATE_LIVE_HISTORY_CHANGES_MAX": "60", "TIDEGATE_LIVE_PAGE_ROWS_MAX": "3"}
# The last row that is written; every filter takes it.
LAST_KEY = -1
FILTERS: list[tuple[str, Callable[[list[Any]], bool]]] = [
    ("", lambda _: True),
    ("WHERE room = 'a'", lambda row: row[1] == "a"),
    ("WHERE n > 50 AND room IS NOT NULL", lambda row: row[2] > 50),
]


@dataclass
class Replica:
    """What a subscriber knows; checks every message against what it knew before."""

    rows: dict[int, list[Any]] = field(default_factory=dict)
    seq: int | None = None
    is_whole: bool = False
    has_begun: bool = False
    lagged: int = 0
    resumed: int = 0

    def take(self, message: dict[str, Any]) -> None:
        """Apply one message."""
        kind = message["type"]
        if kind == "schema":
            return
        if kind == "lagged":
            self.lagged += 1
            self.is_whole = False
            self.rows = {}
        elif kind == "snapshot":
            self._take_page(message)
        else:
            assert kind == "change", message
            assert self.is_whole, "a change before the snapshot was whole"
            assert self.seq is not None
            assert message["seq"] > self.seq, "in order, and none twice"
            self.seq = message["seq"]
            self._change(message)

    def _take_page(self, message: dict[str, Any]) -> None:
        assert not self.is_whole
        for row in message["rows"]:
            assert row[0] not in self.rows
            self.rows[row[0]] = row
        self.is_whole, self.seq = message["last"], message["seq"]

    def _change(self, message: dict[str, Any]) -> None:
        op, row = message["op"], message["row"]
        if op == "insert":
            assert row[0] not in self.rows
            self.rows[row[0]] = row
        elif op == "update":
            assert self.rows[row[0]] == message["old"]
            self.rows[row[0]] = row
        else:
            assert self.rows.pop(row[0]) == row


class World:
    """One round: a table, its writers and its subscribers."""

    def __init__(self, server: RunningServer, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        headers = {"Authorization": f"Bearer {server.token}"}
        self.http = httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60)
        self.tables = Tables(self.http)
        self.name = self.tables.make(columns="id BIGINT PRIMARY KEY, room TEXT, n BIGINT, pad TEXT")
        self.replicas: list[tuple[Replica, Callable[[list[Any]], bool]]] = []
        self._begun = asyncio.Semaphore(0)

    async def round(self, writers: int, statements: int, subscribers: int) -> None:
        """Let all of them loose, then compare."""
        async with asyncio.TaskGroup() as group:
            for number in range(subscribers):
                group.create_task(self._follow(number))
            # Whoever comes when all is written has nothing to follow.
            for _ in range(subscribers):
                await self._begun.acquire()
            async with asyncio.TaskGroup() as writing:
                for _ in range(writers):
                    task = self._write(random.Random(self.random.random()), statements)
                    writing.create_task(task)
            # Everyone reads up to this one, however often they must begin again.
            await asyncio.to_thread(
                self.tables.run, f"INSERT INTO {self.name} VALUES ({LAST_KEY}, 'a', 1000, '')"
            )
        rows = self.tables.run(f"SELECT * FROM {self.name} ORDER BY id")
        for replica, test in self.replicas:
            shown = sorted(replica.rows.values(), key=lambda row: int(row[0]))
            assert shown == [row for row in rows if test(row)]

    async def _write(self, chance: random.Random, statements: int) -> None:
        for _ in range(statements):
            key, act = chance.randrange(KEYS), chance.random()
            room, n = chance.choice("abc"), chance.randrange(100)
            pad = chance.choice("xyz") * chance.choice([1, 10, PAD_CHARS])
            if act < 0.5:
                statement, params = f"UPSERT INTO {self.name} VALUES (?, ?, ?, ?)", [key, room, n, pad]
            elif act < 0.65:
                statement, params = f"UPDATE {self.name} SET n = ? WHERE id = ?", [n, key]
            elif act < 0.75:
                statement, params = f"UPDATE {self.name} SET room = ? WHERE n > ?", [room, n]
            elif act < 0.95:
                statement, params = f"DELETE FROM {self.name} WHERE id = ?", [key]
            else:
                statement, params = f"DELETE FROM {self.name} WHERE room = ?", [room]
            await asyncio.to_thread(self.tables.run, statement, *params)

    async def _follow(self, number: int) -> None:
        where, test = FILTERS[number % len(FILTERS)]
        replica, chance = Replica(), random.Random(self.random.random())
        self.replicas.append((replica, test))
        is_slow = number % 2 == 1
        while LAST_KEY not in replica.rows or not replica.is_whole:
            with contextlib.suppress(ConnectionClosed):
                async with self._opened(is_slow) as connection:
                    await self._read(Live(connection), replica, where, chance)

    async def _read(self, client: Live, replica: Replica, where: str, chance: random.Random) -> None:
        known = {"fromSeq": replica.seq} if replica.is_whole else {}
        replica.resumed += len(known)
        if not known:
            replica.rows, replica.seq = {}, None
        await client.send("subscribe", id="a", sql=f"SELECT * FROM {self.name} {where}", **known)
        patience = chance.choice([5, 20, 80, 10_000])
        while LAST_KEY not in replica.rows or not replica.is_whole:
            patience -= 1
            if patience == 0:
                if chance.random() < 0.5:
                    client.connection.transport.abort()
                return
            if chance.random() < 0.02:
                await asyncio.sleep(chance.random() * 0.4)
            replica.take(await client.next())
            if replica.is_whole and not replica.has_begun:
                replica.has_begun = True
                self._begun.release()

    def _opened(self, is_slow: bool) -> connect:
        """Open a socket; a slow one takes little at once."""
        address = urlsplit(self.server.url)
        plain = socket.socket()
        if is_slow:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        plain.connect((address.hostname, address.port))
        headers = {"Authorization": f"Bearer {self.server.token}"}
        return connect(
            live_url(self.server),
            sock=plain,
            additional_headers=headers,
            proxy=None,
            compression=None,
            max_size=None,
            max_queue=2,
            open_timeout=WAIT_SECONDS,
            ping_interval=None,
            # The library waits for the server's farewell without reading what is before it.
            close_timeout=0.1,
        )


def soak(seconds: float) -> int:
    """Run rounds for a while; give how many."""
    rounds, until = 0, time.monotonic() + seconds
    home = tempfile.TemporaryDirectory()
    with home as folder, running_server(Path(folder) / "home", environ=LIMITS) as server:
        while time.monotonic() < until:
            rounds += 1
            seed = time.monotonic_ns()
            world = World(server, seed)
            try:
                asyncio.run(world.round(writers=3, statements=200, subscribers=9))
            except BaseException as problem:
                problem.add_note(f"seed {seed}")
                raise
    return rounds


def main() -> None:
    """Run for as many seconds as are said."""
    print(soak(float(sys.argv[1])), "rounds")


if __name__ == "__main__":
    main()
