"""Chores: what is kept long enough goes, and nothing else does."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from pathlib import Path

import pytest

from tidegate.catalog.audit import Actor
from tidegate.catalog.paging import PageRequest
from tidegate.ingest.idempotency import Answer, IdempotentRequest, stage_idempotent
from tidegate.model.tables import Table, TableColumn, TableKind
from tidegate.query.scans.system import table_functions
from tidegate.server.runtime.background import evict_streams, prune
from tidegate.server.runtime.runtime import Runtime, open_runtime
from tidegate.settings import load_settings
from tidegate.storage.home.home import Home
from tidegate.storage.keys import KeySpace, prefix_range
from tidegate.tables.validation import NewTable
from tidegate.testing.clock import ManualClock

NOW_US = 1_800_000_000_000_000
DAY_SECONDS = 86_400
ACTOR = Actor("default", "admin", "request-1")


def with_running(home: Path, clock: ManualClock, scene: object) -> None:
    async def run() -> None:
        opened = Home.open(home, secrets.token_urlsafe)
        settings = load_settings(None, {"TIDEGATE_CATALOG_AUDIT_DAYS_MAX": "30"})
        running = open_runtime(settings, opened, clock, asyncio.get_running_loop())
        try:
            await scene(running)  # type: ignore[operator]
        finally:
            await asyncio.to_thread(running.close)

    asyncio.run(run())


async def answer(running: Runtime, key: str) -> None:
    once = IdempotentRequest("default", "ann", key, b"f" * 16, running.clock.now_us())
    await running.committer.commit(
        lambda staging: stage_idempotent(staging, once, lambda _staging: Answer(200, b"{}"))
    )


def kept_answers(running: Runtime) -> int:
    return len(list(running.engine.scan(prefix_range(KeySpace.ANSWER))))


def test_answers_go_after_a_day_and_events_after_the_days_that_are_set(home: Path) -> None:
    clock = ManualClock(NOW_US)

    async def scene(running: Runtime) -> None:
        audit = running.catalog.audit
        await answer(running, "old")
        audit.finish(audit.begin(ACTOR, "topic.create", "topic/old"), "done")
        clock.advance(2 * DAY_SECONDS)
        await answer(running, "new")
        await prune(running)
        assert kept_answers(running) == 1
        subjects = [event.subject for event in audit.list("default", PageRequest(None, 100)).rows]
        assert "topic/old" in subjects
        clock.advance(29 * DAY_SECONDS)
        audit.begin(ACTOR, "topic.create", "topic/new")
        await prune(running)
        subjects = [event.subject for event in audit.list("default", PageRequest(None, 100)).rows]
        assert "topic/old" not in subjects
        assert "topic/new" in subjects
        assert kept_answers(running) == 0

    with_running(home, clock, scene)


def test_a_token_whose_time_was_over_stays_ended_when_the_clock_goes_back(home: Path) -> None:
    clock = ManualClock(NOW_US)

    async def scene(running: Runtime) -> None:
        tokens = running.catalog.tokens
        made = tokens.make(ACTOR, "default", "admin", label="", lifetime_seconds=3600)
        assert tokens.find(made.text).user == "admin"
        clock.advance(2 * 3600)
        await prune(running)
        clock.set_us(NOW_US)
        (ended,) = [
            token
            for token in tokens.list("default", "admin", PageRequest(None, 100)).rows
            if token.id == made.id
        ]
        assert ended.ended_us is not None

    with_running(home, clock, scene)


async def make_stream(running: Runtime, name: str) -> Table:
    new = NewTable("chat", name, TableKind.STREAM, (TableColumn("id", "BIGINT"),), (), 60)
    directory = running.tables.directory
    made: Table = await running.committer.commit(
        lambda staging: directory.stage_create(staging, "default", new, running.clock.now_us())
    )
    running.tables.streams.append(made, "ann", [(1,)])
    return made


def complaints(caplog: pytest.LogCaptureFixture) -> int:
    return sum("table=chat.broken error_code=STORAGE_FAILED" in text for text in caplog.messages)


def test_a_stream_whose_folder_is_broken_keeps_no_other_from_its_turn(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(NOW_US)

    async def scene(running: Runtime) -> None:
        directory, streams = running.tables.directory, running.tables.streams
        await running.committer.commit(
            lambda staging: directory.stage_create_namespace(staging, "default", "chat")
        )
        tables = [await make_stream(running, name) for name in ("a", "broken", "z")]
        folder = home / "streams/chat"
        shutil.rmtree(folder / "broken")
        (folder / "broken").touch()
        clock.advance(DAY_SECONDS)
        streams.append(tables[2], "ann", [(2,)])
        await evict_streams(running)
        windows = {path.parent.name for path in folder.glob("*/w*")}
        assert windows == {"z"}
        assert list((home / "streams/.trash").iterdir()) == []
        assert complaints(caplog) > 0
        caplog.clear()
        rows = table_functions(directory, running.tables.store, streams, "default")
        shown = rows["streams"]().select(["table", "files"]).to_pylist()
        assert shown == [{"table": "broken", "files": None}, {"table": "z", "files": 1}]
        sizes = {row["name"]: row["size_bytes"] for row in rows["tables"]().to_pylist()}
        assert sizes == {"a": 0, "broken": None, "z": sizes["z"]}
        assert complaints(caplog) == 2

    with_running(home, clock, scene)
