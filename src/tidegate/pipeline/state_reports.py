"""What the worker reports of the state of a pipeline: takes its checkpoint, gives figures for each operator.

The figures are those of the newest batch that every partition has done. They are read again only when a batch
was finished, so that an idle pipeline costs nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tidegate.errors import StorageCorrupt, Unavailable
from tidegate.model.timeranges import format_time
from tidegate.state.inspecting import OperatorState, describe
from tidegate.state.times import Times

log = logging.getLogger("tidegate.worker")

US_PER_MS = 1_000


class StateReports:
    """The operators of one pipeline, as its checkpoint tells of them; one thread calls `look`."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._seen: int | None = None
        self._reports: list[dict[str, Any]] = []

    @property
    def reports(self) -> list[dict[str, Any]]:
        """What was found last."""
        return self._reports

    def look(self, batches: int) -> None:
        """Read the checkpoint, unless no batch was finished since the last look."""
        if batches == self._seen:
            return
        try:
            found = describe(self._checkpoint)
        except (Unavailable, StorageCorrupt) as problem:
            # The query says the same, louder; figures of a moment ago are better than none.
            log.warning("state not readable checkpoint=%s error=%r", self._checkpoint, problem.message)
            return
        self._seen = batches
        self._reports = [operator_report(operator) for operator in found]


def operator_report(operator: OperatorState) -> dict[str, Any]:
    """Give one operator's figures as the server is told of them."""
    heads = [part.head for part in operator.partitions if part.head is not None]
    times = Times.of(heads)
    timers = [at for at in (times.next_event_timer_ms, times.next_processing_timer_ms) if at is not None]
    snapshots = [part.snapshot_batch for part in operator.partitions]
    known = [batch for batch in snapshots if batch is not None]
    return {
        "name": operator.operator,
        "partitions": operator.epoch.parallelism,
        "epoch": operator.epoch.number,
        "batch": operator.last_batch if heads else None,
        "entries": operator.entry_count,
        "stateBytes": operator.size_bytes,
        "checkpointBytes": operator.checkpoint_bytes,
        "deadRows": sum(head.dead_rows_total for head in heads),
        "nextTimer": format_time(min(timers) * US_PER_MS) if timers else None,
        # The batch from which a restore goes on: the oldest of the partitions' newest.
        "snapshotBatch": min(known) if known and len(known) == len(snapshots) else None,
    }
