"""After a failed write what topics remember is what the disk holds: everything in memory is read again."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidegate.errors import StorageFailed
from tidegate.model.ids import SnowflakeSource
from tidegate.model.tables import Table, TableColumn, TableKind
from tidegate.server.runtime.topics import TopicContext, TopicRuntime, open_topics
from tidegate.settings import Settings
from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.definitions import Topic
from tidegate.topics.groups.types import FetchRequest
from tidegate.topics.log.record_batch import Origin
from tidegate.topics.routes import Route

TABLE = Table(7, "default", "app", "users", TableKind.SHARED, (TableColumn("id", "BIGINT"),), ("id",), 0)
SECONDS_MAX = 60
Stage = Callable[[TopicRuntime, Staging, Topic], object]


class Home:
    """Topics on a disk that fails when it is told to."""

    def __init__(self) -> None:
        self.engine, self.clock = MemoryEngine(), ManualClock()
        self.loop = asyncio.new_event_loop()
        self.committers: list[GroupCommitter] = []
        self.parts = self.opened()
        self.topic = self.commit(lambda s: self.parts.directory.stage_create(s, "default", "app.jobs", 1, 0))
        self.commit(lambda s: publish(self.parts, s, self.topic))
        self.commit(lambda s: take(self.parts, s, self.topic))

    def opened(self) -> TopicRuntime:
        """Return topics that know of the disk what is there now."""
        committer = GroupCommitter(self.engine)
        self.committers.append(committer)
        ids = SnowflakeSource(self.clock)
        context = TopicContext(Settings(), ids, self.clock, secrets.token_bytes)
        return open_topics(context, self.engine, committer, self.loop)

    def commit(self, stage: Callable[[Staging], Any]) -> Any:
        return self.parts.committer.submit(stage).result(SECONDS_MAX)

    def refused(self, stage: Stage) -> None:
        with pytest.raises(StorageFailed):
            self.commit(lambda staging: stage(self.parts, staging, self.topic))

    def seen(self, parts: TopicRuntime) -> list[Any]:
        """Return all that topics remember of what they wrote."""
        return [
            list(parts.directory),
            parts.log.counters(self.topic, 0),
            parts.schemas.of(self.topic.id),
            parts.routes.of_topic(self.topic.id),
            [(shape.group, shape.partitions) for shape in parts.groups.describe(self.topic)],
        ]

    def close(self) -> None:
        for committer in self.committers:
            committer.close()
        self.loop.close()


@pytest.fixture
def home() -> Iterator[Home]:
    made = Home()
    yield made
    made.close()


def broken() -> StorageFailed:
    return StorageFailed(path="memory", reason="the test said so")


def create(parts: TopicRuntime, staging: Staging, _topic: Topic) -> object:
    return parts.directory.stage_create(staging, "default", "app.more", 2, 0)


def publish(parts: TopicRuntime, staging: Staging, topic: Topic) -> object:
    return parts.log.stage_append(staging, topic, 0, [None, None, None], [b"1", b"2", b"3"], Origin())


def number(parts: TopicRuntime, staging: Staging, topic: Topic) -> object:
    return parts.schemas.stage_number(staging, topic.id, TABLE, 0)


def route(parts: TopicRuntime, staging: Staging, topic: Topic) -> object:
    return parts.routes.stage_add(staging, topic, TABLE, Route(topic.id, TABLE.id, "insert"))


def take(parts: TopicRuntime, staging: Staging, topic: Topic) -> object:
    return parts.groups.stage_fetch(staging, topic, FetchRequest("g", "a", "default/a", limit=1))


@pytest.mark.parametrize("stage", [create, publish, number, route, take])
def test_a_write_that_was_refused_and_is_there_after_all_is_remembered(home: Home, stage: Stage) -> None:
    before = home.seen(home.parts)
    home.engine.fail_next_sync(broken(), survives=True)
    home.refused(stage)
    home.commit(lambda _staging: None)
    assert home.seen(home.parts) == home.seen(home.opened())
    assert home.seen(home.parts) != before


@pytest.mark.parametrize("stage", [create, publish, number, route, take])
def test_a_write_that_is_lost_is_forgotten_when_the_disk_is_opened_again(home: Home, stage: Stage) -> None:
    before = home.seen(home.parts)
    home.engine.fail_next_sync(broken())
    home.refused(stage)
    # Whoever looks before the disk is opened again may see, and remember, what then is gone.
    home.seen(home.parts)
    home.commit(lambda _staging: None)
    assert home.seen(home.parts) == home.seen(home.opened()) == before


@pytest.mark.parametrize("stage", [create, publish, number, route, take])
def test_a_write_that_fails_leaves_nothing_in_memory(home: Home, stage: Stage) -> None:
    before = home.seen(home.parts)
    home.engine.fail_next_write(broken())
    home.refused(stage)
    # The committer forgets on its thread before it answers the writer.
    assert home.seen(home.parts) == home.seen(home.opened()) == before
