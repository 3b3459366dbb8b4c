"""The endpoint of metrics, and the collector that reads the running server when somebody asks.

What happens is counted as it happens (`watching.metrics`); what merely is so (topics, disk, memory, the
worker's last report) is read here, at a scrape. A part that cannot be read is left out, counted in
`tidegate_scrape_errors_total` and said in the log; the others are there.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from tidegate import __version__
from tidegate.errors import TidegateError
from tidegate.model.access import DEFAULT_TENANT
from tidegate.model.timeranges import parse_time
from tidegate.server.api import status
from tidegate.telemetry.logs import line_counts
from tidegate.telemetry.metric_families import BY_NAME, OTHER, PIPELINE_STATES, SCRAPE_PARTS

if TYPE_CHECKING:
    from tidegate.server.http.request import Call
    from tidegate.server.runtime.runtime import Running

log = logging.getLogger(__name__)

US_PER_SECOND = 1_000_000


async def metrics(call: Call) -> Response:
    """All metrics, in Prometheus' text format or as OpenMetrics."""
    content, content_type = await call.running.threads.read(_rendered, call.running, call.header("accept"))
    return Response(content, headers={"content-type": content_type, "cache-control": "no-store"})


def render(running: Running) -> bytes:
    """Return all metrics in Prometheus' text format; blocking, any thread."""
    return _rendered(running, "")[0]


def _rendered(running: Running, accept: str) -> tuple[bytes, str]:
    return running.metrics.render(RunningCollector(running), accept)


class RunningCollector(Collector):
    """What the running server is like now; any thread."""

    def __init__(self, running: Running) -> None:
        self._running = running

    def collect(self) -> Iterator[Metric]:
        """Yield every part that can be read."""
        for part in SCRAPE_PARTS:
            yield from self._read(part, _PARTS[part])

    def _read(self, part: str, read: Callable[[Running], Iterator[Metric]]) -> list[Metric]:
        try:
            return list(read(self._running))
        except Exception as problem:  # noqa: BLE001 - counted and said; the other parts are worth having
            self._running.metrics.count_scrape_error(part)
            log.warning("metrics lack the part '%s': %s: %s", part, type(problem).__name__, problem)
            return []


def _gauge(name: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, BY_NAME[name].help, value=value)


def _counter(name: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, BY_NAME[name].help, value=value)


def _load(running: Running) -> Iterator[Metric]:
    yield _gauge("tidegate_http_requests_in_flight", running.load.running)
    yield _gauge("tidegate_http_polls_waiting", running.load.waiting)


def _catalog(running: Running) -> Iterator[Metric]:
    yield _gauge("tidegate_tokens_cached", len(running.identities))


def _engine(running: Running) -> Iterator[Metric]:
    size_bytes = 0
    with os.scandir(running.home.engine_path) as files:
        for file in files:
            try:
                size_bytes += file.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue  # compacted away while we look
    yield _gauge("tidegate_engine_disk_bytes", size_bytes)


def _topics(running: Running) -> Iterator[Metric]:
    topics = messages = stored_bytes = 0
    for topic in running.topics:
        topics += 1
        for number in range(topic.partitions):
            held = running.log.counters(topic, number)
            messages += held.end - held.start
            stored_bytes += held.stored_bytes
    count, appended_bytes = running.topic.appended.totals(running.topics)
    yield _counter("tidegate_messages_appended_total", count)
    yield _counter("tidegate_messages_appended_bytes_total", appended_bytes)
    yield from _groups(running)
    yield _labelled("tidegate_topic_duplicates_total", _duplicates(running))
    yield _gauge("tidegate_topics", topics)
    yield _gauge("tidegate_topic_messages", messages)
    yield _gauge("tidegate_topic_stored_bytes", stored_bytes)


def _duplicates(running: Running) -> dict[tuple[str, ...], float]:
    """Return the duplicates that topics dropped, by tenant."""
    found: dict[tuple[str, ...], float] = {}
    for tenant, count in running.topic.dedup.dropped_by_tenant().items():
        label = (running.metrics.tenants.fold(tenant),)
        found[label] = found.get(label, 0) + count
    return found


