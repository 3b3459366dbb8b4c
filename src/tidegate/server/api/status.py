"""Endpoints that tell how things are: health, readiness, status, pipelines, and the worker's report.

Parts: says of each thing that the server stands on whether it works, and why not.

Anyone may ask, so that an answer holds a few words. Paths, sizes and messages of others stay in the log.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import msgspec
from starlette.responses import Response

from tidegate import __version__
from tidegate.errors import NotReady, PipelineNotFound, TidegateError
from tidegate.model.access import DEFAULT_TENANT
from tidegate.model.names import shorten
from tidegate.server.api.topics import topic_answer
from tidegate.server.http.request import Call
from tidegate.server.http.responses import json_answer
from tidegate.server.runtime.runtime import Running, WorkerReport
from tidegate.storage.home.locks import is_flocked
from tidegate.storage.home.pipeline_files import PipelineFiles, list_pipeline_files
from tidegate.storage.lake.tables import Lake
from tidegate.topics.definitions import Topic

# A worker reports every second; one that is silent this long is not there any more.
WORKER_SILENT_SECONDS = 10.0
# Topics in the status: enough to look at; the list of topics has all of them, in pages.
STATUS_TOPICS_MAX = 1_000
STOPPED = "stopped"


class DedupReport(msgspec.Struct, rename="camel"):
    """What the worker says of an operator that deduplicates; counts are since its partitions changed."""

    unique: int = 0
    duplicates: int = 0
    late: int = 0
    keys: int = 0
    bytes: int = 0
    segments: int = 0
    filter_bytes: int = 0
    filter_probes: int = 0
    filter_maybe: int = 0
    filter_false: int = 0
    reads: int = 0
    lookup_seconds: float = 0.0
    stream_time: str | None = None


class OperatorReport(msgspec.Struct, rename="camel"):
    """What the worker says of one operator's state."""

    name: str
    partitions: int = 0
    epoch: int = 0
    batch: int | None = None
    entries: int = 0
    state_bytes: int = 0
    checkpoint_bytes: int = 0
    dead_rows: int = 0
    next_timer: str | None = None
    snapshot_batch: int | None = None
    dedup: DedupReport | None = None


class PipelineReport(msgspec.Struct, rename="camel"):
    """What the worker says of one pipeline."""

    name: str
    state: str
    batches: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    last_batch_seconds: float | None = None
    error: str | None = None
    restarts: int = 0
    topic: str | None = None
    table: str | None = None
    offsets: dict[str, dict[int, int]] = {}
    operators: list[OperatorReport] = []


class WorkerBody(msgspec.Struct, rename="camel"):
    """Body of the worker's report."""

    pid: int
    state: str
    memory_bytes: int = 0
    spark_version: str = ""
    state_disk_used_bytes: int | None = None
    state_disk_size_bytes: int | None = None
    pipelines: list[PipelineReport] = []


_report = msgspec.json.Decoder(WorkerBody)


async def health(_call: Call) -> Response:
    """The process answers."""
    return json_answer({"status": "ok"})


async def ready(call: Call) -> Response:
    """Whether the process takes work, and which part does not."""
    parts = await check_parts(call.running)
    broken = {name: part["reason"] for name, part in parts.items() if not part["ok"]}
    if broken:
        reason = "; ".join(f"{name}: {why}" for name, why in broken.items())
        raise NotReady(reason=reason, parts=parts)
    return json_answer({"status": "ready", "parts": parts})


async def take_report(call: Call) -> Response:
    """The worker says how it is."""
    body = await call.json(_report)
    running = call.running
    running.worker = WorkerReport(msgspec.to_builtins(body, str_keys=True), running.clock.monotonic_seconds())
    return json_answer({"ok": True})


async def list_pipelines(call: Call) -> Response:
    """Every pipeline that the worker runs, and those that are stopped."""
    return json_answer({"pipelines": await _pipelines(call.running, call.tenant)})


async def show_pipeline(call: Call) -> Response:
    """One pipeline."""
    name = call.params["name"]
    for pipeline in await _pipelines(call.running, call.tenant):
        if pipeline["name"] == name:
            return json_answer(pipeline)
    raise PipelineNotFound(pipeline=shorten(name))


async def status(call: Call) -> Response:
    """Everything that `tidegate status` shows."""
    running, tenant = call.running, call.tenant
    topics = running.topics.of(tenant)
    described = await running.threads.read(_topics, running, topics[:STATUS_TOPICS_MAX])
    tables = await running.threads.read(_tables, running.tenants.lake(tenant))
    # What runs belongs to the whole instance: other tenants than the first see their own things alone.
    ours = tenant == DEFAULT_TENANT
    return json_answer(
        {
            "version": __version__,
            "tenant": tenant,
            "home": str(running.home.path) if ours else None,
            "pid": os.getpid() if ours else None,
            "uptimeSeconds": round(running.clock.monotonic_seconds() - running.started_seconds, 3),
            "memoryBytes": running.memory_bytes() if ours else None,
            "diskFreeBytes": running.disk_free_bytes() if ours else None,
            "topics": described,
            "topicsTotal": len(topics),
            "messagesTotal": running.topic.appended.by_tenant(running.topics).get(tenant, 0),
            "messagesPerSecond": round(running.messages_per_second(tenant), 1),
            "worker": _worker(running) if ours else None,
            "pipelines": await _pipelines(running, tenant),
            "tables": tables,
        }
    )


