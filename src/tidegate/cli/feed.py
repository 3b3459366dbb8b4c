"""The feed of the console view: takes a status answer a second, gives it and rates, keeps two minutes.

`History` is pure and belongs to one thread. `StatusFeed` asks in a thread of its own, so that a server that
hangs never holds up the screen or the supervisor.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tidegate.errors import TidegateError
from tidegate.model.clock import Clock

SAMPLES_KEPT = 120  # two minutes at one a second: as wide as a sparkline gets
RATE_WINDOW_SECONDS = 5.0  # rates are taken over this long, so that micro-batches do not make them jump
POLL_SECONDS = 1.0
POLL_FIRST_SECONDS = 0.2  # until the first answer, so that a start looks quick


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of one moment."""

    at_seconds: float
    topic_ends: Mapping[str, int]
    pipeline_rows: Mapping[str, int]

    @property
    def messages(self) -> int:
        return sum(self.topic_ends.values())

    @property
    def rows(self) -> int:
        return sum(self.pipeline_rows.values())


@dataclass(slots=True)
class History:
    """The samples of the last minutes, oldest first."""

    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))

    def add(self, status: Mapping[str, Any], at_seconds: float) -> None:
        """Remember the counters of a status answer."""
        ends = {
            topic["name"]: sum(int(part["end"]) for part in topic["partitions"]) for topic in status["topics"]
        }
        rows = {line["name"]: int(line["rows"] or 0) for line in status["pipelines"]}
        self.samples.append(Sample(at_seconds, ends, rows))

    def copy(self) -> History:
        """Give a history that nobody else changes."""
        return History(deque(self.samples, maxlen=SAMPLES_KEPT))

    def topic_rate(self, name: str) -> float | None:
        """Give messages per second of one topic, or None before there are two samples."""
        return self._rate(lambda sample: sample.topic_ends.get(name))

    def message_rate(self) -> float | None:
        """Give messages per second of all topics."""
        return self._rate(lambda sample: sample.messages)

    def row_rate(self) -> float | None:
        """Give rows per second of all pipelines."""
        return self._rate(lambda sample: sample.rows)

    def message_steps(self) -> list[float]:
        """Give messages per second from each sample to the next."""
        return self._steps(lambda sample: sample.messages)

    def row_steps(self) -> list[float]:
        """Give rows per second from each sample to the next."""
        return self._steps(lambda sample: sample.rows)

    def _rate(self, counter: Callable[[Sample], int | None]) -> float | None:
        if len(self.samples) < 2:
            return None
        *earlier, newest = self.samples
        since = newest.at_seconds - RATE_WINDOW_SECONDS
        recent = [sample for sample in earlier if sample.at_seconds >= since] or earlier[-1:]
        counted = [sample for sample in recent if counter(sample) is not None]
        return _growth(counted[0], newest, counter) if counted else None

    def _steps(self, counter: Callable[[Sample], int | None]) -> list[float]:
        ordered = list(self.samples)
        return [_growth(a, b, counter) or 0.0 for a, b in pairwise(ordered)]


def _growth(older: Sample, newer: Sample, counter: Callable[[Sample], int | None]) -> float | None:
    start, stop = counter(older), counter(newer)
    elapsed = newer.at_seconds - older.at_seconds
    if start is None or stop is None or elapsed <= 0:
        return None
    return max(0.0, (stop - start) / elapsed)  # a counter falls when a worker starts again or a topic goes


class StatusFeed:
    """Asks for the status in a thread; `latest`, `failure` and `history` are what it knows."""

    def __init__(self, fetch: Callable[[], Mapping[str, Any]], clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._leave = threading.Event()
        self._history = History()
        self._latest: Mapping[str, Any] | None = None
        self._failure: TidegateError | None = None
        self._thread = threading.Thread(target=self._poll, name="status-feed", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; a question under way is left to itself."""
        self._leave.set()

    def read(self) -> tuple[Mapping[str, Any] | None, TidegateError | None, History]:
        """Give the newest answer (None while there is none), why there is none, and the history."""
        with self._lock:
            return self._latest, self._failure, self._history.copy()

    def _poll(self) -> None:
        while True:
            try:
                status = self._fetch()
            except TidegateError as error:
                with self._lock:
                    self._latest, self._failure = None, error
                pause = POLL_FIRST_SECONDS
            else:
                with self._lock:
                    self._latest, self._failure = status, None
                    self._history.add(status, self._clock.monotonic_seconds())
                pause = POLL_SECONDS
            if self._leave.wait(pause):
                return
