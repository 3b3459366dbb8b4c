"""The metrics endpoint, and the collector that reads the running server at a scrape.

Events are counted as they happen (`telemetry/metrics.py`). The state of topics, the disk and the memory, and
the worker's last report, are read here. A part that cannot be read is left out, counted in
`tidegate_scrape_errors_total` and logged; the other parts are there.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from tidegate import __version__
from tidegate.errors import TidegateError
from tidegate.model.access import DEFAULT_TENANT
from tidegate.model.times import parse_time
from tidegate.server.api import status
from tidegate.server.http.request import HttpRequest
from tidegate.server.runtime.runtime import Runtime
from tidegate.telemetry.logs import line_counts
from tidegate.telemetry.metric_families import (
    BY_NAME,
    OTHER,
    PIPELINE_STATES,
    QUERY_PROCESS_ENDS,
    QUERY_PROCESS_STATES,
    SCRAPE_PARTS,
)

log = logging.getLogger(__name__)

US_PER_SECOND = 1_000_000


async def metrics(request: HttpRequest) -> Response:
    """All metrics, in Prometheus' text format or as OpenMetrics."""
    content, content_type = await request.runtime.threads.read(
        render, request.runtime, request.header("accept")
    )
    return Response(content, headers={"content-type": content_type, "cache-control": "no-store"})


def render(runtime: Runtime, accept: str = "") -> tuple[bytes, str]:
    """Return all metrics and their content type, in the format that `accept` names; blocking, any thread."""
    return runtime.metrics.render(RuntimeCollector(runtime), accept)


