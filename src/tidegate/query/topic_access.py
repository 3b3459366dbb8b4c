"""What statements use of topics: the holders, and changes that concern several of them."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.ingest.publish import Publisher
from tidegate.model.clock import Clock
from tidegate.settings import Settings
from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.topics.dedup import DedupKeys
from tidegate.topics.definitions import Retention, Topic, TopicDirectory
from tidegate.topics.groups.groups import Groups
from tidegate.topics.log.log import TopicLog
from tidegate.topics.payload_schemas import PayloadSchemas
from tidegate.topics.routes import RouteDirectory


@dataclass(frozen=True)
class TopicAccess:
    """Everything that statements use of topics; the three stages are for the committer's thread."""

    directory: TopicDirectory
    log: TopicLog
    groups: Groups
    routes: RouteDirectory
    schemas: PayloadSchemas
    dedup: DedupKeys
    publisher: Publisher
    committer: GroupCommitter
    clock: Clock
    settings: Settings

    def stage_change(
        self, staging: Staging, topic: Topic, partitions: int | None, retention: Retention | None
    ) -> Topic:
        """Change a topic; its groups start at the beginning of partitions that are added."""
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

    def stage_clear(self, staging: Staging, topic: Topic) -> int:
        """Remove all durable messages of a topic and its dedup keys; return the number of messages."""
        cleared = sum(
            self.log.stage_trim(staging, topic, number, self.log.counters(topic, number).end)
            for number in range(topic.partitions)
        )
        if topic.dedup_seconds is not None:
            self.dedup.stage_clear(staging, topic)
        return cleared

    def forget(self, topic: Topic) -> None:
        """Drop everything cached about a deleted topic; any thread."""
        self.log.forget(topic)
        self.groups.forget(topic)
        self.schemas.forget(topic.id)
        self.dedup.forget(topic)
