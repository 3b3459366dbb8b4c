"""A topic log on the in-memory engine, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.ingest.publish import Messages, Publisher, Receipt, Sender
from tidegate.model.ids import SnowflakeSource
from tidegate.storage.group_commit import GroupCommitter
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.dedup import DedupKeys
from tidegate.topics.definitions import Retention, Topic, TopicDirectory
from tidegate.topics.log.log import TopicLog
from tidegate.topics.payload_schemas import PayloadSchemas

NOW_US = 1_800_000_000_000_000
NO_RETENTION = Retention()
# A user, with the tenant.
ADA = "default/ada"


@dataclass
class Bench:
    """Everything between a message and the engine."""

    engine: MemoryEngine
    clock: ManualClock
    committer: GroupCommitter
    directory: TopicDirectory
    schemas: PayloadSchemas
    log: TopicLog
    dedup: DedupKeys
    publisher: Publisher

    def create(
        self, name: str = "app.events", partitions: int = 1, retention: Retention = NO_RETENTION
    ) -> Topic:
        return self.committer.submit(
            lambda staging: self.directory.stage_create(
                staging, "default", name, partitions, self.clock.now_us(), retention
            )
        ).result(60)

    def publish(
        self,
        topic: Topic,
        payloads: Sequence[bytes],
        *,
        keys: Sequence[str | None] | None = None,
        partitions: Sequence[int | None] | None = None,
        sender: Sender | None = None,
        dedup_keys: Sequence[str | None] | None = None,
    ) -> Receipt:
        blank: list[None] = [None] * len(payloads)
        messages = Messages(keys or blank, payloads, partitions or blank, dedup_keys)
        return asyncio.run(self.publisher.publish(topic, messages, sender))

    def delete(self, topic: Topic) -> None:
        self.committer.submit(
            lambda staging: self.directory.stage_delete(staging, topic.tenant, topic.name)
        ).result(60)

    def payloads(self, topic: Topic, partition: int = 0) -> list[str]:
        held = self.log.counters(topic, partition)
        batches = self.log.read(topic, partition, held.start, held.end)
        return [
            payload
            for batch in batches
            for payload in self.log.arrow(topic, batch).column("payload").to_pylist()
        ]

    def trim(self, topic: Topic, start: int, partition: int = 0) -> int:
        return self.committer.submit(
            lambda staging: self.log.stage_trim(staging, topic, partition, start)
        ).result(60)


def build(engine: MemoryEngine, clock: ManualClock) -> Bench:
    committer = GroupCommitter(engine)
    directory = TopicDirectory(engine, 64)
    schemas = PayloadSchemas(engine)
    log = TopicLog(engine, SnowflakeSource(clock), clock, schemas)
    committer.when_reopened(directory.reload)
    committer.when_reopened(schemas.reload)
    committer.when_reopened(log.reload)
    for topic in directory:
        log.recover(topic)
    dedup = DedupKeys(clock)
    publisher = Publisher(committer, log, dedup)
    return Bench(engine, clock, committer, directory, schemas, log, dedup, publisher)
