"""An INSERT into a table that a topic follows, beside the same INSERT into a table that none follows.

Row and message are one synced write. Both tables are in one server, and the loads take turns, so that the
machine treats them alike. Single rows come on 16 connections; 1,000 rows, as bound arrays, on two.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import psutil

from benchmarks.single_publish import Load, drive, http_is_whole
from benchmarks.table import Row, print_rows
from benchmarks.tables import BULK_CONNECTIONS, BULK_ROWS, CONNECTIONS, ask, encoded, place_of
from tidegate.testing.server import RunningServer, running_server

ROUNDS = 2
PAYLOADS = ("key", "full", "diff")
TARGET = "≤ 1.3 × the time"
COLUMNS = "(id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), name TEXT, n BIGINT)"


def run() -> list[Row]:
    """Measure and give the rows."""
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder) / "home") as server:
        ask(server.url, server.token, "CREATE NAMESPACE b")
        for table in ("plain", *PAYLOADS):
            ask(server.url, server.token, f"CREATE SHARED TABLE b.t_{table} {COLUMNS}")
        for payload in PAYLOADS:
            ask(server.url, server.token, f"CREATE TOPIC b.c_{payload}")
            source = f"ADD SOURCE b.t_{payload} ON INSERT WITH (payload = '{payload}')"
            ask(server.url, server.token, f"ALTER TOPIC b.c_{payload} {source}")
        single = _loads(server, 1)
        bulk = _loads(server, BULK_ROWS)
    return [
        *(_row(f"single-row INSERT, {CONNECTIONS} connections", single, payload) for payload in PAYLOADS),
        *(_row(f"INSERT of {BULK_ROWS:,} rows", bulk, payload) for payload in PAYLOADS),
    ]


def _row(what: str, loads: dict[str, Load], payload: str) -> Row:
    ours, plain = loads[payload], loads["plain"]
    return Row(
        f"{what}, with a route, payload {payload}; peer: the same without",
        _shown(ours),
        _shown(plain),
        f"{plain.per_second / ours.per_second:.2f} × the time, {ours.cpu_ms / plain.cpu_ms:.2f} × the CPU",
        TARGET,
    )


def _shown(load: Load) -> str:
    return f"{load.per_second:,.0f}/s ({load.cpu_ms:.2f} ms CPU)"


def _loads(server: RunningServer, rows: int) -> dict[str, Load]:
    """Give the best of several turns of each table."""
    best: dict[str, Load] = {}
    place, child = place_of(server.url), psutil.Process(server.child.pid)
    connections = CONNECTIONS if rows == 1 else BULK_CONNECTIONS
    values = [[f"name of row {n}", n] for n in range(rows)]
    for _ in range(ROUNDS):
        for table in ("plain", *PAYLOADS):
            sql = f"INSERT INTO b.t_{table} (name, n) VALUES (?, ?)"
            content = encoded(server.token, sql, values[0] if rows == 1 else values)
            load = drive(place, content, lambda answer: http_is_whole(answer, b"200"), child, connections)
            if table not in best or load.per_second > best[table].per_second:
                best[table] = load
    return best


if __name__ == "__main__":
    print_rows(run())
