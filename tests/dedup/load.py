"""Twice the load that the store is meant for, for as long as one likes.

    python -m tests.dedup.load --minutes 10 --rate 2000

A publisher sends messages to a real topic at an even rate, out of order, one in ten of them a duplicate of a
message just before or of any message so far. Spark reads the topic, `tide.deduplicate` drops the duplicates,
and a Delta table takes the rest. Every few seconds a line says how far behind the query is and what it takes:
memory of the Python workers, files, bytes. At the end every id must stand in the table exactly once.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from deltalake import DeltaTable

from tests.paths import ROOT
from tidegate.checkpoint import epochs
from tidegate.checkpoint.commit_record import committed_batches, read_commit_record
from tidegate.checkpoint.store import operator_store
from tidegate.pipeline.topic.client import ServerClient, ServerLocation
from tidegate.pipeline.worker.spark_session import SessionSettings, build_session, end_session, jvm_of
from tidegate.testing.server import RunningServer, running_server

TOPIC = "load.orders"
NAME = "orders"
RETENTION = "100 days"
TRIGGER = "1 second"
REQUESTS_A_SECOND = 10
DUPLICATES_OF_100 = 10
# Half of the duplicates repeat one of so many messages before, the others any message so far.
NEAR_MESSAGES = 500
LATE_SECONDS_MAX = 60
SAY_SECONDS = 10.0
DRAIN_SECONDS_MAX = 300.0
US = 1_000_000


@dataclass
class Sent:
    """What the publisher has sent; the ids are in the order in which they first came."""

    messages: int = 0
    ids: list[str] = field(default_factory=list)
    behind_seconds_max: float = 0.0

    @property
    def duplicates(self) -> int:
        """Return how many messages must not come through."""
        return self.messages - len(self.ids)


class Publisher(threading.Thread):
    """Sends messages at an even rate until it is told to stop; `problem` is what ended it early."""

    def __init__(self, server: RunningServer, rate: int, seed: int) -> None:
        super().__init__(name="publisher")
        self._wire = ServerClient(ServerLocation(server.url, server.token))
        self._rate, self._draw = rate, random.Random(seed)
        self.over = threading.Event()
        self.sent = Sent()
        self.problem: Exception | None = None

    def run(self) -> None:
        """Send a request every tenth of a second; a late one is made up for by the next."""
        began = time.monotonic()
        try:
            for number in range(1, sys.maxsize):
                due = began + number / REQUESTS_A_SECOND
                if self.over.wait(max(0.0, due - time.monotonic())):
                    return
                self._send(number * self._rate // REQUESTS_A_SECOND - self.sent.messages)
                behind = time.monotonic() - due
                self.sent.behind_seconds_max = max(self.sent.behind_seconds_max, behind)
        except Exception as problem:  # noqa: BLE001 - told by the main thread
            self.problem = problem

    def _send(self, count: int) -> None:
        now_us = time.time_ns() // 1000
        messages: list[dict[str, Any]] = []
        for _ in range(count):
            at_us = now_us - self._draw.randrange(LATE_SECONDS_MAX * US)
            messages.append({"payload": {"id": self._next_id(), "at": at_us}, "partition": len(messages) % 2})
        self._wire.post_json(f"topics/{TOPIC}/publish", {"messages": messages})
        self.sent.messages += count

    def _next_id(self) -> str:
        ids = self.sent.ids
        if ids and self._draw.randrange(100) < DUPLICATES_OF_100:
            near = ids[-NEAR_MESSAGES:] if self._draw.randrange(2) else ids
            return near[self._draw.randrange(len(near))]
        ids.append(str(uuid.UUID(int=self._draw.getrandbits(128))))
        return ids[-1]


def main() -> int:
    """Load, drain, compare; 1 when the table is not what was sent."""
    parser = argparse.ArgumentParser(description="A steady load with duplicates, checked to the row.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=int, default=2000, help="messages a second")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-load-") as folder:
        found = Path(folder)
        with running_server(found / "home") as server, _session(found) as spark:
            wire = ServerClient(ServerLocation(server.url, server.token))
            wire.post_json("topics", {"name": TOPIC, "partitions": 2})
            publisher = Publisher(server, options.rate, options.seed)
            query = _query(spark, server, found)
            publisher.start()
            try:
                _watch(spark, query, publisher, found, options.minutes * 60)
            finally:
                publisher.over.set()
                publisher.join()
            is_drained = _drain(query, publisher, found)
            query.stop()
        return _verdict(publisher, found, is_drained=is_drained)


def _query(spark: Any, server: RunningServer, folder: Path) -> Any:
    from pyspark.sql import functions as f

    from tidegate import spark as tide

    options = {"topic": TOPIC, "url": server.url, "token": server.token, "startingOffsets": "earliest"}
    raw = spark.readStream.format("tidegate.topic").options(**options).load()
    rows = raw.select(
        f.get_json_object("payload", "$.id").alias("id"),
        f.timestamp_micros(f.get_json_object("payload", "$.at").cast("bigint")).alias("at"),
    )
    checkpoint = str(folder / "checkpoint")
    unique = tide.deduplicate(
        rows,
        name=NAME,
        on="id",
        event_time="at",
        retention=RETENTION,
        checkpoint=checkpoint,
        local_dir=str(folder / "local"),
    )
    writer = unique.writeStream.format("delta").option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime=TRIGGER).start(str(folder / "table"))


@contextmanager
def _session(folder: Path) -> Iterator[Any]:
    environ = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    spark = build_session(SessionSettings(master="local[2,4]", scratch=folder / "spark", environ=environ))
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        end_session(spark)


def _watch(spark: Any, query: Any, publisher: Publisher, folder: Path, seconds: float) -> None:
    """Say every few seconds how things stand, until the time is over or something ends early."""
    began = time.monotonic()
    print("seconds | sent | duplicates | behind | workers MB | batch ms | files: checkpoint, copies, table")
    while time.monotonic() < began + seconds and query.isActive and publisher.is_alive():
        time.sleep(min(SAY_SECONDS, max(0.0, began + seconds - time.monotonic())))
        counts, sent = _counts(folder / "checkpoint"), publisher.sent.messages
        behind, progress = sent - counts.total(), query.lastProgress
        took_ms = progress["durationMs"].get("triggerExecution", 0) if progress else 0
        files = [_file_count(folder / name) for name in ("checkpoint", "local", "table")]
        print(
            f"{time.monotonic() - began:7.0f} | {sent:,} | {counts['duplicate']:,} | {behind:,}"
            f" | {_workers_mb(spark):.0f} | {took_ms} | {', '.join(map(str, files))}",
            flush=True,
        )


def _drain(query: Any, publisher: Publisher, folder: Path) -> bool:
    """Wait until every message that was sent is through and committed; say whether it came to that."""
    if not query.isActive or publisher.problem is not None:
        return False
    began = time.monotonic()
    while _counts(folder / "checkpoint").total() < publisher.sent.messages:
        if time.monotonic() > began + DRAIN_SECONDS_MAX or not query.isActive:
            return False
        time.sleep(0.2)
    query.processAllAvailable()
    print(f"drained in {time.monotonic() - began:.1f} s", flush=True)
    return True


def _verdict(publisher: Publisher, folder: Path, *, is_drained: bool) -> int:
    """Compare the table with what was sent."""
    sent = publisher.sent
    if publisher.problem is not None:
        print(f"the publisher ended early: {publisher.problem}")
        return 1
    if not is_drained:
        print("the query ended early, or did not catch up")
        return 1
    stored = Counter(
        DeltaTable(str(folder / "table")).to_pyarrow_table(columns=["id"]).column("id").to_pylist()
    )
    missing = sum(1 for one in sent.ids if one not in stored)
    twice = sum(1 for count in stored.values() if count > 1)
    counts = _counts(folder / "checkpoint")
    print(
        f"{sent.messages:,} messages, {sent.duplicates:,} duplicates, {len(stored):,} ids in the table; "
        f"{missing} missing, {twice} twice, counted {dict(counts)}; "
        f"the publisher was behind by {sent.behind_seconds_max:.2f} s at most"
    )
    is_counted = (counts["unique"], counts["duplicate"]) == (len(sent.ids), sent.duplicates)
    return 0 if not missing and not twice and len(stored) == len(sent.ids) and is_counted else 1


def _counts(checkpoint: Path) -> Counter[str]:
    """Return what was counted so far, of all partitions; nothing before the first batch is done."""
    checkpoint_store = operator_store(str(checkpoint), NAME)
    known = epochs.list_epochs(checkpoint_store)
    found: Counter[str] = Counter()
    for partition in range(known[-1].parallelism if known else 0):
        batches = committed_batches(checkpoint_store, known[-1].number, partition)
        head = (
            read_commit_record(checkpoint_store, known[-1].number, partition, batches[-1])
            if batches
            else None
        )
        if head is not None:
            found.update({name: head.totals.get(name, 0) for name in ("unique", "duplicate", "late")})
    return found


def _workers_mb(spark: Any) -> float:
    """Return what the Python workers hold together; what they share with each other is left out."""
    held = 0
    for child in psutil.Process(jvm_of(spark).pid).children(recursive=True):
        try:
            held += child.memory_full_info().uss
        except psutil.NoSuchProcess:
            continue
    return held / 1e6


def _file_count(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))


if __name__ == "__main__":
    sys.exit(main())
