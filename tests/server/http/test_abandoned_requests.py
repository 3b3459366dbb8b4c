"""A statement whose caller has gone is stopped: its thread, its memory and its turn belong to others."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from starlette.requests import ClientDisconnect

from tests.server.sql_client import Client
from tidegate.model.clock import SystemClock
from tidegate.server.runtime.statement_queue import StatementOwner, StatementShares
from tidegate.server.runtime.thread_pools import Threads
from tidegate.telemetry.metrics import Metrics
from tidegate.testing.server import RunningServer, running_server

# Days of work, in DuckDB.
FOREVER = "(SELECT sum(a.range * b.range) FROM range(1000000000) a, range(1000000000) b)"
STATEMENTS_MAX = 2
GIVE_UP_SECONDS = 60
OWNER = StatementOwner("default", "ada")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    environ = {
        "TIDEGATE_QUERY_TIMEOUT_SECONDS": "3600",
        "TIDEGATE_QUERY_STATEMENTS_MAX": str(STATEMENTS_MAX),
    }
    with running_server(tmp_path_factory.mktemp("abandoned") / "home", environ=environ) as running:
        yield running


@pytest.fixture(scope="module")
def admin(server: RunningServer) -> Client:
    client = Client(server)
    client.run("CREATE NAMESPACE shop; CREATE SHARED TABLE shop.t (id INT PRIMARY KEY, n BIGINT)")
    client.run("INSERT INTO shop.t VALUES (1, 10), (2, 20)")
    return client


def begin(server: RunningServer, sql: str) -> socket.socket:
    """Send a statement, and wait for nothing."""
    place = urlsplit(server.url)
    assert place.hostname is not None
    body = json.dumps({"sql": sql}).encode()
    head = (
        f"POST /api/v1/sql HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {server.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection = socket.create_connection((place.hostname, place.port or 80))
    connection.sendall(head.encode() + body)
    return connection


def wait_for(client: Client, *, running: int, waiting: int) -> None:
    """Return when so many statements run and wait; give up where they never do."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while (found := gauges(client)) != (running, waiting):
        assert time.monotonic() < deadline, f"{found} run and wait"
        time.sleep(0.02)


def gauges(client: Client) -> tuple[int, int]:
    lines = dict(
        line.rsplit(" ", 1)
        for line in client.http.get(str(client.http.base_url.join("/metrics"))).text.splitlines()
        if line.startswith("tidegate_sql_statements_")
    )
    running, waiting = (float(lines[f"tidegate_sql_statements_{name}"]) for name in ("running", "waiting"))
    return int(running), int(waiting)


def test_abandoned_statements_give_way_to_others(server: RunningServer, admin: Client) -> None:
    """Those that run are broken off, and those that wait are dropped."""
    callers = [begin(server, f"SELECT {FOREVER}") for _ in range(STATEMENTS_MAX + 3)]
    wait_for(admin, running=STATEMENTS_MAX, waiting=3)
    for caller in callers[STATEMENTS_MAX:]:
        caller.close()
    wait_for(admin, running=STATEMENTS_MAX, waiting=0)
    for caller in callers[:STATEMENTS_MAX]:
        caller.close()
    wait_for(admin, running=0, waiting=0)
    assert admin.rows("SELECT count(*) FROM shop.t") == [[2]]


@pytest.mark.parametrize(
    "sql",
    [
        f"INSERT INTO shop.t SELECT 3, {FOREVER}",
        f"INSERT INTO shop.t VALUES (3, {FOREVER})",
        f"UPDATE shop.t SET n = {FOREVER}",
        f"DELETE FROM shop.t WHERE n > {FOREVER}",
        f"SELECT 1; EXECUTE AS 'someone' (SELECT {FOREVER}); DELETE FROM shop.t WHERE id = 1",
    ],
)
def test_an_abandoned_write_writes_nothing(server: RunningServer, admin: Client, sql: str) -> None:
    # A second one waits for its turn in the table, not in DuckDB.
    callers = [begin(server, sql), begin(server, sql)]
    wait_for(admin, running=2, waiting=0)
    for caller in callers:
        caller.close()
    wait_for(admin, running=0, waiting=0)
    assert admin.rows("SELECT * FROM shop.t ORDER BY id") == [[1, 10], [2, 20]]


def test_ctrl_c_stops_the_statement_of_the_command(server: RunningServer, admin: Client) -> None:
    line = [sys.executable, "-m", "tidegate", "sql", "--home", str(server.home), f"SELECT {FOREVER}"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        try:
            wait_for(admin, running=1, waiting=0)
            command.send_signal(signal.SIGINT)
            wait_for(admin, running=0, waiting=0)
            command.communicate(timeout=GIVE_UP_SECONDS)
        finally:
            command.kill()
    assert command.returncode not in (0, -signal.SIGKILL)


def test_what_has_begun_and_is_not_stopped_gives_its_answer() -> None:
    threads = Threads(StatementShares(1, 1, 1), Metrics(time.monotonic), SystemClock())
    has_left, has_begun = asyncio.Event(), threading.Event()

    async def leave() -> None:
        await asyncio.to_thread(has_begun.wait)
        has_left.set()

    def write(loop: asyncio.AbstractEventLoop) -> str:
        has_begun.set()
        asyncio.run_coroutine_threadsafe(has_left.wait(), loop).result()
        return "written"

    async def run() -> str:
        return await threads.statement_for(OWNER, leave, write, asyncio.get_running_loop())

    assert asyncio.run(run()) == "written"
    threads.close()


def test_what_waits_is_dropped_unrun() -> None:
    threads = Threads(StatementShares(1, 1, 1), Metrics(time.monotonic), SystemClock())
    may_end, ran = threading.Event(), threading.Event()

    async def stay() -> None:
        await asyncio.Event().wait()

    async def leave() -> None:
        await asyncio.sleep(0)

    async def run() -> None:
        first = asyncio.ensure_future(threads.statement_for(OWNER, stay, may_end.wait))
        await asyncio.sleep(0)
        with pytest.raises(ClientDisconnect):
            await threads.statement_for(OWNER, leave, ran.set)
        may_end.set()
        await first

    asyncio.run(run())
    threads.close()
    assert not ran.is_set()
