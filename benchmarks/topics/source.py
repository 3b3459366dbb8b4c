"""The topic source into Spark beside Spark's own Parquet source: the same rows, the same session, no sink.

Run it with `python -m benchmarks.topics.source`. The messages have payloads of 100 bytes, in one topic of two
partitions, published 1,000 a request. Ours come from `tidegate serve` over loopback HTTP, so the server's
work is in the figure; the peer reads local files that hold the same nine columns. Each figure is the best of
four runs after one that is not counted: the JVM compiles what it runs often.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.table import Row, per_second, print_rows, times
from tidegate.pipeline.topic.client import ServerClient, ServerLocation
from tidegate.pipeline.worker.spark_session import build_session, end_session
from tidegate.testing.server import RunningServer, running_server

MESSAGES = 2_000_000
REQUEST_MESSAGES = 1_000
PAYLOAD_BYTES = 100
RUNS = 5
TOPIC = "bench.source"
TARGET = "≥ 1 M rows/s"


def run() -> list[Row]:
    """Measure both and give the rows."""
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder) / "home") as server:
        _publish(server)
        spark = build_session()
        try:
            return _measure(spark, server, Path(folder))
        finally:
            end_session(spark)


def _measure(spark: Any, server: RunningServer, folder: Path) -> list[Row]:
    options = {"topic": TOPIC, "url": server.url, "token": server.token}
    files = str(folder / "files")
    load = spark.read.format("tidegate.topic").options(**options).load
    load().write.parquet(files)
    schema = spark.read.parquet(files).schema
    narrow = spark.read.format("tidegate.topic").options(**options, columns="offset,payload").load

    def stream_ours() -> Any:
        return spark.readStream.format("tidegate.topic").options(**options).load()

    def stream_files() -> Any:
        return spark.readStream.schema(schema).parquet(files)

    pairs: list[tuple[str, Callable[[], float], Callable[[], float]]] = [
        (
            "source into Spark, 100 B rows, all columns; peer: Parquet files",
            lambda: _batch_seconds(load()),
            lambda: _batch_seconds(spark.read.parquet(files)),
        ),
        (
            "the same as a stream, start to end; peer: Parquet file stream",
            lambda: _stream_seconds(stream_ours(), folder),
            lambda: _stream_seconds(stream_files(), folder),
        ),
        (
            "columns offset and payload; peer: Parquet files",
            lambda: _batch_seconds(narrow()),
            lambda: _batch_seconds(spark.read.parquet(files).select("offset", "payload")),
        ),
    ]
    return [_row(name, _best(ours), _best(peer)) for name, ours, peer in pairs]


def _row(name: str, ours_seconds: float, peer_seconds: float) -> Row:
    ours, peer = per_second(MESSAGES, ours_seconds), per_second(MESSAGES, peer_seconds)
    return Row(name, ours, peer, times(peer_seconds, ours_seconds), TARGET)


def _best(measure: Callable[[], float]) -> float:
    return min([measure() for _ in range(RUNS)][1:])


def _batch_seconds(rows: Any) -> float:
    began = perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return perf_counter() - began


def _stream_seconds(rows: Any, folder: Path) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
        writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        began = perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        took = perf_counter() - began
        counted = sum(progress["numInputRows"] for progress in query.recentProgress)
        assert counted == MESSAGES, f"{counted} rows came of {MESSAGES}"
        return took


def _publish(server: RunningServer) -> None:
    wire = ServerClient(ServerLocation(server.url, server.token))
    wire.post_json("topics", {"name": TOPIC, "partitions": 2})
    # Every payload is another one, so that no side lives on a dictionary.
    draw = random.Random(1)
    letters = PAYLOAD_BYTES - len(json.dumps(""))
    for _ in range(MESSAGES // REQUEST_MESSAGES):
        payloads = [draw.randbytes(letters // 2).hex() for _ in range(REQUEST_MESSAGES)]
        messages = [{"payload": payload, "partition": n % 2} for n, payload in enumerate(payloads)]
        wire.post_json(f"topics/{TOPIC}/publish", {"messages": messages})


if __name__ == "__main__":
    print_rows(run())
