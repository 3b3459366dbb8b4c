"""A deduplication without Spark: numbered keys, decided against a segmented store, published once."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tests.checkpoint.batches import open_new
from tests.checkpoint.keys.key_groups import instance_of
from tidegate.checkpoint.batch import open_batch
from tidegate.checkpoint.commit import OpenBatch
from tidegate.checkpoint.commit_record import CommitRecord, RunFacts, read_commit_record
from tidegate.checkpoint.keys.layout import META_GROUP, SEGMENT_PREFIX_BYTES, segment_of_entry
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.recovery import RestoreReport
from tidegate.checkpoint.settings import BatchRequest, StateSettings
from tidegate.checkpoint.store import CheckpointDisk, CheckpointStore, operator_store
from tidegate.dedup.columns import SegmentKeys, decode_times
from tidegate.dedup.decision import OUTCOMES, BatchColumns, decide
from tidegate.dedup.settings import SegmentSettings
from tidegate.dedup.store.store import SegmentStore, SegmentStoreFactory
from tidegate.model.clock import SystemClock

OPERATOR = "orders"
GROUPS = 16
MINUTE_US = 60_000_000
RETENTION_US = 20 * MINUTE_US
INTERVAL_US = 10 * MINUTE_US

Row = tuple[int, int]  # key, event time in microseconds


def key_of(number: int) -> bytes:
    """The stored key of a number: key group, then 16 bytes."""
    digest = hashlib.blake2b(str(number).encode(), digest_size=16).digest()
    return (digest[0] % GROUPS).to_bytes(2, "big") + digest


def segments() -> SegmentSettings:
    return SegmentSettings(store=OPERATOR, retention_us=RETENTION_US, interval_us=INTERVAL_US)


def settings(root: Path, **changed: object) -> StateSettings:
    usual: dict[str, object] = {
        "backend": SegmentStoreFactory(segments()),
        "local_root": str(root / "local"),
        "snapshot_every_batches": 2,
        "snapshots_retained": 2,
        "snapshot_in_background": False,
        "lock_wait_ms_max": 500,
    }
    return StateSettings(**(usual | changed))  # type: ignore[arg-type]


def rows_of(batch: int, count: int = 40) -> list[Row]:
    """A batch of new keys, a minute apart and back over half an hour, and some that came before."""
    newest_us = (batch + 1) * 5 * MINUTE_US
    fresh = [(batch * count + number, newest_us - number * MINUTE_US // 2) for number in range(count)]
    old = [(key, newest_us - 7) for key in range(max(0, batch * count - 10), batch * count)]
    return [*fresh, *old]


@dataclass
class Model:
    """What must come out, by a dictionary."""

    stored: dict[int, list[int]] = field(default_factory=dict)
    stream_us: int | None = None

    def take(self, rows: Iterable[Row]) -> dict[Row, str]:
        """Decide a batch of rows that differ."""
        told: dict[Row, str] = {}
        newest_us = self.stream_us
        edge_us = None if self.stream_us is None else self.stream_us - RETENTION_US
        for key, at_us in sorted(rows, key=lambda row: (row[1], row[0])):
            newest_us = at_us if newest_us is None else max(newest_us, at_us)
            times = [one for one in self.stored.get(key, []) if edge_us is None or one >= edge_us]
            if edge_us is not None and at_us < edge_us:
                told[key, at_us] = "late"
            elif any(abs(one - at_us) < RETENTION_US for one in times):
                told[key, at_us] = "duplicate"
            else:
                told[key, at_us] = "unique"
                self.stored.setdefault(key, []).append(at_us)
        self.stream_us = newest_us
        return told

    def counted(self) -> set[tuple[bytes, int]]:
        """The times that still count, as the store keeps them."""
        edge_us = (self.stream_us or 0) - RETENTION_US
        return {
            (key_of(key), at_us) for key, times in self.stored.items() for at_us in times if at_us >= edge_us
        }


@dataclass
class Job:
    """A deduplication on a checkpoint: `run` does a batch in all partitions, as Spark's tasks do."""

    root: Path
    settings: StateSettings
    parallelism: int = 1
    disk: CheckpointDisk | None = None
    checkpoint: str = "checkpoint"
    savepoint: str | None = None
    attempts: int = 0
    reports: list[RestoreReport] = field(default_factory=list)

    @property
    def checkpoint_store(self) -> CheckpointStore:
        return operator_store(str(self.root / self.checkpoint), OPERATOR)

    def asked(self, batch: int, partition: int = 0) -> BatchRequest:
        self.attempts += 1
        return BatchRequest(
            checkpoint=str(self.root / self.checkpoint),
            operator=OPERATOR,
            partition=partition,
            parallelism=self.parallelism,
            max_parallelism=GROUPS,
            number=batch,
            plan_id=f"plan {batch}",
            attempt=f"{os.getpid()}.{id(self)}.{self.attempts}",
            savepoint=self.savepoint,
        )

    def run(self, batch: int, rows: list[Row]) -> dict[Row, str]:
        """Do a batch in every partition; give the outcome of each row."""
        told: dict[Row, str] = {}
        for partition in range(self.parallelism):
            mine = [row for row in rows if self.owner(row) == partition]
            told |= self.do(batch, partition, mine)
        return told

    def do(self, batch: int, partition: int, rows: list[Row]) -> dict[Row, str]:
        """Do a batch of one partition; nothing is told of one that was done before."""
        with open_batch(self.asked(batch, partition), self.settings, SystemClock(), self.disk) as opened:
            if opened.replayed:
                return {}
            assert opened.report is not None
            self.reports.append(opened.report)
            return decided(opened, rows)

    def drive(self, batches: Iterable[int], model: Model) -> None:
        """Do batches and compare each with the model."""
        for batch in batches:
            assert self.run(batch, rows_of(batch)) == model.take(rows_of(batch)), f"batch {batch}"

    def stored(self, batch: int) -> set[tuple[bytes, int]]:
        """All stored times that count before a batch, which is opened and left."""
        found: set[tuple[bytes, int]] = set()
        for partition in range(self.parallelism):
            with open_new(self.asked(batch, partition), self.settings, SystemClock()) as opened:
                assert opened.report is not None
                self.reports.append(opened.report)
                edge_us = (opened.newest_event_us or 0) - RETENTION_US
                for key, value in opened.backend.scan(b"", META_GROUP):
                    stored_key = key[:2] + key[SEGMENT_PREFIX_BYTES:]
                    assert instance_of(int.from_bytes(key[:2], "big"), self.parallelism, GROUPS) == partition
                    times, _ = decode_times(np.frombuffer(value, np.uint8).reshape(-1, 8), with_offsets=False)
                    assert {int(one) // INTERVAL_US for one in times} == {segment_of_entry(key)}
                    found |= {(stored_key, int(one)) for one in times if one >= edge_us}
        return found

    def head(self, batch: int, partition: int = 0, epoch: int = 0) -> CommitRecord:
        found = read_commit_record(self.checkpoint_store, epoch, partition, batch)
        assert found is not None
        return found

    def copy(self, partition: int = 0, epoch: int = 0) -> Path:
        """The folder in which the store of a partition lies."""
        place = self.settings.local_directory(SystemClock())
        folder = place.folder(self.checkpoint_store, epoch, partition)
        return next(folder.glob("db-segments.*"), folder / "db-segments")

    def segment(self, start_minutes: int, partition: int = 0) -> Path:
        return self.copy(partition) / f"{OPERATOR}.{start_minutes * 60_000}"

    def stop(self) -> None:
        """Close what this worker keeps open."""
        pool().close()

    def lose_copies(self) -> None:
        self.stop()
        shutil.rmtree(self.root / "local")

    def elsewhere(self, root: str) -> Job:
        """The same job on a machine with copies of its own."""
        return replace(self, settings=replace(self.settings, local_root=str(self.root / root)), reports=[])

    def owner(self, row: Row) -> int:
        """The partition that has a row's key."""
        return instance_of(int.from_bytes(key_of(row[0])[:2], "big"), self.parallelism, GROUPS)


def decided(opened: OpenBatch, rows: list[Row]) -> dict[Row, str]:
    """Decide a batch's rows and publish them."""
    store = opened.backend
    assert isinstance(store, SegmentStore)
    stream_us = opened.newest_event_us
    store.expire(stream_us)
    decision = decide(columns(rows), store, store.rule, stream_us)
    seen = [one for one in (stream_us, decision.newest_us) if one is not None]
    facts = RunFacts(rows_in=len(rows), newest_event_us=max(seen, default=None), counts=decision.counts)
    opened.publish(decision.changes, facts)
    return {row: OUTCOMES[code] for row, code in zip(rows, decision.outcome.tolist(), strict=True)}


def columns(rows: list[Row]) -> BatchColumns:
    """Rows as the decision takes them."""
    keys = np.frombuffer(b"".join(key_of(key) for key, _ in rows), np.uint8).reshape(-1, 18)
    times = np.array([at_us for _, at_us in rows], np.int64)
    numbers = np.array([key for key, _ in rows], np.uint64)
    return BatchColumns(SegmentKeys.of_digests(keys), times, None, lambda asked: numbers[asked])


def marks(folder: Path) -> dict[str, tuple[int, int]]:
    """The inode and the time of every file below a folder, by its name."""
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def flip(path: Path, share: float = 0.5) -> None:
    """Turn some bits of a file around one place; a second name of the file keeps the old bytes."""
    content = bytearray(path.read_bytes())
    at = int(len(content) * share)
    for number in range(at, min(at + 8, len(content))):
        content[number] ^= 0x55
    path.unlink()
    path.write_bytes(content)
