"""Group commit: synced writes a second with 64 writers and with one; the peer is SQLite with 64 threads."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.table import Row, print_rows
from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.storage.rocksdb.engine import RocksEngine

SECONDS = 2.0
WRITERS = 64
VALUE = b"x" * 100


def run() -> list[Row]:
    """Measure and give the rows."""
    with tempfile.TemporaryDirectory() as folder:
        one, many = _ours(Path(folder) / "one", 1), _ours(Path(folder) / "many", WRITERS)
        peer = _sqlite(Path(folder) / "peer.db", WRITERS)
    return [
        Row("synced writes, 1 writer", f"{one:,.0f}/s", "–", "–", "–"),
        Row(
            "synced writes, 64 writers; peer: 1 writer",
            f"{many:,.0f}/s",
            f"{one:,.0f}/s",
            f"{many / one:.1f}",
            "≥ 5",
        ),
        Row(
            "synced writes, 64 writers; peer: SQLite WAL, synchronous=FULL",
            f"{many:,.0f}/s",
            f"{peer:,.0f}/s",
            f"{many / peer:.1f}",
            "–",
        ),
    ]


def _ours(path: Path, writers: int) -> float:
    engine = RocksEngine(path)
    committer = GroupCommitter(engine)

    def write(writer: int, number: int) -> None:
        key = f"{writer:04}{number:012}".encode()

        def stage(staging: Staging) -> None:
            staging.put(key, VALUE)

        committer.submit(stage).result()

    rate = _rate(write, writers)
    committer.close()
    engine.close()
    return rate


def _sqlite(path: Path, writers: int) -> float:
    with sqlite3.connect(path) as setup:
        setup.execute("PRAGMA journal_mode=WAL")
        setup.execute("CREATE TABLE kv (k BLOB PRIMARY KEY, v BLOB)")
    local = threading.local()

    def write(writer: int, number: int) -> None:
        if not hasattr(local, "db"):
            local.db = sqlite3.connect(path, timeout=60, isolation_level=None)
            local.db.execute("PRAGMA synchronous=FULL")
        local.db.execute("INSERT INTO kv VALUES (?, ?)", (f"{writer:04}{number:012}".encode(), VALUE))

    return _rate(write, writers)


def _rate(write: Callable[[int, int], None], writers: int) -> float:
    counts = [0] * writers
    deadline = time.monotonic() + SECONDS

    def body(writer: int) -> None:
        while time.monotonic() < deadline:
            write(writer, counts[writer])
            counts[writer] += 1

    threads = [threading.Thread(target=body, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS


if __name__ == "__main__":
    print_rows(run())