class RuntimeCollector(Collector):
    """The metrics that are read at a scrape; any thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterator[Metric]:
        """Yield every part that can be read."""
        for part in SCRAPE_PARTS:
            yield from self._read(part, _PARTS[part])

    def _read(self, part: str, read: Callable[[Runtime], Iterator[Metric]]) -> list[Metric]:
        try:
            return list(read(self._runtime))
        except Exception as problem:  # noqa: BLE001 - counted and logged; the other parts are worth having
            self._runtime.metrics.count_scrape_error(part)
            log.warning(
                "part of a scrape cannot be read part=%s kind=%s error=%r",
                part,
                type(problem).__name__,
                str(problem),
            )
            return []


def _labelled(name: str, samples: dict[tuple[str, ...], float]) -> Metric:
    family = BY_NAME[name]
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    made: Any = kind(name, family.help, labels=[label.name for label in family.labels])
    for labels, value in samples.items():
        made.add_metric(labels, value)
    metric: Metric = made
    return metric


def _single(name: str, value: float) -> Metric:
    return _labelled(name, {(): value})


def _by_word(counts: Mapping[str, int], words: Sequence[str]) -> dict[tuple[str, ...], float]:
    return {(word,): float(counts.get(word, 0)) for word in words}


def _load(runtime: Runtime) -> Iterator[Metric]:
    yield _single("tidegate_http_requests_in_flight", runtime.admission.running)
    yield _single("tidegate_http_polls_waiting", runtime.admission.waiting)
    queue, pool = runtime.threads.statement_queue, runtime.lakes.processes
    yield _single("tidegate_sql_tenants_running", queue.running_tenant_count)
    yield _single("tidegate_sql_tenants_waiting", queue.waiting_tenant_count)
    counts = {"running": pool.running_count, "idle": pool.idle_count, **pool.counts}
    yield _labelled("tidegate_query_processes", _by_word(counts, QUERY_PROCESS_STATES))
    yield _single("tidegate_query_processes_memory_bytes", pool.private_bytes())
    yield _single("tidegate_query_processes_started_total", counts.get("started", 0))
    yield _labelled("tidegate_query_processes_ended_total", _by_word(counts, QUERY_PROCESS_ENDS))


def _catalog(runtime: Runtime) -> Iterator[Metric]:
    yield _single("tidegate_tokens_cached", len(runtime.tokens))


def _engine(runtime: Runtime) -> Iterator[Metric]:
    size_bytes = 0
    with os.scandir(runtime.home.engine_path) as files:
        for file in files:
            try:
                size_bytes += file.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue  # deleted by a compaction meanwhile
    yield _single("tidegate_engine_disk_bytes", size_bytes)


def _topics(runtime: Runtime) -> Iterator[Metric]:
    topics = messages = stored_bytes = 0
    for topic in runtime.topics.directory:
        topics += 1
        for number in range(topic.partitions):
            held = runtime.topics.log.counters(topic, number)
            messages += held.end - held.start
            stored_bytes += held.stored_bytes
    count, appended_bytes = runtime.topics.append_totals.totals(runtime.topics.directory)
    yield _single("tidegate_messages_appended_total", count)
    yield _single("tidegate_messages_appended_bytes_total", appended_bytes)
    yield from _groups(runtime)
    yield _labelled("tidegate_topic_duplicates_total", _duplicates(runtime))
    yield _single("tidegate_topics", topics)
    yield _single("tidegate_topic_messages", messages)
    yield _single("tidegate_topic_stored_bytes", stored_bytes)


def _duplicates(runtime: Runtime) -> dict[tuple[str, ...], float]:
    """Return the duplicates that topics dropped, by tenant."""
    found: dict[tuple[str, ...], float] = {}
    for tenant, count in runtime.topics.dedup.dropped_by_tenant().items():
        label = (runtime.metrics.tenants.fold(tenant),)
        found[label] = found.get(label, 0) + count
    return found


def _groups(runtime: Runtime) -> Iterator[Metric]:
    """Yield the lag of groups by tenant (`other` beyond the limit), and the counters of all groups."""
    groups, count = runtime.topics.groups, 0
    lags: dict[tuple[str, ...], float] = {}
    most: dict[tuple[str, ...], float] = {}
    for topic in runtime.topics.directory:
        tenant = (runtime.metrics.tenants.fold(topic.tenant),)
        for group in groups.names(topic):
            count += 1
            lag = groups.lag(topic, group)
            lags[tenant] = lags.get(tenant, 0) + lag
            most[tenant] = max(most.get(tenant, 0), lag)
    yield _single("tidegate_groups", count)
    yield _single("tidegate_route_faults_total", runtime.topics.router.fault_count)
    yield _labelled("tidegate_group_lag_messages", lags)
    yield _labelled("tidegate_group_lag_messages_max", most)
    counters = groups.counters
    yield _single("tidegate_topic_group_delivered_total", counters.delivered)
    yield _single("tidegate_topic_group_redelivered_total", counters.redelivered)
    yield _single("tidegate_topic_group_acked_total", counters.acked)
    yield _single("tidegate_topic_group_nacked_total", counters.nacked)
    yield _single("tidegate_topic_group_missed_total", counters.missed)
    yield _single("tidegate_leases_expired_total", counters.expired)
    yield _single("tidegate_dead_letters_total", counters.dead)


def _disk(runtime: Runtime) -> Iterator[Metric]:
    usage = shutil.disk_usage(runtime.home.path)
    yield _single("tidegate_disk_free_bytes", usage.free)
    yield _single("tidegate_disk_size_bytes", usage.total)


def _program(runtime: Runtime) -> Iterator[Metric]:
    program = psutil.Process()
    with program.oneshot():
        cpu = program.cpu_times()
        yield _single("tidegate_process_memory_bytes", program.memory_info().rss)
        yield _single("tidegate_process_cpu_seconds_total", cpu.user + cpu.system)
        yield _single("tidegate_process_open_files", program.num_fds())
        yield _single("tidegate_process_open_files_max", program.rlimit(psutil.RLIMIT_NOFILE)[0])
        yield _single("tidegate_process_threads", program.num_threads())
    yield _single("tidegate_uptime_seconds", runtime.clock.monotonic_seconds() - runtime.started_seconds)
    yield _labelled("tidegate_build_info", {(__version__, platform.python_version()): 1})


def _worker(runtime: Runtime) -> Iterator[Metric]:
    received = runtime.worker
    if received is None:
        yield _single("tidegate_worker_up", 0)
        if status.pipelines_of(runtime, DEFAULT_TENANT):  # stopped pipelines are known without a worker
            yield from _pipelines(runtime)
        return
    report, age_seconds = received.report, runtime.clock.monotonic_seconds() - received.at_seconds
    is_silent = age_seconds > status.WORKER_SILENT_SECONDS
    yield _single("tidegate_worker_up", 0 if is_silent or report.state == "stopped" else 1)
    yield _single("tidegate_worker_report_age_seconds", age_seconds)
    yield _single("tidegate_worker_memory_bytes", report.memory_bytes)
    if report.state_disk_used_bytes is not None:
        yield _single("tidegate_worker_state_disk_used_bytes", report.state_disk_used_bytes)
    if report.state_disk_size_bytes is not None:
        yield _single("tidegate_worker_state_disk_size_bytes", report.state_disk_size_bytes)
    yield from _pipelines(runtime)
    yield from _dedup(runtime)


# Fields of a pipeline and of its operators, by the metric that shows them.
_PIPELINE_FIELDS = {
    "tidegate_pipeline_batches_total": "batches",
    "tidegate_pipeline_rows_total": "rows",
    "tidegate_pipeline_restarts_total": "restarts",
}
_OPERATOR_FIELDS = {
    "tidegate_pipeline_state_bytes": "state_bytes",
    "tidegate_pipeline_state_entries": "entries",
    "tidegate_pipeline_checkpoint_bytes": "checkpoint_bytes",
    "tidegate_pipeline_dead_rows_total": "dead_rows",
}


def _pipelines(runtime: Runtime) -> Iterator[Metric]:
    """Yield the metrics of pipelines by name; those beyond the limit are added up under `other`."""
    names = (
        "tidegate_pipeline_state",
        "tidegate_pipeline_lag_messages",
        *_PIPELINE_FIELDS,
        *_OPERATOR_FIELDS,
    )
    sums: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in names}

    def add(metric: str, labels: tuple[str, ...], value: float) -> None:
        sums[metric][labels] = sums[metric].get(labels, 0) + value

    for pipeline in status.pipelines_of(runtime, DEFAULT_TENANT):
        name = runtime.metrics.pipelines.fold(pipeline.name)
        current = pipeline.state if pipeline.state in PIPELINE_STATES else OTHER
        for state in PIPELINE_STATES:
            add("tidegate_pipeline_state", (name, state), 1 if state == current else 0)
        if pipeline.lag is not None:
            add("tidegate_pipeline_lag_messages", (name,), pipeline.lag)
        for metric, field in _PIPELINE_FIELDS.items():
            add(metric, (name,), getattr(pipeline, field))
        for operator in pipeline.operators:
            for metric, field in _OPERATOR_FIELDS.items():
                add(metric, (name,), getattr(operator, field))
    for metric, samples in sums.items():
        yield _labelled(metric, samples)


# Fields of an operator that deduplicates, by the metric that shows them.
_DEDUP_FIELDS = {
    "tidegate_pipeline_dedup_unique_total": "unique",
    "tidegate_pipeline_dedup_duplicates_total": "duplicates",
    "tidegate_pipeline_dedup_late_total": "late",
    "tidegate_pipeline_dedup_keys": "keys",
    "tidegate_pipeline_dedup_bytes": "bytes",
    "tidegate_pipeline_dedup_filter_bytes": "filter_bytes",
    "tidegate_pipeline_dedup_segments": "segments",
    "tidegate_pipeline_dedup_filter_probes_total": "filter_probes",
    "tidegate_pipeline_dedup_filter_false_total": "filter_false",
    "tidegate_pipeline_dedup_reads_total": "reads",
    "tidegate_pipeline_dedup_lookup_seconds_total": "lookup_seconds",
}


def _dedup(runtime: Runtime) -> Iterator[Metric]:
    """Yield the metrics of deduplication by pipeline; the lag is that of the operator furthest behind."""
    sums: dict[str, dict[tuple[str, ...], float]] = {metric: {} for metric in _DEDUP_FIELDS}
    lags: dict[tuple[str, ...], float] = {}
    for pipeline in status.pipelines_of(runtime, DEFAULT_TENANT):
        label = (runtime.metrics.pipelines.fold(pipeline.name),)
        for dedup in [operator.dedup for operator in pipeline.operators if operator.dedup is not None]:
            for metric, field in _DEDUP_FIELDS.items():
                sums[metric][label] = sums[metric].get(label, 0) + getattr(dedup, field)
            if dedup.stream_time is not None:
                lag_seconds = (runtime.clock.now_us() - parse_time(dedup.stream_time)) / US_PER_SECOND
                lags[label] = max(lags.get(label, lag_seconds), lag_seconds)
    for metric, samples in sums.items():
        yield _labelled(metric, samples)
    yield _labelled("tidegate_pipeline_dedup_stream_lag_seconds", lags)


def _lake(runtime: Runtime) -> Iterator[Metric]:
    tables = files = size_bytes = unreadable = 0
    lake = runtime.lakes.lake(DEFAULT_TENANT)
    for name in lake.names():
        tables += 1
        try:
            view = lake.view(name)
        except TidegateError:
            unreadable += 1
            continue
        files += view.file_count
        size_bytes += view.size_bytes
    yield _single("tidegate_lake_tables", tables)
    yield _single("tidegate_lake_files", files)
    yield _single("tidegate_lake_bytes", size_bytes)
    yield _single("tidegate_lake_tables_unreadable", unreadable)


def _quotas(runtime: Runtime) -> Iterator[Metric]:
    """Yield what tenants had on the disk when they were measured: those with a quota of it, and who asked."""
    found: dict[tuple[str, ...], float] = {}
    for tenant, size_bytes in runtime.quotas.measured().items():
        label = (runtime.metrics.tenants.fold(tenant),)
        found[label] = found.get(label, 0) + size_bytes
    yield _labelled("tidegate_tenant_disk_bytes", found)


def _logs(_runtime: Runtime) -> Iterator[Metric]:
    counts = line_counts()
    yield _labelled("tidegate_log_lines_total", {("warning",): counts.warnings, ("error",): counts.errors})
    yield _single("tidegate_log_lines_lost_total", counts.lost)


_PARTS: dict[str, Callable[[Runtime], Iterator[Metric]]] = {
    "load": _load,
    "catalog": _catalog,
    "engine": _engine,
    "topics": _topics,
    "disk": _disk,
    "process": _program,
    "worker": _worker,
    "lake": _lake,
    "logs": _logs,
    "quotas": _quotas,
}
