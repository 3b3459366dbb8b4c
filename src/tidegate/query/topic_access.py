"""The interface of topic statements to topics."""

from __future__ import annotations

from typing import Protocol

from tidegate.ingest.publish import Publisher
from tidegate.model.clock import Clock
from tidegate.settings import Settings
from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.topics.definitions import Retention, Topic, TopicDirectory
from tidegate.topics.groups.groups import Groups
from tidegate.topics.log.log import TopicLog
from tidegate.topics.payload_schemas import PayloadSchemas
from tidegate.topics.routes import RouteDirectory


class TopicAccess(Protocol):
    """Everything that statements use of topics; the three stages are for the committer's thread."""

    @property
    def directory(self) -> TopicDirectory: ...

    @property
    def log(self) -> TopicLog: ...

    @property
    def groups(self) -> Groups: ...

    @property
    def routes(self) -> RouteDirectory: ...

    @property
    def schemas(self) -> PayloadSchemas: ...

    @property
    def publisher(self) -> Publisher: ...

    @property
    def committer(self) -> GroupCommitter: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def settings(self) -> Settings: ...

    def stage_change(
        self, staging: Staging, topic: Topic, partitions: int | None, retention: Retention | None
    ) -> Topic:
        """Change a topic; its groups begin at the beginning of partitions that are added."""
        ...

    def stage_delete(self, staging: Staging, tenant: str, name: str) -> Topic:
        """Remove a topic with its messages, groups and routes."""
        ...

    def stage_clear(self, staging: Staging, topic: Topic) -> int:
        """Remove all messages of a topic, and return their number."""
        ...
