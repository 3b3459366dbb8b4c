"""Dead letters: messages of a consumer group whose deliveries are exhausted, in the topic `<topic>.dead`.

A dead letter has the key of its message, the operation DEAD, the topic as its source, and as its payload

    {"reason": "…", "origin": {"topic": …, "partition": …, "offset": …, …}, "payload": the message's own}

It is appended in the write batch that removes the message from its group: a message is in exactly one of
both. One that is damaged in the log becomes a dead letter without a payload, and its reason says so: it must
not hold up the messages behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from tidegate.errors import StorageCorrupt
from tidegate.model.times import format_time
from tidegate.storage.group_commit import Staging
from tidegate.topics.definitions import Topic, TopicDirectory
from tidegate.topics.log.protocol import MessageLog
from tidegate.topics.log.record_batch import Origin, StoredBatch

OP = "DEAD"
_encode = msgspec.json.Encoder().encode
_COLUMNS = ("offset", "message_id", "ts", "op", "source", "payload_mode", "user")

log = logging.getLogger(__name__)

Letter = tuple[str | None, bytes]


@dataclass(frozen=True, slots=True)
class ExhaustedRange:
    """Exhausted messages of one partition, `start` ≤ offset < `stop`: the last member, deliveries, reason."""

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
    """The origin of a dead letter and its last delivery; None is also what could not be read."""

    topic: str
    partition: int
    offset: int
    message_id: str | None
    group: str
    member: str | None
    deliveries: int
    op: str | None
    ts: str | None
    source: str | None
    payload_mode: str | None
    user: str | None


class DeadLetters:
    """Appends dead letters. Belongs to the committer's thread."""

    def __init__(self, log: MessageLog, directory: TopicDirectory) -> None:
        self._log = log
        self._directory = directory

    def stage(
        self, staging: Staging, topic: Topic, group: str, exhausted: Sequence[ExhaustedRange], now_us: int
    ) -> int:
        """Append the exhausted messages of a group that are still in the log; return their number."""
        if not exhausted:
            return 0
        dead = self._directory.stage_dead(staging, topic, now_us)
        origin = Origin(op=OP, source=topic.name)
        count = 0
        by_partition: dict[int, list[ExhaustedRange]] = {}
        for one in exhausted:
            by_partition.setdefault(one.partition, []).append(one)
        for partition, ranges in by_partition.items():
            letters: list[Letter] = []
            for one in ranges:
                letters += _DeadLetterBuilder(self._log, topic, group, one).letters()
            message_keys, payloads = [key for key, _ in letters], [payload for _, payload in letters]
            self._log.stage_append(staging, dead, partition % dead.partitions, message_keys, payloads, origin)
            count += len(payloads)
        return count


class _DeadLetterBuilder:
    """Builds the dead letters of one range of messages."""

    def __init__(self, messages: MessageLog, topic: Topic, group: str, exhausted: ExhaustedRange) -> None:
        self._log = messages
        self._topic = topic
        self._group = group
        self._range = exhausted
        self._damage: StorageCorrupt | None = None
        self._damaged = 0

    def letters(self) -> list[Letter]:
        """Return a letter for each message, in their order; damage is logged once."""
        found: list[Letter] = []
        at, stop = self._range.start, self._range.stop
        while at < stop:
            try:
                for stored in self._log.read(self._topic, self._range.partition, at, stop):
                    until = min(stored.stop_offset, stop)
                    found += self._of_batch(stored, at, until)
                    at = until
                break
            except StorageCorrupt as damage:
                until = self._damage_stop(at, damage)
                found += [self._unread(offset, damage) for offset in range(at, until)]
                at = until
        if self._damage is not None:
            log.error(
                "messages unreadable, dead letters written without payload group=%s count=%d error=%s",
                self._group,
                self._damaged,
                self._damage.message,
            )
        return found

    def _of_batch(self, stored: StoredBatch, start: int, stop: int) -> list[Letter]:
        """Return the letters of a record batch; one payload that is damaged leaves the others alone."""
        try:
            batch = self._log.arrow(self._topic, stored, start, stop)
        except StorageCorrupt as damage:
            if stop - start > 1:
                middle = (start + stop) // 2
                return self._of_batch(stored, start, middle) + self._of_batch(stored, middle, stop)
            reason = self._noted(start, damage)
            batch = stored.arrow().slice(start - stored.base_offset, 1)
            return self._of_rows(batch, [b"null"], reason)
        return self._of_rows(batch, batch.column("payload").cast(pa.binary()).to_pylist(), self._range.reason)

    def _of_rows(self, batch: pa.RecordBatch, payloads: Iterable[bytes], reason: str) -> list[Letter]:
        times = batch.column("ts").cast("int64").to_pylist()
        columns = [times if name == "ts" else batch.column(name).to_pylist() for name in _COLUMNS]
        keys = batch.column("key").to_pylist()
        found: list[Letter] = []
        for key, payload, (offset, message_id, time_us, *rest) in zip(
            keys, payloads, zip(*columns, strict=True), strict=True
        ):
            origin = self._origin(offset, str(message_id), format_time(time_us), *rest)
            found.append((key, _letter(reason, origin, payload)))
        return found

    def _unread(self, offset: int, damage: StorageCorrupt) -> Letter:
        origin = self._origin(offset, None, None, None, None, None, None)
        return None, _letter(self._noted(offset, damage), origin, b"null")

    def _origin(self, offset: int, message_id: str | None, ts: str | None, *rest: str | None) -> LetterOrigin:
        op, source, mode, user = rest
        exhausted, topic = self._range, self._topic.name
        member, deliveries = exhausted.member or None, exhausted.deliveries
        return LetterOrigin(
            topic,
            exhausted.partition,
            offset,
            message_id,
            self._group,
            member,
            deliveries,
            op,
            ts,
            source,
            mode,
            user,
        )

    def _noted(self, offset: int, damage: StorageCorrupt) -> str:
        self._damage = self._damage or damage
        self._damaged += 1
        place = f"partition {self._range.partition}, offset {offset}"
        return f"the message could not be read ({place}); before that: {self._range.reason}"

    def _damage_stop(self, at: int, damage: StorageCorrupt) -> int:
        """Return the offset after the damage that begins at an offset.

        All offsets of one record batch fail with the same error, so that a bisection tries few of them.
        """
        low, high = at + 1, self._range.stop
        while low < high:
            middle = (low + high) // 2
            if self._fault(middle) == damage.values:
                low = middle + 1
            else:
                high = middle
        return low

    def _fault(self, offset: int) -> dict[str, Any] | None:
        try:
            next(self._log.read(self._topic, self._range.partition, offset, offset + 1), None)
        except StorageCorrupt as damage:
            return damage.values
        return None


def _letter(reason: str, origin: LetterOrigin, payload: bytes) -> bytes:
    parts = (b'{"reason":', _encode(reason), b',"origin":', _encode(origin), b',"payload":', payload, b"}")
    return b"".join(parts)
