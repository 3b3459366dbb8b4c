"""What works on the rows: a chain of two operators, that together have every kind of state, TTL and timers.

Only event time counts in them: a batch's own time differs from run to run. The rows of a partition come in
order of time, so that two attempts see the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.faults.driver import Case
from tests.faults.strikes import Strikes
from tidegate import spark as tide

NAMES = ("ledger", "totals")
STRIKE_AT_ROW = 5
TIMER_SECONDS = 90


@dataclass(frozen=True, slots=True)
class Given:
    """One row that comes in."""

    id: int
    key: str | None
    kind: str
    amount: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Told:
    """One row that comes out: of a row, or of a timer (then `id` is the timer's time, negative)."""

    id: int
    key: str | None
    kind: str
    n: int
    total: int
    at: datetime


class Mean(tide.AggregateFunction[int, tuple[int, int], int]):
    """The mean of whole numbers."""

    accumulator = tuple[int, int]

    def create(self) -> tuple[int, int]:
        """Begin."""
        return 0, 0

    def add(self, acc: tuple[int, int], value: int) -> tuple[int, int]:
        """Take one."""
        return acc[0] + 1, acc[1] + value

    def result(self, acc: tuple[int, int]) -> int:
        """Return the mean."""
        return acc[1] // acc[0] if acc[0] else 0

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        """Join two."""
        return a[0] + b[0], a[1] + b[1]


class Ledger(tide.KeyedOperator[Given, Told]):
    """Row by row: a value, a list, a map, two that fold, and a timer."""

    n = tide.ValueState(int, default=0)
    recent = tide.ValueState(int, default=0, ttl=tide.Ttl("2 min", clock="event"))
    ids = tide.ListState(int)
    kinds = tide.MapState(str, int)
    total = tide.ReducingState(int, lambda a, b: a + b)
    mean = tide.AggregatingState(Mean())

    def __init__(self, strikes: Strikes) -> None:
        self.strikes = strikes

    def open(self, ctx: Any) -> None:
        """Set the point at which this worker is to die, if it is."""
        self.place = ("ledger", ctx.partition, ctx.batch)
        self.seen = 0
        self.strikes.arm(ctx.batch)

    def process(self, event: Given, ctx: Any) -> Iterator[Told]:
        """Write one row down."""
        self.seen += 1
        if self.seen == STRIKE_AT_ROW:
            self.strikes.at_row(*self.place)
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        self.recent.update((self.recent.value() or 0) + 1)
        self.ids.add(event.id)
        self.kinds.put(event.kind, (self.kinds.get(event.kind) or 0) + 1)
        self.total.add(event.amount)
        self.mean.add(event.amount)
        ctx.timer(int(ctx.timestamp) + TIMER_SECONDS * 1000)
        total = (self.total.get() or 0) * 1000 + (self.recent.value() or 0)
        yield Told(event.id, event.key, event.kind, n, total, event.at)

    def on_timer(self, timer: Any, ctx: Any) -> Iterator[Told]:
        """Close the list of a key, and say how long it was."""
        ids = sum(1 for _ in self.ids.get())
        self.ids.clear()
        kinds = ",".join(f"{kind}={count}" for kind, count in self.kinds.entries())
        yield Told(-int(timer.at), ctx.key, kinds, ids, self.mean.get() or 0, timer.at.datetime())


class Totals(tide.KeyedOperator[Any, Any]):
    """Vectorised: counts and sums per kind of what the ledger told."""

    output = "id long, key string, kind string, n long, total long"
    rows = tide.ValueState(int, default=0)
    amounts = tide.ValueState(int, default=0)

    def __init__(self, strikes: Strikes) -> None:
        self.strikes = strikes

    def open(self, ctx: Any) -> None:
        """Set the point at which this worker is to die, if it is."""
        self.place = ("totals", ctx.partition, ctx.batch)
        self.strikes.arm(ctx.batch)

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Add up a batch, and give its rows on."""
        sums = np.zeros(len(ctx.keys), dtype=np.int64)
        np.add.at(sums, ctx.key_index, pc.fill_null(batch.column("n"), 0).to_numpy())
        counts = self.rows.get_many(ctx.keys) + np.bincount(ctx.key_index, minlength=len(ctx.keys))
        self.rows.put_many(ctx.keys, counts)
        self.strikes.at_row(*self.place)
        self.amounts.put_many(ctx.keys, self.amounts.get_many(ctx.keys) + sums)
        names = ("id", "key", "kind", "n", "total")
        yield pa.record_batch({name: batch.column(name) for name in names})


def kept(case: Case, rows: Any, checkpoint: str, local: Path, strikes: Strikes) -> Any:
    """Return the chain: the ledger by key, then the totals by kind."""
    settings: dict[str, Any] = {
        "checkpoint": checkpoint,
        "event_time": "at",
        "ordered": True,
        "partitions": case.partitions,
        "ticks": None,
        "snapshot_every": case.snapshot_every,
        # Each worker of a cluster stands for a host with a disk of its own.
        "local_dir": str(local) if case.master.startswith("local") else None,
        "backend": "heap" if case.keeper == "heap" else "rocksdb",
    }
    ledger = tide.process(rows, name="ledger", key="key", operator=Ledger(strikes), **settings)
    return tide.process(ledger, name="totals", key="kind", operator=Totals(strikes), **settings)
