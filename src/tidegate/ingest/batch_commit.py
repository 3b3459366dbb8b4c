"""Exactly-once commits of batches whose messages arrive in parts from many tasks.

Every task of a batch stores its messages as parts, which readers do not see. Then the batch is committed with
the parts of its successful tasks: their messages, the removal of the parts and the number of the batch are
one write batch. A batch that the writer committed before is not written again, whatever its parts are, and
neither is one with a smaller number. Messages with dedup keys that the topic remembers are left out. Parts
that no commit names (of a task that was tried twice, of a writer that died) are removed with the next commit
of their writer, or after a day.

A writer belongs to the user who stored the first part or committed the first batch. Batches may be skipped,
as those without rows are, but not by a commit without parts: it would be a number that came from nowhere,
and later batches with rows would count as committed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import RequestInvalid
from tidegate.ingest.publish import partitions_of
from tidegate.model.clock import Clock
from tidegate.model.epoch import SECOND_US
from tidegate.model.ids import SnowflakeSource
from tidegate.storage.engine import Reader
from tidegate.storage.group_commit import Staging
from tidegate.topics import staged_batches as stored_parts
from tidegate.topics.dedup import DedupKeys, MessagePositions, checked_digests
from tidegate.topics.definitions import Topic
from tidegate.topics.log.protocol import MessageLog
from tidegate.topics.log.record_batch import Origin
from tidegate.topics.staged_batches import (
    NO_BATCH,
    WRITER_VERSION,
    BatchName,
    LastBatch,
    NewPart,
    StoredPart,
)

# A batch is held in memory while it is written, and other writers wait for it: a million messages of 100
# bytes take about 0.7 GB and one and a half seconds.
BATCH_MESSAGES_MAX = 2_000_000
BATCH_BYTES_MAX = 256 * 1024 * 1024
# A part is decoded whole by one thread; a task sends as many parts as it needs.
PART_MESSAGES_MAX = 50_000
# Longer than any batch takes, and than a server is down.
PARTS_RETENTION_SECONDS = 24 * 3600
# One removal delays the writers behind it no longer than a group commit does.
REMOVED_AT_ONCE_MAX = 1_000

# The column of dedup keys in a part.
DEDUP_COLUMN = "dedupKey"

_PUBLISHED = Origin()


@dataclass(frozen=True, slots=True)
class BatchCommitResult:
    """Whether this commit wrote the batch, and the number of messages in the batch."""

    committed: bool
    messages: int
    # Those of the messages that were left out, because the topic had their dedup keys already.
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class Removal:
    """Parts and writers of one topic that are old enough to be removed."""

    topic: Topic
    parts: Sequence[StoredPart]
    writers: Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class _Columns:
    """The messages for one partition, and the number of each in the batch."""

    keys: list[str | None] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)

    def chosen(self, is_chosen: np.ndarray) -> _Columns:
        """Return the messages whose numbers are set in a mask."""
        positions = np.flatnonzero(is_chosen[self.indexes]).tolist()
        return _Columns(
            [self.keys[place] for place in positions],
            [self.payloads[place] for place in positions],
            [self.indexes[place] for place in positions],
        )


@dataclass(frozen=True, slots=True)
class _Content:
    """The messages of a batch by partition, and the digests of their dedup keys if there are any."""

    columns: dict[int, _Columns]
    digests: list[bytes | None] | None


class BatchParts:
    """Stores parts and commits batches. Methods named `plan_…` read the disk: call them in a thread."""

    def __init__(
        self, reader: Reader, log: MessageLog, ids: SnowflakeSource, clock: Clock, dedup: DedupKeys
    ) -> None:
        self._reader = reader
        self._log = log
        self._dedup = dedup
        self._ids = ids
        self._clock = clock
        self._turn = itertools.count()
        # Held while a batch is planned and written: two large ones at once would take twice the memory.
        self.turn = asyncio.Lock()

    def plan_part(
        self, topic: Topic, name: BatchName, user: str, content: bytes, messages: int
    ) -> Callable[[Staging], int | None]:
        """Return the change that stores a part and returns its number; None if the batch is committed."""
        part = NewPart(content, messages, self._clock.now_us())

        def stage(staging: Staging) -> int | None:
            if name.number <= self._claim(staging, topic, name, user).number:
                return None
            part_id = self._ids.take()
            stored_parts.stage_part(staging, topic, name, part_id, part)
            return part_id

        return stage

    def plan_commit(
        self, topic: Topic, name: BatchName, user: str, part_ids: Sequence[int], *, lasts: bool
    ) -> Callable[[Staging], BatchCommitResult]:
        """Return the change that appends the messages of parts, in this order, and commits the batch."""
        stored_parts.check_writer(self._reader, topic, name.writer, user)
        if self._known(self._reader, topic, name) is not None:
            everything = stored_parts.parts_until(self._reader, topic, name)
            return lambda staging: self._stage_known(staging, topic, name, user, everything)
        parts = [self._part(self._reader, topic, name, part_id) for part_id in dict.fromkeys(part_ids)]
        messages = sum(part.head.messages for part in parts)
        _check_size(name, messages, sum(part.head.size_bytes for part in parts))
        content = self._content(topic, parts)
        everything = stored_parts.parts_until(self._reader, topic, name)
        now_us = self._clock.now_us()
        last = LastBatch(WRITER_VERSION, name.writer, name.number, messages, now_us, lasts, user)

        def stage(staging: Staging) -> BatchCommitResult:
            before = self._claim(staging, topic, name, user).number
            if name.number <= before:
                return self._stage_known(staging, topic, name, user, everything)
            if not parts and name.number > before + 1:
                raise _skips(name, before)
            for part in parts:
                self._part(staging, topic, name, part.part_id)
            duplicates = self._stage_messages(staging, topic, content)
            stored_parts.stage_removal(staging, topic, everything)
            stored_parts.stage_last_batch(staging, topic, last)
            return BatchCommitResult(committed=True, messages=messages, duplicates=duplicates)

        return stage

    def _stage_messages(self, staging: Staging, topic: Topic, content: _Content) -> int:
        """Append messages; return the number of those left out as duplicates."""
        columns, digests = content.columns, content.digests
        if digests is None:
            for partition, mine in columns.items():
                self._log.stage_append(staging, topic, partition, mine.keys, mine.payloads, _PUBLISHED)
            return 0
        verdict, positions = self._dedup.judge(staging, topic, digests), MessagePositions.empty(len(digests))
        for partition, everything in columns.items():
            mine = everything.chosen(~verdict.duplicates)
            if not mine.indexes:
                continue
            run = self._log.stage_append(staging, topic, partition, mine.keys, mine.payloads, _PUBLISHED)
            offsets = np.arange(run.base_offset, run.base_offset + run.count)
            positions.put(np.array(mine.indexes), (partition, offsets, run.ids))
        self._dedup.stage_accepted(staging, verdict, digests, positions)
        return int(verdict.duplicates.sum())

    def plan_abort(
        self, topic: Topic, name: BatchName, user: str, part_ids: Sequence[int]
    ) -> Callable[[Staging], int]:
        """Return the change that removes parts of a batch; it returns the number of those that existed."""
        found = [stored_parts.find_part(self._reader, topic, name, part_id) for part_id in set(part_ids)]
        mine = [part for part in found if part is not None]

        def stage(staging: Staging) -> int:
            stored_parts.check_writer(staging, topic, name.writer, user)
            return stored_parts.stage_removal(staging, topic, mine)

        return stage

    def old(self, topic: Topic) -> list[Removal]:
        """Return the abandoned parts and writers of a topic, in portions for one removal each; blocking."""
        horizon_us = self._clock.now_us() - PARTS_RETENTION_SECONDS * SECOND_US
        parts = stored_parts.old_parts(self._reader, topic, horizon_us)
        writers = list(stored_parts.old_writers(self._reader, topic, horizon_us))
        count = max(len(parts), len(writers))
        return [
            Removal(
                topic,
                parts[start : start + REMOVED_AT_ONCE_MAX],
                writers[start : start + REMOVED_AT_ONCE_MAX],
            )
            for start in range(0, count, REMOVED_AT_ONCE_MAX)
        ]

    def _claim(self, staging: Staging, topic: Topic, name: BatchName, user: str) -> LastBatch:
        """Return the last batch of a user's writer, of a topic that is still there."""
        stored_parts.check_exists(staging, topic)
        return stored_parts.stage_claim(staging, topic, name.writer, user, self._clock.now_us())

    def _known(self, reader: Reader | Staging, topic: Topic, name: BatchName) -> LastBatch | None:
        last = stored_parts.last_batch(reader, topic, name.writer)
        return last if last is not None and name.number <= last.number else None

    def _stage_known(
        self, staging: Staging, topic: Topic, name: BatchName, user: str, parts: Sequence[StoredPart]
    ) -> BatchCommitResult:
        """Leave a committed batch as it is, and remove the parts that a second attempt stored."""
        last = self._claim(staging, topic, name, user)
        if name.number > last.number:
            # The state of the writer was removed since the plan was made.
            raise RequestInvalid(reason=f"Batch {name.number} is not known any more.", hint="Send it again.")
        stored_parts.stage_removal(staging, topic, parts)
        return BatchCommitResult(committed=False, messages=last.messages if last.number == name.number else 0)

    def _part(self, reader: Reader | Staging, topic: Topic, name: BatchName, part_id: int) -> StoredPart:
        found = stored_parts.find_part(reader, topic, name, part_id)
        if found is None:
            hours = PARTS_RETENTION_SECONDS // 3600
            raise RequestInvalid(
                reason=f"Part {part_id} of batch {name.number} of writer '{name.writer}' is not there.",
                hint=f"Parts are kept for {hours} hours. Run the batch again: it stores new ones.",
            )
        return found

    def _content(self, topic: Topic, parts: Sequence[StoredPart]) -> _Content:
        """Return the messages of parts by partition, in the order of the parts."""
        columns: dict[int, _Columns] = {}
        dedup_keys: list[str | None] = []
        is_tracked = topic.dedup_seconds is not None
        for part in parts:
            content = stored_parts.content_of(self._reader, topic, part)
            with pa.ipc.open_stream(pa.py_buffer(content)) as stream:
                table = stream.read_all()
            keys, payloads, named = _lists(table)
            before = len(dedup_keys)
            if is_tracked or DEDUP_COLUMN in table.schema.names:
                dedup_keys.extend(_optional(table, DEDUP_COLUMN))
            routes = partitions_of(topic, keys, named, next(self._turn))
            for partition in np.unique(routes).tolist():
                mine = columns.setdefault(partition, _Columns())
                chosen = np.flatnonzero(routes == partition).tolist()
                whole = len(chosen) == len(payloads)
                mine.keys.extend(keys if whole else [keys[index] for index in chosen])
                mine.payloads.extend(payloads if whole else [payloads[index] for index in chosen])
                mine.indexes.extend([before + index for index in chosen] if is_tracked else ())
        return _Content(columns, checked_digests(topic, dedup_keys))


