"""What serves topics: definitions, the log, consumer groups, routes from tables, and who waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tidegate.ingest.parts import BatchParts
from tidegate.ingest.publish import Publisher
from tidegate.ingest.routing import TopicRouter
from tidegate.model.clock import Clock
from tidegate.model.ids import SnowflakeSource
from tidegate.server.appended import Appended
from tidegate.server.arrivals import Arrivals
from tidegate.server.group_waits import GroupWaits
from tidegate.settings import Settings
from tidegate.storage.commit import GroupCommitter, Staging
from tidegate.storage.engine import Engine
from tidegate.topics.dedup_keys import DedupKeys
from tidegate.topics.definitions import Retention, Topic, TopicDirectory
from tidegate.topics.groups import GroupLimits, Groups
from tidegate.topics.log import TopicLog
from tidegate.topics.routes import RouteDirectory
from tidegate.topics.schemas import PayloadSchemas


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
        staging.closes_group = True  # the next change has to see this one
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
