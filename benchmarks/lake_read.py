"""A read of 10,000 of 5 M rows of a Delta table, beside the same rows in a table of DuckDB's own.

Run it with `python -m benchmarks.lake_read`. The table has 500 entities with 10,000 rows each (entity,
time, four doubles) in 10 files, sorted by entity and time. One query asks for one entity and a time range.
It goes to the fresh table and to a copy that got 3,000 more commits of 5 rows each, in turns; then to the
copy again, with one more commit before each query. DuckDB's table has no log to follow, no statistics to
look up and no files to open.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, PostCommitHookProperties, write_deltalake

from benchmarks.table import Row, milliseconds, print_rows, times
from tidegate.query.duckdb.engine import LakeQuery
from tidegate.storage.lake.tables import Lake

FILES = 10
ENTITIES = 500
ENTITY_ROWS = 10_000
COMMITS = 3_000
COMMIT_ROWS = 5
CHECKPOINT_COMMITS = 100
QUERIES = 60
WARM_UP_QUERIES = 5
STEP_US = 10_000_000
START_US = 1_767_225_600_000_000  # 2026-01-01
STOP_US = START_US + ENTITY_ROWS * STEP_US
SQL = "SELECT * FROM {table} WHERE entity = ? AND ts >= ? AND ts < ?"
# Hooks look at the whole log after each commit; checkpoints are made by hand instead.
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def sorted_rows(first_entity: int, entities: int) -> pa.Table:
    numbers = np.repeat(np.arange(first_entity, first_entity + entities), ENTITY_ROWS)
    moments = np.tile(START_US + np.arange(ENTITY_ROWS, dtype=np.int64) * STEP_US, entities)
    return rows_of(numbers, moments)


def small_commit(number: int) -> pa.Table:
    """Return a few rows that are newer than all before, as a stream adds them."""
    numbers = (number * 7 + np.arange(COMMIT_ROWS)) % ENTITIES
    return rows_of(numbers, np.full(COMMIT_ROWS, STOP_US + number * 1_000_000, dtype=np.int64))


def rows_of(numbers: Any, moments: Any) -> pa.Table:
    names = pa.array([f"meter-{number:04}" for number in range(ENTITIES)])
    random = np.random.default_rng(int(moments[0] % 2**32) + int(numbers[0]))
    values = {f"v{number}": random.normal(size=len(moments)) for number in range(4)}
    times_us = pa.array(moments, pa.timestamp("us", tz="UTC"))
    return pa.table({"entity": names.take(pa.array(numbers)), "ts": times_us, **values})


class Writer:
    """Appends with delta-rs, opened again at each checkpoint: it slows down with each commit otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = DeltaTable(folder)
        self.count = 0

    def commit(self, rows: pa.Table) -> None:
        write_deltalake(self.table, rows, mode="append", post_commithook_properties=NO_HOOKS)
        self.count += 1
        if self.count % CHECKPOINT_COMMITS == 0:
            self.table.create_checkpoint()
            self.table = DeltaTable(self.folder)


Ask = Callable[[list[Any]], int]


def p50s(*asks: Ask, before: Callable[[int], None] = lambda _: None) -> list[float]:
    """Return the median time of each way to ask, in seconds.

    They take turns, so that noise meets all alike.
    """
    took: list[list[float]] = [[] for _ in asks]
    for number in range(QUERIES + WARM_UP_QUERIES):
        params = [f"meter-{number * 37 % ENTITIES:04}", "2026-01-01T00:00:00Z", "2026-01-02T03:46:40Z"]
        before(number)
        for ask, seconds in zip(asks, took, strict=True):
            began = perf_counter()
            count = ask(params)
            seconds.append(perf_counter() - began)
            assert count == ENTITY_ROWS
    return [statistics.median(seconds[WARM_UP_QUERIES:]) for seconds in took]


def run() -> list[Row]:
    """Measure, and give the rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        native = duckdb.connect(config={"threads": 2})
        native.execute("SET TimeZone = 'UTC'")
        for file in range(FILES):
            part = sorted_rows(file * ENTITIES // FILES, ENTITIES // FILES)
            write_deltalake(root / "fresh", part, mode="append")
            native.register("part", part)
            native.execute("INSERT INTO t FROM part" if file else "CREATE TABLE t AS FROM part")
        shutil.copytree(root / "fresh", root / "busy")
        query, writer = LakeQuery(Lake(root)), Writer(root / "busy")

        def ask(table: str) -> Ask:
            return lambda params: query.run(SQL.format(table=table), params).row_count

        def ask_json(params: list[Any]) -> int:
            return len(query.run(SQL.format(table="lake.fresh"), params).json_rows())

        def peer(params: list[Any]) -> int:
            return int(native.sql(SQL.format(table="t"), params=params).to_arrow_table().num_rows)

        def commit(number: int) -> None:
            rows = small_commit(number)
            writer.commit(rows)
            native.register("part", rows)
            native.execute("INSERT INTO t FROM part")

        for number in range(COMMITS):
            commit(number)
        began = perf_counter()
        Lake(root).view("busy")
        cold = perf_counter() - began
        quiet = p50s(ask("lake.fresh"), ask("lake.busy"), peer, ask_json)
        busy = p50s(ask("lake.busy"), peer, before=lambda number: commit(COMMITS + number))
    return table_rows(quiet, busy, cold)


def table_rows(quiet: list[float], busy: list[float], cold: float) -> list[Row]:
    """Return the rows of the table."""
    fresh, after, peer, as_json = quiet
    target, no_slower = "≤ 50 ms", f"≤ 50 ms, no slower than {milliseconds(fresh)}"
    read = f"{ENTITY_ROWS:,} of {ENTITIES * ENTITY_ROWS // 1_000_000} M rows, p50"

    def row(name: str, ours: float, peer: float, promise: str) -> Row:
        return Row(name, milliseconds(ours), milliseconds(peer), times(ours, peer), promise)

    return [
        row(read, fresh, peer, target),
        row(f"{read}, after {COMMITS:,} commits", after, peer, no_slower),
        row(f"{read}, after {COMMITS:,} commits and one before each", busy[0], busy[1], no_slower),
        Row(f"{read}, as JSON", milliseconds(as_json), "–", "–", "–"),
        Row(f"first look at a table of {COMMITS:,} commits", milliseconds(cold), "–", "–", "–"),
    ]


if __name__ == "__main__":
    print_rows(run())