def _topics(running: Running, topics: list[Topic]) -> list[dict[str, Any]]:
    return [topic_answer(running, topic) for topic in topics]


def _worker(running: Running) -> dict[str, Any] | None:
    report = running.worker
    if report is None:
        return None
    silent = _silent_seconds(running, report)
    content = {key: value for key, value in report.content.items() if key != "pipelines"}
    state = "lost" if silent > WORKER_SILENT_SECONDS else content["state"]
    return {**content, "state": state, "seenSecondsAgo": round(silent, 3)}


def _silent_seconds(running: Running, report: WorkerReport) -> float:
    return running.clock.monotonic_seconds() - report.at_seconds


async def _pipelines(running: Running, tenant: str) -> list[dict[str, Any]]:
    return await running.threads.read(pipelines_of, running, tenant)


def pipelines_of(running: Running, tenant: str) -> list[dict[str, Any]]:
    """Return the pipelines of a tenant, by name; all that there are belong to the first one.

    What a worker reports stands, so that one whose file was stopped a moment ago is stopped when its query
    has ended. Where there is no worker, the files tell.
    """
    if tenant != DEFAULT_TENANT:
        return []
    files = list_pipeline_files(running.home.pipelines_path)
    lines = {line["name"]: line for line in _reported(running, files)}
    for name in files.stopped:
        lines.setdefault(name, msgspec.to_builtins(PipelineReport(name, STOPPED), str_keys=True))
    return [{**lines[name], "lag": _lag(running, lines[name]["offsets"])} for name in sorted(lines)]


def _reported(running: Running, files: PipelineFiles) -> list[dict[str, Any]]:
    if running.worker is None:
        return []
    lines: list[dict[str, Any]] = running.worker.content["pipelines"]
    if all(line["name"] in files.installed for line in lines) or not _is_gone(running, running.worker):
        return lines
    kept = [line for line in lines if line["name"] in (*files.installed, *files.stopped)]
    return [line if line["name"] in files.installed else {**line, "state": STOPPED} for line in kept]


def _is_gone(running: Running, report: WorkerReport) -> bool:
    """Return whether no worker runs: one that is silent may still write while its lock is held."""
    silent = _silent_seconds(running, report) > WORKER_SILENT_SECONDS
    return silent and not is_flocked(running.home.path / "locks" / "worker.lock")


def _lag(running: Running, offsets: dict[str, dict[str, int]]) -> int | None:
    """Count the messages that a pipeline has not taken yet; None where that is not known."""
    if not offsets:
        return None
    lag = 0
    for name, positions in offsets.items():
        try:
            topic = running.topics.get(DEFAULT_TENANT, name)
        except TidegateError:
            return None
        for number in range(topic.partitions):
            held = running.log.counters(topic, number)
            lag += max(0, held.end - max(positions.get(str(number), held.start), held.start))
    return lag


def _tables(lake: Lake) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = []
    for name in lake.names():
        try:
            view = lake.view(name)
        except TidegateError as problem:
            tables.append(
                {"name": name, "version": None, "files": None, "bytes": None, "error": str(problem)}
            )
            continue
        tables.append(
            {"name": name, "version": view.version, "files": view.file_count, "bytes": view.size_bytes}
        )
    return tables


OK: dict[str, Any] = {"ok": True, "reason": ""}

log = logging.getLogger(__name__)


async def check_parts(running: Running) -> dict[str, dict[str, Any]]:
    """Try every part: the door itself, the engine, the disk, the catalog and the lake."""
    return {
        "door": _broken("it is stopping") if running.stopping else OK,
        "engine": await _tried(running, "engine", _check_engine),
        "disk": _check_disk(running),
        "catalog": await _catalog(running),
        "lake": await _tried(running, "lake", _check_lake),
    }


def _broken(reason: str) -> dict[str, Any]:
    return {"ok": False, "reason": reason}


async def _catalog(running: Running) -> dict[str, Any]:
    try:
        await running.threads.catalog(running.catalog.ping)
    except TidegateError as problem:
        log.warning("the catalog does not answer: %s", problem)
        return _broken("does not answer")
    return OK


async def _tried(running: Running, name: str, check: Any) -> dict[str, Any]:
    try:
        await running.threads.read(check, running)
    except (TidegateError, OSError) as problem:
        log.warning("the %s cannot be read: %s", name, problem)
        return _broken("cannot be read")
    return OK


def _check_engine(running: Running) -> None:
    running.engine.get(b"\x00")


def _check_lake(running: Running) -> None:
    if not running.home.lake_path.is_dir():
        raise FileNotFoundError(f"{running.home.lake_path} is not there")


def _check_disk(running: Running) -> dict[str, Any]:
    try:
        free, least = running.disk_free_bytes(), running.settings.storage.free_bytes_min
    except OSError as problem:
        log.warning("the disk cannot be read: %s", problem)
        return _broken("cannot be read")
    if free >= least:
        return OK
    log.warning("the disk has not enough room: %d bytes are free, %d are the least", free, least)
    return _broken("not enough room")
