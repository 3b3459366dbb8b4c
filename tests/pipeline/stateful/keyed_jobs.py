"""What the tests of keyed operators share: operators, rows in files, and runs of queries over them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from tidegate.state.context import BatchContext, Context, Timer
from tidegate.state.kinds.value import ValueState
from tidegate.state.operator import KeyedOperator
from tidegate.state.schema.migrations import Migration
from tidegate.state.ttl import Ttl

# Spark's Python workers may be started in any folder: what stands here travels to them by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# A paused operator goes on by itself after a minute.
PAUSE_SECONDS = 0.05
PAUSES_MAX = 1_200


@dataclass
class Paid:
    user: str | None
    amount: int
    at: datetime


@dataclass
class Total:
    user: str | None
    n: int
    total: int


@dataclass
class Purse:
    n: int
    spent: Spent


@dataclass
class Spent:
    total: int


class Totals(KeyedOperator[Paid, Total]):
    """Returns a row for each event: how many its key had so far, and their sum."""

    purse = ValueState(Purse)

    def process(self, event: Paid, ctx: Context) -> Iterator[Total]:  # noqa: ARG002
        purse = self.purse.value() or Purse(0, Spent(0))
        purse = Purse(purse.n + 1, Spent(purse.spent.total + event.amount))
        self.purse.update(purse)
        yield Total(event.user, purse.n, purse.spent.total)


class Faulty(Totals):
    """Totals that fail at an amount of 13: once by an "exception" or a "kill", "always", or not at all."""

    def __init__(self, mark: str, how: str) -> None:
        self.mark = mark
        self.how = how

    def process(self, event: Paid, ctx: Context) -> Iterator[Total]:
        if event.amount == 13 and self.how != "none" and (self.how == "always" or is_first(self.mark)):
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("told to fail")
        yield from super().process(event, ctx)


class Torn(Faulty):
    """Totals that always fail at an amount of 13, and that have no memory in one partition of one batch.

    There they fail once a file is there: Spark gives the batch up without waiting for its other tasks.
    """

    def __init__(self, partition: int | None, batch: int, after: str = "") -> None:
        super().__init__("", "always")
        self.partition = partition
        self.batch = batch
        self.after = after

    def process(self, event: Paid, ctx: Context) -> Iterator[Total]:
        if (ctx.partition, ctx.batch) == (self.partition, self.batch):
            wait_for(self.after)
            raise MemoryError("told to fail")
        yield from super().process(event, ctx)


class Paused(Totals):
    """Totals that stop in the middle once, at the first event with an amount of 13, until told to go on."""

    def __init__(self, mark: str, go: str) -> None:
        self.mark = mark
        self.go = go

    def process(self, event: Paid, ctx: Context) -> Iterator[Total]:
        if event.amount == 13 and is_first(self.mark):
            # The Python worker's parent is a daemon, and that one's parent is the executor.
            put_whole(Path(self.mark + ".pid"), Path(self.mark + ".new"), str(os.getppid()))
            wait_for(self.go)
        yield from super().process(event, ctx)


class Counts(KeyedOperator):
    """The vectorised count of each key; a row for each key of a batch."""

    output = "user string, n long"
    n = ValueState(int, default=0)

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Iterator[Any]:  # noqa: ARG002
        totals = self.n.get_many(ctx.keys) + np.bincount(ctx.key_index, minlength=len(ctx.keys))
        self.n.put_many(ctx.keys, totals)
        yield {"user": ctx.keys, "n": totals}


class Tally(Counts):
    """The same counts without the keys, which may be of any kind."""

    output = "n long"

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Iterator[Any]:
        for counted in super().process_batch(batch, ctx):
            yield {"n": counted["n"]}


class Idle(KeyedOperator[Paid, Total]):
    """Returns a row for a key that was idle: `amount` ms after its newest event, by either clock."""

    n = ValueState(int, default=0)
    until = ValueState(int, default=0)

    def __init__(self, clock: Literal["event", "processing"]) -> None:
        self.clock: Literal["event", "processing"] = clock

    def process(self, event: Paid, ctx: Context) -> Iterator[Total]:
        self.n.update(self.n.value() + 1)
        at = int(ctx.timestamp if self.clock == "event" else ctx.now) + event.amount
        if self.until.value():
            ctx.cancel_timer(self.until.value(), self.clock)
        self.until.update(at)
        ctx.timer(at, self.clock)
        return iter(())

    def on_timer(self, timer: Timer, ctx: Context) -> Iterator[Total]:
        yield Total(ctx.key, self.n.value(), int(timer.at))


@dataclass
class Priced:
    """An event some of whose columns may be missing."""

    user: str
    currency: str = "EUR"
    tags: list[str] = field(default_factory=lambda: ["none"])


@dataclass
class Label:
    text: str


@dataclass
class NewLabel:
    text: str
    size: int


class Labels(KeyedOperator[Priced, Label]):
    """Returns what is remembered of a key, and remembers its event."""

    label = ValueState(Label)

    def process(self, event: Priced, ctx: Context) -> Iterator[Label]:  # noqa: ARG002
        self.label.update(Label(f"{event.user} {event.currency} {event.tags}"))
        yield self.label.value() or Label("")


class NewLabels(KeyedOperator[Priced, Label]):
    """The same with a newer label, and a migration to it that forgets a field."""

    label = ValueState(NewLabel, version=2, migrations=[Migration(1, 2, lambda old: old)])

    def process(self, event: Priced, ctx: Context) -> Iterator[Label]:  # noqa: ARG002
        yield Label(repr(self.label.value()))


class Forgetful(KeyedOperator[Paid, Total]):
    """Counts that are forgotten ten seconds of event time after the last write."""

    n = ValueState(int, default=0, ttl=Ttl("10 s", clock="event"))

    def process(self, event: Paid, ctx: Context) -> Iterator[Total]:  # noqa: ARG002
        self.n.update(self.n.value() + 1)
        yield Total(event.user, self.n.value(), 0)


def is_first(mark: str) -> bool:
    """Return yes once for each mark, whichever process asks."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def wait_for(path: str) -> None:
    """Wait until a file is there, or for a minute."""
    for _ in range(PAUSES_MAX):
        if Path(path).exists():
            return
        time.sleep(PAUSE_SECONDS)


