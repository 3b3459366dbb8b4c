"""The feed of the console view: a status answer each second, and the rates of the last two minutes.

`CounterHistory` is pure and belongs to one thread. `StatusFeed` fetches in a thread of its own, so that a
server that hangs never blocks the screen or the supervisor. The lags of all consumer groups come from one
statement.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tidegate.errors import TidegateError
from tidegate.model.clock import Clock

if TYPE_CHECKING:
    from tidegate.sdk.client import Client

SAMPLES_MAX = 120  # two minutes at one a second: as wide as a sparkline gets
RATE_WINDOW_SECONDS = 5.0  # rates are taken over this long, so that micro-batches do not make them jump
GAP_SECONDS_MIN = 5.0  # samples further apart say nothing about a rate: the server was away between them
STEP_SECONDS_MIN = 0.001  # two samples of the same moment make no bar
POLL_SECONDS = 1.0
POLL_FIRST_SECONDS = 0.2  # until the first answer, so that a start looks quick


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of one status answer."""

    at_seconds: float
    topic_ends: Mapping[str, int]
    pipeline_rows: Mapping[str, int]


Counters = Callable[[Sample], Mapping[str, int]]


@dataclass(slots=True)
class CounterHistory:
    """The samples of the last minutes, oldest first."""

    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def add(self, status: Mapping[str, Any], at_seconds: float) -> None:
        """Add the counters of a status answer."""
        ends = {
            topic["name"]: sum(int(part["end"]) for part in topic["partitions"]) for topic in status["topics"]
        }
        rows = {line["name"]: int(line["rows"]) for line in status["pipelines"] if line["rows"] is not None}
        self.samples.append(Sample(at_seconds, ends, rows))

    def copy(self) -> CounterHistory:
        """Return a copy for another thread."""
        return CounterHistory(deque(self.samples, maxlen=SAMPLES_MAX))

    def topic_rate(self, name: str) -> float | None:
        """Return messages per second of one topic; None before there are two samples."""
        recent = [
            pair for pair in self._recent() if name in pair[0].topic_ends and name in pair[1].topic_ends
        ]
        return _rate(recent, lambda sample: {name: sample.topic_ends[name]})

    def message_rate(self) -> float | None:
        """Return messages per second of all topics."""
        return _rate(self._recent(), lambda sample: sample.topic_ends)

    def row_rate(self) -> float | None:
        """Return rows per second of all pipelines."""
        return _rate(self._recent(), lambda sample: sample.pipeline_rows)

    def message_steps(self) -> list[float]:
        """Return messages per second from each sample to the next."""
        return self._steps(lambda sample: sample.topic_ends)

    def row_steps(self) -> list[float]:
        """Return rows per second from each sample to the next."""
        return self._steps(lambda sample: sample.pipeline_rows)

    def _recent(self) -> list[tuple[Sample, Sample]]:
        """Return the pairs of adjacent samples that rates are computed from, the newest first."""
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
    """Return the growth of the counters that both samples have; None where it is unknown.

    A counter that is new, or lower than before, belongs to a worker or a server that started meanwhile.
    """
    before, after = counters(older), counters(newer)
    elapsed = newer.at_seconds - older.at_seconds
    shared = before.keys() & after.keys()
    if elapsed <= 0 or elapsed > GAP_SECONDS_MIN or (after and not shared):
        return None
    return sum(max(0, after[name] - before[name]) for name in shared)


class StatusFeed:
    """Fetches the status in a thread of its own."""

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
        self._history = CounterHistory()
        self._latest: Mapping[str, Any] | None = None
        self._failure: TidegateError | None = None
        self._lags: Sequence[GroupLag] = ()
        self._thread = threading.Thread(target=self._poll, name="status-feed", daemon=True)

    def start(self) -> None:
        """Begin to fetch."""
        self._thread.start()

    def stop(self) -> None:
        """End soon; a request that is under way is not waited for."""
        self._leave.set()

    def read(self) -> tuple[Mapping[str, Any] | None, TidegateError | None, CounterHistory]:
        """Return the newest answer (None while there is none), the failure, and the history."""
        with self._lock:
            return self._latest, self._failure, self._history.copy()

    def lags(self) -> Sequence[GroupLag]:
        """Return the lags of the consumer groups, as of the newest answer."""
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


# A thousand groups are more than a picture shows; `tidegate topic groups` shows all of a topic.
LAGS_SQL = 'SELECT topic, "group", lag, in_flight FROM system.topic_groups ORDER BY lag DESC LIMIT 1000'


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a consumer group: messages that are not acknowledged, and those of them that are leased."""

    topic: str
    group: str
    lag: int
    held: int


def group_lags(client: Client) -> list[GroupLag]:
    """Return the groups, that with the largest lag first; none where the caller has no permission."""
    try:
        rows = client.sql(LAGS_SQL).rows
    except TidegateError:
        return []  # a role that may not query, or a server that just stopped, which the view shows by itself
    return [GroupLag(str(topic), str(group), int(lag), int(held)) for topic, group, lag, held in rows]


def lag_of(topic: str, lags: Sequence[GroupLag]) -> int | None:
    """Return the largest lag of the groups of a topic; None where it has no group."""
    return max((one.lag for one in lags if one.topic == topic), default=None)
