"""A topic log on the in-memory engine, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.ingest.publish import Messages, Publisher, Receipt, Sender
from tidegate.model.ids import SnowflakeSource
from tidegate.storage.commit import GroupCommitter
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.definitions import Topic, TopicDirectory
from tidegate.topics.log import TopicLog

NOW_US = 1_800_000_000_000_000


@dataclass
class Bench:
    """Everything between a message and the engine."""

    engine: MemoryEngine
    clock: ManualClock
    committer: GroupCommitter
    directory: TopicDirectory
    log: TopicLog
    publisher: Publisher

    def create(self, name: str = "app.events", partitions: int = 1) -> Topic:
        return self.committer.submit(
            lambda staging: self.directory.stage_create(
                staging, "default", name, partitions, self.clock.now_us()
            )
        ).result(5)

    def publish(
        self,
        topic: Topic,
        payloads: Sequence[bytes],
        *,
        keys: Sequence[str | None] | None = None,
        partitions: Sequence[int | None] | None = None,
        sender: Sender | None = None,
    ) -> Receipt:
        blank: list[None] = [None] * len(payloads)
        messages = Messages(keys or blank, payloads, partitions or blank)
        return asyncio.run(self.publisher.publish(topic, messages, sender))

    def delete(self, topic: Topic) -> None:
        self.committer.submit(
            lambda staging: self.directory.stage_delete(staging, topic.tenant, topic.name)
        ).result(5)

    def payloads(self, topic: Topic, partition: int = 0) -> list[str]:
        held = self.log.counters(topic, partition)
        batches = self.log.read(topic, partition, held.start, held.end)
        return [payload for batch in batches for payload in batch.arrow().column("payload").to_pylist()]


def build(engine: MemoryEngine, clock: ManualClock) -> Bench:
    committer = GroupCommitter(engine)
    directory = TopicDirectory(engine, 64)
    log = TopicLog(engine, SnowflakeSource(clock), clock)
    committer.when_reopened(directory.reload)
    committer.when_reopened(log.reload)
    for topic in directory:
        log.recover(topic)
    return Bench(engine, clock, committer, directory, log, Publisher(committer, log))
