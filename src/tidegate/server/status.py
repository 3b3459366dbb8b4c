"""Endpoints that tell how things are: health, readiness, status, pipelines, and the worker's report."""

from __future__ import annotations

import os
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidegate import __version__
from tidegate.errors import NotReady, PipelineNotFound, TidegateError
from tidegate.server.bodies import json_answer, read_json
from tidegate.server.running import Running, WorkerReport
from tidegate.server.topics import topic_answer

# A worker reports every second; one that is silent this long is not there any more.
WORKER_SILENT_SECONDS = 10.0


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


class WorkerBody(msgspec.Struct, rename="camel"):
    """Body of the worker's report."""

    pid: int
    state: str
    memory_bytes: int = 0
    spark_version: str = ""
    pipelines: list[PipelineReport] = []


_report = msgspec.json.Decoder(WorkerBody)


async def health(_request: Request, _running: Running) -> Response:
    """The process answers."""
    return json_answer({"status": "ok"})


async def ready(_request: Request, running: Running) -> Response:
    """The process takes work."""
    if running.stopping:
        raise NotReady(reason="it is stopping")
    return json_answer({"status": "ready"})


async def take_report(request: Request, running: Running) -> Response:
    """The worker says how it is."""
    body = await read_json(request, _report, running.settings.server.body_bytes_max)
    running.worker = WorkerReport(msgspec.to_builtins(body, str_keys=True), running.clock.monotonic_seconds())
    return json_answer({"ok": True})


async def list_pipelines(_request: Request, running: Running) -> Response:
    """Every pipeline the worker runs."""
    return json_answer({"pipelines": _pipelines(running)})


async def show_pipeline(request: Request, running: Running) -> Response:
    """One pipeline."""
    name = request.path_params["name"]
    for pipeline in _pipelines(running):
        if pipeline["name"] == name:
            return json_answer(pipeline)
    raise PipelineNotFound(pipeline=name)


async def status(_request: Request, running: Running) -> Response:
    """Everything that `tidegate status` shows."""
    tables = await running.threads.read(_tables, running)
    return json_answer(
        {
            "version": __version__,
            "home": str(running.home.path),
            "pid": os.getpid(),
            "uptimeSeconds": round(running.clock.monotonic_seconds() - running.started_seconds, 3),
            "memoryBytes": running.memory_bytes(),
            "diskFreeBytes": running.disk_free_bytes(),
            "topics": [topic_answer(running, topic) for topic in running.topics],
            "messagesTotal": running.messages_total,
            "messagesPerSecond": round(running.messages_per_second(), 1),
            "worker": _worker(running),
            "pipelines": _pipelines(running),
            "tables": tables,
        }
    )


def _worker(running: Running) -> dict[str, Any] | None:
    report = running.worker
    if report is None:
        return None
    silent = running.clock.monotonic_seconds() - report.at_seconds
    content = {key: value for key, value in report.content.items() if key != "pipelines"}
    state = "lost" if silent > WORKER_SILENT_SECONDS else content["state"]
    return {**content, "state": state, "seenSecondsAgo": round(silent, 3)}


def _pipelines(running: Running) -> list[dict[str, Any]]:
    if running.worker is None:
        return []
    return [
        {**pipeline, "lag": _lag(running, pipeline["offsets"])}
        for pipeline in running.worker.content["pipelines"]
    ]


def _lag(running: Running, offsets: dict[str, dict[str, int]]) -> int | None:
    """Count the messages that a pipeline has not taken yet; None where that is not known."""
    if not offsets:
        return None
    lag = 0
    for name, positions in offsets.items():
        try:
            topic = running.topics.get(name)
        except TidegateError:
            return None
        for number in range(topic.partitions):
            held = running.log.counters(topic, number)
            lag += max(0, held.end - max(positions.get(str(number), held.start), held.start))
    return lag


def _tables(running: Running) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = []
    for name in running.lake.names():
        try:
            view = running.lake.view(name)
        except TidegateError as problem:
            tables.append(
                {"name": name, "version": None, "files": None, "bytes": None, "error": str(problem)}
            )
            continue
        tables.append(
            {"name": name, "version": view.version, "files": view.file_count, "bytes": view.size_bytes}
        )
    return tables
