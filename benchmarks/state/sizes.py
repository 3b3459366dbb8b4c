"""What must not grow with the state: a commit, a small batch, a restart; and what moves it: rescaling.

A commit is measured as what a batch takes beyond the same batch without state; the peer is Spark's own
aggregate, on the same rows, with as many keys. A restart finds no Python worker of before; a cold one finds
no local copy either, and no file in the cache.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.state import peers
from benchmarks.state.stream import Query, Sizes, Stream, drop_file_cache
from benchmarks.table import Row, milliseconds, times
from benchmarks.workers import kill_workers

COMMIT_BATCHES = 8
STEADY_AFTER_BATCHES = 2


def commits(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:
    """Measure a batch that touches so many keys, at every size of state."""
    from benchmarks.state.ours import Count, ours

    rows = []
    for keys in sizes.state_sizes:
        floor = _steady(spark, folder, sizes, peers.through, keys)
        mine = _steady(spark, folder, sizes, ours(Count()), keys) - floor
        peer = _steady(spark, folder, sizes, peers.jvm_count, keys) - floor
        name = f"commit of {sizes.commit_keys:,} keys of {keys:,}, above a batch without state"
        name += "; peer: Spark's JVM aggregate"
        rows.append(Row(name, milliseconds(mine), milliseconds(peer), times(peer, mine), "≤ 300 ms"))
    return rows


def small(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:
    """Measure batches of a few rows beside Spark's own floor."""
    from benchmarks.state.ours import Count, CountRows, ours

    queries: dict[str, Query] = {
        "vectorised": ours(Count()),
        "row form": ours(CountRows()),
        "Spark's JVM aggregate, for comparison": peers.jvm_count,
    }
    floor = _small(spark, folder, sizes, peers.through)
    rows = []
    for form, query in queries.items():
        took = _small(spark, folder, sizes, query)
        name = f"batch of {sizes.small_rows} rows, p50, {form} ({milliseconds(took - floor)} more)"
        name += "; floor: the same without state"
        target = "–" if query is peers.jvm_count else "≤ 100 ms more"
        rows.append(Row(name, milliseconds(took), milliseconds(floor), times(took, floor), target))
    return rows


def recovery(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:
    """Measure the first batch after a restart, with the local copy and without.

    The workers are killed each time: those that live on keep their copies open from one query to the next.
    """
    from benchmarks.state.ours import Keep, ours

    here, elsewhere = (tempfile.mkdtemp(dir=folder) for _ in range(2))
    keys = sizes.recovery_bytes // sizes.value_bytes
    stream = Stream(spark, folder / "recovery", ours(Keep(sizes.value_bytes), local_dir=here))
    stream.load(keys, sizes.load_rows)
    kill_workers(spark)
    warm = _restarted(stream, keys)
    kill_workers(spark)
    drop_file_cache(stream.checkpoint)
    cold = _restarted(stream, keys, ours(Keep(sizes.value_bytes), local_dir=elsewhere))
    stream.forget()
    peer = _peer_recovery(spark, folder, sizes, keys)
    size = f"{sizes.recovery_bytes / 1e6:,.0f} MB"
    return [
        Row(
            f"first batch after a restart, {size} of state, cold; peer: Spark's JVM aggregate",
            f"{cold:.2f} s",
            f"{peer:.2f} s",
            times(peer, cold),
            "≤ 30 s",
        ),
        Row("the same, warm; peer: cold", f"{warm:.2f} s", f"{cold:.2f} s", times(cold, warm), "≤ 2 s"),
    ]


def rescale(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:
    """Measure the first batch with twice the partitions, all of it."""
    from benchmarks.state.ours import Count, ours

    stream = Stream(spark, folder / "rescale", ours(Count(), partitions=2))
    stream.load(sizes.large_keys, sizes.load_rows)
    stream.add_drawn(sizes.large_keys, sizes.small_rows, 1)
    moved = stream.run(ours(Count(), partitions=4))[0]
    stream.forget()
    peer, said = _peer_rescale(spark, folder, sizes)
    name = f"rescale 2 → 4, {sizes.large_keys:,} keys; peer: Spark's repartition of its aggregate"
    return [Row(name, f"{moved:.2f} s", said, times(peer, moved) if peer else "–", "≤ 60 s")]


def _steady(spark: Any, folder: Path, sizes: Sizes, query: Query, keys: int) -> float:
    stream = Stream(spark, folder / "commit", query)
    try:
        stream.load(keys, sizes.load_rows)
        for seed in range(COMMIT_BATCHES + STEADY_AFTER_BATCHES):
            chosen = np.random.default_rng(seed).choice(keys, min(sizes.commit_keys, keys), replace=False)
            stream.add(chosen)
        return statistics.median(stream.run()[STEADY_AFTER_BATCHES:])
    finally:
        stream.forget()


def _small(spark: Any, folder: Path, sizes: Sizes, query: Query) -> float:
    stream = Stream(spark, folder / "small", query)
    try:
        stream.add_drawn(sizes.keys, sizes.small_rows, sizes.small_batches + STEADY_AFTER_BATCHES)
        return statistics.median(stream.run()[STEADY_AFTER_BATCHES:])
    finally:
        stream.forget()


def _restarted(stream: Stream, keys: int, query: Query | None = None) -> float:
    """Return what the first batch after a restart takes, all of it."""
    stream.add_drawn(keys, 100, 1)
    return stream.run(query)[0]


def _peer_recovery(spark: Any, folder: Path, sizes: Sizes, keys: int) -> float:
    """Restart Spark's aggregate over values of the same size; a new run of a query fetches its state anew."""
    width = sizes.value_bytes

    def query(rows: Any, checkpoint: str) -> Any:
        from pyspark.sql import functions as f

        # Several digests, so that the value neither compresses nor is the same for two keys.
        parts = [f.unhex(f.sha2((f.col("k") * 31 + n).cast("string"), 256)) for n in range(-(-width // 32))]
        value = f.substring(f.concat(*parts), 1, width)
        return peers.through(rows, checkpoint).groupBy("k").agg(f.max(value))

    stream = Stream(spark, folder / "peer", query)
    try:
        stream.load(keys, sizes.load_rows)
        drop_file_cache(stream.checkpoint)
        return _restarted(stream, keys)
    finally:
        stream.forget()


def _peer_rescale(spark: Any, folder: Path, sizes: Sizes) -> tuple[float, str]:
    """Repartition the checkpoint of Spark's aggregate, where this Spark can."""
    checkpoints = getattr(spark, "_streamingCheckpointManager", None)
    if checkpoints is None:
        return 0.0, "this Spark cannot (4.3 can)"
    stream = Stream(spark, folder / "peer", peers.jvm_count)
    try:
        stream.load(sizes.large_keys, sizes.load_rows)
        began = perf_counter()
        checkpoints.repartition(str(stream.checkpoint), 4, enforce_exactly_once_sink=False)
        took = perf_counter() - began
        return took, f"{took:.2f} s"
    finally:
        stream.forget()
