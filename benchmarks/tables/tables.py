"""Tables over HTTP beside SQLite (WAL, synchronous=FULL) behind the same route and door: inserts and reads.

The load is raw sockets and epoll, as in `single_publish`. Keys are given by the server (ours: SNOWFLAKE_ID(),
SQLite: the rowid), so that every request is the same bytes. Everything of ours is synced before the answer.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pyarrow as pa

from benchmarks.table import Row, milliseconds, print_rows
from benchmarks.topics.single_publish import drive, http_is_whole, request
from tidegate.storage.home.home import Home
from tidegate.testing.server import running_server

CONNECTIONS = 16
BULK_ROWS = 1_000
BULK_REQUESTS = 60
BULK_CONNECTIONS = 2
READS = 2_000
ROUTE = "/api/v1/sql"
ARROW = "application/vnd.apache.arrow.stream"
Place = tuple[str, int]


def run() -> list[Row]:
    """Measure and give the rows."""
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder) / "home") as server:
        _make_ours(server.url, server.token)
        ours = _measure(place_of(server.url), server.token, "b.t")
        arrow = _bulk(place_of(server.url), _arrow_request(server.token))
    with tempfile.TemporaryDirectory() as folder, _sqlite(Path(folder) / "peer") as (url, token):
        ask(url, token, "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, n INTEGER)")
        theirs = _measure(place_of(url), token, "t")
    return [
        Row(
            f"single-row INSERT, {CONNECTIONS} connections; peer: SQLite, same route",
            f"{ours['single']:,.0f}/s",
            f"{theirs['single']:,.0f}/s",
            f"{ours['single'] / theirs['single']:.2f}",
            "≥ 4,000/s and ≥ 2 ×",
        ),
        Row(
            f"INSERT of {BULK_ROWS:,} rows as text VALUES",
            f"{ours['text']:,.0f} rows/s",
            f"{theirs['text']:,.0f} rows/s",
            f"{ours['text'] / theirs['text']:.2f}",
            "≥ 40,000 rows/s",
        ),
        Row(
            f"INSERT of {BULK_ROWS:,} rows as bound arrays",
            f"{ours['arrays']:,.0f} rows/s",
            f"{theirs['arrays']:,.0f} rows/s",
            f"{ours['arrays'] / theirs['arrays']:.2f}",
            "≥ 150,000 rows/s",
        ),
        Row(
            f"INSERT of {BULK_ROWS:,} rows as Arrow; peer: SQLite, bound arrays",
            f"{arrow:,.0f} rows/s",
            f"{theirs['arrays']:,.0f} rows/s",
            f"{arrow / theirs['arrays']:.2f}",
            "≥ 150,000 rows/s",
        ),
        Row(
            "SELECT by primary key, one caller",
            f"p50 {milliseconds(ours['read'])}",
            f"p50 {milliseconds(theirs['read'])}",
            f"{ours['read'] / theirs['read']:.2f}",
            "p50 ≤ 1.5 ms",
        ),
    ]


def _measure(place: Place, token: str, table: str) -> dict[str, float]:
    insert = f"INSERT INTO {table} (name, n) VALUES (?, ?)"
    single = encoded(token, insert, ["x" * 50, 7])
    values = ", ".join(f"('name of row {n}', {n})" for n in range(BULK_ROWS))
    text = encoded(token, f"INSERT INTO {table} (name, n) VALUES {values}")
    arrays = encoded(token, insert, [[f"name of row {n}", n] for n in range(BULK_ROWS)])
    found = {
        "single": drive(place, single, _is_whole, None, CONNECTIONS).per_second,
        "text": _bulk(place, text),
        "arrays": _bulk(place, arrays),
    }
    known = _rows(place, token, f"SELECT id FROM {table} ORDER BY id LIMIT 1000")
    found["read"] = _reads(place, token, f"SELECT * FROM {table} WHERE id = ?", [row[0] for row in known])
    return found


def _bulk(place: Place, content: bytes) -> float:
    """Send large requests on a few connections; give rows a second."""
    return drive(place, content, _is_whole, None, BULK_CONNECTIONS).per_second * BULK_ROWS


def _reads(place: Place, token: str, sql: str, ids: list[int]) -> float:
    taken = []
    with socket.create_connection(place) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(READS):
            began = time.perf_counter()
            connection.sendall(encoded(token, sql, [ids[number % len(ids)]]))
            answer = b""
            while not _is_whole(answer):
                answer += connection.recv(65_536)
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _is_whole(answer: bytes) -> bool:
    return http_is_whole(answer, b"200")


def encoded(token: str, sql: str, params: list[Any] | None = None) -> bytes:
    """Return the bytes of a request that runs a statement."""
    return request(ROUTE, token, json.dumps({"sql": sql, "params": params or []}).encode())


def _arrow_request(token: str) -> bytes:
    table = pa.table({"name": [f"name of row {n}" for n in range(BULK_ROWS)], "n": list(range(BULK_ROWS))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = sink.getvalue().to_pybytes()
    path = f"{ROUTE}?sql={quote('INSERT INTO b.t')}"
    return request(path, token, body).replace(b"application/json", ARROW.encode(), 1)


def _make_ours(url: str, token: str) -> None:
    ask(url, token, "CREATE NAMESPACE b")
    ask(
        url,
        token,
        "CREATE SHARED TABLE b.t (id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), name TEXT, n BIGINT)",
    )


def ask(url: str, token: str, sql: str) -> dict[str, Any]:
    """Run a statement."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = httpx.post(f"{url}{ROUTE}", json={"sql": sql}, headers=headers, trust_env=False, timeout=60)
    answer.raise_for_status()
    return dict(answer.json())


def _rows(place: Place, token: str, sql: str) -> list[list[Any]]:
    return list(ask(f"http://{place[0]}:{place[1]}", token, sql)["rows"])


def place_of(url: str) -> Place:
    """Return host and port."""
    address = urlsplit(url)
    return str(address.hostname), address.port or 0


@contextmanager
def _sqlite(home: Path) -> Iterator[tuple[str, str]]:
    """Run the peer; give its address and token."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "benchmarks.tables.sqlite_server", str(home), str(port)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                if httpx.get(f"{url}/ready", trust_env=False).status_code == 200:
                    break
            time.sleep(0.05)
        yield url, Home.existing(home).read_token()
    finally:
        child.terminate()
        child.wait()


if __name__ == "__main__":
    print_rows(run())
