"""The feed of the console view: takes a status answer a second, gives it and rates, keeps two minutes.

`History` is pure and belongs to one thread. `StatusFeed` asks in a thread of its own, so that a server that
hangs never holds up the screen or the supervisor.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tidegate.cli.lags import GroupLag
from tidegate.errors import TidegateError
from tidegate.model.clock import Clock

SAMPLES_KEPT = 120  # two minutes at one a second: as wide as a sparkline gets
RATE_WINDOW_SECONDS = 5.0  # rates are taken over this long, so that micro-batches do not make them jump
GAP_SECONDS_MIN = 5.0  # samples further apart say nothing about a rate: the server was away between them
STEP_SECONDS_MIN = 0.001  # two samples of the same moment make no bar
POLL_SECONDS = 1.0
POLL_FIRST_SECONDS = 0.2  # until the first answer, so that a start looks quick


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of one moment."""

    at_seconds: float
    topic_ends: Mapping[str, int]
    pipeline_rows: Mapping[str, int]


Counters = Callable[[Sample], Mapping[str, int]]


@dataclass(slots=True)
class History:
    """The samples of the last minutes, oldest first."""

    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))

    def add(self, status: Mapping[str, Any], at_seconds: float) -> None:
        """Remember the counters of a status answer."""
        ends = {
            topic["name"]: sum(int(part["end"]) for part in topic["partitions"]) for topic in status["topics"]
        }
        rows = {line["name"]: int(line["rows"]) for line in status["pipelines"] if line["rows"] is not None}
        self.samples.append(Sample(at_seconds, ends, rows))

    def copy(self) -> History:
        """Give a history that nobody else changes."""
        return History(deque(self.samples, maxlen=SAMPLES_KEPT))

    def topic_rate(self, name: str) -> float | None:
        """Give messages per second of one topic, or None before there are two samples."""
        recent = [
            pair for pair in self._recent() if name in pair[0].topic_ends and name in pair[1].topic_ends
        ]
        return _rate(recent, lambda sample: {name: sample.topic_ends[name]})

    def message_rate(self) -> float | None:
        """Give messages per second of all topics."""
        return _rate(self._recent(), lambda sample: sample.topic_ends)

    def row_rate(self) -> float | None:
        """Give rows per second of all pipelines."""
        return _rate(self._recent(), lambda sample: sample.pipeline_rows)

    def message_steps(self) -> list[float]:
        """Give messages per second from each sample to the next."""
        return self._steps(lambda sample: sample.topic_ends)

    def row_steps(self) -> list[float]:
        """Give rows per second from each sample to the next."""
        return self._steps(lambda sample: sample.pipeline_rows)

    def _recent(self) -> list[tuple[Sample, Sample]]:
        """Give the pairs of neighbours that rates are taken over, the newest first."""
        pairs: list[tuple[Sample, Sample]] = []
        newest_first = reversed(self.samples)
        for newer, older in pairwise(newest_first):
            if pairs and older.at_seconds < self.samples[-1].at_seconds - RATE_WINDOW_SECONDS:
                break
            pairs.append((older, newer))
        return pairs

    def _steps(self, counters: Counters) -> list[float]:
        return [
            (_growth(a, b, counters) or 0) / max(b.at_seconds - a.at_seconds, STEP_SECONDS_MIN)
            for a, b in pairwise(self.samples)
        ]


def _rate(pairs: Sequence[tuple[Sample, Sample]], counters: Counters) -> float | None:
    steps = [(_growth(older, newer, counters), newer.at_seconds - older.at_seconds) for older, newer in pairs]
    counted = [(growth, elapsed) for growth, elapsed in steps if growth is not None]
    if not counted:
        return None
    return sum(growth for growth, _ in counted) / sum(elapsed for _, elapsed in counted)


def _growth(older: Sample, newer: Sample, counters: Counters) -> int | None:
    """Give by how much the counters that both samples have grew; None where that cannot be known.

    A counter that is new, or lower than before, belongs to a worker or a server that started meanwhile.
    """
    before, after = counters(older), counters(newer)
    elapsed = newer.at_seconds - older.at_seconds
    shared = before.keys() & after.keys()
    if elapsed <= 0 or elapsed > GAP_SECONDS_MIN or (after and not shared):
        return None
    return sum(max(0, after[name] - before[name]) for name in shared)


class StatusFeed:
    """Asks for the status in a thread; `latest`, `failure` and `history` are what it knows."""

    def __init__(
        self,
        fetch: Callable[[], Mapping[str, Any]],
        clock: Clock,
        fetch_lags: Callable[[], Sequence[GroupLag]] = tuple,
    ) -> None:
        self._fetch = fetch
        self._fetch_lags = fetch_lags
        self._clock = clock
        self._lock = threading.Lock()
        self._leave = threading.Event()
        self._history = History()
        self._latest: Mapping[str, Any] | None = None
        self._failure: TidegateError | None = None
        self._lags: Sequence[GroupLag] = ()
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

    def lags(self) -> Sequence[GroupLag]:
        """Give how far the consumer groups are behind, as of the newest answer."""
        with self._lock:
            return self._lags

    def _poll(self) -> None:
        while True:
            try:
                status = self._fetch()
                lags = self._fetch_lags()
            except TidegateError as error:
                with self._lock:
                    self._latest, self._failure, self._lags = None, error, ()
                pause = POLL_FIRST_SECONDS
            else:
                with self._lock:
                    self._latest, self._failure, self._lags = status, None, lags
                    self._history.add(status, self._clock.monotonic_seconds())
                pause = POLL_SECONDS
            if self._leave.wait(pause):
                return
