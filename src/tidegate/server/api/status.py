"""Endpoints of health, readiness, status and pipelines, and of the worker's report.

Readiness checks each component of the server: the engine, the disk, the catalog and the lake. It is open to
everyone, so its answer holds a few words; paths, sizes and error messages are in the log alone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import msgspec
from msgspec import structs
from starlette.responses import Response

from tidegate import __version__
from tidegate.errors import NotReady, PipelineNotFound, TidegateError
from tidegate.model.access import DEFAULT_TENANT
from tidegate.model.names import shorten
from tidegate.model.wire.status import (
    ComponentHealth,
    HealthResponse,
    LakeTableResponse,
    PipelineList,
    PipelineReport,
    PipelineResponse,
    ReadyResponse,
    StatusResponse,
    WorkerReport,
    WorkerReportResponse,
    WorkerResponse,
)
from tidegate.model.wire.topics import TopicResponse
from tidegate.server.api.topics import topic_response
from tidegate.server.http.request import HttpRequest
from tidegate.server.http.responses import json_answer
from tidegate.server.runtime.runtime import ReceivedReport, Runtime
from tidegate.storage.home.locks import is_flocked
from tidegate.storage.home.pipeline_files import PipelineFiles, list_pipeline_files
from tidegate.storage.lake.tables import Lake
from tidegate.topics.definitions import Topic

# A worker reports every second; one that is silent for this long counts as lost.
WORKER_SILENT_SECONDS = 10.0
# Topics in the status: enough to look at; the list of topics has all of them, in pages.
STATUS_TOPICS_MAX = 1_000
STOPPED = "stopped"


OK = ComponentHealth(ok=True, reason="")

_report = msgspec.json.Decoder(WorkerReport)

log = logging.getLogger(__name__)


async def health(_request: HttpRequest) -> Response:
    """The server answers requests."""
    return json_answer(HealthResponse("ok"))


async def ready(request: HttpRequest) -> Response:
    """Whether the server accepts work, and which component does not."""
    components = await check_components(request.runtime)
    broken = {name: found.reason for name, found in components.items() if not found.ok}
    if broken:
        reason = "; ".join(f"{name}: {why}" for name, why in broken.items())
        raise NotReady(reason=reason, parts=msgspec.to_builtins(components))
    return json_answer(ReadyResponse("ready", components))


async def take_report(request: HttpRequest) -> Response:
    """The worker reports its state."""
    report = await request.json(_report)
    runtime = request.runtime
    runtime.worker = ReceivedReport(report, runtime.clock.monotonic_seconds())
    return json_answer(WorkerReportResponse(ok=True))


async def list_pipelines(request: HttpRequest) -> Response:
    """Every pipeline that the worker runs, and those that are stopped."""
    return json_answer(PipelineList(await _pipelines(request.runtime, request.tenant)))


async def show_pipeline(request: HttpRequest) -> Response:
    """One pipeline."""
    name = request.params["name"]
    for pipeline in await _pipelines(request.runtime, request.tenant):
        if pipeline.name == name:
            return json_answer(pipeline)
    raise PipelineNotFound(pipeline=shorten(name))


async def status(request: HttpRequest) -> Response:
    """The state of the server, as `tidegate status` shows it."""
    return json_answer(await status_of(request.runtime, request.tenant))


async def status_of(runtime: Runtime, tenant: str) -> StatusResponse:
    """Return the status of the server as one tenant sees it."""
    topics = runtime.topics.directory.of(tenant)
    described = await runtime.threads.read(_topics, runtime, topics[:STATUS_TOPICS_MAX])
    tables = await runtime.threads.read(_tables, runtime.lakes.lake(tenant))
    # The process and the worker belong to the whole instance: other tenants see only what is theirs.
    is_default = tenant == DEFAULT_TENANT
    return StatusResponse(
        version=__version__,
        tenant=tenant,
        home=str(runtime.home.path) if is_default else None,
        pid=os.getpid() if is_default else None,
        uptime_seconds=round(runtime.clock.monotonic_seconds() - runtime.started_seconds, 3),
        memory_bytes=runtime.memory_bytes() if is_default else None,
        disk_free_bytes=runtime.disk_free_bytes() if is_default else None,
        topics=described,
        topics_total=len(topics),
        messages_total=runtime.topics.append_totals.by_tenant(runtime.topics.directory).get(tenant, 0),
        messages_per_second=round(runtime.message_rate.per_second(tenant), 1),
        worker=_worker(runtime) if is_default else None,
        pipelines=await _pipelines(runtime, tenant),
        tables=tables,
    )


def _topics(runtime: Runtime, topics: list[Topic]) -> list[TopicResponse]:
    return [topic_response(runtime, topic) for topic in topics]


def _worker(runtime: Runtime) -> WorkerResponse | None:
    received = runtime.worker
    if received is None:
        return None
    silent_seconds, report = _silent_seconds(runtime, received), received.report
    return WorkerResponse(
        pid=report.pid,
        state="lost" if silent_seconds > WORKER_SILENT_SECONDS else report.state,
        memory_bytes=report.memory_bytes,
        spark_version=report.spark_version,
        state_disk_used_bytes=report.state_disk_used_bytes,
        state_disk_size_bytes=report.state_disk_size_bytes,
        seen_seconds_ago=round(silent_seconds, 3),
    )


def _silent_seconds(runtime: Runtime, received: ReceivedReport) -> float:
    return runtime.clock.monotonic_seconds() - received.at_seconds


async def _pipelines(runtime: Runtime, tenant: str) -> list[PipelineResponse]:
    return await runtime.threads.read(pipelines_of, runtime, tenant)


def pipelines_of(runtime: Runtime, tenant: str) -> list[PipelineResponse]:
    """Return the pipelines of a tenant, by name; all pipelines belong to the default tenant.

    The worker's report comes first: a pipeline whose file was removed a moment ago is stopped only when its
    query has ended. Without a worker the files decide.
    """
    if tenant != DEFAULT_TENANT:
        return []
    files = list_pipeline_files(runtime.home.pipelines_path)
    reports = {report.name: report for report in _reported(runtime, files)}
    for name in files.stopped:
        reports.setdefault(name, PipelineReport(name, STOPPED))
    return [
        PipelineResponse(**structs.asdict(reports[name]), lag=_lag(runtime, reports[name].offsets))
        for name in sorted(reports)
    ]


def _reported(runtime: Runtime, files: PipelineFiles) -> list[PipelineReport]:
    if runtime.worker is None:
        return []
    reports = runtime.worker.report.pipelines
    if all(report.name in files.installed for report in reports) or not _is_gone(runtime, runtime.worker):
        return reports
    present = [report for report in reports if report.name in (*files.installed, *files.stopped)]
    return [
        report if report.name in files.installed else structs.replace(report, state=STOPPED)
        for report in present
    ]


def _is_gone(runtime: Runtime, received: ReceivedReport) -> bool:
    """True if no worker runs: one that is silent may still write while it holds its lock."""
    is_silent = _silent_seconds(runtime, received) > WORKER_SILENT_SECONDS
    return is_silent and not is_flocked(runtime.home.path / "locks" / "worker.lock")


def _lag(runtime: Runtime, offsets: dict[str, dict[int, int]]) -> int | None:
    """Count the messages that a pipeline has not read yet; None where that is not known."""
    if not offsets:
        return None
    lag = 0
    for name, positions in offsets.items():
        try:
            topic = runtime.topics.directory.get(DEFAULT_TENANT, name)
        except TidegateError:
            return None
        for number in range(topic.partitions):
            held = runtime.topics.log.counters(topic, number)
            lag += max(0, held.end - max(positions.get(number, held.start), held.start))
    return lag


def _tables(lake: Lake) -> list[LakeTableResponse]:
    return [_table(lake, name) for name in lake.names()]


def _table(lake: Lake, name: str) -> LakeTableResponse:
    try:
        view = lake.view(name)
    except TidegateError as problem:
        return LakeTableResponse(name, None, None, None, str(problem))
    return LakeTableResponse(name, view.version, view.file_count, view.size_bytes)


async def check_components(runtime: Runtime) -> dict[str, ComponentHealth]:
    """Check every component: the server itself, the engine, the disk, the catalog and the lake."""
    return {
        "door": _broken("it is stopping") if runtime.stopping else OK,
        "engine": await _check_read(runtime, "engine", _read_engine),
        "disk": _check_disk(runtime),
        "catalog": await _check_catalog(runtime),
        "lake": await _check_read(runtime, "lake", _read_lake),
    }


def _broken(reason: str) -> ComponentHealth:
    return ComponentHealth(ok=False, reason=reason)


async def _check_catalog(runtime: Runtime) -> ComponentHealth:
    try:
        await runtime.threads.catalog(runtime.catalog.ping)
    except TidegateError as problem:
        log.warning("catalog does not answer error=%r", str(problem))
        return _broken("does not answer")
    return OK


async def _check_read(runtime: Runtime, component: str, read: Callable[[Runtime], None]) -> ComponentHealth:
    try:
        await runtime.threads.read(read, runtime)
    except (TidegateError, OSError) as problem:
        log.warning("component cannot be read component=%s error=%r", component, str(problem))
        return _broken("cannot be read")
    return OK


def _read_engine(runtime: Runtime) -> None:
    runtime.engine.get(b"\x00")


def _read_lake(runtime: Runtime) -> None:
    if not runtime.home.lake_path.is_dir():
        raise FileNotFoundError(f"{runtime.home.lake_path} is not there")


def _check_disk(runtime: Runtime) -> ComponentHealth:
    try:
        free_bytes, bytes_min = runtime.disk_free_bytes(), runtime.settings.storage.free_bytes_min
    except OSError as problem:
        log.warning("disk cannot be read error=%r", str(problem))
        return _broken("cannot be read")
    if free_bytes >= bytes_min:
        return OK
    log.warning("disk nearly full free_bytes=%d bytes_min=%d", free_bytes, bytes_min)
    return _broken("not enough room")
