"""Idempotent producers: their sequence numbers and last requests.

A producer numbers its messages from 0. Messages that it repeats are answered as the first time and stored
once; a gap is refused. The state of a producer is in the same write batch as its messages, so the two never
differ. It has the positions of the messages of the last `REQUESTS_RETAINED_MAX` requests; their ids are read
from the log.

A producer belongs to the user who used it first (`topics/owners.py`).
"""

from __future__ import annotations

import msgspec
import numpy as np

from tidegate.errors import SequenceGap, SequenceTooOld, StorageCorrupt
from tidegate.storage.group_commit import Staging
from tidegate.topics import keys
from tidegate.topics.definitions import Topic
from tidegate.topics.owners import NO_OWNER, check_owner

# A client has one request under way, or a few; a retry never repeats older ones.
REQUESTS_RETAINED_MAX = 8
# Each request rewrites the state: of large requests fewer are stored, the last one always.
MESSAGES_RETAINED_MAX = 8192
STATE_VERSION = 2
STATE_VERSION_WITHOUT_OWNER = 1


class ProducerRequest(msgspec.Struct, array_like=True):
    """The positions of the messages of one request: a partition and an offset for each, as packed integers.

    `duplicates` has the id of the first message for each that was dropped as its duplicate, and 0 for each
    that was stored; it is empty where there are no duplicates.
    """

    sequence: int
    partitions: bytes
    offsets: bytes
    duplicates: bytes = b""

    @classmethod
    def of(
        cls, sequence: int, partitions: np.ndarray, offsets: np.ndarray, duplicates: np.ndarray | None
    ) -> ProducerRequest:
        """Return the request of messages whose sequence numbers begin at `sequence`."""
        return cls(
            sequence,
            partitions.astype(np.uint32).tobytes(),
            offsets.astype(np.uint64).tobytes(),
            b"" if duplicates is None else duplicates.astype(np.uint64).tobytes(),
        )

    def ids_of_first(self) -> bytes:
        """Return the ids of the first messages of duplicates: 8 bytes for each message."""
        return self.duplicates or bytes(8 * self.count)

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.partitions) // 4


class ProducerState(msgspec.Struct, array_like=True):
    """The state of one producer of one topic; `expected` is its next sequence number.

    `owner` is its user, with the tenant; states of version 1 have none.
    """

    version: int = STATE_VERSION
    producer: str = ""
    expected: int = 0
    requests: list[ProducerRequest] = []
    owner: str = NO_OWNER

    def positions(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return partitions, offsets and ids of the messages `start` ≤ sequence < `stop`.

        Only duplicates have an id here; it is 0 for messages that were stored.
        """
        if start < stop and (not self.requests or start < self.requests[0].sequence):
            raise SequenceTooOld(producer=self.producer, sequence=start, kept=REQUESTS_RETAINED_MAX)
        first = self.requests[0].sequence if self.requests else start
        partitions = np.frombuffer(b"".join(request.partitions for request in self.requests), np.uint32)
        offsets = np.frombuffer(b"".join(request.offsets for request in self.requests), np.uint64)
        ids = np.frombuffer(b"".join(request.ids_of_first() for request in self.requests), np.uint64)
        chosen = slice(start - first, stop - first)
        return (
            partitions[chosen].astype(np.int64),
            offsets[chosen].astype(np.int64),
            ids[chosen].astype(np.int64),
        )


def recall(staging: Staging, topic: Topic, producer: str, sequence: int, user: str) -> ProducerState:
    """Return the state of a user's producer.

    Raise OwnedByAnother for one of another user, and SequenceGap for a sequence number that skips messages.
    """
    stored = staging.get(keys.producer_key(topic.id, producer))
    state = ProducerState(producer=producer) if stored is None else _decoded(stored, topic, producer)
    check_owner("producer", producer, topic, state.owner, user)
    if sequence > state.expected:
        raise SequenceGap(producer=producer, sequence=sequence, expected=state.expected)
    return state


def stage_memory(
    staging: Staging, topic: Topic, memory: ProducerState, request: ProducerRequest | None, user: str
) -> None:
    """Store the state of a user's producer after its next request; None changes the owner alone."""
    after = ProducerState(
        producer=memory.producer,
        expected=memory.expected + (request.count if request else 0),
        requests=_recent([*memory.requests, request]) if request else memory.requests,
        owner=user,
    )
    staging.put(keys.producer_key(topic.id, memory.producer), msgspec.msgpack.encode(after))


def _recent(requests: list[ProducerRequest]) -> list[ProducerRequest]:
    recent: list[ProducerRequest] = []
    count = 0
    for request in reversed(requests[-REQUESTS_RETAINED_MAX:]):
        count += request.count
        if recent and count > MESSAGES_RETAINED_MAX:
            break
        recent.insert(0, request)
    return recent


def _decoded(stored: bytes, topic: Topic, producer: str) -> ProducerState:
    place = f"topic '{topic.name}', producer '{producer}'"
    try:
        state = msgspec.msgpack.decode(stored, type=ProducerState)
    except msgspec.DecodeError as problem:
        raise StorageCorrupt(place=place, reason=str(problem)) from problem
    if state.version not in (STATE_VERSION, STATE_VERSION_WITHOUT_OWNER) or state.producer != producer:
        raise StorageCorrupt(place=place, reason=f"written by version {state.version} for '{state.producer}'")
    return state