def stage_old(staging: Staging, old: Removal) -> None:
    """Remove old parts and writers; a writer that committed again since then is kept."""
    stored_parts.stage_removal(staging, old.topic, old.parts)
    for key, stored in old.writers:
        if staging.get(key) == stored:
            staging.delete(key)


def _skips(name: BatchName, before: int) -> RequestInvalid:
    last = "none was committed" if before == NO_BATCH else f"the last one committed is {before}"
    return RequestInvalid(
        reason=f"Batch {name.number} of writer '{name.writer}' has no parts and skips others: {last}.",
        hint="A batch without rows needs no commit. Store the parts first, or commit the next batch.",
    )


def check_partitions(topic: Topic, named: Sequence[int | None]) -> None:
    """Raise PartitionNotFound for messages that name a partition which the topic does not have."""
    for number in {number for number in named if number is not None}:
        topic.check_partition(number)


def _check_size(name: BatchName, messages: int, size_bytes: int) -> None:
    if messages <= BATCH_MESSAGES_MAX and size_bytes <= BATCH_BYTES_MAX:
        return
    raise RequestInvalid(
        reason=(
            f"Batch {name.number} has {messages} messages in {size_bytes} bytes; "
            f"the most is {BATCH_MESSAGES_MAX} in {BATCH_BYTES_MAX}."
        ),
        hint=(
            "Let a micro-batch read less: maxMessagesPerBatch of a topic, maxFilesPerTrigger of files. "
            "A batch that Spark has planned stays as large as it is: stop the query and remove the last file "
            "of the folder 'offsets' in its checkpoint first."
        ),
    )


def _lists(table: pa.Table) -> tuple[list[str | None], list[bytes], list[int | None]]:
    payloads = table.column("payload").cast(pa.large_binary()).to_pylist()
    return _optional(table, "key"), payloads, _optional(table, "partition")


def _optional(table: pa.Table, name: str) -> list[Any]:
    """Return a column of a table; None for each row where there is no such column."""
    return list(table.column(name).to_pylist()) if name in table.schema.names else [None] * table.num_rows
