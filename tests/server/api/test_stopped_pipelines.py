"""Pipelines that are stopped: the worker's word counts while it lives, the files of the home after that."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tidegate.model.access import DEFAULT_TENANT
from tidegate.model.wire.status import WorkerReport
from tidegate.server.api.metrics import render
from tidegate.server.api.status import WORKER_SILENT_SECONDS, pipelines_of
from tidegate.server.runtime.runtime import ReceivedReport, Runtime, open_runtime
from tidegate.settings import load_settings
from tidegate.storage.home.home import Home
from tidegate.testing.clock import ManualClock

STOPPED_SAMPLE = b'tidegate_pipeline_state{pipeline="events",state="stopped"} 1.0'


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Runtime]:
    """Open the parts of a server without its door, in a home with a pipeline that is stopped."""
    home = Home.open(tmp_path / "home", lambda: secrets.token_urlsafe(32))
    (home.pipelines_path / "events.py.stopped").write_text("", encoding="utf-8")
    loop = asyncio.new_event_loop()
    opened = open_runtime(load_settings(None, {}), home, ManualClock(), loop)
    try:
        yield opened
    finally:
        opened.close()
        loop.close()


def report(running: Runtime, *names: str, silent_seconds: float = 0) -> None:
    """Let a worker say that pipelines run, so long ago."""
    figures = {"batches": 3, "rows": 100, "restarts": 0, "offsets": {}, "operators": [], "error": None}
    lines = [{"name": name, "state": "running", **figures} for name in names]
    content = {"pid": 1, "state": "running", "memoryBytes": 1, "pipelines": lines}
    running.worker = ReceivedReport(
        msgspec.convert(content, WorkerReport), running.clock.monotonic_seconds() - silent_seconds
    )


def states(running: Runtime) -> dict[str, str]:
    return {line.name: line.state for line in pipelines_of(running, DEFAULT_TENANT)}


def test_a_stopped_pipeline_is_there_without_a_worker(running: Runtime) -> None:
    assert states(running) == {"events": "stopped"}
    assert STOPPED_SAMPLE in render(running)[0]
    assert pipelines_of(running, "acme") == []


def test_a_query_that_has_not_ended_yet_is_not_called_stopped(running: Runtime) -> None:
    report(running, "events")
    assert states(running) == {"events": "running"}


def test_what_a_worker_that_is_gone_said_gives_way_to_the_files(running: Runtime) -> None:
    (running.home.pipelines_path / "other.py").write_text("", encoding="utf-8")
    report(running, "events", "other", "removed", silent_seconds=WORKER_SILENT_SECONDS + 1)
    assert states(running) == {"events": "stopped", "other": "running"}
    assert STOPPED_SAMPLE in render(running)[0]


def test_a_silent_worker_that_holds_its_lock_may_still_write(running: Runtime) -> None:
    lock = running.home.lock("worker")
    try:
        report(running, "events", silent_seconds=WORKER_SILENT_SECONDS + 1)
        assert states(running) == {"events": "running"}
    finally:
        lock.release()
    assert states(running) == {"events": "stopped"}
