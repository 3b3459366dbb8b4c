"""Progress: takes Spark's progress reports of one query, gives totals, a rate and the offsets reached.

Counts are since the worker started. Rows are those that batches took in from their sources and are through
with. Spark repeats its last report until the next batch is done, so a batch is counted by its number, once.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tidegate.model.clock import Clock

# Long enough to smooth a batch a second, short enough that a stalled pipeline shows.
RATE_WINDOW_SECONDS = 10.0

# What Spark writes for a source that had nothing yet.
NO_OFFSET = "-"

Offsets = dict[str, int]


class ProgressReports(Protocol):
    """What is read of a running query."""

    @property
    def lastProgress(self) -> Mapping[str, Any] | None:  # noqa: N802 - the name is Spark's
        """The newest report, or None."""
        ...

    @property
    def recentProgress(self) -> Sequence[Mapping[str, Any]]:  # noqa: N802 - the name is Spark's
        """The last hundred reports, oldest first."""
        ...


@dataclass(frozen=True, slots=True)
class Totals:
    """What a pipeline did since the worker started."""

    batches: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    last_batch_seconds: float | None = None


class ProgressCounter:
    """Counts the batches of one pipeline through all its restarts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._batches = 0
        self._rows = 0
        self._last_batch_seconds: float | None = None
        self._counted = -1
        self._steps: deque[tuple[float, int]] = deque()
        self.offsets: list[Offsets] = []

    def begin(self, offsets: Iterable[Offsets] = ()) -> None:
        """Prepare for a query that starts: batch numbers are its own, offsets those of its checkpoint."""
        self._counted = -1
        self.offsets = list(offsets)

    def look(self, query: ProgressReports) -> None:
        """Count what a query has done since the last look."""
        last = query.lastProgress
        if last is None or last["batchId"] <= self._counted:
            return
        # A report in between may be missed by looking at the last alone.
        reports = [last] if last["batchId"] == self._counted + 1 else query.recentProgress
        for report in reports:
            self.count(report)

    def count(self, report: Mapping[str, Any]) -> None:
        """Count one report; one that was counted, or that tells of an idle moment, changes nothing."""
        if report["batchId"] <= self._counted or "addBatch" not in report["durationMs"]:
            return
        self._counted = report["batchId"]
        self._batches += 1
        rows = rows_of(report)
        self._rows += rows
        self._last_batch_seconds = report["durationMs"].get("triggerExecution", 0) / 1000
        ends = [source["endOffset"] for source in report["sources"]]
        self.offsets = [offsets_of(end) for end in ends if not _is_of_ticks(end)]
        self._steps.append((self._clock.monotonic_seconds(), rows))

    def totals(self) -> Totals:
        """Return the totals, and the rate over the last seconds."""
        edge = self._clock.monotonic_seconds() - RATE_WINDOW_SECONDS
        while self._steps and self._steps[0][0] <= edge:
            self._steps.popleft()
        rate = sum(rows for _, rows in self._steps) / RATE_WINDOW_SECONDS
        return Totals(self._batches, self._rows, rate, self._last_batch_seconds)


def rows_of(report: Mapping[str, Any]) -> int:
    """Return how many rows of the sources a batch took in, each once.

    Spark's own number counts a row again each time that a sink evaluates the batch, and none where the batch
    comes out of a cache. Offsets of a topic are dense, so their difference is exact. Where a source is not
    ours, or one that had no offset before, Spark's number of that source stands.
    """
    return sum(_rows_of_source(source, report["numInputRows"]) for source in report["sources"])


def _rows_of_source(source: Mapping[str, Any], otherwise: int) -> int:
    start, end = offsets_of(source.get("startOffset")), offsets_of(source["endOffset"])
    if start and end:
        # A partition that is new begins at 0.
        return sum(max(reached - start.get(partition, 0), 0) for partition, reached in end.items())
    rows: int = source.get("numInputRows", otherwise)
    return max(rows, 0)


def committed_offsets(checkpoint: Path) -> list[Offsets]:
    """Return where a checkpoint stands, one entry a source.

    Nothing when it is new or not readable as such.
    """
    numbers = [int(file.name) for file in (checkpoint / "commits").glob("[0-9]*") if file.name.isdecimal()]
    if not numbers:
        return []
    try:
        lines = (checkpoint / "offsets" / str(max(numbers))).read_text(encoding="utf-8").splitlines()
        return [{} if line == NO_OFFSET else offsets_of(line) for line in lines[2:] if not _is_of_ticks(line)]
    except (OSError, ValueError, AttributeError, TypeError):
        return []  # only the display of lag before the first batch hangs on it


def offsets_of(text: str | Mapping[str, Any] | None) -> Offsets:
    """Read the offsets of our source from a report; nothing where they are missing or another source's."""
    found = json.loads(text) if isinstance(text, str) else text
    if not isinstance(found, Mapping):
        return {}
    return {key: value for key, value in found.items() if key.isdecimal() and type(value) is int}


def _is_of_ticks(text: str | Mapping[str, Any] | None) -> bool:
    """Return whether an offset is of the ticks that wake timers: they are no topic, and have no lag."""
    return "ticksOf" in (text or "")
