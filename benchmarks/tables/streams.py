"""The store of streams beside SQLite and Redis streams: the same rows, users and batches, the same run.

Run it with `python -m benchmarks streams`. Ours is called in the process, as the server calls it. SQLite
(WAL, synchronous=FULL, also in the process) syncs each batch, so its peer among ours is the durable table.
Redis (appendfsync everysec) is its own process; a batch is one pipeline over a socket, so the cost of talking
to it is in its figure. Ours flushes every half second meanwhile, as the server does.
"""

from __future__ import annotations

import shutil
import socket
import sqlite3
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import IO

from benchmarks.table import Row, milliseconds, per_second, print_rows, times
from benchmarks.topics.brokers import redis_server
from tidegate.model.clock import Clock, SystemClock
from tidegate.model.ids import SnowflakeSource
from tidegate.model.tables import Durability, Table, TableColumn, TableKind
from tidegate.settings.sections import StreamSettings
from tidegate.streams.store import StreamStore
from tidegate.testing.clock import ManualClock

BATCH_ROWS = 100
TEXT = "x" * 88  # with the number and the array around it, a row has 100 bytes
USERS = 1_000
ROUNDS = 10  # batches of each user
DURABLE_BATCHES = 300
READ_USERS = 10_000
READS = 500
WINDOWS = 1_000
WINDOW_FILES = 10
NO_REDIS = "not installed (apt-get install redis-server)"


def make_table(number: int, ttl_seconds: int = 3600, durability: Durability = Durability.BUFFERED) -> Table:
    """Return a stream of a number and a text."""
    return Table(
        id=number,
        tenant="default",
        namespace="bench",
        name=f"stream{number}",
        kind=TableKind.STREAM,
        columns=(TableColumn("id", "BIGINT"), TableColumn("text", "TEXT")),
        primary_key=(),
        created_us=0,
        ttl_seconds=ttl_seconds,
        durability=durability,
    )


@contextmanager
def opened_store(folder: Path, clock: Clock) -> Iterator[StreamStore]:
    """Return a store that is flushed in the background."""
    store = StreamStore(
        lambda _: folder, clock, SnowflakeSource(clock), StreamSettings(), free_bytes_min=1 << 20
    )
    done = threading.Event()

    def flush() -> None:
        while not done.wait(0.5):
            store.flush(0.5)

    flusher = threading.Thread(target=flush)
    flusher.start()
    try:
        yield store
    finally:
        done.set()
        flusher.join()
        store.close()


