"""Tallies: counts of requests, cheap enough for each of thousands a second; takes events, gives samples.

Belongs to the event loop: `add` is called from one thread and takes no lock. `collect` may run in any other
thread at the same time; what it gives is a moment's view in which a histogram and its count agree.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate.telemetry.metric_families import BY_NAME, METHODS, OTHER, ROUTE_LABELS_MAX, SECONDS_BUCKETS

NO_ROUTE = "(none)"

_LE = [repr(bound) for bound in SECONDS_BUCKETS] + ["+Inf"]
_Key = tuple[str, str, int]


class FoldedNames:
    """Label values that come from people: the first `names_max` stand for themselves, the rest are `other`.

    Which ones those are does not change while the server runs, so that no series comes and goes. Any thread.
    """

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._kept: set[str] = set()
        self._lock = threading.Lock()

    def fold(self, name: str) -> str:
        """Return the value under which a name is counted."""
        if name in self._kept:
            return name
        with self._lock:
            if len(self._kept) >= self._names_max:
                return OTHER
            self._kept.add(name)
        return name


class _Cell:
    """One combination of labels: requests by bucket of duration, and the sum of the durations."""

    __slots__ = ("buckets", "sum_seconds")

    def __init__(self) -> None:
        self.buckets = [0] * len(_LE)
        self.sum_seconds = 0.0


class RequestTally(Collector):
    """Requests by route, method and status, their durations by route, and the bytes of all of them."""

    def __init__(self) -> None:
        self._cells: dict[_Key, _Cell] = {}
        self._routes = FoldedNames(ROUTE_LABELS_MAX)
        self._received_bytes = 0
        self._sent_bytes = 0

    def add(
        self, route: str, method: str, status: int, seconds: float, received_bytes: int, sent_bytes: int
    ) -> None:
        """Count one answered request."""
        cell = self._cells.get((route, method, status))
        if cell is None:
            cell = self._new_cell(route, method, status)
        cell.buckets[bisect_left(SECONDS_BUCKETS, seconds)] += 1
        cell.sum_seconds += seconds
        self._received_bytes += received_bytes
        self._sent_bytes += sent_bytes

    def collect(self) -> Iterator[Metric]:
        """Yield the samples of now."""
        seen = [(key, tuple(cell.buckets), cell.sum_seconds) for key, cell in list(self._cells.items())]
        requests = _counter("tidegate_http_requests_total")
        by_route: dict[str, tuple[list[int], float]] = {}
        for (route, method, status), buckets, sum_seconds in seen:
            requests.add_metric([route, method, str(status) if status else OTHER], sum(buckets))
            before, seconds = by_route.get(route, ([0] * len(buckets), 0.0))
            by_route[route] = ([a + b for a, b in zip(before, buckets, strict=True)], seconds + sum_seconds)
        yield requests
        yield _durations(by_route)
        for name, value in (
            ("tidegate_http_received_bytes_total", self._received_bytes),
            ("tidegate_http_sent_bytes_total", self._sent_bytes),
        ):
            family = _counter(name)
            family.add_metric([], value)
            yield family

    def _new_cell(self, route: str, method: str, status: int) -> _Cell:
        """Make the cell of labels that are new; what is beyond a bound shares one that is there."""
        key = (
            self._routes.fold(route or NO_ROUTE),
            method if method in METHODS else OTHER,
            status if 100 <= status <= 599 else 0,
        )
        return self._cells.setdefault(key, _Cell())


def _counter(name: str) -> CounterMetricFamily:
    family = BY_NAME[name]
    return CounterMetricFamily(name, family.help, labels=[label.name for label in family.labels])


def _durations(by_route: dict[str, tuple[list[int], float]]) -> HistogramMetricFamily:
    family = BY_NAME["tidegate_http_request_duration_seconds"]
    durations = HistogramMetricFamily(family.name, family.help, labels=["route"])
    for route, (buckets, sum_seconds) in by_route.items():
        running_total = 0
        cumulated: list[tuple[str, float]] = []
        for bound, count in zip(_LE, buckets, strict=True):
            running_total += count
            cumulated.append((bound, running_total))
        durations.add_metric([route], cumulated, sum_seconds)
    return durations
