"""Rows a second: new keys while the state grows, at many keys beside few, with duplicates out of order.

The peer is Spark's `dropDuplicatesWithinWatermark` on the same rows in the same session. CPU is that of all
processes: this one, the JVM, the Python workers.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.dedup.rows import DedupStream, Sizes, ours, size_bytes, sparks, totals
from benchmarks.state.stream import Query
from benchmarks.table import Row, per_second, times
from benchmarks.workers import CpuMeter, kill_workers

PEER = "Spark's dropDuplicatesWithinWatermark, RocksDB"
LAST_BATCHES = 3  # so many of the end stand for "at that many keys"
KAFKA_CPU_SECONDS = (
    62.0  # a million rows, of Kafka Streams with exactly once; measured apart on such a machine
)


def rate(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:
    """Measure batches of new keys while the state grows."""
    _warm_up(spark, folder, sizes)
    mine, mine_cpu = _growing(spark, folder, sizes, ours())
    peer, peer_cpu = _growing(spark, folder, sizes, sparks)
    ours_rate, peer_rate = (_rate(sizes, took[sizes.warm_batches :]) for took in (mine, peer))
    ours_last, peer_last = (_rate(sizes, took[-LAST_BATCHES:]) for took in (mine, peer))
    name = f"{sizes.batch_rows:,} new keys a batch, ids of 36 letters, up to {sizes.keys:,} keys"
    return [
        Row(
            f"{name}; peer: {PEER}",
            _text(ours_rate),
            _text(peer_rate),
            times(ours_rate, peer_rate),
            "≥ 350 k/s",
        ),
        Row(
            f"the same, last {LAST_BATCHES} batches, at {sizes.keys:,} keys",
            _text(ours_last),
            _text(peer_last),
            times(ours_last, peer_last),
            "≥ 3 ×",
        ),
        Row(
            "the same, CPU seconds for a million rows, whole run",
            f"{mine_cpu:.2f} s",
            f"{peer_cpu:.2f} s",
            times(peer_cpu, mine_cpu),
            "≤ 6.2 s",
        ),
        Row(
            "the same; peer: Kafka Streams, exactly once, measured apart",
            f"{mine_cpu:.2f} s",
            f"{KAFKA_CPU_SECONDS:.0f} s",
            times(KAFKA_CPU_SECONDS, mine_cpu),
            "≥ 10 ×",
        ),
    ]


def flat(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:
    """Measure the rate at few stored keys and at many, on one store that grows."""
    _warm_up(spark, folder, sizes)
    stream = DedupStream(spark, folder / "flat", ours(), sizes.large_keys)
    try:
        stream.grow(sizes.few_keys, sizes.batch_rows)
        few = _steady(stream, sizes)
        stream.grow(sizes.large_keys, sizes.load_rows)
        many = _steady(stream, sizes)
    finally:
        stream.forget()
    name = f"new keys at {sizes.large_keys:,} stored; peer: ours at {sizes.few_keys:,}"
    return [Row(name, _text(many), _text(few), times(many, few), "≥ 0.85 ×")]


def mixed(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:
    """Measure batches with duplicates, near and far, out of order by up to an hour."""
    _warm_up(spark, folder, sizes)
    rates = {}
    for side, query in {"ours": ours(), "peer": sparks}.items():
        keys = sizes.batch_rows * sizes.mixed_batches
        stream = DedupStream(spark, folder / "mixed", query, keys)
        try:
            again = sum(
                stream.add_mixed(sizes.batch_rows, sizes.duplicate_percent)
                for _ in range(sizes.mixed_batches)
            )
            took = stream.run()
            _say(side, sizes, took)
            rates[side] = _rate(sizes, took[sizes.warm_batches :])
            if side == "ours":
                _check(stream, again)
        finally:
            stream.forget()
    name = f"{sizes.duplicate_percent} % duplicates, out of order by up to an hour; peer: {PEER}"
    mine, peer = rates["ours"], rates["peer"]
    return [Row(name, _text(mine), _text(peer), times(mine, peer), "≥ 250 k/s")]


def size(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:
    """Measure what a key takes: in the live store, in filters, in the checkpoint; and how filters answer."""
    from benchmarks.dedup.copies import Copies

    local = Path(tempfile.mkdtemp(dir=folder))
    stream = DedupStream(spark, folder / "size", ours(local_dir=str(local)), sizes.keys)
    try:
        stream.grow(sizes.keys, sizes.batch_rows)
        counted = totals(stream.checkpoint)
        kill_workers(spark)
        # What was in memory is written out by a copy that is closed well.
        with Copies(stream.checkpoint, local) as copies:
            filters = sum(facts.filter_bytes for facts in copies.segments())
            keys = sum(facts.keys for facts in copies.segments())
        live = size_bytes(local)
        kept = size_bytes(stream.checkpoint)
    finally:
        stream.forget()
    assert keys == stream.given, f"{keys} of {stream.given} keys are stored"
    false = 100 * counted.get("filter_false", 0) / max(counted.get("filter_probes", 0), 1)
    return [
        Row(
            f"bytes a key, live store with filters, {keys:,} keys; peer: Kafka Streams, measured apart",
            f"{live / keys:.1f} B",
            "63 B",
            times(63, live / keys),
            "≤ 36 B",
        ),
        Row(
            "bytes a key, checkpoint; peer: Kafka Streams' changelog",
            f"{kept / keys:.1f} B",
            "65 B",
            times(65, kept / keys),
            "stated",
        ),
        Row("bytes a key, filters in memory", f"{filters / keys:.2f} B", "–", "–", "≤ 2.5 B"),
        Row(
            f"filters that say maybe to a new key ({counted.get('filter_probes', 0):,} asked)",
            f"{false:.2f} %",
            "–",
            "–",
            "≤ 1.5 %",
        ),
    ]


def _growing(spark: Any, folder: Path, sizes: Sizes, query: Query) -> tuple[list[float], float]:
    """Return the seconds of each batch, and the CPU seconds of a million rows."""
    stream = DedupStream(spark, folder / "rate", query, sizes.keys)
    try:
        while stream.given < sizes.keys:
            stream.add_new(sizes.batch_rows)
        meter = CpuMeter(spark)
        took = stream.run()
        cpu_seconds = meter.seconds() / stream.given * 1e6
        _say("peer" if query is sparks else "ours", sizes, took)
        if query is not sparks:
            _check(stream, 0)
        return took, cpu_seconds
    finally:
        stream.forget()


def _steady(stream: DedupStream, sizes: Sizes) -> float:
    for _ in range(sizes.settle_batches + sizes.steady_batches):
        stream.add_new(sizes.batch_rows)
    took = stream.run()[sizes.settle_batches :]
    _say(f"at {stream.given:,}", sizes, took)
    stream.forget_rows()
    return _rate(sizes, took)


def _warm_up(spark: Any, folder: Path, sizes: Sizes) -> None:
    """Run both once for nothing: the first queries of a session are slow whatever they do."""
    for query in (ours(), sparks):
        stream = DedupStream(spark, folder / "warm", query, sizes.keys)
        try:
            for _ in range(2):
                stream.add_new(sizes.batch_rows)
            stream.run()
        finally:
            stream.forget()


def _check(stream: DedupStream, again: int) -> None:
    """See that every new key was let through and every other one was not."""
    found = totals(stream.checkpoint)
    seen = (found.get("unique", 0), found.get("duplicate", 0), found.get("late", 0))
    assert seen == (stream.given, again, 0), f"{seen} instead of {(stream.given, again, 0)}"


def _rate(sizes: Sizes, took: list[float]) -> float:
    return sizes.batch_rows / statistics.fmean(took)


def _text(rows_a_second: float) -> str:
    return per_second(rows_a_second, 1)


def _say(side: str, sizes: Sizes, took: list[float]) -> None:
    rates = ", ".join(f"{sizes.batch_rows / seconds / 1e3:.0f}" for seconds in took)
    print(f"  {side}: thousand rows a second, batch by batch: {rates}", flush=True)
