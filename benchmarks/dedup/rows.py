"""What all measurements of deduplication share: sizes, the rows, and the two queries.

Ids are 36 letters, as a UUID has them, made of a running number by a mixing function: a duplicate is the
number of an earlier row once more. Event times go on evenly, so that the last key of a run comes ninety days
after the first, and a run has as many live segments as a store has that runs for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.state.stream import PARTITIONS, Query, Stream

SCHEMA = "id string, ts timestamp"
NAME = "orders"
RETENTION = "100 days"
ID_LETTERS = 36
DASHES = (8, 13, 18, 23)
DAY_US = 86_400_000_000
HOUR_US = 3_600_000_000
FIRST_US = 1_735_689_600_000_000  # 2025-01-01
SPAN_US = 90 * DAY_US

Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large everything is; the defaults are those of the promises."""

    batch_rows: int = 500_000
    keys: int = 8_000_000
    warm_batches: int = 2
    few_keys: int = 1_000_000
    large_keys: int = 50_000_000
    load_rows: int = 2_000_000
    settle_batches: int = 10  # before them: what the loading left to merge is merged
    steady_batches: int = 15  # measured at each size
    mixed_batches: int = 12
    duplicate_percent: int = 20
    restart_keys: int = 10_000_000
    restart_rows: int = 1_000  # of the batch that is waited for
    micro_rows: int = 250_000
    micro_batches: int = 12


QUICK = Sizes(
    batch_rows=20_000,
    keys=100_000,
    warm_batches=1,
    few_keys=20_000,
    large_keys=100_000,
    load_rows=50_000,
    settle_batches=1,
    steady_batches=2,
    mixed_batches=3,
    restart_keys=100_000,
    restart_rows=100,
    micro_rows=20_000,
    micro_batches=3,
)


def ours(**options: Any) -> Query:
    """Return a query that runs our operator."""

    def query(rows: Any, checkpoint: str) -> Any:
        from tidegate import spark as tide

        return tide.deduplicate(
            rows,
            name=NAME,
            on="id",
            event_time="ts",
            retention=RETENTION,
            checkpoint=checkpoint,
            **({"partitions": PARTITIONS} | options),
        )

    return query


def sparks(rows: Any, checkpoint: str) -> Any:  # noqa: ARG001 - all queries take the same
    """Run Spark's own operator; its state lies in RocksDB with change files."""
    return rows.withWatermark("ts", RETENTION).dropDuplicatesWithinWatermark(["id"])


def ids(numbers: Numbers) -> pa.Array:
    """Return the id of each number: the same every time, and spread over all bits."""
    halves = np.stack([mixed_bits(numbers, 1), mixed_bits(numbers, 2)], axis=1)
    pairs = _HEX[halves.view(np.uint8).reshape(len(numbers), 16)]
    letters = pairs.view(np.uint8).reshape(len(numbers), 32)
    text = np.full((len(numbers), ID_LETTERS), ord("-"), np.uint8)
    text[:, [at for at in range(ID_LETTERS) if at not in DASHES]] = letters
    ends = np.arange(len(numbers) + 1, dtype=np.int32) * ID_LETTERS
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(ends), pa.py_buffer(text))


def mixed_bits(numbers: Numbers, salt: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Mix the bits of numbers (the finish of SplitMix64): other numbers give other bits."""
    mixed = numbers.astype(np.uint64) * np.uint64(2) + np.uint64(salt)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)


class DedupStream(Stream):
    """A stream of ids with times; keeps count of the numbers that it gave, and of how many rows are new."""

    def __init__(self, spark: Any, folder: Path, query: Query, keys: int) -> None:
        super().__init__(spark, folder, query, schema=SCHEMA)
        self._step_us = SPAN_US / max(keys, 1)
        self.given = 0

    def add_new(self, rows: int) -> None:
        """Add a batch of keys that were never there."""
        numbers = np.arange(self.given, self.given + rows)
        self.given += rows
        self._add(numbers, self._times_us(numbers))

    def add_mixed(self, rows: int, duplicate_percent: int) -> int:
        """Add a batch of rows out of order by up to an hour, so many of them duplicates; say how many.

        Half of the duplicates repeat a row of this batch, half a row of any batch before.
        """
        draw = np.random.default_rng(self.given)
        again = rows * duplicate_percent // 100
        fresh = np.arange(self.given, self.given + rows - again)
        near = draw.choice(fresh, again - again // 2)
        far = draw.integers(0, max(self.given, 1), again // 2)
        numbers = np.concatenate([fresh, near, far])
        self.given += len(fresh)
        # A duplicate comes now, whenever its first one came.
        times = np.concatenate([self._times_us(fresh), np.repeat(self._times_us(fresh[-1:]), again)])
        times -= draw.integers(0, HOUR_US, rows)
        order = draw.permutation(rows)
        self._add(numbers[order], times[order])
        return again

    def grow(self, keys: int, rows: int) -> None:
        """Bring the state up to so many keys, in large batches, not timed; their files go afterwards."""
        while self.given < keys:
            self.add_new(min(rows, keys - self.given))
        self.run()
        self.forget_rows()

    def forget_rows(self) -> None:
        """Remove the files of rows that were taken."""
        for path in (self.folder / "rows").glob("*.parquet"):
            path.unlink()

    def _times_us(self, numbers: Numbers) -> Numbers:
        return FIRST_US + (numbers * self._step_us).astype(np.int64)

    def _add(self, numbers: Numbers, times_us: Numbers) -> None:
        stamps = pa.array(times_us, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        self.add_table(pa.table({"id": ids(numbers), "ts": stamps}))


def totals(checkpoint: Path) -> dict[str, int]:
    """Add up what the newest heads of our operator counted since the beginning."""
    found: dict[str, int] = {}
    for head in newest_heads(checkpoint):
        for name, count in head.totals.items():
            found[name] = found.get(name, 0) + count
    return found


def newest_heads(checkpoint: Path) -> Sequence[Any]:
    """Return the newest head of each partition of our operator."""
    from tidegate.checkpoint import epochs
    from tidegate.checkpoint.commit_record import committed_batches, read_commit_record
    from tidegate.checkpoint.store import operator_store

    checkpoint_store = operator_store(str(checkpoint), NAME)
    epoch = epochs.list_epochs(checkpoint_store)[-1]
    newest = [
        (p, max(committed_batches(checkpoint_store, epoch.number, p))) for p in range(epoch.parallelism)
    ]
    return [
        read_commit_record(checkpoint_store, epoch.number, partition, batch) for partition, batch in newest
    ]


def size_bytes(folder: Path, pattern: str = "*") -> int:
    """Add up the sizes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())
