"""Publishing to topics: partitions of messages, idempotent producers and dedup keys.

All messages of a request are stored or none is. A message goes to the partition it names, else to that of
its key, else to the same partition as all others of its request that have no key: these rotate round robin,
request by request.

A message with a dedup key that its topic remembers is not stored again: its position is that of the first
one, and the receipt marks it as a duplicate.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tidegate.errors import SequenceReused, SequenceTooOld
from tidegate.model.quotas import TenantQuotas, Unlimited
from tidegate.storage.group_commit import GroupCommitter, StageLater, Staging
from tidegate.topics.dedup import DedupKeys, MessagePositions, checked_digests
from tidegate.topics.definitions import Topic
from tidegate.topics.log.protocol import MessageLog
from tidegate.topics.log.record_batch import Origin
from tidegate.topics.producers import (
    REQUESTS_RETAINED_MAX,
    ProducerRequest,
    ProducerState,
    recall,
    stage_memory,
)

_PUBLISHED = Origin()


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages as columns: keys, payloads (UTF-8 JSON) and the partitions they name, all of one length."""

    keys: Sequence[str | None]
    payloads: Sequence[bytes]
    partitions: Sequence[int | None]
    # None where no message has one.
    dedup_keys: Sequence[str | None] | None = None

    def __len__(self) -> int:
        return len(self.payloads)

    def from_index(self, start: int) -> Messages:
        """Return all but the first messages, without dedup keys."""
        if start == 0:
            return self
        return Messages(self.keys[start:], self.payloads[start:], self.partitions[start:])

    def chosen(self, indexes: np.ndarray) -> Messages:
        """Return the messages at indexes, without dedup keys."""
        if len(indexes) == len(self):
            return self
        chosen = indexes.tolist()
        return Messages(
            [self.keys[index] for index in chosen],
            [self.payloads[index] for index in chosen],
            [self.partitions[index] for index in chosen],
        )


@dataclass(frozen=True, slots=True)
class Sender:
    """An idempotent producer, the sequence number of its request's first message, and the user.

    The user has the tenant in front: it is a `qualified_name`.
    """

    producer: str
    sequence: int
    user: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The position of each message, in the order of the request."""

    partitions: np.ndarray
    offsets: np.ndarray
    ids: np.ndarray
    # Messages that this request stored; those that a producer repeats were stored before.
    stored_count: int
    # A mask of the messages that are duplicates of others; None where there are none.
    duplicates: np.ndarray | None = None


# The digest of each message's dedup key. None where no message has one.
Digests = Sequence[bytes | None] | None


class Publisher:
    """Stores messages in topics. Belongs to one event loop."""

    def __init__(
        self,
        committer: GroupCommitter,
        log: MessageLog,
        dedup: DedupKeys,
        quotas: TenantQuotas | None = None,
    ) -> None:
        self._quotas = quotas or Unlimited()
        self._committer = committer
        self._log = log
        self._dedup = dedup
        self._turn = itertools.count()

    async def publish(self, topic: Topic, messages: Messages, sender: Sender | None = None) -> Receipt:
        """Store messages; return once they are durable."""
        return await self._committer.commit(self.plan(topic, messages, sender))

    def plan(
        self, topic: Topic, messages: Messages, sender: Sender | None = None
    ) -> Callable[[Staging], Receipt]:
        """Return the change that stores messages, for a caller that commits it with other changes."""
        routes = partitions_of(topic, messages.keys, messages.partitions, next(self._turn))
        digests = None if messages.dedup_keys is None else checked_digests(topic, messages.dedup_keys)
        if sender is not None:
            batch = _PublishRequest(topic, messages, routes, digests)
            return lambda staging: self._stage_once(staging, batch, sender)
        if digests is not None:
            batch = _PublishRequest(topic, messages, routes, digests)
            return lambda staging: self._stage_unique(staging, batch, digests)
        return lambda staging: self._stage(staging, topic, messages, routes)

    def _stage_once(self, staging: Staging, batch: _PublishRequest, sender: Sender) -> Receipt:
        topic, messages = batch.topic, batch.messages
        state = recall(staging, topic, sender.producer, sender.sequence, sender.user)
        repeated = min(state.expected - sender.sequence, len(messages))
        old = self._repeat(topic, state, sender, messages.keys[:repeated], messages.payloads[:repeated])
        if repeated == len(messages):
            if not state.owner:
                stage_memory(staging, topic, state, None, sender.user)
            return old
        rest = batch.from_index(repeated)
        if rest.digests is None:
            new = self._stage(staging, topic, rest.messages, rest.routes)
        else:
            new = self._stage_unique(staging, rest, rest.digests)
        stage_memory(staging, topic, state, _producer_request(state, new), sender.user)
        return _joined(old, new)

    def _repeat(
        self,
        topic: Topic,
        state: ProducerState,
        sender: Sender,
        keys: Sequence[str | None],
        payloads: Sequence[bytes],
    ) -> Receipt:
        """Return the positions of messages that were stored before.

        Raise SequenceReused where other messages have their sequence numbers.
        """
        count = len(payloads)
        partitions, offsets, ids = state.positions(sender.sequence, sender.sequence + count)
        # Nothing of a duplicate was stored that could be compared; the state has its id instead.
        duplicates = ids != 0
        for partition in np.unique(partitions[~duplicates]):
            chosen = np.flatnonzero((partitions == partition) & ~duplicates)
            held = self._log.counters(topic, int(partition))
            if offsets[chosen[-1]] >= held.end:
                # The first attempt is in this same group: it can be read back once the group is durable.
                raise StageLater
            if offsets[chosen[0]] < held.start:
                removed = chosen[offsets[chosen] < held.start]
                raise SequenceTooOld(
                    producer=sender.producer,
                    sequence=sender.sequence + int(removed[0]),
                    kept=REQUESTS_RETAINED_MAX,
                    hint="It was stored once; retention or CLEAR has removed it since. "
                    f"Continue with sequence {state.expected}.",
                )
            stored = self._log.messages_at(topic, int(partition), offsets[chosen])
            ids[chosen] = stored.column("message_id").to_numpy()
            pairs = zip(stored.column("key").to_pylist(), stored.column("payload").to_pylist(), strict=True)
            for index, (key, payload) in zip(chosen.tolist(), pairs, strict=True):
                if keys[index] != key or not _same_json(payloads[index], payload.encode()):
                    raise SequenceReused(producer=sender.producer, sequence=sender.sequence + index)
        return Receipt(partitions, offsets, ids, 0, duplicates if duplicates.any() else None)

    def _stage_unique(
        self, staging: Staging, batch: _PublishRequest, digests: Sequence[bytes | None]
    ) -> Receipt:
        """Store the messages with new dedup keys, and the keys; duplicates get the first one's position."""
        verdict = self._dedup.judge(staging, batch.topic, digests)
        positions, fresh = MessagePositions.empty(len(digests)), verdict.fresh
        if len(fresh):
            new = self._stage(staging, batch.topic, batch.messages.chosen(fresh), batch.routes[fresh])
            positions.put(fresh, (new.partitions, new.offsets, new.ids))
        verdict.complete(positions)
        self._dedup.stage_accepted(staging, verdict, digests, positions)
        return Receipt(positions.partitions, positions.offsets, positions.ids, len(fresh), verdict.duplicates)

    def _stage(self, staging: Staging, topic: Topic, messages: Messages, routes: np.ndarray) -> Receipt:
        # Here, where a repeated request does not come by: it is answered as the first time.
        self._quotas.check_disk(topic.tenant)
        if len(messages) == 1:  # the common case of a service that sends single events
            keys, payloads = messages.keys, messages.payloads
            one = self._log.stage_append(staging, topic, int(routes[0]), keys, payloads, _PUBLISHED)
            return Receipt(routes, np.array([one.base_offset]), one.ids, 1)
        offsets = np.empty(len(messages), np.int64)
        ids = np.empty(len(messages), np.int64)
        partitions = [int(routes[0])] if (routes == routes[0]).all() else [int(p) for p in np.unique(routes)]
        for partition in partitions:
            run = np.flatnonzero(routes == partition)
            keys, payloads = _columns(messages, run)
            appended = self._log.stage_append(staging, topic, partition, keys, payloads, _PUBLISHED)
            offsets[run] = np.arange(appended.base_offset, appended.base_offset + appended.count)
            ids[run] = appended.ids
        return Receipt(routes, offsets, ids, len(messages))


