"""The metrics of one server, in a registry of their own.

`Metrics` is made once by a server and passed on; there is no global one, so two servers in one process do not
mix. Any thread may call the methods. None of them raises for an unknown label: it is counted as `other`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from tidegate.errors import InvariantBroken
from tidegate.telemetry.metric_families import (
    FAMILIES,
    METHODS,
    OTHER,
    PIPELINE_LABELS_MAX,
    ROUTE_LABELS_MAX,
    STATEMENT_KINDS,
    STATEMENT_OUTCOMES,
    TABLE_KINDS,
    TENANT_LABELS_MAX,
    Family,
)

OPENMETRICS = "application/openmetrics-text"
NO_ROUTE = "(none)"
Refusal = Literal["token", "forbidden", "busy", "guesses", "quota"]
StatementOutcome = Literal["done", "refused", "failed"]
Seconds = Callable[[], float]
T = TypeVar("T")


class BoundedLabels:
    """Label values that users choose: the first `names_max` stand for themselves, the rest is `other`.

    Which ones these are does not change while the server runs, so that no series comes and goes. Any thread.
    """

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._names: set[str] = set()
        self._lock = threading.Lock()

    def fold(self, name: str) -> str:
        """Return the label value under which a name is counted."""
        if name in self._names:
            return name
        with self._lock:
            if len(self._names) >= self._names_max:
                return OTHER
            self._names.add(name)
        return name


class Metrics:
    """All metrics of one server."""

    def __init__(self, monotonic_seconds: Seconds) -> None:
        """`monotonic_seconds` is the clock with which durations are measured here."""
        self.registry = CollectorRegistry()
        self._seconds = monotonic_seconds
        self._metrics = {
            family.name: _make(family, self.registry) for family in FAMILIES if family.source == "event"
        }
        # What has no labels and changes alone; `metric_families` says what each counts.
        self.loop_lag: Histogram = self._metrics["tidegate_event_loop_lag_seconds"]
        self.messages_trimmed: Counter = self._metrics["tidegate_messages_trimmed_total"]
        self.corrupt_frames: Counter = self._metrics["tidegate_corrupt_frames_total"]
        self.stream_flushes: Histogram = self._metrics["tidegate_stream_flush_duration_seconds"]
        # Read by a function at every scrape, which must be quick and not raise.
        self.stream_writers: Gauge = self._metrics["tidegate_stream_writers_open"]
        self.windows_evicted: Counter = self._metrics["tidegate_stream_windows_evicted_total"]
        self.live_connections: Gauge = self._metrics["tidegate_live_connections"]
        self.live_subscriptions: Gauge = self._metrics["tidegate_live_subscriptions"]
        self.live_changes: Counter = self._metrics["tidegate_live_changes_sent_total"]
        self.live_lagged: Counter = self._metrics["tidegate_live_lagged_total"]
        self.live_slow_closed: Counter = self._metrics["tidegate_live_slow_closed_total"]
        self.audit_dropped: Counter = self._metrics["tidegate_audit_events_dropped_total"]
        self.backup_failures: Counter = self._metrics["tidegate_backup_failures_total"]
        self.pipelines = BoundedLabels(PIPELINE_LABELS_MAX)
        self.tenants = BoundedLabels(TENANT_LABELS_MAX)
        self._published: dict[str, Counter] = {}
        self._consumed: dict[str, Counter] = {}
        # Series are looked up once: that takes longer than counting.
        self._routes = BoundedLabels(ROUTE_LABELS_MAX)
        self._requests: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._received_bytes: Counter = self._metrics["tidegate_http_received_bytes_total"]
        self._sent_bytes: Counter = self._metrics["tidegate_http_sent_bytes_total"]
        statements = self._metrics["tidegate_sql_statements_total"]
        self._statements: dict[tuple[str, str], Counter] = {
            (kind, outcome): statements.labels(kind, outcome)
            for kind in STATEMENT_KINDS
            for outcome in STATEMENT_OUTCOMES
        }
        self._rows_written: dict[tuple[str, str], Counter] = {}
        self._lock = threading.Lock()
        for family in FAMILIES:  # words that are known appear at once, with 0
            for label in family.labels if len(family.labels) == 1 and family.name in self._metrics else ():
                for word in label.words:
                    self._metrics[family.name].labels(word)
        # A server does not start without its catalog.
        self._metrics["tidegate_catalog_up"].set(1)

    def observe_request(
        self,
        route: str,
        method: str,
        status: int,
        seconds: float,
        received_bytes: int = 0,
        sent_bytes: int = 0,
    ) -> None:
        """Count one answered request; `route` is the template of its path."""
        series = self._requests.get((route, method, status)) or self._series_of(route, method, status)
        requests, durations = series
        requests.inc()
        durations.observe(seconds)
        if received_bytes:
            self._received_bytes.inc(received_bytes)
        if sent_bytes:
            self._sent_bytes.inc(sent_bytes)

    def count_refusal(self, reason: Refusal) -> None:
        """Count a request that was refused before its endpoint."""
        self._metrics["tidegate_http_refused_total"].labels(reason).inc()

    def count_published(self, tenant: str, count: int) -> None:
        """Count messages that were stored."""
        (self._published.get(tenant) or self._of_tenant("published", self._published, tenant)).inc(count)

    def count_consumed(self, tenant: str, count: int, size_bytes: int) -> None:
        """Count messages that were delivered."""
        self._metrics["tidegate_messages_consumed_bytes_total"].inc(size_bytes)
        (self._consumed.get(tenant) or self._of_tenant("consumed", self._consumed, tenant)).inc(count)

    def observe_commit(self, changes: int, size_bytes: int, sync_seconds: float) -> None:
        """Record one group commit; called by the committer's thread after the sync."""
        self._metrics["tidegate_commit_group_changes"].observe(changes)
        self._metrics["tidegate_commit_group_bytes"].observe(size_bytes)
        self._metrics["tidegate_commit_sync_seconds"].observe(sync_seconds)

    def observe_catalog(self, seconds: float, *, answered: bool) -> None:
        """Record one call of the catalog, and whether its database answered."""
        self._metrics["tidegate_catalog_call_duration_seconds"].observe(seconds)
        self._metrics["tidegate_catalog_up"].set(1 if answered else 0)
        if not answered:
            self._metrics["tidegate_catalog_failures_total"].inc()

    @contextmanager
    def statement(self) -> Iterator[StatementTurn]:
        """Observe a statement from the moment it is queued; its thread runs it with `turn.run`."""
        turn = StatementTurn(self._metrics, self._seconds)
        try:
            yield turn
        finally:
            turn.leave()

    def count_statement(self, kind: str, outcome: StatementOutcome) -> None:
        """Count a statement that ended, by its kind (`STATEMENT_KINDS`) and its outcome."""
        (self._statements.get((kind, outcome)) or self._statements[OTHER, outcome]).inc()

    def count_rows_written(self, tenant: str, table_kind: str, count: int) -> None:
        """Count rows that were inserted, changed or deleted; `table_kind` in any case of letters."""
        (self._rows_written.get((tenant, table_kind)) or self._rows_of(tenant, table_kind)).inc(count)

    def count_stream_append(self, rows: int, size_bytes: int) -> None:
        """Count one append to a stream log."""
        self._metrics["tidegate_stream_appended_rows_total"].inc(rows)
        self._metrics["tidegate_stream_appended_bytes_total"].inc(size_bytes)

    def begin_job(self) -> None:
        """Count a running job until `end_job`."""
        self._metrics["tidegate_jobs_running"].inc()

    def end_job(self, *, done: bool) -> None:
        """Count a job that ended, by its outcome."""
        self._metrics["tidegate_jobs_running"].dec()
        self._metrics["tidegate_jobs_finished_total"].labels("done" if done else "failed").inc()

    def observe_backup(self, finished_seconds: float, took_seconds: float, size_bytes: int) -> None:
        """Record a finished backup; `finished_seconds` is since 1970."""
        self._metrics["tidegate_backup_last_success_timestamp_seconds"].set(finished_seconds)
        self._metrics["tidegate_backup_last_duration_seconds"].set(took_seconds)
        self._metrics["tidegate_backup_last_size_bytes"].set(size_bytes)

    def count_scrape_error(self, part: str) -> None:
        """Count a part of a scrape that could not be read."""
        self._metrics["tidegate_scrape_errors_total"].labels(part).inc()

    def render(self, more: Collector | None = None, accept: str = "") -> tuple[bytes, str]:
        """Return all samples, those of `more` too, and the content type that fits `accept`."""
        # `more` is read first: if a part of it fails, that is counted in the registry's samples.
        read = list(more.collect()) if more is not None else []
        page = _Page([*read, *self.registry.collect()])
        if any(choice.partition(";")[0].strip() == OPENMETRICS for choice in accept.split(",")):
            openmetrics: bytes = generate_openmetrics(page)  # type: ignore[no-untyped-call]
            return openmetrics, CONTENT_TYPE_OPENMETRICS
        return generate_latest(page), CONTENT_TYPE_PLAIN_0_0_4

    def _series_of(self, route: str, method: str, status: int) -> tuple[Counter, Histogram]:
        """Return the series of a request's labels; those that stand for themselves are looked up once."""
        labels = (
            self._routes.fold(route or NO_ROUTE),
            method if method in METHODS else OTHER,
            str(status) if 100 <= status <= 599 else OTHER,
        )
        requests: Counter = self._metrics["tidegate_http_requests_total"].labels(*labels)
        durations: Histogram = self._metrics["tidegate_http_request_duration_seconds"].labels(labels[0])
        if labels == (route, method, str(status)):
            self._requests[route, method, status] = requests, durations
        return requests, durations

    def _of_tenant(self, what: str, known: dict[str, Counter], tenant: str) -> Counter:
        with self._lock:
            name = self.tenants.fold(tenant)
            counter: Counter = self._metrics[f"tidegate_messages_{what}_total"].labels(name)
            if name == tenant:
                known[tenant] = counter
        return counter

    def _rows_of(self, tenant: str, table_kind: str) -> Counter:
        kind = table_kind.lower() if table_kind.lower() in TABLE_KINDS else OTHER
        with self._lock:
            name = self.tenants.fold(tenant)
            counter: Counter = self._metrics["tidegate_rows_written_total"].labels(name, kind)
            if name == tenant:
                self._rows_written[tenant, table_kind] = counter
        return counter


