"""Where the time of a row goes, without Spark: one thread, one store, one step after the other.

Each step is timed by itself over batches of new keys, or of keys of which every fifth was there, while the
store grows: microseconds a row. `--only micro --micro-batches 100` is what to run under a profiler.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np

from benchmarks.dedup.rows import DAY_US, FIRST_US, HOUR_US, Numbers, Sizes, mixed_bits
from benchmarks.table import Row

RETENTION_US = 100 * DAY_US
GROUPS = 128
STEPS = {
    "keys": "key groups and digests into one column",
    "lookup": "filters and RocksDB's reads",
    "decide": "the decision, beside the lookup",
    "change file": "the change file, synced",
    "apply": "RocksDB's writes and the filters",
}
DECIDE_TARGET = "≤ 0.35 µs"


def micro(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:  # noqa: ARG001 - as all the others
    """Measure every step for new keys and for a mix."""
    rows = []
    for kind, percent in (
        ("new keys", 0),
        (f"{sizes.duplicate_percent} % duplicates", sizes.duplicate_percent),
    ):
        bench = _Bench(Path(tempfile.mkdtemp(dir=folder)), sizes, percent)
        took = bench.run()
        count = sizes.micro_rows * sizes.micro_batches
        for step, meaning in STEPS.items():
            target = DECIDE_TARGET if step == "decide" and not percent else "–"
            rows.append(
                Row(f"a row, {kind}: {meaning}", f"{took[step] / count * 1e6:.3f} µs", "–", "–", target)
            )
        total = sum(took.values()) / count * 1e6
        rows.append(Row(f"a row, {kind}: together", f"{total:.3f} µs", "–", "–", "–"))
    return rows


class _Bench:
    """One store that grows, and the clock of each step."""

    def __init__(self, folder: Path, sizes: Sizes, duplicate_percent: int) -> None:
        from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
        from tidegate.checkpoint.store import CheckpointStore
        from tidegate.dedup.settings import SegmentRule, SegmentSettings
        from tidegate.dedup.store.store import SegmentStore

        self._sizes, self._percent = sizes, duplicate_percent
        self._took: dict[str, float] = defaultdict(float)
        self._rule = SegmentRule.of(RETENTION_US)
        settings = SegmentSettings(
            store="orders", retention_us=RETENTION_US, interval_us=self._rule.interval_us
        )
        self._checkpoint_store = CheckpointStore(folder / "depot")
        rocks = RocksSettings.deduplication()
        self._store = SegmentStore(folder / "copy", settings, rocks, ticks_ns=perf_counter_ns)
        self._given = 0

    def run(self) -> dict[str, float]:
        """Work on all batches; give the seconds of each step."""
        stream_us: int | None = None
        for number in range(self._sizes.micro_batches):
            numbers, times_us = self._drawn(number)
            newest_us = self._batch(number, numbers, times_us, stream_us)
            stream_us = max(newest_us, stream_us or newest_us)
        tallies = self._store.lookup_counters()
        self._store.close()
        false = 100 * tallies.filter_false / max(tallies.filter_probes, 1)
        print(f"  {tallies.filter_probes:,} probes, {tallies.reads:,} reads, {false:.2f} % false", flush=True)
        return self._took

    def _batch(self, number: int, numbers: Numbers, times_us: Numbers, stream_us: int | None) -> int:
        from tidegate.checkpoint.backend import Version
        from tidegate.checkpoint.changelog import ChangelogWriter
        from tidegate.dedup.columns import SegmentKeys
        from tidegate.dedup.decision import BatchColumns, decide

        high, low = mixed_bits(numbers, 1), mixed_bits(numbers, 2)
        with self._timed("keys"):
            keys = np.empty((len(numbers), 18), np.uint8)
            keys[:, :2] = (high % GROUPS).astype(">u2").view(np.uint8).reshape(-1, 2)
            keys[:, 2:10] = high.view(np.uint8).reshape(-1, 8)
            keys[:, 10:] = low.view(np.uint8).reshape(-1, 8)
            rows = BatchColumns(SegmentKeys.of_digests(keys), times_us, None, lambda asked: high[asked])
        self._store.expire(stream_us)
        looking_before = self._took["lookup"]
        with self._timed("decide"):
            decision = decide(rows, _Timed(self), self._rule, stream_us)
        self._took["decide"] -= self._took["lookup"] - looking_before
        with self._timed("change file"):
            writer = ChangelogWriter(self._checkpoint_store.writer(f"e0/0/v{number}.bench.changes"))
            writer.add(decision.changes)
            writer.close()
        with self._timed("apply"):
            self._store.apply(decision.changes, Version(0, number, f"{number:016x}"))
        assert decision.newest_us is not None
        return decision.newest_us

    def _drawn(self, number: int) -> tuple[Numbers, Numbers]:
        draw = np.random.default_rng(number)
        count = self._sizes.micro_rows
        again = count * self._percent // 100
        fresh = np.arange(self._given, self._given + count - again)
        old = draw.integers(0, self._given + 1, again)
        self._given += len(fresh)
        span_us = 90 * DAY_US // self._sizes.micro_batches
        times_us = FIRST_US + number * span_us + draw.integers(0, span_us, count)
        times_us -= draw.integers(0, HOUR_US, count)
        return draw.permutation(np.concatenate([fresh, old])), times_us

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began = perf_counter()
        yield
        self._took[step] += perf_counter() - began


class _Timed:
    """The store, with a clock around its lookup."""

    def __init__(self, bench: _Bench) -> None:
        self._bench = bench

    def lookup(self, keys: Any, from_us: Numbers, to_us: Numbers) -> Any:
        """Look up, and note what it took."""
        with self._bench._timed("lookup"):
            return self._bench._store.lookup(keys, from_us, to_us)
