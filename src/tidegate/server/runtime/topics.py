"""What serves topics: definitions, the log, consumer groups, routes from tables, and who waits.

What topics took since the server started: worked out from their counters when somebody asks.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.ingest.batch_commit import BatchParts
from tidegate.ingest.change_feed import TopicRouter
from tidegate.ingest.publish import Publisher
from tidegate.model.clock import Clock
from tidegate.model.ids import SnowflakeSource
from tidegate.server.runtime.waiters import Arrivals, GroupWaits
from tidegate.settings import Settings
from tidegate.storage.engine import Engine
from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.topics.dedup import DedupKeys
from tidegate.topics.definitions import Retention, Topic, TopicDirectory
from tidegate.topics.groups.groups import Groups
from tidegate.topics.groups.types import GroupLimits
from tidegate.topics.log.log import TopicLog
from tidegate.topics.payload_schemas import PayloadSchemas
from tidegate.topics.routes import RouteDirectory


class Appended:
    """Adds up how far partitions went; what a deleted topic took stays counted. Threads: any."""

    def __init__(self, log: TopicLog, topics: Iterable[Topic]) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}
        self._messages: Counter[str] = Counter()
        self._size_bytes = 0
        self._look(topics)
        # What was there at the start was taken before.
        self._messages.clear()
        self._size_bytes = 0

    def totals(self, topics: Iterable[Topic]) -> tuple[int, int]:
        """Return the messages and the bytes of all tenants."""
        with self._lock:
            self._look(topics)
            return self._messages.total(), self._size_bytes

    def by_tenant(self, topics: Iterable[Topic]) -> dict[str, int]:
        """Return the messages of each tenant."""
        with self._lock:
            self._look(topics)
            return dict(self._messages)

    def _look(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            for number in range(topic.partitions):
                held = self._log.counters(topic, number)
                count, size_bytes = self._seen.get((topic.id, number), (0, 0))
                if held.end == count:
                    continue
                self._messages[topic.tenant] += held.end - count
                self._size_bytes += held.appended_bytes - size_bytes
                self._seen[topic.id, number] = (held.end, held.appended_bytes)


@dataclass(frozen=True, slots=True)
class TopicParts:
    """Everything that endpoints and statements use of topics."""

    directory: TopicDirectory
    log: TopicLog
    groups: Groups
    routes: RouteDirectory
    schemas: PayloadSchemas
    router: TopicRouter
    publisher: Publisher
    arrivals: Arrivals
    waits: GroupWaits
    appended: Appended
    parts: BatchParts
    dedup: DedupKeys
    committer: GroupCommitter
    clock: Clock
    settings: Settings

    def stage_change(
        self, staging: Staging, topic: Topic, partitions: int | None, retention: Retention | None
    ) -> Topic:
        """Change a topic; its groups begin at the beginning of partitions that are added."""
        changed = self.directory.stage_change(staging, topic, partitions=partitions, retention=retention)
        staging.close_group()  # the next change has to see this one
        if changed.partitions > topic.partitions:
            self.groups.stage_partitions(staging, changed, topic.partitions)
        return changed

    def stage_delete(self, staging: Staging, tenant: str, name: str) -> Topic:
        """Remove a topic with its messages, groups and routes."""
        topic = self.directory.stage_delete(staging, tenant, name)
        self.routes.stage_drop_topic(staging, topic)
        staging.when_durable(lambda: self.forget(topic))
        return topic

    def forget(self, topic: Topic) -> None:
        """Drop what is remembered of a topic that is gone, and wake who waits for it; from any thread."""
        self.log.forget(topic)
        self.groups.forget(topic)
        self.schemas.forget(topic.id)
        self.dedup.forget(topic)
        self.arrivals.notify(topic)
        self.waits.notify_everyone(topic.id)

    def stage_clear(self, staging: Staging, topic: Topic) -> int:
        """Remove all messages of a topic that are durable now, and its dedup keys; give how many messages."""
        cleared = sum(
            self.log.stage_trim(staging, topic, number, self.log.counters(topic, number).end)
            for number in range(topic.partitions)
        )
        if topic.dedup_seconds is not None:
            self.dedup.stage_clear(staging, topic)
        return cleared


def open_topics(
    settings: Settings,
    engine: Engine,
    committer: GroupCommitter,
    ids: SnowflakeSource,
    clock: Clock,
    loop: asyncio.AbstractEventLoop,
) -> TopicParts:
    """Open the definitions and build what stands on them; ids given out later are above all in the logs."""
    arrivals, waits = Arrivals(loop), GroupWaits(loop)

    def arrived(topic: Topic) -> None:
        arrivals.notify(topic)
        waits.notify(topic.id)

    directory = TopicDirectory(engine, settings.topics.partitions_max)
    schemas, routes = PayloadSchemas(engine), RouteDirectory(engine)
    log = TopicLog(engine, ids, clock, schemas, arrived)
    for topic in directory:
        log.recover(topic)
    groups = Groups(
        engine,
        log,
        directory,
        ids,
        clock,
        GroupLimits.from_settings(settings.topics),
        lambda topic, group: waits.notify(topic.id, group),
    )
    dedup = DedupKeys(clock)
    # What is kept in memory may be ahead of the disk after a failed write.
    for reload in (directory.reload, log.reload, schemas.reload, routes.reload, groups.reload):
        committer.when_reopened(reload)
    committer.when_failed(groups.reload)
    return TopicParts(
        directory=directory,
        log=log,
        groups=groups,
        routes=routes,
        schemas=schemas,
        router=TopicRouter(routes, schemas, directory, log, clock),
        publisher=Publisher(committer, log, dedup),
        arrivals=arrivals,
        waits=waits,
        appended=Appended(log, directory),
        parts=BatchParts(engine, log, ids, clock, dedup),
        dedup=dedup,
        committer=committer,
        clock=clock,
        settings=settings,
    )
