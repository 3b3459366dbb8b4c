"""What all measurements of state share: sizes, the rows, a stream that grows file by file, and its timing.

The rows of a batch are drawn from a seed and written as Parquet, one file for each core, so that Spark reads
them at full speed and every side gets the same ones. A query takes one batch of files at a time, into Spark's
`noop` sink, which takes every row and keeps none. A batch takes what Spark says that it took: from planning
to its own commit.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.pipeline.worker.spark_session import SessionSettings, build_session, end_session

ROOT = str(Path(__file__).resolve().parents[2])
CORES = 2
PARTITIONS = 2
SCHEMA = "k bigint, ts bigint"
# RocksDB and change files are Spark's own best setting for large state; the defaults are neither.
SPARK_STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    # Every batch of a run is counted.
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
}
# File times are set by hand, a second apart, so that Spark takes the files in the order of the batches.
FIRST_FILE_SECONDS = 1_700_000_000
POLL_SECONDS = 0.2

Query = Callable[[Any, str], Any]  # rows and a checkpoint to a DataFrame


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large everything is; the defaults are those of the promises."""

    keys: int = 100_000
    large_keys: int = 10_000_000
    batch_rows: int = 200_000
    load_rows: int = 1_000_000
    warm_batches: int = 3
    batches: int = 10
    settle_batches: int = 10  # after many keys were loaded: what the loading left to merge is merged
    large_batches: int = 20  # two rounds of snapshots
    turns: int = 3  # of queries that are measured side by side
    slow_batches: int = 2  # of peers that take half a minute for one
    flink_rows: int = 200_000
    state_sizes: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    commit_keys: int = 10_000
    small_rows: int = 100
    small_batches: int = 30
    recovery_bytes: int = 1_000_000_000
    value_bytes: int = 100
    session_users: int = 10_000
    session_peer_rows: int = 4_000  # of a peer that takes milliseconds for one
    memory_minutes: float = 10.0
    memory_mb: int = 256


QUICK = Sizes(
    keys=10_000,
    large_keys=100_000,
    batch_rows=20_000,
    load_rows=50_000,
    warm_batches=1,
    batches=3,
    settle_batches=1,
    large_batches=3,
    turns=1,
    slow_batches=1,
    flink_rows=2_000,
    state_sizes=(10_000, 100_000),
    commit_keys=1_000,
    small_batches=5,
    recovery_bytes=10_000_000,
    session_users=1_000,
    session_peer_rows=300,
    memory_minutes=0.25,
)


@contextmanager
def session(scratch: Path, **extra: str) -> Iterator[Any]:
    """Return a Spark session whose own state is in RocksDB; its workers find this package."""
    # Local copies go with the rest when the run is over.
    os.environ["TIDEGATE_STATE_DIR"] = str(scratch.parent / "copies")
    settings = SessionSettings(
        master=f"local[{CORES},4]",
        driver_memory_mb=4096,
        shuffle_partitions=PARTITIONS,
        scratch=scratch,
        environ={"PYTHONPATH": os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))},
        extra=SPARK_STATE | extra,
    )
    spark = build_session(settings)
    # transformWithState warns of every key that it sees for the first time, which would slow it down.
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        end_session(spark)


def drawn(keys: int, rows: int, seed: int, *, skewed: bool = False) -> np.ndarray[Any, Any]:
    """Draw the keys of a batch: all are equally likely, or by Zipf's law, the n-th one n times less often."""
    draw = np.random.default_rng(seed)
    if skewed:
        return np.minimum(keys ** draw.random(rows), keys).astype(np.int64) - 1
    return draw.integers(0, keys, rows)


class Stream:
    """A folder of rows, and a query over them that is started again and again on one checkpoint."""

    def __init__(
        self, spark: Any, folder: Path, query: Query, *, schema: str = SCHEMA, endless: bool = False
    ) -> None:
        self.folder, self.checkpoint = folder, folder / "checkpoint"
        self._spark, self._query, self._schema = spark, query, schema
        self._rows = folder / "rows"
        self._rows.mkdir(parents=True)
        self._batches, self._done, self._endless = 0, 0, endless

    def add(self, keys: np.ndarray[Any, Any]) -> None:
        """Add one batch of rows with these keys."""
        stamps = np.arange(len(keys), dtype=np.int64) + self._batches * 1_000_000
        self.add_table(pa.table({"k": keys.astype(np.int64), "ts": stamps}))

    def add_table(self, table: pa.Table) -> None:
        """Add one batch of rows, as one file for each core."""
        share = -(-table.num_rows // CORES)
        for core in range(CORES):
            path = self._rows / f"b{self._batches:06d}-{core}.parquet"
            # Spark lists the folder while it is written: a dot hides a file that is not whole.
            hidden = path.with_name("." + path.name)
            pq.write_table(table.slice(core * share, share), hidden, compression="none")
            second = FIRST_FILE_SECONDS + self._batches
            os.utime(hidden, (second, second))
            hidden.rename(path)
        self._batches += 1

    def add_drawn(self, keys: int, rows: int, batches: int, *, skewed: bool = False) -> None:
        """Add batches of drawn keys."""
        for _ in range(batches):
            self.add(drawn(keys, rows, self._batches, skewed=skewed))

    def load(self, keys: int, batch_rows: int) -> None:
        """Bring every key into the state, in large batches, not timed."""
        mixed = np.random.default_rng(7).permutation(keys)
        for start in range(0, keys, batch_rows):
            self.add(mixed[start : start + batch_rows])
        self.run()

    def run(self, query: Query | None = None) -> list[float]:
        """Run the query until all rows are taken; give the seconds of each batch that had rows."""
        raw = self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", CORES)
        rows = (query or self._query)(raw.parquet(str(self._rows)), str(self.checkpoint))
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(self.checkpoint))
        running = writer.outputMode("update").trigger(availableNow=True).start()
        wanted, self._done = self._batches - self._done, self._batches
        while not running.awaitTermination(POLL_SECONDS):
            # With timers in processing time, transformWithState runs batches without rows for ever.
            if self._endless and len(_with_rows(running)) >= wanted:
                running.stop()
        took = _with_rows(running)
        return [progress["durationMs"]["triggerExecution"] / 1e3 for progress in took]

    def forget(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _with_rows(running: Any) -> list[Any]:
    return [progress for progress in running.recentProgress if progress["numInputRows"]]


def counted(seconds: list[float], warm: int) -> float:
    """Return the mean seconds of a batch, those for warming up left out."""
    rest = seconds[warm:]
    assert rest, f"{len(seconds)} batches and {warm} of them to warm up"
    return statistics.fmean(rest)


def drop_file_cache(folder: Path) -> None:
    """Let the next read of every file below a folder come from the disk."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
