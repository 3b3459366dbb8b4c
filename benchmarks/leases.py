"""Taking and renewing a lease beside a bare UPDATE … WHERE of the same row, on SQLite and on PostgreSQL.

Run it with `python -m benchmarks.leases`. The bare statement goes straight through the database's own driver,
with the same durability and one commit each; both sides take turns, so that the disk treats them alike.
PostgreSQL is left out where it is not installed.
"""

from __future__ import annotations

import secrets
import sqlite3
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import psycopg

from benchmarks.table import Row, milliseconds, print_rows, times
from tests.catalog.postgres import Postgres, find_binaries
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.model.clock import SystemClock

ROUNDS = 500
WARM_ROUNDS = 20
TTL_SECONDS = 60.0
TARGET = "p50 ≤ 5 ms"
_BARE = (
    "UPDATE leases SET renewals = renewals + 1, expires_us = {mark} WHERE name = {mark} AND fence = {mark}"
)


def timed(call: Callable[[], object]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


def measure(catalog: Catalog, bare: Callable[[], object]) -> dict[str, list[float]]:
    """Take, renew and release, with a bare update between; give the seconds of each."""
    found: dict[str, list[float]] = {"take": [], "renew": [], "bare": []}
    for number in range(WARM_ROUNDS + ROUNDS):
        began = perf_counter()
        lease = catalog.leases.take("bench", f"holder-{number}", TTL_SECONDS)
        seconds = {"take": perf_counter() - began, "bare": timed(bare)}
        began = perf_counter()
        lease = catalog.leases.renew(lease)
        seconds["renew"] = perf_counter() - began
        catalog.leases.release(lease)
        if number >= WARM_ROUNDS:
            for name, value in seconds.items():
                found[name].append(value)
    return found


def rows_of(database: str, found: dict[str, list[float]]) -> list[Row]:
    rows = []
    for name in ("take", "renew"):
        for percent in (50, 99):
            ours, bare = (statistics.quantiles(found[key], n=100)[percent - 1] for key in (name, "bare"))
            target = TARGET if percent == 50 else "–"
            label = f"lease {name}, {database}, p{percent}"
            rows.append(Row(label, milliseconds(ours), milliseconds(bare), times(ours, bare), target))
    return rows


def on_sqlite(file: Path) -> list[Row]:
    catalog = open_catalog(f"sqlite:///{file}")
    catalog.leases.take("bare", "nobody", TTL_SECONDS)
    peer = sqlite3.connect(file, isolation_level=None)
    peer.execute("PRAGMA synchronous=FULL")
    statement = _BARE.format(mark="?")
    found = measure(catalog, lambda: peer.execute(statement, (1, "bare", 1)))
    peer.close()
    catalog.close()
    return rows_of("SQLite", found)


def on_postgresql(server: Postgres) -> list[Row]:
    url = server.create_database()
    catalog = open_catalog(url)
    catalog.leases.take("bare", "nobody", TTL_SECONDS)
    statement = _BARE.format(mark="%s").encode()
    with psycopg.connect(url, autocommit=True) as peer:
        found = measure(catalog, lambda: peer.execute(statement, (1, "bare", 1)))
    catalog.close()
    return rows_of("PostgreSQL", found)


def open_catalog(url: str) -> Catalog:
    return Catalog.open(DatabaseAddress(url), SystemClock(), random_bytes=secrets.token_bytes)


def run() -> list[Row]:
    """Measure both databases and print the table."""
    with tempfile.TemporaryDirectory(dir=".") as name:
        rows = on_sqlite(Path(name) / "catalog.db")
    binaries = find_binaries()
    if binaries is not None:
        server = Postgres(binaries)
        try:
            rows += on_postgresql(server)
        finally:
            server.close()
    print_rows(rows)
    return rows


if __name__ == "__main__":
    run()
