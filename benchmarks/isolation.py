"""SELECT over HTTP in processes that can be killed, beside an earlier checkout; and tenants side by side.

    python -m benchmarks.isolation [--before CHECKOUT]

The earlier checkout is a folder with its own `.venv`; without one the column of the peer stays empty. Both
servers run at the same time and are asked in turns. Then a hostile tenant floods one server, and the rate and
the latency of a quiet tenant are measured beside those without the flood.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
from deltalake import write_deltalake

from benchmarks.lake_read import ENTITIES, FILES, sorted_rows
from benchmarks.table import Row, milliseconds, print_rows, times
from benchmarks.topics.single_publish import drive, http_is_whole, request

ROUNDS = 200
WARM_UP_ROUNDS = 20
SLOW_ROUNDS = 15
TABLE_ROWS = 200_000
READERS = 64
FLOOD_CONNECTIONS = 16
FLOOD_SECONDS = 10.0
LOAD_SECONDS = 5.0
# Who waits longer has given up.
QUIET_SECONDS_MAX = 30.0
ARROW = "application/vnd.apache.arrow.stream"
TEN_THOUSAND = "SELECT * FROM lake.readings WHERE entity = 'meter-0037'"
AGGREGATE = "SELECT entity, count(*), avg(v0), max(v1) FROM lake.readings GROUP BY entity"
TABLE_SCAN = "SELECT sum(n), count(*) FROM b.numbers WHERE n % 7 < 5"
# One call of a function that runs for tens of seconds, and one that wants a gigabyte.
LONG_CALL = "SELECT max(levenshtein(repeat('a',60000+x::INT), repeat('b',60000))) FROM range(2000) t(x)"
LARGE_VALUE = "SELECT length(printf('%999999999d', 1))"


class Address(NamedTuple):
    """Where a server is, and an administrator's token."""

    url: str
    token: str


class Target:
    """A server, and one kept connection to it."""

    def __init__(self, server: Address) -> None:
        self.server = server
        self.http = httpx.Client(
            base_url=server.url,
            headers={"Authorization": f"Bearer {server.token}"},
            timeout=300,
            trust_env=False,
        )

    def sql(self, sql: str, accept: str = "application/json", token: str = "") -> httpx.Response:
        """Run one statement and return the answer, whatever it is."""
        headers = {"Accept": accept} | ({"Authorization": f"Bearer {token}"} if token else {})
        return self.http.post("/api/v1/sql", json={"sql": sql}, headers=headers)

    def ask(self, sql: str, accept: str) -> None:
        """Run one statement that must succeed."""
        self.sql(sql, accept).raise_for_status()

    def prepare(self) -> None:
        """Make the tables that are read, and a second tenant."""
        half = TABLE_ROWS // 2
        for sql in (
            "CREATE NAMESPACE b",
            "CREATE SHARED TABLE b.numbers (id BIGINT PRIMARY KEY, n BIGINT)",
            f"INSERT INTO b.numbers SELECT range, range * 31 FROM range({half})",
            f"INSERT INTO b.numbers SELECT range + {half}, range * 17 FROM range({half})",
        ):
            self.sql(sql).raise_for_status()

    def rate(self, content: bytes, connections: int) -> float:
        """Return the answers a second on some connections."""
        address = urlsplit(self.server.url)
        place = (str(address.hostname), address.port or 0)
        return drive(
            place,
            content,
            lambda answer: http_is_whole(answer, b"200"),
            None,
            connections,
            None,
            LOAD_SECONDS,
        ).per_second


