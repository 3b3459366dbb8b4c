"""The progress of a pipeline: totals, a rate and the committed offsets, from the reports of its query.

Counts are since the worker started. Rows are those that batches read from their sources and have processed.
Spark repeats its last report until the next batch is done, so a batch is counted by its number, once.
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

# The offset that Spark writes for a source without one yet.
NO_OFFSET = "-"

Offsets = dict[str, int]


class ProgressReports(Protocol):
    """The progress reports of a running query."""

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
    """Batches and rows of a pipeline since the worker started."""

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
        """Reset for a query that starts: batch numbers are its own, offsets those of its checkpoint."""
        self._counted = -1
        self.offsets = list(offsets)

    def look(self, query: ProgressReports) -> None:
        """Count the batches of a query since the last call."""
        last = query.lastProgress
        if last is None or last["batchId"] <= self._counted:
            return
        # The last report alone may miss reports in between.
        reports = [last] if last["batchId"] == self._counted + 1 else query.recentProgress
        for report in reports:
            self.count(report)

    def count(self, report: Mapping[str, Any]) -> None:
        """Count one report; one that was counted, or of an idle trigger, changes nothing."""
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
    """Return how many rows of the sources a batch read, each once.

    Spark's own number counts a row again each time that a sink evaluates the batch, and none where the batch
    comes from a cache. Offsets of a topic are dense, so their difference is exact. For a source that is no
    topic, or had no offset before, Spark's number is used.
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
    """Return the committed offsets of a checkpoint, one entry per source; none if new or unreadable."""
    numbers = [int(file.name) for file in (checkpoint / "commits").glob("[0-9]*") if file.name.isdecimal()]
    if not numbers:
        return []
    try:
        lines = (checkpoint / "offsets" / str(max(numbers))).read_text(encoding="utf-8").splitlines()
        return [{} if line == NO_OFFSET else offsets_of(line) for line in lines[2:] if not _is_of_ticks(line)]
    except (OSError, ValueError, AttributeError, TypeError):
        return []  # only the displayed lag before the first batch depends on it


def offsets_of(text: str | Mapping[str, Any] | None) -> Offsets:
    """Return the offsets of a topic in a report; none where they are missing or another source's."""
    found = json.loads(text) if isinstance(text, str) else text
    if not isinstance(found, Mapping):
        return {}
    return {key: value for key, value in found.items() if key.isdecimal() and type(value) is int}


def _is_of_ticks(text: str | Mapping[str, Any] | None) -> bool:
    """True if an offset is one of ticks: they are no topic, and have no lag."""
    return "ticksOf" in (text or "")