def put_whole(path: Path, spare: Path, text: str) -> None:
    """Put a file that nobody sees before it is whole."""
    spare.write_text(text)
    spare.rename(path)


Row = tuple[str | None, int, int]


class Shop:
    """A folder of rows, one file for each batch, and what a query wrote of them."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.rows: list[list[Row]] = []
        for name in ("in", "out"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def add(self, *rows: Row) -> None:
        """Put a file of rows: user, amount, and the event time in seconds."""
        number = len(self.rows)
        self.rows.append(list(rows))
        lines = [json.dumps({"user": user, "amount": amount, "at": at}) for user, amount, at in rows]
        spare = self.folder / f"{number}.new"
        spare.write_text("\n".join(lines))
        # Files are read in the order of their times.
        os.utime(spare, (1_700_000_000 + number, 1_700_000_000 + number))
        spare.rename(self.folder / "in" / f"{number}.json")

    def stream(self, watermark: str | None = None) -> Any:
        """Return the stream of the rows, one file in each batch."""
        reader = self.spark.readStream.schema("user string, amount long, at long")
        rows = reader.option("maxFilesPerTrigger", 1).json(str(self.folder / "in"))
        rows = rows.selectExpr("user", "amount", "timestamp_seconds(at) as at")
        return rows if watermark is None else rows.withWatermark("at", watermark)

    def write(self, df: Any, batch: int) -> None:
        """Keep a batch's rows, whatever was kept of it before."""
        rows = [list(row) for row in df.collect()]
        put_whole(self.folder / "out" / f"{batch}.json", self.folder / f"out-{batch}.new", json.dumps(rows))

    def start(self, df: Any, writer: Any = None, **trigger: Any) -> Any:
        """Start a query that keeps its batches."""
        query = df.writeStream.foreachBatch(writer or self.write)
        if trigger:
            query = query.trigger(**trigger)
        return query.option("checkpointLocation", str(self.checkpoint)).start()

    def run(self, df: Any, writer: Any = None) -> None:
        """Run a query over all rows that are there; raise what it failed with."""
        self.start(df, writer, availableNow=True).awaitTermination()

    def batches(self) -> list[list[list[Any]]]:
        """Return what was kept, a sorted list of rows for each batch."""
        files = sorted((self.folder / "out").iterdir(), key=lambda path: int(path.stem))
        return [sorted(json.loads(file.read_text()), key=repr) for file in files]

    def expected(self) -> list[list[list[Any]]]:
        """Return what `Totals` gives for all rows so far."""
        return expected_totals(self.rows)


def expected_totals(batches: Sequence[Sequence[Row]]) -> list[list[list[Any]]]:
    """Return what `Totals` gives for batches of rows in which all amounts of a key are equal."""
    seen: dict[str | None, tuple[int, int]] = {}
    given = []
    for batch in batches:
        rows = []
        for user, amount, _ in batch:
            n, total = seen.get(user, (0, 0))
            seen[user] = (n + 1, total + amount)
            rows.append([user, *seen[user]])
        given.append(sorted(rows, key=repr))
    return given


def many_rows(seed: int, count: int, users: int = 40) -> list[Row]:
    """Return rows of many keys; each key always has the same amount, so that their order does not matter."""
    rng = np.random.default_rng(seed)
    return [
        (f"user-{number}", 13 if number == 7 else number + 20, seed)
        for number in rng.integers(0, users, count).tolist()
    ]
