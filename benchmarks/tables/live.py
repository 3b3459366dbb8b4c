"""Live subscriptions: from sending an INSERT over HTTP to the change at a subscriber, with 1,000 of them.

Ten match        each subscriber follows a room of its own, ten the one that is written to
All match        everyone follows the whole table
Never reads      one of the subscribers takes nothing while many large rows are written; memory of the server

The floor of the first two is the answer to the same INSERT: a subscriber cannot know before it is durable.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from benchmarks.table import Row, print_rows
from benchmarks.tables.live_clients import handshake, masked
from tidegate.testing.server import RunningServer, running_server

SUBSCRIBERS = 1_000
MATCHING = 10
ROUNDS = 300
ROUNDS_ALL = 60
# Inserts come one after the other with a pause: this is latency, not load.
PAUSE_SECONDS = 0.02
PAUSE_ALL_SECONDS = 0.15
WARM_ROUNDS = 10
LARGE_ROW_BYTES = 100_000
LARGE_ROWS = 1_500
TARGETS_MS = (5.0, 25.0)
TARGETS_ALL_MS = (60.0, 120.0)
SETTLE_SECONDS = 1.0


@dataclass(frozen=True)
class Measured:
    """What one load showed."""

    insert_ms: list[float]
    latencies_ms: list[float]
    expected: int

    def row(self, name: str, targets_ms: tuple[float, float]) -> Row:
        """Return the figures as a row."""
        p50, p99 = _percentile(self.latencies_ms, 50), _percentile(self.latencies_ms, 99)
        floor = statistics.median(self.insert_ms)
        missing = self.expected - len(self.latencies_ms)
        return Row(
            name + (f" ({missing} MISSING)" if missing else ""),
            f"p50 {p50:.1f} ms, p99 {p99:.1f} ms",
            f"{floor:.1f} ms",
            f"{p50 / floor:.1f} ×",
            f"p50 ≤ {targets_ms[0]:g} ms, p99 ≤ {targets_ms[1]:g} ms",
        )


def run() -> list[Row]:
    """Measure and give the rows."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder) / "home") as server,
        _client(server) as http,
    ):
        sql(http, "CREATE NAMESPACE bench")
        columns = "id BIGINT PRIMARY KEY, room BIGINT, sent BIGINT, body TEXT"
        sql(http, f"CREATE SHARED TABLE bench.events ({columns})")
        rooms = [1] * MATCHING + list(range(2, SUBSCRIBERS - MATCHING + 2))
        few = [f"SELECT * FROM bench.events WHERE room = {room}" for room in rooms]
        ten = measure(server, http, few, MATCHING, ROUNDS, PAUSE_SECONDS)
        everyone = ["SELECT * FROM bench.events"] * SUBSCRIBERS
        whole = measure(server, http, everyone, SUBSCRIBERS, ROUNDS_ALL, PAUSE_ALL_SECONDS)
        memory = unread(server, http)
    name = f"insert to subscriber, {SUBSCRIBERS:,} of them, %s; floor: the answer to the INSERT"
    return [
        ten.row(name % f"{MATCHING} match", TARGETS_MS),
        whole.row(name % "all match", TARGETS_ALL_MS),
        memory,
    ]


def measure(
    server: RunningServer,
    http: httpx.Client,
    statements: list[str],
    matching: int,
    rounds: int,
    pause_seconds: float,
) -> Measured:
    """Insert one row after the other while a crowd listens."""
    sql(http, "DELETE FROM bench.events")
    with crowd(server, statements) as clients:
        for number in range(WARM_ROUNDS):
            _insert(http, 1_000_000 + number)
            time.sleep(pause_seconds)
        insert_ms = []
        for number in range(rounds):
            insert_ms.append(_insert(http, number))
            time.sleep(pause_seconds)
        time.sleep(SETTLE_SECONDS)
        answer = clients.stop()
    warm = WARM_ROUNDS * matching
    return Measured(insert_ms, answer["latencies_ms"][warm:], rounds * matching)


def _insert(http: httpx.Client, number: int) -> float:
    began = time.monotonic_ns()
    sql(http, "INSERT INTO bench.events (id, room, sent, body) VALUES (?, 1, ?, 'x')", [number, began])
    return (time.monotonic_ns() - began) / 1e6


def unread(server: RunningServer, http: httpx.Client) -> Row:
    """Write much while one socket takes nothing; give how the server's memory grew."""
    sql(http, "DELETE FROM bench.events")
    child = psutil.Process(server.child.pid)
    address = urlsplit(server.url)
    with socket.create_connection((str(address.hostname), address.port or 0)) as silent:
        silent.sendall(handshake(address.netloc, server.token))
        silent.recv(1000)
        statement = "SELECT * FROM bench.events"
        silent.sendall(masked(json.dumps({"type": "subscribe", "id": "a", "sql": statement})))
        time.sleep(SETTLE_SECONDS)
        body = "x" * LARGE_ROW_BYTES
        sizes = [child.memory_info().rss]
        for _ in range(2):
            for number in range(LARGE_ROWS):
                # The same few rows again and again: what grows is not the table.
                statement = "UPSERT INTO bench.events (id, room, sent, body) VALUES (?, 1, 0, ?)"
                sql(http, statement, [number % 10, body])
            sizes.append(child.memory_info().rss)
    written = LARGE_ROW_BYTES * LARGE_ROWS
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    return Row(
        f"memory, one socket takes nothing of {written / 1e6:,.0f} MB, and as much again; peer: those",
        f"+{first / 1e6:,.0f} MB, then {second / 1e6:+,.0f} MB",
        f"{2 * written / 1e6:,.0f} MB",
        f"{(first + second) / written / 2:.2f} ×",
        "bounded",
    )


class Clients:
    """The process that listens."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def stop(self) -> dict[str, Any]:
        """End it, and give what it saw."""
        answer, _ = self._child.communicate("stop\n", timeout=60)
        return dict(json.loads(answer))


@contextlib.contextmanager
def crowd(server: RunningServer, statements: list[str]) -> Iterator[Clients]:
    """Run one socket a statement, in a process of its own."""
    address = urlsplit(server.url)
    task = {"host": address.hostname, "port": address.port, "token": server.token, "statements": statements}
    command = [sys.executable, "-m", "benchmarks.tables.live_clients"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("the clients have no pipes")
        child.stdin.write(json.dumps(task) + "\n")
        child.stdin.flush()
        if child.stdout.readline() != "ready\n":
            raise RuntimeError("the clients did not get ready")
        yield Clients(child)
    finally:
        child.kill()
        child.wait()


def sql(http: httpx.Client, statement: str, params: list[Any] | None = None) -> None:
    """Run a statement."""
    http.post("/api/v1/sql", json={"sql": statement, "params": params or []}).raise_for_status()


def _client(server: RunningServer) -> httpx.Client:
    headers = {"Authorization": f"Bearer {server.token}"}
    return httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60)


def _percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


if __name__ == "__main__":
    print_rows(run())