class Sqlite:
    """The peer that syncs."""

    def __init__(self, folder: Path) -> None:
        self.db = sqlite3.connect(folder / "peer.db", isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=FULL")
        self.db.execute(
            "CREATE TABLE rows (user TEXT, seq INTEGER, time INTEGER, id INTEGER, text TEXT,"
            " PRIMARY KEY (user, seq)) WITHOUT ROWID"
        )
        self.db.execute("CREATE INDEX by_time ON rows (time)")
        self._seq = 0

    def append(self, user: str, time_us: int, count: int = BATCH_ROWS) -> None:
        rows = [(user, self._seq + place, time_us, place, TEXT) for place in range(count)]
        self._seq += count
        self.db.execute("BEGIN")
        self.db.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", rows)
        self.db.execute("COMMIT")

    def last(self, user: str) -> int:
        statement = "SELECT * FROM rows WHERE user = ? ORDER BY seq DESC LIMIT ?"
        return len(self.db.execute(statement, (user, BATCH_ROWS)).fetchall())


class Redis:
    """The peer that syncs every second."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers: IO[bytes] = self._socket.makefile("rb")

    def append(self, user: str) -> None:
        key = f"${len(user)}\r\n{user}\r\n"
        tail = f"$1\r\n*\r\n$2\r\nid\r\n$2\r\n10\r\n$4\r\ntext\r\n${len(TEXT)}\r\n{TEXT}\r\n"
        self._socket.sendall(f"*7\r\n$4\r\nXADD\r\n{key}{tail}".encode() * BATCH_ROWS)
        for _ in range(BATCH_ROWS):
            self._answer()

    def last(self, user: str) -> int:
        words = ["XREVRANGE", user, "+", "-", "COUNT", str(BATCH_ROWS)]
        text = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        self._socket.sendall(text.encode())
        return self._answer()

    def _answer(self) -> int:
        """Read one answer; give its number of parts."""
        line = self._answers.readline()
        size = int(line[1:])
        if line.startswith(b"$"):
            self._answers.read(size + 2)
        elif line.startswith(b"*"):
            for _ in range(size):
                self._answer()
        else:
            raise RuntimeError(line.decode())
        return size

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


def seconds_of(append: Callable[[str], object], users: int, rounds: int) -> float:
    """Append a batch for each user in turn; give the seconds."""
    names = [f"user{number}" for number in range(users)]
    began = perf_counter()
    for _ in range(rounds):
        for name in names:
            append(name)
    return perf_counter() - began


def p50_of(read: Callable[[str], int]) -> float:
    """Read the last rows of users far apart; give the median of the seconds."""
    taken = []
    for number in range(READS):
        user = f"user{number * 7919 % READ_USERS}"
        began = perf_counter()
        found = read(user)
        taken.append(perf_counter() - began)
        assert found == BATCH_ROWS, found
    return statistics.median(taken)


def append_rows(folder: Path) -> list[Row]:
    """Measure appends: buffered beside Redis, durable beside SQLite."""
    rows = [(place, TEXT) for place in range(BATCH_ROWS)]
    count = USERS * ROUNDS * BATCH_ROWS
    buffered, durable = make_table(1), make_table(2, durability=Durability.FSYNC)
    with opened_store(folder / "ours", SystemClock()) as store:
        store.append(buffered, "warm", rows)
        ours = seconds_of(lambda user: store.append(buffered, user, rows), USERS, ROUNDS)
        synced = seconds_of(lambda user: store.append(durable, user, rows), DURABLE_BATCHES, 1)
        again = seconds_of(lambda user: store.append(durable, user, rows), DURABLE_BATCHES, 1)
    sqlite = Sqlite(folder)
    peer = seconds_of(lambda user: sqlite.append(user, 0), DURABLE_BATCHES, 2)
    sqlite.db.close()
    some = DURABLE_BATCHES * BATCH_ROWS
    name = "append, batches of 100 rows of 100 B for 1,000 users"
    return [
        _redis_appends(folder, name, ours, count),
        _rate_row(f"{name}; peer: SQLite, which syncs", count / ours, 2 * some / peer, "–"),
        _rate_row("the same, durable, in new files; peer: SQLite", some / synced, 2 * some / peer, "–"),
        _rate_row("the same, durable, in known files; peer: SQLite", some / again, 2 * some / peer, "–"),
    ]


def _redis_appends(folder: Path, name: str, ours: float, count: int) -> Row:
    title, target = f"{name}; peer: Redis streams, everysec", "≥ 600 k/s"
    if shutil.which("redis-server") is None:
        return Row(title, per_second(count, ours), NO_REDIS, "–", target)
    with redis_server(folder, "everysec") as port:
        redis = Redis(port)
        seconds = seconds_of(redis.append, USERS, ROUNDS)
        redis.close()
    return _rate_row(title, count / ours, count / seconds, target)


def _rate_row(name: str, ours: float, peer: float, target: str) -> Row:
    return Row(name, per_second(ours, 1), per_second(peer, 1), times(ours, peer), target)


def read_rows(folder: Path) -> list[Row]:
    """Measure one user's last 100 rows among 1 M rows and 10,000 users."""
    rows = [(place, TEXT) for place in range(BATCH_ROWS)]
    table = make_table(1)
    with opened_store(folder / "read", SystemClock()) as store:
        seconds_of(lambda user: store.append(table, user, rows), READ_USERS, 1)
    # A new store: it has seen none of the files.
    with opened_store(folder / "read", SystemClock()) as store:
        ours = p50_of(lambda user: len(store.read(table, user, last=BATCH_ROWS).rows))
    (folder / "sqlite").mkdir()
    sqlite = Sqlite(folder / "sqlite")
    sqlite.db.execute("PRAGMA synchronous=OFF")
    seconds_of(lambda user: sqlite.append(user, 0), READ_USERS, 1)
    peer = p50_of(sqlite.last)
    sqlite.db.close()
    name = "last 100 rows of one of 10,000 users, 1 M rows, p50"
    found = [_time_row(f"{name}; peer: SQLite", ours, peer, "≤ 2 ms")]
    if shutil.which("redis-server") is not None:
        with redis_server(folder / "sqlite", "everysec") as port:
            redis = Redis(port)
            seconds_of(redis.append, READ_USERS, 1)
            found.append(_time_row(f"{name}; peer: Redis XREVRANGE", ours, p50_of(redis.last), "≤ 2 ms"))
            redis.close()
    return found


def _time_row(name: str, ours: float, peer: float, target: str) -> Row:
    return Row(name, milliseconds(ours), milliseconds(peer), times(peer, ours), target)


def evict_rows(folder: Path) -> list[Row]:
    """Measure the eviction of 1,000 windows, with few rows and with ten times as many, and the sweep."""
    few, _, _ = _evicted(folder / "few", 10)
    many, idle, swept = _evicted(folder / "many", 100)
    (folder / "deleted").mkdir()
    sqlite = Sqlite(folder / "deleted")
    sqlite.db.execute("PRAGMA synchronous=OFF")
    for window in range(WINDOWS):
        sqlite.append(f"user{window % WINDOW_FILES}", window, 10 * WINDOW_FILES)
    sqlite.db.execute("PRAGMA synchronous=FULL")
    began = perf_counter()
    sqlite.db.execute("DELETE FROM rows WHERE time < ?", (WINDOWS,))
    peer = perf_counter() - began
    sqlite.db.close()
    name = "1,000 windows of 10 files out of sight"
    return [
        _time_row(f"{name}, 100,000 rows; peer: SQLite DELETE", few, peer, "≤ 100 ms"),
        _time_row(f"{name}, 1,000,000 rows; peer: ours, 100,000 rows", many, few, "≤ 100 ms"),
        _time_row("append of 100 rows while 10,000 files are unlinked, p99; peer: before", swept, idle, "–"),
    ]


def _evicted(folder: Path, rows_each: int) -> tuple[float, float, float]:
    """Fill and evict; give the seconds of that, and the p99 of appends before and during the sweep."""
    clock, table = ManualClock(), make_table(1, ttl_seconds=60)
    rows = [(place, TEXT) for place in range(rows_each)]
    with opened_store(folder, clock) as store:
        for _ in range(WINDOWS):
            for user in range(WINDOW_FILES):
                store.append(table, f"user{user}", rows)
            clock.advance(60)
        store.flush()
        clock.advance(60)
        began = perf_counter()
        evicted = store.evict(table)
        seconds = perf_counter() - began
        assert evicted.windows == WINDOWS, evicted
        idle = _p99_while(store, table, None)
        sweeper = threading.Thread(target=store.sweep)
        sweeper.start()
        swept = _p99_while(store, table, sweeper)
        sweeper.join()
    return seconds, idle, swept


def _p99_while(store: StreamStore, table: Table, thread: threading.Thread | None) -> float:
    rows = [(place, TEXT) for place in range(BATCH_ROWS)]
    taken: list[float] = []
    while len(taken) < 2_000 if thread is None else thread.is_alive():
        began = perf_counter()
        store.append(table, f"user{len(taken) % USERS}", rows)
        taken.append(perf_counter() - began)
    return statistics.quantiles(taken, n=100)[98] if len(taken) > 100 else max(taken, default=0.0)


def run() -> list[Row]:
    """Measure everything and give the rows."""
    found: list[Row] = []
    for measure in (append_rows, read_rows, evict_rows):
        with tempfile.TemporaryDirectory(dir=".") as name:
            found += measure(Path(name).resolve())
    return found


if __name__ == "__main__":
    print_rows(run())