def partitions_of(
    topic: Topic, keys: Sequence[str | None], named: Sequence[int | None], turn: int
) -> np.ndarray:
    """Return the partition of each message: the one it names, else that of its key, else round robin."""
    if topic.partitions == 1 and not any(named):
        return np.zeros(len(keys), np.int64)
    turn %= topic.partitions
    return np.array(
        [
            topic.check_partition(number)
            if number is not None
            else turn
            if key is None
            else topic.partition_of(key)
            for key, number in zip(keys, named, strict=True)
        ],
        np.int64,
    )


@dataclass(frozen=True, slots=True)
class _PublishRequest:
    """The messages of a request, their partitions, and the digests of their dedup keys."""

    topic: Topic
    messages: Messages
    routes: np.ndarray
    digests: Digests

    def from_index(self, start: int) -> _PublishRequest:
        """Return the request without its first messages."""
        digests = None if self.digests is None else self.digests[start:]
        return _PublishRequest(self.topic, self.messages.from_index(start), self.routes[start:], digests)


def _producer_request(state: ProducerState, new: Receipt) -> ProducerRequest:
    """Return the messages that a producer just sent as a request of its state."""
    duplicates = new.duplicates
    ids = None if duplicates is None or not duplicates.any() else np.where(duplicates, new.ids, 0)
    return ProducerRequest.of(state.expected, new.partitions, new.offsets, ids)


def _joined(old: Receipt, new: Receipt) -> Receipt:
    duplicates = None
    if old.duplicates is not None or new.duplicates is not None:
        duplicates = np.concatenate((_mask(old), _mask(new)))
    return Receipt(
        np.concatenate((old.partitions, new.partitions)),
        np.concatenate((old.offsets, new.offsets)),
        np.concatenate((old.ids, new.ids)),
        new.stored_count,
        duplicates,
    )


def _mask(receipt: Receipt) -> np.ndarray:
    return np.zeros(len(receipt.ids), bool) if receipt.duplicates is None else receipt.duplicates


def _same_json(one: bytes, other: bytes) -> bool:
    """True if two payloads are the same JSON; a sender may repeat one with other spaces or another order."""
    if one == other:
        return True
    try:
        return bool(json.loads(one) == json.loads(other))
    except (ValueError, RecursionError):
        return False  # too deep or too large to parse: then the bytes have to be equal


def _columns(messages: Messages, run: np.ndarray) -> tuple[Sequence[str | None], Sequence[bytes]]:
    if len(run) == len(messages):
        return messages.keys, messages.payloads
    return [messages.keys[i] for i in run], [messages.payloads[i] for i in run]
