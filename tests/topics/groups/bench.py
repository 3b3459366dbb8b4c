"""Consumer groups on an engine, with a clock that the test moves: what tests of groups work with."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tidegate.errors import StorageFailed
from tidegate.model.access import Principal, Role
from tidegate.model.ids import SnowflakeSource
from tidegate.settings import TopicSettings
from tidegate.storage.engine import Engine
from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.testing.clock import ManualClock
from tidegate.topics.definitions import Topic, TopicDirectory
from tidegate.topics.groups.groups import Groups
from tidegate.topics.groups.leases import FetchIdSource, lease_id
from tidegate.topics.groups.types import (
    AckRequest,
    AckResult,
    ExpiryResult,
    ExtendRequest,
    ExtendResult,
    FetchRequest,
    FetchResult,
    GroupDescription,
    NackRequest,
    NackResult,
)
from tidegate.topics.log.log import TopicLog
from tidegate.topics.log.reader import Start
from tidegate.topics.log.record_batch import Origin
from tidegate.topics.payload_schemas import PayloadSchemas

T = TypeVar("T")
EARLIEST = Start("earliest")


def principal(name: str, role: Role = Role.READER) -> Principal:
    return Principal("default", name, frozenset({role}), "t", "default")


# Users with the least role that consumes, and an administrator.
ALICE, BOB, ROOT = principal("alice"), principal("bob"), principal("root", Role.ADMIN)
LIMITS = TopicSettings(lease_ms_default=30_000, deliveries_max=3, in_flight_max=1000, groups_max=8)


@dataclass
class GroupsBench:
    """Everything between a member and the engine, but for the server."""

    engine: Engine
    clock: ManualClock
    committer: GroupCommitter
    directory: TopicDirectory
    log: TopicLog
    groups: Groups
    # Groups for which something was said to be due, in order.
    notices: list[str] = field(default_factory=list)

    def commit(self, stage: Callable[[Staging], T]) -> T:
        return self.committer.submit(stage).result(60)

    def create(self, name: str = "app.jobs", partitions: int = 1) -> Topic:
        now_us = self.clock.now_us()
        return self.commit(lambda s: self.directory.stage_create(s, "default", name, partitions, now_us))

    def publish(self, topic: Topic, count: int, partition: int = 0, keys: Sequence[str] = ()) -> int:
        """Append messages whose payload is their offset; give the first offset."""
        first = self.log.counters(topic, partition).end
        payloads = [b'{"n":%d}' % number for number in range(first, first + count)]
        names: list[str | None] = [*keys] or [None] * count
        self.commit(lambda s: self.log.stage_append(s, topic, partition, names, payloads, Origin()))
        return first

    def take(
        self,
        topic: Topic,
        member: str = "a",
        limit: int = 100,
        group: str = "g",
        partition: int | None = None,
        start: Start = EARLIEST,
        lease_ms: int | None = None,
        *,
        user: Principal = ALICE,
    ) -> FetchResult:
        asked = FetchRequest(group, member, user.qualified_name, start, partition, limit, lease_ms)
        return self.commit(lambda s: self.groups.stage_fetch(s, topic, asked))

    def ack(
        self,
        topic: Topic,
        leases: Sequence[str],
        group: str = "g",
        member: str | None = None,
        user: Principal = ALICE,
    ) -> AckResult:
        asked = AckRequest(group, member, user, leases)
        return self.commit(lambda s: self.groups.stage_ack(s, topic, asked))

    def upto(
        self,
        topic: Topic,
        offset: int,
        member: str = "a",
        partition: int = 0,
        group: str = "g",
        user: Principal = ALICE,
    ) -> AckResult:
        asked = AckRequest(group, member, user, upto={partition: offset})
        return self.commit(lambda s: self.groups.stage_ack(s, topic, asked))

    def nack(
        self,
        topic: Topic,
        leases: Sequence[str],
        delay_ms: int = 0,
        reason: str | None = None,
        *,
        release: bool = False,
        dead: bool = False,
        member: str | None = None,
        user: Principal = ALICE,
    ) -> NackResult:
        asked = NackRequest("g", member, user, leases, delay_ms, reason, release, dead)
        return self.commit(lambda s: self.groups.stage_nack(s, topic, asked))

    def extend(
        self,
        topic: Topic,
        leases: Sequence[str],
        lease_ms: int | None = None,
        member: str | None = None,
        user: Principal = ALICE,
    ) -> ExtendResult:
        asked = ExtendRequest("g", member, user, leases, lease_ms)
        return self.commit(lambda s: self.groups.stage_extend(s, topic, asked))

    def expire(self, topic: Topic, group: str = "g") -> ExpiryResult:
        return self.commit(lambda s: self.groups.stage_expire(s, topic, group))

    def reset(self, topic: Topic, start: Start, partition: int | None = None) -> dict[int, int]:
        return self.commit(lambda s: self.groups.stage_reset(s, topic, "g", start, partition))

    def delete_group(self, topic: Topic, group: str = "g") -> None:
        self.commit(lambda s: self.groups.stage_delete(s, topic, group))

    def trim(self, topic: Topic, start: int, partition: int = 0) -> int:
        return self.commit(lambda s: self.log.stage_trim(s, topic, partition, start))

    def add_partitions(self, topic: Topic, partitions: int) -> Topic:
        def stage(staging: Staging) -> Topic:
            changed = self.directory.stage_change(staging, topic, partitions=partitions)
            self.groups.stage_partitions(staging, changed, topic.partitions)
            return changed

        return self.commit(stage)

    def shape(self, topic: Topic, group: str = "g") -> GroupDescription:
        return next(shape for shape in self.groups.describe(topic) if shape.group == group)

    def payloads(self, topic: Topic, partition: int = 0) -> list[str]:
        held = self.log.counters(topic, partition)
        stored = self.log.read(topic, partition, held.start, held.end)
        return [text for one in stored for text in self.log.arrow(topic, one).column("payload").to_pylist()]


def build(engine: Engine, clock: ManualClock, limits: TopicSettings = LIMITS) -> GroupsBench:
    committer = GroupCommitter(engine)
    directory, schemas, ids = TopicDirectory(engine, 64), PayloadSchemas(engine), SnowflakeSource(clock)
    log = TopicLog(engine, ids, clock, schemas)
    for topic in directory:
        log.recover(topic)
    notices: list[str] = []
    fetch_ids = FetchIdSource(ids, random.Random(0).randbytes)
    groups = Groups(
        engine, log, directory, fetch_ids, clock, limits, lambda _topic, group: notices.append(group)
    )
    for reload in (directory.reload, schemas.reload, log.reload, groups.reload):
        committer.when_reopened(reload)
    return GroupsBench(engine, clock, committer, directory, log, groups, notices)


def leases(given: FetchResult) -> list[str]:
    """Return the leases of everything that was given."""
    return [
        lease_id(grant.partition, grant.fetch_id, grant.token, offset)
        for grant in given.ranges
        for offset in range(grant.start, grant.stop)
    ]


def offsets(given: FetchResult) -> list[int]:
    """Return the offsets of everything that was given, in the order of giving."""
    return [offset for grant in given.ranges for offset in range(grant.start, grant.stop)]


def broken_disk() -> StorageFailed:
    return StorageFailed(path="memory", reason="the test said so")
