"""The latency of each path, one caller at a time, beside its floor: what the disk or the trigger costs alone.

publish    one message, synced, over one kept connection; floor: append 4 KB to a file and fsync
wake       from the publish call to the answer of a long poll that waits for it; floor: the publish itself
statement  SELECT 1 over HTTP; floor: /health over HTTP
pipeline   from the publish to the row in SQL, through Spark and Delta; floor: the trigger interval
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from benchmarks.table import Row, milliseconds, print_rows, times
from tidegate.testing.server import RunningServer, running_server

ROUNDS = 300
PIPELINE_ROUNDS = 20
TRIGGER_SECONDS = 1.0
FIRST_ROW_SECONDS_MAX = 120.0

PIPELINE = """
from tidegate import spark as tide


@tide.pipeline(name="latency")
def latency(ctx):
    rows = ctx.spark.readStream.format("tidegate.topic").option("topic", "bench.pipe").load()
    return rows.writeStream.format("delta").option("path", ctx.lake("latency"))
"""


def run() -> list[Row]:
    """Measure every path and give the rows."""
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder) / "home") as server:
        http = _client(server)
        for name in ("bench.one", "bench.pipe"):
            http.post("/api/v1/topics", json={"name": name}).raise_for_status()
        fsync = _timed(lambda: _append_and_sync(Path(folder) / "floor"))
        publish = _timed(lambda: _publish(http, "bench.one"))
        health = _timed(lambda: http.get("/health"))
        statement = _timed(lambda: http.post("/api/v1/sql", json={"sql": "SELECT 1"}))
        wake = _wakes(server, http)
        pipeline = _through_spark(server, http)
    floor = statistics.median(publish)
    return [
        _row("publish one message, synced; floor: append and fsync 4 KB", publish, statistics.median(fsync)),
        _row("publish to a waiting consumer; floor: the publish", wake, floor),
        _row("SELECT 1 over HTTP; floor: /health over HTTP", statement, statistics.median(health)),
        _row(
            f"publish to a row in SQL through Spark; floor: a trigger every {TRIGGER_SECONDS:g} s",
            pipeline,
            TRIGGER_SECONDS / 2,
        ),
    ]


def _row(name: str, taken: list[float], floor: float) -> Row:
    middle = statistics.median(taken)
    if len(taken) < 100:  # too few for a percentile
        late = f"slowest of {len(taken)} {milliseconds(max(taken))}"
    else:
        late = f"p99 {milliseconds(statistics.quantiles(taken, n=100)[98])}"
    shown = f"p50 {milliseconds(middle)}, {late}"
    return Row(name, shown, milliseconds(floor), times(middle, floor), "–")


def _client(server: RunningServer) -> httpx.Client:
    headers = {"Authorization": f"Bearer {server.token}"}
    return httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=30)


def _timed(act: Callable[[], object]) -> list[float]:
    taken = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    return taken


def _append_and_sync(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x" * 4096)
        file.flush()
        os.fsync(file.fileno())


def _publish(http: httpx.Client, topic: str, payload: object = 1) -> None:
    body = {"messages": [{"payload": payload}]}
    http.post(f"/api/v1/topics/{topic}/publish", json=body).raise_for_status()


def _wakes(server: RunningServer, http: httpx.Client) -> list[float]:
    taken = []
    with _client(server) as waiting:
        for _ in range(ROUNDS // 3):
            arrived: list[float] = []

            def wait(into: list[float] = arrived) -> None:
                body = {"from": "latest", "waitMs": 5000}
                waiting.post("/api/v1/topics/bench.one/consume", json=body).raise_for_status()
                into.append(time.perf_counter())

            waiter = threading.Thread(target=wait)
            waiter.start()
            time.sleep(0.02)
            began = time.perf_counter()
            _publish(http, "bench.one")
            waiter.join()
            taken.append(arrived[0] - began)
    return taken


def _through_spark(server: RunningServer, http: httpx.Client) -> list[float]:
    (server.home / "pipelines" / "latency.py").write_text(PIPELINE)
    environ = {**os.environ, "TIDEGATE_WORKER_TRIGGER_INTERVAL_SECONDS": str(TRIGGER_SECONDS)}
    command = [sys.executable, "-m", "tidegate", "worker", "--home", str(server.home)]
    log = server.home.parent / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
    try:
        _publish(http, "bench.pipe", -1)
        _wait_for_row(http, -1, FIRST_ROW_SECONDS_MAX)
        taken = []
        for number in range(PIPELINE_ROUNDS):
            time.sleep(0.37)  # out of step with the trigger
            began = time.perf_counter()
            _publish(http, "bench.pipe", number)
            _wait_for_row(http, number, FIRST_ROW_SECONDS_MAX)
            taken.append(time.perf_counter() - began)
        return taken
    finally:
        worker.terminate()
        worker.wait()


def _wait_for_row(http: httpx.Client, number: int, seconds_max: float) -> None:
    deadline = time.perf_counter() + seconds_max
    body = {"sql": "SELECT count(*) FROM lake.latency WHERE payload = ?", "params": [str(number)]}
    while time.perf_counter() < deadline:
        answer = http.post("/api/v1/sql", json=body)
        if answer.is_success and answer.json()["rows"][0][0]:
            return
        time.sleep(0.005)
    raise RuntimeError(f"message {number} did not arrive")


if __name__ == "__main__":
    print_rows(run())
