"""Count per key: ours, vectorised and row by row, beside every peer; at many keys beside itself at fewer."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.state import others, peers
from benchmarks.state.stream import Query, Sizes, Stream, counted
from benchmarks.table import Row, per_second, times

Rate = float | str  # rows a second, or why there is no figure
JVM = "Spark's JVM groupBy().count()"
OURS_TARGETS = {"vectorised": "≥ 200 k/s", "row form": "≥ 80 k/s"}


def measure(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:
    """Measure ours in each form, every peer, and give a row for each pair.

    Ours and the quick peer take turns: each is run once for nothing, since the first queries of a session are
    slow whatever they do, then as often as the others, so that a busy moment of the machine meets them all.
    """
    quick = {**forms(), JVM: peers.jvm_count}
    turns = [
        {name: _rate(spark, folder, sizes, query) for name, query in quick.items()}
        for _ in range(1 + sizes.turns)
    ]
    rates = {name: statistics.median(turn[name] for turn in turns[1:]) for name in quick}
    jvm_rate = rates.pop(JVM)
    peer_rates = {JVM: (jvm_rate, "≥ 1 ×"), **_peers(spark, folder, sizes)}
    rows = []
    for form, rate in rates.items():
        for peer, (peer_rate, target) in peer_rates.items():
            name = f"count per key, {sizes.keys:,} keys, {form}; peer: {peer}"
            rows.append(_row(name, rate, peer_rate, target if form == "vectorised" else "–"))
        rows.append(
            _row(f"count per key, {sizes.keys:,} keys, {form}, by itself", rate, "–", OURS_TARGETS[form])
        )
    return rows


def measure_large(spark: Any, folder: Path, sizes: Sizes) -> list[Row]:
    """Measure the rate at many keys beside that at fewer, ours and Spark's aggregate.

    Of so many uniform keys, which is the worst case, a batch has twice as many different ones, each to be
    read and written once. Most streams are nearer to Zipf's law, which is measured beside it.
    """
    rows = []
    settled = replace(
        sizes, warm_batches=sizes.warm_batches + sizes.settle_batches, batches=sizes.large_batches
    )
    queries = {**forms(), "Spark's JVM aggregate, for comparison": peers.jvm_count}
    for name, query in queries.items():
        _rate(spark, folder, sizes, query)  # not counted: the first queries of a session are slow
        target = "–" if query is peers.jvm_count else "≥ 0.7 ×"
        for skewed in (False, True):
            few = _rate(spark, folder, settled, query, skewed=skewed)
            many = _rate(spark, folder, settled, query, loaded_keys=sizes.large_keys, skewed=skewed)
            law = "by Zipf's law" if skewed else "uniform"
            title = f"count per key, {sizes.large_keys:,} keys, {law}, {name}; peer: {sizes.keys:,} keys"
            rows.append(_row(title, many, few, target))
    return rows


def forms() -> dict[str, Query]:
    """Return our two ways to count."""
    from benchmarks.state.ours import Count, CountRows, ours

    return {"vectorised": ours(Count()), "row form": ours(CountRows())}


def _peers(spark: Any, folder: Path, sizes: Sizes) -> dict[str, tuple[Rate, str]]:
    no_protobuf = peers.missing_protobuf()

    def slow(query: Query) -> Rate:
        return _rate(spark, folder, sizes, query, slow=True)

    def needs_protobuf(query: Query) -> Rate:
        return no_protobuf or slow(query)

    asked: dict[str, tuple[Callable[[], Rate], str]] = {
        "transformWithState, rows": (lambda: needs_protobuf(peers.tws_rows), "≥ 25 ×"),
        "transformWithState, pandas": (lambda: needs_protobuf(peers.tws_pandas), "–"),
        "applyInPandasWithState": (lambda: slow(peers.apply_in_pandas), "–"),
        "PyFlink, RocksDB": (lambda: others.flink_rate(sizes), "–"),
        "Bytewax, in memory, no recovery": (lambda: others.bytewax_rate(sizes), "–"),
    }
    found = {}
    for name, (ask, target) in asked.items():
        print(f"  … {name}", flush=True)
        found[name] = (ask(), target)
    return found


def _rate(
    spark: Any,
    folder: Path,
    sizes: Sizes,
    query: Query,
    *,
    slow: bool = False,
    loaded_keys: int = 0,
    skewed: bool = False,
) -> float:
    warm, batches = (1, sizes.slow_batches) if slow else (sizes.warm_batches, sizes.batches)
    stream = Stream(spark, folder / "count", query)
    try:
        if loaded_keys:
            stream.load(loaded_keys, sizes.load_rows)
        stream.add_drawn(loaded_keys or sizes.keys, sizes.batch_rows, warm + batches, skewed=skewed)
        return sizes.batch_rows / counted(stream.run(), warm)
    finally:
        stream.forget()


def _row(name: str, ours: Rate, peer: Rate, target: str) -> Row:
    ratio = times(ours, peer) if isinstance(ours, float) and isinstance(peer, float) else "–"
    return Row(name, _text(ours), _text(peer), ratio, target)


def _text(rate: Rate) -> str:
    return rate if isinstance(rate, str) else per_second(rate, 1)
