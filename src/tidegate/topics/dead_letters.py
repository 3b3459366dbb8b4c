"""Dead letters: takes messages that nobody could work on, gives each a place in the topic `<topic>.dead`.

A dead letter has the key of its message, the operation DEAD, the topic as its source, and as its payload

    {"reason": "…", "origin": {"topic": …, "partition": …, "offset": …, …}, "payload": the message's own}

It is appended in the write batch that takes the message from its group: a message is in exactly one of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tidegate.model.timeranges import format_time
from tidegate.storage.commit import Staging
from tidegate.topics.batches import Origin
from tidegate.topics.definitions import Topic, TopicDirectory
from tidegate.topics.logs import Log

OP = "DEAD"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Lost:
    """Messages of one partition that a group gives up: `start` ≤ offset < `stop`, and how it came to that."""

    partition: int
    start: int
    stop: int
    member: str
    deliveries: int
    reason: str

    @property
    def count(self) -> int:
        """The number of messages."""
        return self.stop - self.start


class LetterOrigin(msgspec.Struct, rename="camel"):
    """Where a dead letter comes from, and what happened to it there."""

    topic: str
    partition: int
    offset: int
    message_id: str
    group: str
    member: str | None
    deliveries: int
    op: str
    ts: str
    source: str | None
    payload_mode: str
    user: str | None


class DeadLetters:
    """Writes dead letters; belongs to the committer's thread."""

    def __init__(self, log: Log, directory: TopicDirectory) -> None:
        self._log = log
        self._directory = directory

    def stage(self, staging: Staging, topic: Topic, group: str, lost: Sequence[Lost], now_us: int) -> int:
        """Append what a group gives up, of what is still in the log; give the number of messages."""
        if not lost:
            return 0
        dead = self._directory.stage_dead(staging, topic, now_us)
        origin = Origin(op=OP, source=topic.name)
        count = 0
        by_partition: dict[int, list[Lost]] = {}
        for one in lost:
            by_partition.setdefault(one.partition, []).append(one)
        for partition, parts in by_partition.items():
            message_keys: list[str | None] = []
            payloads: list[bytes] = []
            for part in parts:
                for key, payload in self._letters(topic, group, part):
                    message_keys.append(key)
                    payloads.append(payload)
            self._log.stage_append(staging, dead, partition % dead.partitions, message_keys, payloads, origin)
            count += len(payloads)
        return count

    def _letters(self, topic: Topic, group: str, lost: Lost) -> Iterator[tuple[str | None, bytes]]:
        reason = _encode(lost.reason)
        for stored in self._log.read(topic, lost.partition, lost.start, lost.stop):
            batch = self._log.arrow(topic, stored, lost.start, lost.stop)
            times = batch.column("ts").cast("int64").to_pylist()
            payloads = batch.column("payload").cast(pa.binary()).to_pylist()
            names = ("offset", "message_id", "op", "source", "payload_mode", "key", "user")
            columns = [batch.column(name).to_pylist() for name in names]
            for time_us, payload, offset, message_id, op, source, mode, key, user in zip(
                times, payloads, *columns, strict=True
            ):
                origin = LetterOrigin(
                    topic.name,
                    lost.partition,
                    offset,
                    str(message_id),
                    group,
                    lost.member or None,
                    lost.deliveries,
                    op,
                    format_time(time_us),
                    source,
                    mode,
                    user,
                )
                yield (
                    key,
                    b"".join(
                        (b'{"reason":', reason, b',"origin":', _encode(origin), b',"payload":', payload, b"}")
                    ),
                )
