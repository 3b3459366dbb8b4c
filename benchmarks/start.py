"""Start times: `import tidegate`, `tidegate --help` and a server that is ready; medians of several runs."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.table import Row, print_rows
from tidegate.testing.server import running_server

RUNS = 7


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


if __name__ == "__main__":
    print_rows(run())