def _groups(running: Running) -> Iterator[Metric]:
    """Yield how far behind groups are, by tenant; a tenant without a name of its own counts among `other`."""
    groups, count = running.topic.groups, 0
    lags: dict[tuple[str, ...], float] = {}
    most: dict[tuple[str, ...], float] = {}
    for topic in running.topics:
        tenant = (running.metrics.tenants.fold(topic.tenant),)
        for group in groups.names(topic):
            count += 1
            lag = groups.lag(topic, group)
            lags[tenant] = lags.get(tenant, 0) + lag
            most[tenant] = max(most.get(tenant, 0), lag)
    yield _gauge("tidegate_groups", count)
    yield _counter("tidegate_route_faults_total", running.topic.router.fault_count)
    yield _labelled("tidegate_group_lag_messages", lags)
    yield _labelled("tidegate_group_lag_messages_max", most)
    yield _counter("tidegate_leases_expired_total", groups.tallies.expired)
    yield _counter("tidegate_dead_letters_total", groups.tallies.dead)


def _disk(running: Running) -> Iterator[Metric]:
    usage = os.statvfs(running.home.path)
    yield _gauge("tidegate_disk_free_bytes", usage.f_bavail * usage.f_frsize)
    yield _gauge("tidegate_disk_size_bytes", usage.f_blocks * usage.f_frsize)


def _program(running: Running) -> Iterator[Metric]:
    program = psutil.Process()
    with program.oneshot():
        cpu = program.cpu_times()
        yield _gauge("tidegate_process_memory_bytes", program.memory_info().rss)
        yield _counter("tidegate_process_cpu_seconds_total", cpu.user + cpu.system)
        yield _gauge("tidegate_process_open_files", program.num_fds())
        yield _gauge("tidegate_process_open_files_max", program.rlimit(psutil.RLIMIT_NOFILE)[0])
        yield _gauge("tidegate_process_threads", program.num_threads())
    yield _gauge("tidegate_uptime_seconds", running.clock.monotonic_seconds() - running.started_seconds)
    build = BY_NAME["tidegate_build_info"]
    versions = GaugeMetricFamily(build.name, build.help, labels=["version", "python"])
    versions.add_metric([__version__, platform.python_version()], 1)
    yield versions


def _worker(running: Running) -> Iterator[Metric]:
    report = running.worker
    if report is None:
        yield _gauge("tidegate_worker_up", 0)
        if status.pipelines_of(running, DEFAULT_TENANT):  # those that are stopped are known without one
            yield from _pipelines(running)
        return
    age_seconds = running.clock.monotonic_seconds() - report.at_seconds
    silent = age_seconds > status.WORKER_SILENT_SECONDS
    yield _gauge("tidegate_worker_up", 0 if silent or report.content["state"] == "stopped" else 1)
    yield _gauge("tidegate_worker_report_age_seconds", age_seconds)
    yield _gauge("tidegate_worker_memory_bytes", report.content["memoryBytes"])
    for part in ("used", "size"):
        room_bytes = report.content.get(f"stateDisk{part.capitalize()}Bytes")
        if room_bytes is not None:
            yield _gauge(f"tidegate_worker_state_disk_{part}_bytes", room_bytes)
    yield from _pipelines(running)
    yield from _dedup(running)


def _pipelines(running: Running) -> Iterator[Metric]:
    """Yield the pipelines by name; those beyond the bound are added up under `other`."""
    sums: dict[str, dict[tuple[str, ...], float]] = {
        "tidegate_pipeline_state": {},
        "tidegate_pipeline_lag_messages": {},
        "tidegate_pipeline_batches_total": {},
        "tidegate_pipeline_rows_total": {},
        "tidegate_pipeline_restarts_total": {},
        "tidegate_pipeline_state_bytes": {},
        "tidegate_pipeline_state_entries": {},
        "tidegate_pipeline_checkpoint_bytes": {},
        "tidegate_pipeline_dead_rows_total": {},
    }

    def add(name: str, labels: tuple[str, ...], value: float) -> None:
        sums[name][labels] = sums[name].get(labels, 0) + value

    for pipeline in status.pipelines_of(running, DEFAULT_TENANT):
        name = running.metrics.pipelines.fold(pipeline["name"])
        current = pipeline["state"] if pipeline["state"] in PIPELINE_STATES else OTHER
        for word in PIPELINE_STATES:
            add("tidegate_pipeline_state", (name, word), 1 if word == current else 0)
        if pipeline["lag"] is not None:
            add("tidegate_pipeline_lag_messages", (name,), pipeline["lag"])
        for field in ("batches", "rows", "restarts"):
            add(f"tidegate_pipeline_{field}_total", (name,), pipeline[field])
        for operator in pipeline["operators"]:
            add("tidegate_pipeline_state_bytes", (name,), operator["stateBytes"])
            add("tidegate_pipeline_state_entries", (name,), operator["entries"])
            add("tidegate_pipeline_checkpoint_bytes", (name,), operator["checkpointBytes"])
            add("tidegate_pipeline_dead_rows_total", (name,), operator["deadRows"])
    for name, samples in sums.items():
        yield _labelled(name, samples)


