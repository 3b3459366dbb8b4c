"""The reports of the worker to the server, once a second, with figures of each stateful operator.

A server that is away is logged once, and once more when it is back; the worker continues either way. The
figures of an operator are those of the newest batch that every partition has committed. They are read again
only after a batch, so that an idle pipeline costs nothing.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tidegate.checkpoint.commit_record import Times
from tidegate.checkpoint.inspect import OperatorState, describe
from tidegate.dedup.describe import DedupState, dedup_state
from tidegate.errors import StorageCorrupt, TidegateError, TimeRangeInvalid, Unavailable
from tidegate.model.epoch import SECOND_US
from tidegate.model.times import format_time
from tidegate.model.wire.status import DedupReport, OperatorReport
from tidegate.pipeline.topic.client import ServerClient

log = logging.getLogger("tidegate.worker")

REPORT_INTERVAL_SECONDS = 1.0
# A report that takes longer is worth less than the next one.
REPORT_TIMEOUT_SECONDS = 5.0
REPORT_PATH = "worker/report"

US_PER_MS = 1_000


class Reporter:
    """A thread that posts the value of `body` until it is stopped; `before` is called before each post."""

    def __init__(
        self, client: ServerClient, body: Callable[[], dict[str, Any]], before: Callable[[], None]
    ) -> None:
        self._client = client
        self._body = body
        self._before = before
        self._stop_event = threading.Event()
        self._is_away = False
        self._thread = threading.Thread(target=self._run, name="tidegate-reports", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def stop(self) -> None:
        """Send one last report and end."""
        self._stop_event.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop_event.wait(REPORT_INTERVAL_SECONDS):
            self._before()
            self._post()
        self._post()

    def _post(self) -> None:
        try:
            self._client.post_json_once(REPORT_PATH, self._body())
        except TidegateError as problem:
            if not self._is_away:
                log.warning("worker report rejected error=%r", str(problem))
            self._is_away = True
        else:
            if self._is_away:
                log.info("worker reports accepted again")
            self._is_away = False


class StateReports:
    """The operators of one pipeline, by its checkpoint; one thread calls `look`."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._seen: int | None = None
        self._reports: list[dict[str, Any]] = []

    @property
    def reports(self) -> list[dict[str, Any]]:
        """The figures that were read last."""
        return self._reports

    def look(self, batches: int) -> None:
        """Read the checkpoint, unless no batch was finished since the last look."""
        if batches == self._seen:
            return
        try:
            operators = describe(self._checkpoint)
            reports = [operator_report(operator, self._checkpoint) for operator in operators]
        except (Unavailable, StorageCorrupt) as problem:
            # The query fails with the same error; figures of a moment ago are better than none.
            log.warning("state not readable checkpoint=%s error=%r", self._checkpoint, problem.message)
            return
        self._seen = batches
        self._reports = reports


def operator_report(operator: OperatorState, checkpoint: Path) -> dict[str, Any]:
    """Return the report of one operator's figures."""
    commits = [part.commit for part in operator.partitions if part.commit is not None]
    times = Times.of(commits)
    timers = [at for at in (times.next_event_timer_ms, times.next_processing_timer_ms) if at is not None]
    snapshots = [part.snapshot_batch for part in operator.partitions]
    known = [batch for batch in snapshots if batch is not None]
    report = OperatorReport(
        name=operator.operator,
        partitions=operator.epoch.parallelism,
        epoch=operator.epoch.number,
        batch=operator.last_batch if commits else None,
        entries=operator.entry_count,
        state_bytes=operator.size_bytes,
        checkpoint_bytes=operator.checkpoint_bytes,
        dead_rows=sum(commit.dead_rows_total for commit in commits),
        next_timer=format_time(min(timers) * US_PER_MS) if timers else None,
        # The batch from which recovery starts: the oldest of the partitions' newest snapshots.
        snapshot_batch=min(known) if known and len(known) == len(snapshots) else None,
        dedup=_dedup_report(dedup_state(checkpoint, operator)),
    )
    fields: dict[str, Any] = msgspec.to_builtins(report)
    return fields


def state_disk(folder: Path) -> dict[str, int | None]:
    """Return how full the file system of the state is; the folder need not exist yet.

    None where it does not answer: batches fail then with an error, and reports continue.
    """
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        usage = shutil.disk_usage(existing)
    except OSError as problem:
        log.debug("state disk not readable folder=%s error=%r", folder, str(problem))
        return {"stateDiskUsedBytes": None, "stateDiskSizeBytes": None}
    # Blocks that are reserved for root count as used: no task can have them.
    return {"stateDiskUsedBytes": usage.total - usage.free, "stateDiskSizeBytes": usage.total}


def _dedup_report(found: DedupState | None) -> DedupReport | None:
    if found is None:
        return None
    return DedupReport(
        unique=found.unique,
        duplicates=found.duplicates,
        late=found.late,
        keys=found.keys,
        bytes=found.size_bytes,
        segments=len(found.segments),
        filter_bytes=found.filter_bytes,
        filter_probes=found.filters.probes,
        filter_maybe=found.filters.maybe,
        filter_false=found.filters.false,
        reads=found.reads,
        lookup_seconds=found.lookup_us / SECOND_US,
        stream_time=_time(found.stream_us),
    )


def _time(at_us: int | None) -> str | None:
    try:
        return None if at_us is None else format_time(at_us)
    except TimeRangeInvalid:
        return None  # rows may have any time, also one beyond the calendar