class StatementTurn:
    """One statement: it is queued, then runs, or leaves the queue."""

    def __init__(self, metrics: dict[str, Any], seconds: Seconds) -> None:
        self._waiting: Gauge = metrics["tidegate_sql_statements_waiting"]
        self._running: Gauge = metrics["tidegate_sql_statements_running"]
        self._durations: Histogram = metrics["tidegate_sql_statement_duration_seconds"]
        self._seconds = seconds
        self._lock = threading.Lock()
        self._is_queued = True
        self._waiting.inc()

    def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run the statement now."""
        self.leave()
        began = self._seconds()
        with self._running.track_inprogress():
            try:
                return call(*arguments)
            finally:
                self._durations.observe(self._seconds() - began)

    def leave(self) -> None:
        """Leave the queue; a second call does nothing."""
        with self._lock:
            was_queued, self._is_queued = self._is_queued, False
        if was_queued:
            self._waiting.dec()


class _Page(Collector):
    """The samples of one scrape, without the `_created` ones."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        for metric in self._metrics:
            metric.samples = [one for one in metric.samples if one.name != f"{metric.name}_created"]
            yield metric


def _make(family: Family, registry: CollectorRegistry) -> Any:
    labels = [label.name for label in family.labels]
    if family.kind == "counter":
        return Counter(family.name, family.help, labels, registry=registry)
    if family.kind == "gauge":
        return Gauge(family.name, family.help, labels, registry=registry)
    if not family.buckets:
        raise InvariantBroken(reason=f"the histogram {family.name} has no buckets")
    return Histogram(family.name, family.help, labels, registry=registry, buckets=family.buckets)