# The figures of an operator that deduplicates, by the metric that shows them.
_DEDUP_FIGURES = {
    "tidegate_pipeline_dedup_unique_total": "unique",
    "tidegate_pipeline_dedup_duplicates_total": "duplicates",
    "tidegate_pipeline_dedup_late_total": "late",
    "tidegate_pipeline_dedup_keys": "keys",
    "tidegate_pipeline_dedup_bytes": "bytes",
    "tidegate_pipeline_dedup_filter_bytes": "filterBytes",
    "tidegate_pipeline_dedup_segments": "segments",
    "tidegate_pipeline_dedup_filter_probes_total": "filterProbes",
    "tidegate_pipeline_dedup_filter_false_total": "filterFalse",
    "tidegate_pipeline_dedup_reads_total": "reads",
    "tidegate_pipeline_dedup_lookup_seconds_total": "lookupSeconds",
}


def _dedup(running: Running) -> Iterator[Metric]:
    """Yield what deduplication does, by pipeline; the lag is that of the operator furthest behind."""
    sums: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in _DEDUP_FIGURES}
    lags: dict[tuple[str, ...], float] = {}
    for pipeline in status.pipelines_of(running, DEFAULT_TENANT):
        for found in [one["dedup"] for one in pipeline["operators"] if one.get("dedup")]:
            label = (running.metrics.pipelines.fold(pipeline["name"]),)
            for name, figure in _DEDUP_FIGURES.items():
                sums[name][label] = sums[name].get(label, 0) + found[figure]
            if found["streamTime"] is not None:
                lag_seconds = (running.clock.now_us() - parse_time(found["streamTime"])) / US_PER_SECOND
                lags[label] = max(lags.get(label, lag_seconds), lag_seconds)
    for name, samples in sums.items():
        yield _labelled(name, samples)
    yield _labelled("tidegate_pipeline_dedup_stream_lag_seconds", lags)


def _labelled(name: str, samples: dict[tuple[str, ...], float]) -> Metric:
    family = BY_NAME[name]
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    made: Any = kind(name, family.help, labels=[label.name for label in family.labels])
    for labels, value in samples.items():
        made.add_metric(labels, value)
    metric: Metric = made
    return metric


def _lake(running: Running) -> Iterator[Metric]:
    tables = files = size_bytes = unreadable = 0
    lake = running.tenants.lake(DEFAULT_TENANT)
    for name in lake.names():
        tables += 1
        try:
            view = lake.view(name)
        except TidegateError:
            unreadable += 1
            continue
        files += view.file_count
        size_bytes += view.size_bytes
    yield _gauge("tidegate_lake_tables", tables)
    yield _gauge("tidegate_lake_files", files)
    yield _gauge("tidegate_lake_bytes", size_bytes)
    yield _gauge("tidegate_lake_tables_unreadable", unreadable)


def _logs(_running: Running) -> Iterator[Metric]:
    counts = line_counts()
    yield _labelled("tidegate_log_lines_total", {("warning",): counts.warnings, ("error",): counts.errors})
    yield _counter("tidegate_log_lines_lost_total", counts.lost)


_PARTS: dict[str, Callable[[Running], Iterator[Metric]]] = {
    "load": _load,
    "catalog": _catalog,
    "engine": _engine,
    "topics": _topics,
    "disk": _disk,
    "process": _program,
    "worker": _worker,
    "lake": _lake,
    "logs": _logs,
}
