"""The engine on RocksDB beside SQLite (WAL, synchronous=FULL): the same pairs and batches, the same run.

Run it with `python -m benchmarks.engine`. The keys exist before the clock starts. SQLite gets its best shape:
one table of blobs without row ids, `executemany`, and as many syncs as ours: one after all sorted puts, one
a batch where batches are synced.
"""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from benchmarks.table import Row, milliseconds, per_second, print_rows, times
from tidegate.storage.engine import KeyRange
from tidegate.storage.rocksdb.engine import RocksEngine

PAIRS = 1_000_000
BATCH_PAIRS = 10_000
GET_PAIRS = 1_000  # keys asked in one multi-get
SQLITE_GET_PAIRS = 500  # SQLite takes that many parameters everywhere
SYNCED_ROWS = 1_000
SYNCED_BATCHES = 200
VALUE = b"8 bytes!"


def pair_keys(first: int, count: int) -> list[bytes]:
    """Return 16-byte keys in order."""
    return [
        b"\x11\x00\x00\x00\x01\x00\x00\x00" + number.to_bytes(8, "big")
        for number in range(first, first + count)
    ]


def slices(keys: list[bytes], size: int) -> Iterator[list[bytes]]:
    for start in range(0, len(keys), size):
        yield keys[start : start + size]


class Ours:
    """The engine under the clock."""

    def __init__(self, folder: Path) -> None:
        self.engine = RocksEngine(folder / "engine")

    def put_all(self, keys: list[bytes]) -> float:
        began = perf_counter()
        for part in slices(keys, BATCH_PAIRS):
            self._write(part, sync=False)
        self.engine.sync()
        return perf_counter() - began

    def get_all(self, keys: list[bytes]) -> float:
        began = perf_counter()
        for part in slices(keys, GET_PAIRS):
            assert len(self.engine.get_many(part)) == len(part)
        return perf_counter() - began

    def scan_all(self) -> float:
        began = perf_counter()
        assert sum(1 for _ in self.engine.scan(KeyRange(b"", b"\xff"))) == PAIRS
        return perf_counter() - began

    def synced_batch(self, keys: list[bytes]) -> float:
        began = perf_counter()
        self._write(keys, sync=True)
        return perf_counter() - began

    def _write(self, keys: list[bytes], *, sync: bool) -> None:
        batch = self.engine.batch()
        put = batch.put
        for key in keys:
            put(key, VALUE)
        self.engine.write(batch, sync=sync)


class Sqlite:
    """The peer under the clock."""

    def __init__(self, folder: Path) -> None:
        self.db = sqlite3.connect(folder / "peer.db", isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=FULL")
        self.db.execute("CREATE TABLE pairs (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")

    def put_all(self, keys: list[bytes]) -> float:
        began = perf_counter()
        self.db.execute("BEGIN")
        for part in slices(keys, BATCH_PAIRS):
            self._insert(part)
        self.db.execute("COMMIT")
        return perf_counter() - began

    def get_all(self, keys: list[bytes]) -> float:
        began = perf_counter()
        marks = ",".join("?" * SQLITE_GET_PAIRS)
        statement = f"SELECT key, value FROM pairs WHERE key IN ({marks})"
        for part in slices(keys, SQLITE_GET_PAIRS):
            assert len(dict(self.db.execute(statement, part).fetchall())) == len(part)
        return perf_counter() - began

    def scan_all(self) -> float:
        began = perf_counter()
        pairs = self.db.execute(
            "SELECT key, value FROM pairs WHERE key >= ? AND key < ? ORDER BY key", (b"", b"\xff")
        )
        assert sum(1 for _ in pairs) == PAIRS
        return perf_counter() - began

    def synced_batch(self, keys: list[bytes]) -> float:
        began = perf_counter()
        self.db.execute("BEGIN")
        self._insert(keys)
        self.db.execute("COMMIT")
        return perf_counter() - began

    def _insert(self, keys: list[bytes]) -> None:
        self.db.executemany("INSERT OR REPLACE INTO pairs VALUES (?, ?)", [(key, VALUE) for key in keys])


def rate_row(name: str, ours_seconds: float, peer_seconds: float, target: str) -> Row:
    ours, peer = per_second(PAIRS, ours_seconds), per_second(PAIRS, peer_seconds)
    return Row(name, ours, peer, times(peer_seconds, ours_seconds), target)


def run() -> list[Row]:
    """Measure the engine and SQLite, and print both."""
    keys = pair_keys(0, PAIRS)
    spread = [
        key for start in range(997) for key in keys[start::997]
    ]  # neighbours in a request lie far apart
    with tempfile.TemporaryDirectory(dir=".") as name:
        ours, peer = Ours(Path(name)), Sqlite(Path(name))
        rows = [
            rate_row("sorted batch puts", ours.put_all(keys), peer.put_all(keys), "≥ 1.5 M/s"),
            rate_row("multi-get, spread keys", ours.get_all(spread), peer.get_all(spread), "≥ 0.5 M/s"),
            rate_row("scan", ours.scan_all(), peer.scan_all(), "–"),
        ]
        fresh = [pair_keys(PAIRS + number * SYNCED_ROWS, SYNCED_ROWS) for number in range(SYNCED_BATCHES)]
        ours_p50 = statistics.median(ours.synced_batch(part) for part in fresh)
        peer_p50 = statistics.median(peer.synced_batch(part) for part in fresh)
        rows.append(
            Row(
                "synced batch of 1,000 rows, p50",
                milliseconds(ours_p50),
                milliseconds(peer_p50),
                times(peer_p50, ours_p50),
                "≤ 2 ms",
            )
        )
        ours.engine.close()
        peer.db.close()
    print_rows(rows)
    return rows


if __name__ == "__main__":
    run()
