"""A small job without Spark: counts per key in two partitions, and a sink that takes a batch once."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import cast

import pyarrow as pa

from tests.checkpoint.keys.key_groups import ENTRY_PREFIX_BYTES
from tidegate.checkpoint.backend import StateChanges
from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.checkpoint.batch import open_batch
from tidegate.checkpoint.commit import OpenBatch, StateBatch
from tidegate.checkpoint.commit_record import RunFacts
from tidegate.checkpoint.crash_points import ONCE_VARIABLE, POINT_VARIABLE
from tidegate.checkpoint.keys import layout
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.settings import BatchRequest, StateSettings, backend_factory
from tidegate.checkpoint.store import CheckpointDisk
from tidegate.errors import BatchTaken
from tidegate.model.clock import Clock, SystemClock

PARALLELISM = 2
MAX_PARALLELISM = 8
OPERATOR = "counts"

Rows = list[tuple[int, int]]

# RocksDB merges four young files beside the work, at any moment, and what it merged is a new file. Tests that
# look at the files of a copy or of its snapshots have none merged.
UNMERGED = RocksSettings(level0_compaction_trigger=20)


def keys_of(batch: int, partition: int) -> list[int]:
    """The keys of a batch's rows in a partition, the same each time: some come back, some are new."""
    drawn = random.Random(batch * 1_000 + partition)
    return [drawn.randrange(40) * PARALLELISM + partition for _ in range(30)]


def stored_key(key: int) -> bytes:
    group = key % PARALLELISM * (MAX_PARALLELISM // PARALLELISM)
    return layout.entry_prefix(group, 1) + key.to_bytes(8, "big")


def expected(batches: int) -> tuple[list[Rows], dict[int, int]]:
    """What an undisturbed run gives out for each batch, and the counts after the last one."""
    counts: dict[int, int] = {}
    given: list[Rows] = []
    for batch in range(batches):
        rows: Rows = []
        for partition in range(PARALLELISM):
            for key in keys_of(batch, partition):
                counts[key] = counts.get(key, 0) + 1
            rows += [(key, counts[key]) for key in sorted(set(keys_of(batch, partition)))]
            if batch % 3 == 2:
                for key in sorted(set(keys_of(batch, partition)))[:3]:
                    del counts[key]
        given.append(rows)
    return given, counts


def settings(root: Path, **changed: object) -> StateSettings:
    usual: dict[str, object] = {
        "local_root": str(root / "local"),
        "snapshot_every_batches": 2,
        "snapshots_retained": 2,
        "snapshot_in_background": False,
        "lock_wait_ms_max": 500,
    }
    kind = changed.pop("backend", "heap")
    options = cast("RocksSettings | None", changed.pop("rocks", None))
    usual["backend"] = backend_factory(kind, options) if isinstance(kind, str) else kind
    return StateSettings(**(usual | changed))  # type: ignore[arg-type]


@contextmanager
def open_new(
    request: BatchRequest, settings: StateSettings, clock: Clock, disk: CheckpointDisk | None = None
) -> Iterator[OpenBatch]:
    """Open a batch that no attempt has published."""
    with open_batch(request, settings, clock, disk) as opened:
        assert not opened.replayed
        yield opened


@dataclass
class Job:
    """The job on a checkpoint: `do` runs one task, `drive` all batches with a sink, as a driver does."""

    root: Path
    settings: StateSettings
    disk: CheckpointDisk | None = None
    spills: bool = False
    attempts: int = field(default=0)

    def request(self, batch: int, partition: int = 0, **changed: object) -> BatchRequest:
        self.attempts += 1
        usual: dict[str, object] = {
            "checkpoint": str(self.root / "checkpoint"),
            "operator": OPERATOR,
            "partition": partition,
            "parallelism": PARALLELISM,
            "max_parallelism": MAX_PARALLELISM,
            "number": batch,
            "plan_id": f"plan {batch}",
            "attempt": f"{os.getpid()}.{id(self)}.{self.attempts}",
        }
        return BatchRequest(**(usual | changed))  # type: ignore[arg-type]

    def do(self, batch: int, partition: int = 0) -> Rows:
        """Run one task: count, publish, give out; or give out again."""
        with open_batch(self.request(batch, partition), self.settings, SystemClock(), self.disk) as opened:
            if not opened.replayed:
                self.work(opened, batch, partition)
            return given_out(opened)

    def work(self, opened: OpenBatch, batch: int, partition: int) -> None:
        keys = keys_of(batch, partition)
        distinct = sorted(set(keys))
        stored = opened.backend.get_many([stored_key(key) for key in distinct])
        counts = {key: int(old or b"0") + keys.count(key) for key, old in zip(distinct, stored, strict=True)}
        opened.write_out(pa.record_batch({"key": list(counts), "count": list(counts.values())}))
        entries: dict[bytes, bytes | None] = {stored_key(key): b"%d" % counts[key] for key in distinct}
        if self.spills:
            part = StateChanges(entries=dict(entries))
            opened.spill(part)
            opened.backend.write_partly(part)
            entries.clear()
        if batch % 3 == 2:
            entries |= dict.fromkeys(map(stored_key, distinct[:3]))
        opened.publish(StateChanges(entries=entries), RunFacts(rows_in=len(keys), newest_event_ms=batch))

    def drive(self, batches: int) -> None:
        """Run the batches that the sink has not got yet; a task whose batch is taken is tried again."""
        sink = self.root / "sink"
        sink.mkdir(exist_ok=True)
        for batch in range(len(list(sink.iterdir())), batches):
            rows: Rows = []
            for partition in range(PARALLELISM):
                rows += self.do_at_last(batch, partition)
            spare = self.root / f"sink.{os.getpid()}.new"
            spare.write_text(json.dumps(rows))
            spare.rename(sink / f"{batch:04d}")

    def do_at_last(self, batch: int, partition: int) -> Rows:
        while True:
            try:
                return self.do(batch, partition)
            except BatchTaken:
                continue

    def sunk(self) -> list[Rows]:
        return [
            [tuple(row) for row in json.loads(path.read_text())]
            for path in sorted((self.root / "sink").iterdir())
        ]

    def counts(self, batch: int) -> dict[int, int]:
        """The counts of all partitions as they are before a batch, which is opened and left."""
        found = {}
        for partition in range(PARALLELISM):
            with open_new(self.request(batch, partition), self.settings, SystemClock()) as opened:
                for key, value in opened.backend.scan(b"", layout.META_GROUP):
                    found[int.from_bytes(key[ENTRY_PREFIX_BYTES:], "big")] = int(value)
        return found


def given_out(opened: StateBatch) -> Rows:
    return [(row["key"], row["count"]) for batch in opened.outputs() for row in batch.to_pylist()]


def drive_in_child(root: str, kind: str, batches: int, point: str | None, spills: bool) -> None:
    """Drive the job in a worker of its own, which dies at a named point when one is given."""
    if point is not None:
        os.environ[POINT_VARIABLE] = point
        os.environ[ONCE_VARIABLE] = str(Path(root) / f"died-{point.partition(':')[0]}")
    job = Job(Path(root), settings(Path(root), backend=kind), spills=spills)
    job.drive(batches)
    pool().close()


def race_in_child(root: str, batches: int, name: str, ready: Barrier) -> None:
    """Do every batch at once with others that do the same, and note what each gave out."""
    job = Job(Path(root), settings(Path(root), lock_wait_ms_max=4))
    given = []
    for batch in range(batches):
        ready.wait()
        given.append(job.do_at_last(batch, 0))
    (Path(root) / name).write_text(json.dumps(given))
