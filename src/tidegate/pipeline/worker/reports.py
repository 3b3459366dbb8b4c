"""Reports: tells the server each second what the worker does.

A server that is away is said once in the log, and once more when it is back; the worker goes on either way.

What the worker reports of the state of a pipeline: takes its checkpoint, gives figures for each operator.

The figures are those of the newest batch that every partition has done. They are read again only when a batch
was finished, so that an idle pipeline costs nothing.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate.checkpoint.commit_record import Times
from tidegate.checkpoint.inspect import OperatorState, describe
from tidegate.dedup.describe import DedupState, dedup_state
from tidegate.errors import StorageCorrupt, TidegateError, TimeRangeInvalid, Unavailable
from tidegate.model.timeranges import format_time
from tidegate.pipeline.topic.client import ServerClient

log = logging.getLogger("tidegate.worker")

REPORT_INTERVAL_SECONDS = 1.0
# A report that takes longer is worth less than the next one.
REPORT_TIMEOUT_SECONDS = 5.0
REPORT_PATH = "worker/report"


class Reporter:
    """A thread that posts what `body` gives until it is stopped."""

    def __init__(self, wire: ServerClient, body: Callable[[], dict[str, Any]]) -> None:
        self._wire = wire
        self._body = body
        self._stopping = threading.Event()
        self._away = False
        self._thread = threading.Thread(target=self._run, name="tidegate-reports", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def stop(self) -> None:
        """Send one last report and end."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(REPORT_INTERVAL_SECONDS):
            self._post()
        self._post()

    def _post(self) -> None:
        try:
            self._wire.post_json_once(REPORT_PATH, self._body())
        except TidegateError as problem:
            if not self._away:
                log.warning("server does not take reports error=%r", str(problem))
            self._away = True
        else:
            if self._away:
                log.info("server takes reports again")
            self._away = False


log = logging.getLogger("tidegate.worker")

US_PER_MS = 1_000
US_PER_SECOND = 1_000_000


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
            reports = [operator_report(operator, self._checkpoint) for operator in found]
        except (Unavailable, StorageCorrupt) as problem:
            # The query says the same, louder; figures of a moment ago are better than none.
            log.warning("state not readable checkpoint=%s error=%r", self._checkpoint, problem.message)
            return
        self._seen = batches
        self._reports = reports


def operator_report(operator: OperatorState, checkpoint: Path) -> dict[str, Any]:
    """Return one operator's figures as the server is told of them."""
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
        "dedup": _dedup_report(dedup_state(checkpoint, operator)),
    }


def state_disk(folder: Path) -> dict[str, int | None]:
    """Return how full the file system is on which state lies; the folder need not be there yet.

    Nothing where it does not answer: batches fail then and say so, and reports go on.
    """
    try:
        place = next(path for path in (folder, *folder.parents) if path.exists())
        usage = os.statvfs(place)
    except OSError as problem:
        log.debug("state disk not readable folder=%s error=%r", folder, str(problem))
        return {"stateDiskUsedBytes": None, "stateDiskSizeBytes": None}
    # What only the system's own user could still take counts as used: no task can have it.
    free_bytes, size_bytes = usage.f_bavail * usage.f_frsize, usage.f_blocks * usage.f_frsize
    return {"stateDiskUsedBytes": size_bytes - free_bytes, "stateDiskSizeBytes": size_bytes}


def _dedup_report(found: DedupState | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "unique": found.unique,
        "duplicates": found.duplicates,
        "late": found.late,
        "keys": found.keys,
        "bytes": found.size_bytes,
        "segments": len(found.segments),
        "filterBytes": found.filter_bytes,
        "filterProbes": found.filters.probes,
        "filterMaybe": found.filters.maybe,
        "filterFalse": found.filters.false,
        "reads": found.reads,
        "lookupSeconds": found.lookup_us / US_PER_SECOND,
        "streamTime": _time(found.stream_us),
    }


def _time(at_us: int | None) -> str | None:
    try:
        return None if at_us is None else format_time(at_us)
    except TimeRangeInvalid:
        return None  # rows may have any time, also one that no calendar has
