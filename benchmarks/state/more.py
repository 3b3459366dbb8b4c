"""The session tracker, the serializers, and the memory of the workers over time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from benchmarks.state import peers
from benchmarks.state.stream import Query, Sizes, Stream, counted
from benchmarks.table import Row, per_second, times
from tidegate.pipeline.worker.spark_session import jvm_of

FEATURES = 20
EVENTS_MS_MAX = 600_000
SESSION_SCHEMA = "user_id bigint, feature string, timestamp bigint"
ROUNDS = 20_000
SAMPLE_SECONDS = 1.0
MIB = 1 << 20


def sessions(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:
    """Measure the session tracker beside the same one in transformWithState."""
    from benchmarks.state.ours import SessionTracker, ours

    tracker = ours(SessionTracker(), key="user_id", event_time="at")
    mine = _session_rate(spark, folder, sizes, _timed(tracker), sizes.batch_rows // 4)
    missing = peers.missing_protobuf()
    name = f"session tracker (value, list, map, timer), {sizes.session_users:,} users"
    name += "; peer: transformWithState, rows"
    if missing:
        return [Row(name, per_second(mine, 1), missing, "–", "≥ 25 k/s")]
    peer = _session_rate(spark, folder, sizes, peers.tws_sessions, sizes.session_peer_rows)
    return [Row(name, per_second(mine, 1), per_second(peer, 1), times(mine, peer), "≥ 25 k/s")]


def _timed(query: Query) -> Query:
    """Return the rows their event time as a timestamp."""

    def timed(rows: Any, checkpoint: str) -> Any:
        from pyspark.sql import functions as f

        return query(rows.withColumn("at", f.timestamp_millis("timestamp")), checkpoint)

    return timed


def _session_rate(spark: Any, folder: Path, sizes: Sizes, query: Query, rows: int) -> float:
    is_peer = query is peers.tws_sessions
    stream = Stream(spark, folder / "sessions", query, schema=SESSION_SCHEMA, endless=is_peer)
    try:
        for seed in range(1 + sizes.slow_batches):
            draw = np.random.default_rng(seed)
            users = draw.integers(0, sizes.session_users, rows)
            features = np.array([f"feature-{n}" for n in range(FEATURES)])[draw.integers(0, FEATURES, rows)]
            stamps = np.sort(draw.integers(0, EVENTS_MS_MAX, rows)) + seed * EVENTS_MS_MAX
            stream.add_table(pa.table({"user_id": users, "feature": features, "timestamp": stamps}))
        return rows / counted(stream.run(), 1)
    finally:
        stream.forget()


def serializers(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:  # noqa: ARG001 - as all the others
    """Measure what a value costs in our bytes and as JSON: there and back, and how long it is."""
    from benchmarks.state.ours import SessionEvent, UserSession
    from tidegate.state.serializers.registry import JsonSerializer, serializer_for

    samples: dict[str, tuple[Any, Any, bool]] = {
        "int": (int, 1_234_567_890_123, False),
        "text of 100 letters": (str, "x" * 100, False),
        "session record": (UserSession, UserSession(1_700_000_000_000, 42, 90_000), True),
        "event record": (SessionEvent, SessionEvent(4711, "feature-7", 1_700_000_000_000), True),
        "list of 100 numbers": (list[int], list(range(100)), False),
    }
    rows = []
    for name, (kind, value, is_record) in samples.items():
        ours = serializer_for(kind)
        mine, mine_bytes = _round_trip(ours.encode, ours.decode, value)
        quick = JsonSerializer(kind)
        peers = {
            "json of the standard library": _as_json(kind, is_record=is_record),
            "JSON by msgspec": (quick.encode, quick.decode),
        }
        for peer, (encode, decode) in peers.items():
            took, size_bytes = _round_trip(encode, decode, value)
            rows.append(
                Row(
                    f"serializer, {name}, there and back; peer: {peer}",
                    f"{mine * 1e6:.2f} µs, {mine_bytes} B",
                    f"{took * 1e6:.2f} µs, {size_bytes} B",
                    times(took, mine),
                    "–",
                )
            )
    return rows


def _as_json(kind: Any, *, is_record: bool) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    def encode(value: Any) -> bytes:
        return json.dumps(asdict(value) if is_record else value).encode()

    def decode(stored: bytes) -> Any:
        return kind(**json.loads(stored)) if is_record else json.loads(stored)

    return encode, decode


def _round_trip(
    encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], value: Any
) -> tuple[float, int]:
    stored = encode(value)
    assert decode(stored) == value
    best = float("inf")
    for _ in range(5):
        began = perf_counter()
        for _ in range(ROUNDS // 5):
            decode(encode(value))
        best = min(best, perf_counter() - began)
    return best / (ROUNDS // 5), len(stored)


def memory(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:
    """Watch the Python workers while they count over many keys, with two bounds for their state."""
    small, large = sizes.memory_mb, 3 * sizes.memory_mb
    first, last = _held(spark, folder / "small", sizes, small, sizes.memory_minutes)
    _, more = _held(spark, folder / "large", sizes, large, sizes.memory_minutes / 3)
    name = f"memory of the Python workers, {sizes.memory_minutes:g} min, {sizes.large_keys:,} keys,"
    name += f" bound {small} MB; last third beside the first third"
    beside = f"the same, bound {large} MB, {sizes.memory_minutes / 3:.2g} min; beside {small} MB"
    return [
        Row(name, f"{last:.0f} MB", f"{first:.0f} MB", times(last, first), "does not grow"),
        Row(beside, f"{more:.0f} MB", f"{last:.0f} MB", f"{more - last:+.0f} MB", f"<= {large - small:+} MB"),
    ]


def _held(spark: Any, folder: Path, sizes: Sizes, bound_mb: int, minutes: float) -> tuple[float, float]:
    """Return what the workers hold at most, in MB, in the first and in the last third of some minutes."""
    from benchmarks.state.ours import Count, ours
    from tidegate.checkpoint.backends.rocksdb_options import RocksSettings

    rocks = RocksSettings.production(memory_bytes_max=bound_mb * MIB, compaction_style="universal")
    stream = Stream(spark, folder, ours(Count(), rocks=rocks))
    stream.load(sizes.large_keys, sizes.load_rows)
    deadline = time.monotonic() + minutes * 60
    with _Watch(spark) as watch:
        while time.monotonic() < deadline:
            stream.add_drawn(sizes.large_keys, sizes.batch_rows, 5)
            stream.run()
    stream.forget()
    return watch.parts()


class _Watch:
    """Samples what all Python workers of a session hold together."""

    def __init__(self, spark: Any) -> None:
        self._jvm = psutil.Process(jvm_of(spark).pid)
        self._samples: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def parts(self) -> tuple[float, float]:
        """Return the most of the first and of the last third, in MB."""
        third = max(1, len(self._samples) // 3)
        return max(self._samples[:third]), max(self._samples[-third:])

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            held = 0
            for child in self._jvm.children(recursive=True):
                try:
                    # What a forked worker shares with its daemon is counted once only by this figure.
                    held += child.memory_full_info().uss
                except psutil.NoSuchProcess:
                    continue
            self._samples.append(held / 1e6)
