"""Idempotent producers: takes sequence numbers, gives back what was stored before, keeps the last requests.

A producer numbers its messages from 0. What it repeats is answered as it was the first time and stored
once; what it skips is refused. The memory of a producer is in the same write batch as its messages, so the
two never differ. Remembered are the places of the messages of the last `REQUESTS_KEPT` requests; their ids
are read from the log.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tidegate.errors import SequenceGap, SequenceTooOld, StorageCorrupt
from tidegate.storage.group_commit import Staging
from tidegate.topics import keys
from tidegate.topics.definitions import Topic

# A client has one request under way, or a few; older answers cannot be asked for by a retry.
REQUESTS_KEPT = 8
# Each request rewrites the memory: of large requests fewer are kept, the last one always.
MESSAGES_KEPT = 8192
MEMORY_VERSION = 1


class Placed(msgspec.Struct, array_like=True):
    """Where the messages of one request went: a partition and an offset for each, as packed integers.

    `duplicates`, empty where there is none, has the message id of the first one for each that was dropped as
    its duplicate, and 0 for each that was stored.
    """

    sequence: int
    partitions: bytes
    offsets: bytes
    duplicates: bytes = b""

    @classmethod
    def of(
        cls, sequence: int, partitions: np.ndarray, offsets: np.ndarray, duplicates: np.ndarray | None
    ) -> Placed:
        """Pack the places of messages from a number on."""
        return cls(
            sequence,
            partitions.astype(np.uint32).tobytes(),
            offsets.astype(np.uint64).tobytes(),
            b"" if duplicates is None else duplicates.astype(np.uint64).tobytes(),
        )

    def ids_of_first(self) -> bytes:
        """Return the ids of the first messages of duplicates, one for each message."""
        return self.duplicates or bytes(8 * self.count)

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.partitions) // 4


class Memory(msgspec.Struct, array_like=True):
    """What is remembered of one producer of one topic."""

    version: int = MEMORY_VERSION
    producer: str = ""
    expected: int = 0
    requests: list[Placed] = []

    def places(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the partitions and offsets of the messages numbered `start` ≤ sequence < `stop`.

        The third are message ids, of those that were duplicates alone; 0 is one that was stored.
        """
        if start < stop and (not self.requests or start < self.requests[0].sequence):
            raise SequenceTooOld(producer=self.producer, sequence=start, kept=REQUESTS_KEPT)
        first = self.requests[0].sequence if self.requests else start
        partitions = np.frombuffer(b"".join(placed.partitions for placed in self.requests), np.uint32)
        offsets = np.frombuffer(b"".join(placed.offsets for placed in self.requests), np.uint64)
        ids = np.frombuffer(b"".join(placed.ids_of_first() for placed in self.requests), np.uint64)
        chosen = slice(start - first, stop - first)
        return (
            partitions[chosen].astype(np.int64),
            offsets[chosen].astype(np.int64),
            ids[chosen].astype(np.int64),
        )


def recall(staging: Staging, topic: Topic, producer: str, sequence: int) -> Memory:
    """Return what is remembered; refuse a sequence that skips messages."""
    stored = staging.get(keys.producer_key(topic.id, producer))
    memory = Memory(producer=producer) if stored is None else _decoded(stored, topic, producer)
    if sequence > memory.expected:
        raise SequenceGap(producer=producer, sequence=sequence, expected=memory.expected)
    return memory


def stage_memory(staging: Staging, topic: Topic, memory: Memory, placed: Placed) -> None:
    """Remember where the next messages of a producer went."""
    after = Memory(
        producer=memory.producer,
        expected=memory.expected + placed.count,
        requests=_recent([*memory.requests, placed]),
    )
    staging.put(keys.producer_key(topic.id, memory.producer), msgspec.msgpack.encode(after))


def _recent(requests: list[Placed]) -> list[Placed]:
    kept: list[Placed] = []
    count = 0
    for placed in reversed(requests[-REQUESTS_KEPT:]):
        count += placed.count
        if kept and count > MESSAGES_KEPT:
            break
        kept.insert(0, placed)
    return kept


def _decoded(stored: bytes, topic: Topic, producer: str) -> Memory:
    place = f"topic '{topic.name}', producer '{producer}'"
    try:
        memory = msgspec.msgpack.decode(stored, type=Memory)
    except msgspec.DecodeError as problem:
        raise StorageCorrupt(place=place, reason=str(problem)) from problem
    if memory.version != MEMORY_VERSION or memory.producer != producer:
        raise StorageCorrupt(
            place=place, reason=f"written by version {memory.version} for '{memory.producer}'"
        )
    return memory
