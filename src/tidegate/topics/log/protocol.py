"""The interface of a topic's log that groups, publishing, reading and retention use.

`log.TopicLog` implements it on the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidegate.storage.group_commit import Staging
from tidegate.topics.definitions import Topic
from tidegate.topics.log.counters import Counters
from tidegate.topics.log.record_batch import Origin, StoredBatch


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The offsets and ids of the messages of one append."""

    partition: int
    base_offset: int
    ids: np.ndarray

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.ids)


class MessageLog(Protocol):
    """Ordered logs of messages by topic and partition; offsets are dense and never used twice.

    Methods named `stage_…` belong to the committer's thread, the others to any.
    """

    def counters(self, topic: Topic, partition: int) -> Counters:
        """Return the counters of a partition, of what is durable."""
        ...

    def stage_append(
        self,
        staging: Staging,
        topic: Topic,
        partition: int,
        message_keys: Sequence[str | None],
        payloads: Sequence[bytes],
        origin: Origin,
    ) -> AppendResult:
        """Append messages to a partition."""
        ...

    def stage_trim(self, staging: Staging, topic: Topic, partition: int, start: int) -> int:
        """Remove the record batches that lie wholly before an offset; return the number of messages."""
        ...

    def check_range(self, topic: Topic, partition: int, start: int, stop: int) -> None:
        """Raise OffsetOutOfRange for a range that is not wholly in the partition."""
        ...

    def read(self, topic: Topic, partition: int, start: int, stop: int) -> Iterator[StoredBatch]:
        """Return the record batches that hold `start` ≤ offset < `stop`; the outer ones may hold more."""
        ...

    def arrow(
        self, topic: Topic, stored: StoredBatch, start: int | None = None, stop: int | None = None
    ) -> pa.RecordBatch:
        """Return the messages of a record batch, payloads as JSON text; `start` and `stop` limit them."""
        ...

    def messages_at(self, topic: Topic, partition: int, offsets: np.ndarray) -> pa.Table:
        """Return the messages at offsets of one partition, which rise."""
        ...

    def offset_at(self, topic: Topic, partition: int, time_us: int) -> int:
        """Return the first offset whose time is at or after a time; the end where there is none."""
        ...

    def retained_start(self, topic: Topic, partition: int, now_us: int) -> int:
        """Return where the log should start by the topic's retention; blocks."""
        ...

    def forget(self, topic: Topic) -> None:
        """Drop what is in memory of a topic that is gone."""
        ...
