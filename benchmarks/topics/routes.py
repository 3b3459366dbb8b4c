"""An INSERT into a table that a topic follows, beside the same INSERT into a table that none follows.

Row and message are one synced write. Both tables are in one server, and the loads take turns, so that the
machine treats them alike; the ratio is the median of the turns. Single rows come on 16 connections; 1,000
rows, as bound arrays, on two.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import psutil

from benchmarks.table import Row, print_rows
from benchmarks.tables.tables import BULK_CONNECTIONS, BULK_ROWS, CONNECTIONS, ask, encoded, place_of
from benchmarks.topics.single_publish import Load, drive, http_is_whole
from tidegate.testing.server import RunningServer, running_server

# Many short turns: the machine may be slower in one of them.
TURNS = 5
TURN_SECONDS = 2.0
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


def _row(what: str, loads: dict[str, list[Load]], payload: str) -> Row:
    pairs = list(zip(loads[payload], loads["plain"], strict=True))
    slower = statistics.median(plain.per_second / ours.per_second for ours, plain in pairs)
    dearer = statistics.median(ours.cpu_ms / plain.cpu_ms for ours, plain in pairs)
    return Row(
        f"{what}, with a route, payload {payload}; peer: the same without",
        _shown(loads[payload]),
        _shown(loads["plain"]),
        f"{slower:.2f} × the time, {dearer:.2f} × the CPU",
        TARGET,
    )


def _shown(loads: list[Load]) -> str:
    per_second = statistics.median(load.per_second for load in loads)
    return f"{per_second:,.0f}/s ({statistics.median(load.cpu_ms for load in loads):.2f} ms CPU)"


def _loads(server: RunningServer, rows: int) -> dict[str, list[Load]]:
    """Return what each table took in each of its turns."""
    found: dict[str, list[Load]] = {table: [] for table in ("plain", *PAYLOADS)}
    place, child = place_of(server.url), psutil.Process(server.child.pid)
    connections = CONNECTIONS if rows == 1 else BULK_CONNECTIONS
    values = [[f"name of row {n}", n] for n in range(rows)]
    for _ in range(TURNS):
        for table, loads in found.items():
            sql = f"INSERT INTO b.t_{table} (name, n) VALUES (?, ?)"
            content = encoded(server.token, sql, values[0] if rows == 1 else values)
            loads.append(drive(place, content, _is_whole, child, connections, seconds=TURN_SECONDS))
    return found


def _is_whole(answer: bytes) -> bool:
    return http_is_whole(answer, b"200")


if __name__ == "__main__":
    print_rows(run())