def run(before: Path | None = None) -> list[Row]:
    """Measure, and give the rows of the table."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        ours = Target(stack.enter_context(_server(Path(folder) / "ours", sys.executable)))
        targets = [ours]
        if before is not None:
            python = str(before / ".venv" / "bin" / "python")
            targets.append(Target(stack.enter_context(_server(Path(folder) / "before", python))))
        for target in targets:
            target.prepare()
        rows = _latencies(targets)
        rows += _throughput(targets)
        # An earlier server may compute for minutes after its callers have gone: it comes last.
        for target in targets:
            rows += _flood(target, "before" if target is not ours else "now")
    return rows


@contextmanager
def _server(home: Path, python: str) -> Iterator[Address]:
    """Start a server of a checkout, with 5 M rows in its lake; its home may have another layout than ours."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "tidegate", "serve", "--home", str(home), "--port", str(port)]
    environ = {**os.environ, "TIDEGATE_QUERY_TIMEOUT_SECONDS": "5", "TIDEGATE_SERVER_REQUESTS_MAX": "100000"}
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) as server:
        try:
            while not _is_ready(url):
                if server.poll() is not None:
                    raise RuntimeError(f"the server of {python} did not start")
                time.sleep(0.1)
            lake = home / "lake" / "readings"
            for file in range(FILES):
                write_deltalake(lake, sorted_rows(file * ENTITIES // FILES, ENTITIES // FILES), mode="append")
            yield Address(url, (home / "admin.token").read_text(encoding="utf-8").strip())
        finally:
            server.kill()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", trust_env=False).is_success
    except httpx.TransportError:
        return False


def _latencies(targets: list[Target]) -> list[Row]:
    kinds: list[tuple[str, str, str, int, str]] = [
        (
            "point read, p50",
            "SELECT n FROM b.numbers WHERE id = 77",
            "application/json",
            ROUNDS,
            "≤ 0.4 ms, ≤ 1.15 ×",
        ),
        ("SELECT 1, p50", "SELECT 1", "application/json", ROUNDS, "≤ 2 ms, ≤ 1.15 ×"),
        ("10,000 of 5 M rows as Arrow, p50", TEN_THOUSAND, ARROW, SLOW_ROUNDS * 2, "≤ 1.15 ×"),
        (
            "aggregate of all entities over 5 M rows, p50",
            AGGREGATE,
            "application/json",
            SLOW_ROUNDS,
            "≤ 1.15 ×",
        ),
        (
            f"scan of {TABLE_ROWS:,} rows of a table, p50",
            TABLE_SCAN,
            "application/json",
            SLOW_ROUNDS,
            "≤ 1.3 ×",
        ),
    ]
    rows = []
    for name, sql, accept, rounds, promise in kinds:
        took = _in_turns([partial(t.ask, sql, accept) for t in targets], rounds)
        rows.append(_shown(_row(name, took, promise)))
    return rows


def _throughput(targets: list[Target]) -> list[Row]:
    """Return the rates of single inserts and of many readers at once."""
    rows = []
    for name, sql in (
        ("SELECT 1", "SELECT 1"),
        ("small aggregate", "SELECT avg(range), max(range) FROM range(100000)"),
    ):
        body = json.dumps({"sql": sql}).encode()
        rates = [t.rate(request("/api/v1/sql", t.server.token, body), READERS) for t in targets]
        rates = [
            max(rate, t.rate(request("/api/v1/sql", t.server.token, body), READERS))
            for rate, t in zip(rates, targets, strict=True)
        ]
        peer = f"{rates[1]:,.0f}/s" if len(rates) > 1 else "–"
        ratio = f"{rates[0] / rates[1]:.2f}" if len(rates) > 1 else "–"
        row = Row(f"{READERS} readers at once: {name}", f"{rates[0]:,.0f}/s", peer, ratio, "> 1 ×")
        rows.append(_shown(row))
    return rows


def _flood(target: Target, which: str) -> list[Row]:
    hostile, quiet = _tenant_token(target, "hostile"), _tenant_token(target, "quiet")
    rows = []
    for name, attack in (
        ("long calls", LONG_CALL),
        ("large values", LARGE_VALUE),
        ("many statements", "SELECT count(*) FROM range(20000000) WHERE range % 7 = 3"),
    ):
        alone = _quiet_load(target, quiet)
        stop = threading.Event()
        threads = [
            threading.Thread(target=_attack, args=(target.server.url, hostile, attack, stop))
            for _ in range(FLOOD_CONNECTIONS)
        ]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        beside = _quiet_load(target, quiet)
        stop.set()
        for thread in threads:
            thread.join()
        row = Row(
            f"quiet tenant beside {FLOOD_CONNECTIONS} connections of {name}, {which}; peer: alone",
            f"{beside[0]:,.1f}/s, slowest {milliseconds(beside[1])}",
            f"{alone[0]:,.1f}/s, slowest {milliseconds(alone[1])}",
            f"{beside[0] / alone[0]:.2f}",
            "≥ 0.5",
        )
        rows.append(_shown(row))
    return rows


def _quiet_load(target: Target, token: str) -> tuple[float, float]:
    """Return the statements a second of one caller, and the slowest."""
    took: list[float] = []
    end = time.perf_counter() + FLOOD_SECONDS
    with httpx.Client(
        headers={"Authorization": f"Bearer {token}"}, timeout=QUIET_SECONDS_MAX, trust_env=False
    ) as http:
        while time.perf_counter() < end:
            began = time.perf_counter()
            sql = "SELECT count(*), avg(range) FROM range(300000)"
            with suppress(httpx.ReadTimeout):  # counted as long as it was waited for
                http.post(f"{target.server.url}/api/v1/sql", json={"sql": sql}).raise_for_status()
            took.append(time.perf_counter() - began)
    return len(took) / sum(took), max(took)


def _attack(url: str, token: str, sql: str, stop: threading.Event) -> None:
    with httpx.Client(
        headers={"Authorization": f"Bearer {token}"}, timeout=QUIET_SECONDS_MAX, trust_env=False
    ) as http:
        while not stop.is_set():
            with suppress(httpx.TransportError):
                http.post(f"{url}/api/v1/sql", json={"sql": sql})


def _tenant_token(target: Target, name: str) -> str:
    target.http.post("/api/v1/tenants", json={"name": name}).raise_for_status()
    headers = {"X-Tenant": name}
    target.http.post(
        "/api/v1/users", json={"name": "ada", "roles": ["reader"]}, headers=headers
    ).raise_for_status()
    answer = target.http.post("/api/v1/users/ada/tokens", json={}, headers=headers)
    answer.raise_for_status()
    return str(answer.json()["token"])


def _in_turns(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    took: list[list[float]] = [[] for _ in calls]
    for number in range(rounds + WARM_UP_ROUNDS):
        for call, seconds in zip(calls, took, strict=True):
            began = time.perf_counter()
            call()
            if number >= WARM_UP_ROUNDS:
                seconds.append(time.perf_counter() - began)
    return [statistics.median(seconds) for seconds in took]


def _shown(row: Row) -> Row:
    """Print a row when it is known: a flood of an earlier server takes minutes."""
    sys.stderr.write(f"… {row.name}: {row.ours}; {row.peer}; {row.ratio}\n")
    return row


def _row(name: str, took: list[float], promise: str) -> Row:
    peer, ratio = "–", "–"
    if len(took) > 1:
        peer, ratio = milliseconds(took[1]), times(took[0], took[1])
    return Row(name, milliseconds(took[0]), peer, ratio, promise)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="a folder with an earlier checkout and its .venv")
    print_rows(run(parser.parse_args().before))


if __name__ == "__main__":
    main()
