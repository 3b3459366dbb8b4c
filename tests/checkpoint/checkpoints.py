"""Checkpoints for tests of epochs, rescaling and savepoints: batches done without Spark and without rows."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.checkpoint.keys.key_groups import ENTRY_PREFIX_BYTES, instance_of
from tidegate.checkpoint import batch as state_batch
from tidegate.checkpoint import commit, settings
from tidegate.checkpoint.backend import StateChanges
from tidegate.checkpoint.commit_record import (
    CommitRecord,
    RunFacts,
    StoredFile,
    commit_record_name,
    encode_commit_record,
)
from tidegate.checkpoint.keys.layout import META_GROUP, entry_prefix
from tidegate.checkpoint.savepoints.source_offsets import PLAN_ID_BYTES
from tidegate.checkpoint.settings import StateSettings, backend_factory
from tidegate.checkpoint.store import CheckpointStore, operator_store
from tidegate.state.schema.schema import redistribution_of
from tidegate.testing.clock import ManualClock

NO_FILE = StoredFile(file="none", size_bytes=0, digest="", rows=0)


@dataclass(frozen=True)
class TaskRequest:
    """What a task says of itself."""

    partition: int
    parallelism: int
    number: int
    max_parallelism: int = 128
    operator: str = "counts"
    savepoint: str | None = None


def put_commit(
    store: CheckpointStore, epoch: int, partition: int, batch: int, **facts: object
) -> CommitRecord:
    """Publish a commit record that changes nothing."""
    commit = CommitRecord(
        epoch=epoch,
        partition=partition,
        batch=batch,
        commit_id=f"{epoch}-{partition}-{batch}",
        plan_id=f"plan-{batch}",
        attempt="a",
        changes=NO_FILE,
        out=None,
        dead=None,
        rows_in=0,
        rows_out=0,
        dead_rows=0,
        newest_event_ms=None,
        next_event_timer_ms=None,
        next_processing_timer_ms=None,
        watermark_ms=None,
        batch_time_ms=0,
        schema=1,
        size_bytes=0,
        entry_count=0,
        log_bytes=0,
        published_at_ms=0,
        took_ms=0,
    )
    commit = replace(commit, **facts)  # type: ignore[arg-type]
    assert store.put_new(commit_record_name(epoch, partition, batch), encode_commit_record(commit))
    return commit


def put_commits(store: CheckpointStore, epoch: int, parallelism: int, batch: int) -> None:
    """Publish a batch in every partition of an epoch."""
    for partition in range(parallelism):
        put_commit(store, epoch, partition, batch)


OPERATOR = "counts"
MAX = 64


class Job:
    """Counts words without Spark: batches of one operator by any number of instances, each a real batch."""

    def __init__(self, root: Path, *, checkpoint: str = "checkpoint", backend: str = "heap") -> None:
        self.checkpoint = root / checkpoint
        self.clock = ManualClock()
        self.settings = StateSettings(
            backend=backend_factory(backend),
            redistribution=redistribution_of,
            local_root=str(root / "local"),
            snapshot_every_batches=2,
            snapshots_retained=2,
            snapshot_in_background=False,
            keep_open=False,
        )
        self.savepoint: str | None = None
        self.attempts = 0

    @property
    def store(self) -> CheckpointStore:
        return operator_store(str(self.checkpoint), OPERATOR)

    def ask(
        self, partition: int, parallelism: int, batch: int, seen: int | None = None
    ) -> settings.BatchRequest:
        self.attempts += 1
        return settings.BatchRequest(
            checkpoint=str(self.checkpoint),
            operator=OPERATOR,
            partition=partition,
            parallelism=parallelism,
            max_parallelism=MAX,
            number=batch,
            plan_id=f"plan-{batch}",
            attempt=f"attempt-{self.attempts}",
            savepoint=self.savepoint,
            seen_epoch=seen,
        )

    def task(self, asked: settings.BatchRequest, words: list[str]) -> list[tuple[str, int]]:
        """Do one partition of a batch, or give out what it gave before."""
        with state_batch.open_batch(asked, self.settings, self.clock) as opened:
            if not opened.replayed:
                self.count(asked, opened, words)
            return [
                (word, count)
                for rows in opened.outputs()
                for word, count in zip(*(column.to_pylist() for column in rows.columns), strict=True)
            ]

    def run(self, batch: int, words: list[str], parallelism: int, seen: int | None = None) -> dict[str, int]:
        """Do a whole batch; give the counts that it gave out, each once."""
        found: list[tuple[str, int]] = []
        for partition in range(parallelism):
            found += self.task(self.ask(partition, parallelism, batch, seen), words)
        assert len(dict(found)) == len(found), "a row was given out twice"
        return dict(found)

    def counts(self, parallelism: int, batch: int) -> dict[str, int]:
        """Return all counts as the next batch would find them; nothing is done."""
        found = {}
        for partition in range(parallelism):
            with state_batch.open_batch(
                self.ask(partition, parallelism, batch), self.settings, self.clock
            ) as opened:
                assert not opened.replayed
                for key, value in opened.backend.scan(b"", META_GROUP):
                    assert instance_of(int.from_bytes(key[:2], "big"), parallelism, MAX) == partition
                    found[key[ENTRY_PREFIX_BYTES:].decode()] = int(value)
        return found

    def count(self, asked: settings.BatchRequest, opened: commit.OpenBatch, words: list[str]) -> None:
        """Count the words of an instance and publish."""
        changes = StateChanges()
        for word in words:
            group = zlib.crc32(word.encode()) % MAX
            if instance_of(group, asked.parallelism, MAX) == asked.partition:
                key = entry_prefix(group, 1) + word.encode()
                stored = changes.entries.get(key) or opened.backend.get(key) or b"0"
                changes.entries[key] = str(int(stored) + 1).encode()
        words_out = [key[ENTRY_PREFIX_BYTES:].decode() for key in changes.entries]
        counts = [int(value or b"0") for value in changes.entries.values()]
        if counts:
            opened.write_out(pa.RecordBatch.from_pydict({"word": words_out, "count": counts}))
        newest_ms = max([asked.number * 1_000, opened.newest_event_ms or 0])
        opened.publish(changes, RunFacts(rows_in=len(words), rows_out=len(counts), newest_event_ms=newest_ms))


class Streaming(Job):
    """The job as a streaming query runs it: its plans are what Spark wrote down of each batch."""

    def plan(self, batch: int, *sources: Any) -> str:
        """Write down where a batch ends."""
        folder = self.checkpoint / "offsets"
        folder.mkdir(parents=True, exist_ok=True)
        facts = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_000 + batch})
        text = "\n".join(["v1", facts, *(one if one == "-" else json.dumps(one) for one in sources)])
        (folder / str(batch)).write_text(text)
        return text

    def ask(
        self, partition: int, parallelism: int, batch: int, seen: int | None = None
    ) -> settings.BatchRequest:
        asked = super().ask(partition, parallelism, batch, seen)
        path = self.checkpoint / "offsets" / str(batch)
        if not path.exists():
            return asked
        return replace(
            asked, plan_id=hashlib.blake2b(path.read_bytes(), digest_size=PLAN_ID_BYTES).hexdigest()
        )
