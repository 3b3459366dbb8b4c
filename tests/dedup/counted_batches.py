"""Checkpoints of deduplication for tests of what is shown: real batches that store nothing and note much."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.checkpoint.batches import open_new
from tidegate.checkpoint.backend import StateChanges
from tidegate.checkpoint.backends.heap import HeapFactory
from tidegate.checkpoint.commit_record import RunFacts
from tidegate.checkpoint.settings import BatchRequest, StateSettings
from tidegate.testing.clock import ManualClock

DAY_US = 86_400_000_000
RETENTION_US = 100 * DAY_US
INTERVAL_US = 50 * DAY_US
OPERATOR = "orders"


def segment(number: int, keys: int, **changed: object) -> dict[str, Any]:
    """What a partition notes of one segment."""
    start_us = number * INTERVAL_US
    return {
        "number": number,
        "start_ms": start_us // 1_000,
        "keys": keys,
        "size_bytes": keys * 31,
        "filter_bytes": keys * 2,
        "oldest_us": start_us + DAY_US if keys else None,
        "newest_us": start_us + 2 * DAY_US if keys else None,
        "filter_probes": 1_000,
        "filter_maybe": 50,
        "filter_false": 15,
        **changed,
    }


def notes(*segments: dict[str, Any], stream_us: int | None = None) -> dict[str, Any]:
    """What a partition notes after a batch."""
    return {
        "kind": "dedup",
        "retention_us": RETENTION_US,
        "interval_us": INTERVAL_US,
        "stream_us": stream_us,
        "exact_keys": False,
        "segments": list(segments),
    }


COUNTS = {
    "unique": 980,
    "duplicate": 20,
    "late": 0,
    "filter_probes": 2_000,
    "filter_maybe": 50,
    "filter_false": 30,
    "reads": 50,
    "lookup_us": 5_000,
}


@dataclass
class NotedJob:
    """Batches of one operator; each partition notes what the test says."""

    checkpoint: Path
    local: Path
    operator: str = OPERATOR
    attempts: int = field(default=0)

    def batch(self, number: int, said: list[RunFacts]) -> None:
        """Do one batch: as many partitions as there are facts."""
        settings = StateSettings(backend=HeapFactory(), local_root=str(self.local), keep_open=False)
        for partition, facts in enumerate(said):
            self.attempts += 1
            asked = BatchRequest(
                checkpoint=str(self.checkpoint),
                operator=self.operator,
                partition=partition,
                parallelism=len(said),
                max_parallelism=64,
                number=number,
                plan_id=f"plan-{number}",
                attempt=f"attempt-{self.attempts}",
            )
            with open_new(asked, settings, ManualClock()) as opened:
                opened.publish(StateChanges(), facts)


def two_partitions(job: NotedJob) -> None:
    """Do two batches in two partitions: three segments, stream time on day 120."""
    for batch in range(2):
        job.batch(
            batch,
            [
                RunFacts(
                    newest_event_us=(119 + partition) * DAY_US,
                    counts=COUNTS,
                    notes=notes(segment(0, 100), segment(1, 200), segment(2, 40), stream_us=118 * DAY_US),
                )
                for partition in range(2)
            ],
        )
