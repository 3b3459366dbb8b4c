"""Start times: `import tidegate`, `tidegate --help`, a server that is ready; medians of several runs.

The server is started on a new home, on one with ten million messages in a topic and on one with none in it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import tidegate
from benchmarks.table import Row, print_rows
from tidegate.testing.server import RunningServer, running_server

RUNS = 7
MESSAGES = 10_000_000
REQUEST_MESSAGES = 20_000
PAYLOAD_BYTES = 100
TOPIC = "bench.start"


def run() -> list[Row]:
    """Measure and give the rows; the peer is the interpreter alone, or a library that users know."""
    bare = _median(lambda: _command("-c", "pass"))
    imported = _median(lambda: _command("-c", "import tidegate"))
    pandas = _median(lambda: _command("-c", "import pandas"))
    shown = _median(lambda: _command("-m", "tidegate", "--help"))
    spark = _median(lambda: _command("-c", "import pyspark.sql"))
    ready = _median(_server)
    return [
        _row(
            "import tidegate (less the interpreter); peer: import pandas",
            imported - bare,
            pandas - bare,
            "≤ 0.3 s",
        ),
        _row("tidegate --help; peer: import pyspark.sql", shown, spark, "≤ 0.4 s"),
        Row("server ready", f"{ready:.2f} s", "–", "–", "≤ 3 s"),
        *_with_messages(),
    ]


def _row(name: str, ours: float, peer: float, target: str) -> Row:
    return Row(name, f"{ours:.2f} s", f"{peer:.2f} s", f"{ours / peer:.2f}", target)


def _median(measured: Callable[[], float]) -> float:
    measured()
    return statistics.median(measured() for _ in range(RUNS))


def _command(*arguments: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def _server() -> float:
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        with running_server(Path(folder) / "home"):
            return time.perf_counter() - begun


def _with_messages() -> list[Row]:
    """Start on a home with many messages in a topic and on one with none, after a clean end and a kill."""
    with tempfile.TemporaryDirectory() as folder:
        full, none = Path(folder) / "full", Path(folder) / "none"
        for home, count in ((full, MESSAGES), (none, 0)):
            with running_server(home) as server:
                _fill(server, count)
        clean = [statistics.median(_again(home) for _ in range(RUNS)) for home in (full, none)]
        killed = [statistics.median(_killed(home) for _ in range(RUNS)) for home in (full, none)]
    name = f"server ready with {MESSAGES // 10**6} M messages in a topic"
    return [
        _row(f"{name}; peer: with none", clean[0], clean[1], "≤ 1 s more"),
        _row(f"{name}, after kill -9 while publishing; peer: with none", killed[0], killed[1], "≤ 1 s more"),
    ]


def _fill(server: RunningServer, count: int) -> None:
    with tidegate.connect(server.url, token=server.token) as client:
        topic = client.topics.create(TOPIC, partitions=2)
        payload = f'"{"x" * (PAYLOAD_BYTES - 2)}"'
        table = pa.table(
            {
                "payload": pa.array([payload] * REQUEST_MESSAGES),
                "partition": pa.array(
                    [n * 2 // REQUEST_MESSAGES for n in range(REQUEST_MESSAGES)], pa.int32()
                ),
            }
        )
        for _ in range(count // REQUEST_MESSAGES):
            topic.publish_arrow(table)


def _again(home: Path) -> float:
    begun = time.perf_counter()
    with running_server(home):
        return time.perf_counter() - begun


def _killed(home: Path) -> float:
    """Publish some, kill the server, and start it again."""
    with running_server(home) as server:
        with tidegate.connect(server.url, token=server.token) as client:
            for number in range(100):
                client.topic(TOPIC).publish([{"payload": number}])
        server.kill()
    return _again(home)


if __name__ == "__main__":
    print_rows(run())
