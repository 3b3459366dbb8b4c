"""Metrics: takes what happens, gives it in Prometheus' formats, keeps counts in a registry of its own.

`Metrics` is made once by a server and passed on; there is no global one, so two servers in one program do
not mix. `observe_request` and the loop's other counts belong to the event loop; everything else may be
called from any thread. No method raises for a label it does not know: it counts it as `other`.
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
    OTHER,
    PIPELINE_LABELS_MAX,
    STATEMENT_KINDS,
    STATEMENT_OUTCOMES,
    TABLE_KINDS,
    TENANT_LABELS_MAX,
    Family,
)
from tidegate.telemetry.request_metrics import FoldedNames, RequestTally

OPENMETRICS = "application/openmetrics-text"
# These live in the tally: prometheus_client would take five times as long for each request.
TALLIED = frozenset(
    {
        "tidegate_http_requests_total",
        "tidegate_http_request_duration_seconds",
        "tidegate_http_received_bytes_total",
        "tidegate_http_sent_bytes_total",
    }
)

Refusal = Literal["token", "forbidden", "busy", "guesses"]
StatementOutcome = Literal["done", "refused", "failed"]
Seconds = Callable[[], float]
T = TypeVar("T")


class Metrics:
    """All counts of one server."""

    def __init__(self, monotonic_seconds: Seconds) -> None:
        """`monotonic_seconds` is the clock's; durations that are measured here are taken with it."""
        self.registry = CollectorRegistry()
        self._seconds = monotonic_seconds
        self._tally = RequestTally()
        self.registry.register(self._tally)
        # The name of the request hook, without a layer in between: it is called for every request.
        self._add_request = self._tally.add
        self._made = {
            family.name: _make(family, self.registry)
            for family in FAMILIES
            if family.source == "event" and family.name not in TALLIED
        }
        self.pipelines = FoldedNames(PIPELINE_LABELS_MAX)
        self.tenants = FoldedNames(TENANT_LABELS_MAX)
        self._published: dict[str, Counter] = {}
        self._consumed: dict[str, Counter] = {}
        # Found once: looking a series up takes longer than counting in it.
        statements = self._made["tidegate_sql_statements_total"]
        self._statements: dict[tuple[str, str], Counter] = {
            (kind, outcome): statements.labels(kind, outcome)
            for kind in STATEMENT_KINDS
            for outcome in STATEMENT_OUTCOMES
        }
        self._rows_written: dict[tuple[str, str], Counter] = {}
        self._lock = threading.Lock()
        for family in FAMILIES:  # words that are known appear at once, with 0
            for label in family.labels if len(family.labels) == 1 and family.name in self._made else ():
                for word in label.words:
                    self._made[family.name].labels(word)
        # A server does not start without its catalog.
        self._made["tidegate_catalog_up"].set(1)

    def observe_request(
        self,
        route_template: str,
        method: str,
        status: int,
        seconds: float,
        received_bytes: int = 0,
        sent_bytes: int = 0,
    ) -> None:
        """Count one answered request; on the event loop, well under a microsecond."""
        self._add_request(route_template, method, status, seconds, received_bytes, sent_bytes)

    def count_refusal(self, reason: Refusal) -> None:
        """Count a request that the door turned away."""
        self._made["tidegate_http_refused_total"].labels(reason).inc()

    def observe_loop_lag(self, seconds: float) -> None:
        """Note how much later than asked the event loop came back."""
        self._made["tidegate_event_loop_lag_seconds"].observe(max(0.0, seconds))

    def count_published(self, tenant: str, count: int) -> None:
        """Count messages that were stored."""
        (self._published.get(tenant) or self._of_tenant("published", self._published, tenant)).inc(count)

    def count_trimmed(self, count: int) -> None:
        """Count messages that were removed from topics."""
        self._made["tidegate_messages_trimmed_total"].inc(count)

    def count_consumed(self, tenant: str, count: int, size_bytes: int) -> None:
        """Count messages that were handed out."""
        self._made["tidegate_messages_consumed_bytes_total"].inc(size_bytes)
        (self._consumed.get(tenant) or self._of_tenant("consumed", self._consumed, tenant)).inc(count)

    def observe_commit(self, changes: int, size_bytes: int, sync_seconds: float) -> None:
        """Note one group commit; called by the committer's thread after the sync."""
        self._made["tidegate_commit_group_changes"].observe(changes)
        self._made["tidegate_commit_group_bytes"].observe(size_bytes)
        self._made["tidegate_commit_sync_seconds"].observe(sync_seconds)

    def count_corrupt_frame(self) -> None:
        """Count bytes at rest that do not match their checksum."""
        self._made["tidegate_corrupt_frames_total"].inc()

    def observe_catalog(self, seconds: float, *, answered: bool) -> None:
        """Note one call of the catalog, and whether its database answered."""
        self._made["tidegate_catalog_call_duration_seconds"].observe(seconds)
        self._made["tidegate_catalog_up"].set(1 if answered else 0)
        if not answered:
            self._made["tidegate_catalog_failures_total"].inc()

    @contextmanager
    def statement(self) -> Iterator[StatementTurn]:
        """Watch a statement from the moment it queues; run it with `turn.run` in the thread that does it."""
        turn = StatementTurn(self._made, self._seconds)
        try:
            yield turn
        finally:
            turn.leave()

    def count_statement(self, kind: str, outcome: StatementOutcome) -> None:
        """Count a statement that ended: what it does (`STATEMENT_KINDS`), and how it went."""
        (self._statements.get((kind, outcome)) or self._statements[OTHER, outcome]).inc()

    def count_rows_written(self, tenant: str, table_kind: str, count: int) -> None:
        """Count rows that were inserted, changed or deleted; `table_kind` in any case of letters."""
        (self._rows_written.get((tenant, table_kind)) or self._rows_of(tenant, table_kind)).inc(count)

    def count_stream_append(self, rows: int, size_bytes: int) -> None:
        """Count what one append put into a stream log."""
        self._made["tidegate_stream_appended_rows_total"].inc(rows)
        self._made["tidegate_stream_appended_bytes_total"].inc(size_bytes)

    def observe_stream_flush(self, seconds: float) -> None:
        """Note one round that brought gathered bytes of stream logs to their files."""
        self._made["tidegate_stream_flush_duration_seconds"].observe(seconds)

    def watch_stream_writers(self, read: Callable[[], float]) -> None:
        """Ask `read` at every scrape how many stream logs are open; it must be quick and raise nothing."""
        self._made["tidegate_stream_writers_open"].set_function(read)

    def count_stream_evicted(self, windows: int) -> None:
        """Count expired windows that were put out of sight."""
        self._made["tidegate_stream_windows_evicted_total"].inc(windows)

    def live_connections(self, delta: int) -> None:
        """Add to the live sockets that are open; -1 takes one back."""
        self._made["tidegate_live_connections"].inc(delta)

    def live_subscriptions(self, delta: int) -> None:
        """Add to the subscriptions of all live sockets; a negative number takes some back."""
        self._made["tidegate_live_subscriptions"].inc(delta)

    def count_live_changes(self, count: int) -> None:
        """Count changes that were sent to subscribers."""
        self._made["tidegate_live_changes_sent_total"].inc(count)

    def count_live_lagged(self) -> None:
        """Count a subscriber that fell behind and got a new snapshot."""
        self._made["tidegate_live_lagged_total"].inc()

    def count_live_slow_closed(self) -> None:
        """Count a socket that was closed because it took nothing for too long."""
        self._made["tidegate_live_slow_closed_total"].inc()

    def begin_job(self) -> None:
        """Count a job that runs; `end_job` takes it back."""
        self._made["tidegate_jobs_running"].inc()

    def end_job(self, *, done: bool) -> None:
        """Count a job that runs no more, by how it ended."""
        self._made["tidegate_jobs_running"].dec()
        self._made["tidegate_jobs_finished_total"].labels("done" if done else "failed").inc()

    def observe_backup(self, finished_seconds: float, took_seconds: float, size_bytes: int) -> None:
        """Note a finished backup; `finished_seconds` is since 1970. Also for the last one before a start."""
        self._made["tidegate_backup_last_success_timestamp_seconds"].set(finished_seconds)
        self._made["tidegate_backup_last_duration_seconds"].set(took_seconds)
        self._made["tidegate_backup_last_size_bytes"].set(size_bytes)

    def count_backup_failure(self) -> None:
        """Count a backup that failed or was given up."""
        self._made["tidegate_backup_failures_total"].inc()

    def count_scrape_error(self, part: str) -> None:
        """Count a part of a scrape that could not be read."""
        self._made["tidegate_scrape_errors_total"].labels(part).inc()

    def render(self, more: Collector | None = None, accept: str = "") -> tuple[bytes, str]:
        """Return all samples, those of `more` among them, and the content type that fits `accept`."""
        # What is read now comes first: a part of it that fails is counted in what comes after.
        read = list(more.collect()) if more is not None else []
        page = _Page([*read, *self.registry.collect()])
        if any(choice.partition(";")[0].strip() == OPENMETRICS for choice in accept.split(",")):
            openmetrics: bytes = generate_openmetrics(page)  # type: ignore[no-untyped-call]
            return openmetrics, CONTENT_TYPE_OPENMETRICS
        return generate_latest(page), CONTENT_TYPE_PLAIN_0_0_4

    def _of_tenant(self, what: str, known: dict[str, Counter], tenant: str) -> Counter:
        with self._lock:
            name = self.tenants.fold(tenant)
            counter: Counter = self._made[f"tidegate_messages_{what}_total"].labels(name)
            if name == tenant:
                known[tenant] = counter
        return counter

    def _rows_of(self, tenant: str, table_kind: str) -> Counter:
        kind = table_kind.lower() if table_kind.lower() in TABLE_KINDS else OTHER
        with self._lock:
            name = self.tenants.fold(tenant)
            counter: Counter = self._made["tidegate_rows_written_total"].labels(name, kind)
            if name == tenant:
                self._rows_written[tenant, table_kind] = counter
        return counter


class StatementTurn:
    """One statement: it waits, then runs, or leaves before its turn came."""

    def __init__(self, made: dict[str, Any], seconds: Seconds) -> None:
        self._waiting: Gauge = made["tidegate_sql_statements_waiting"]
        self._running: Gauge = made["tidegate_sql_statements_running"]
        self._durations: Histogram = made["tidegate_sql_statement_duration_seconds"]
        self._seconds = seconds
        self._lock = threading.Lock()
        self._waits = True
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
        """Wait no longer; a second call does nothing."""
        with self._lock:
            waited, self._waits = self._waits, False
        if waited:
            self._waiting.dec()


class _Page(Collector):
    """What one scrape shows: samples without the moments of their making, which nobody asks for."""

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
