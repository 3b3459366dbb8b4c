"""Parts: messages that wait for their batch to be committed, and what each writer committed last.

committed   TOPIC_PART | topic id u64 | 0 | writer 16                               the last batch of a writer
head        TOPIC_PART | topic id u64 | 1 | writer 16 | batch u64 | part id u64     its size and its time
content     TOPIC_PART | topic id u64 | 2 | part id u64                             messages, as Arrow

A writer stands in keys as a digest of its name, 16 bytes. Heads lie apart from the content, so that looking
for parts never reads messages. Values of heads and of `committed` are MessagePack with a version in front.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from tidegate.errors import RequestInvalid, StorageCorrupt, TopicNotFound
from tidegate.storage.engine import KeyRange, Reader
from tidegate.storage.group_commit import Staging
from tidegate.storage.keys import KeySpace, join, prefix_range, read_u64, u8, u64
from tidegate.topics import keys
from tidegate.topics.definitions import Topic

PARTS_VERSION = 1
WRITER_CHARS_MAX = 200
# Batches are counted from 0; more than this is a mistake upstream, and would not fit into a signed number.
BATCH_MAX = 2**62

_COMMITTED, _HEAD, _CONTENT = u8(0), u8(1), u8(2)
_BATCH_AT = 1 + 8 + 1 + 16
_PART_AT = _BATCH_AT + 8


@dataclass(frozen=True, slots=True)
class BatchName:
    """One batch of one writer; a batch is committed once, however often it is tried."""

    writer: str
    number: int

    def __post_init__(self) -> None:
        if not 1 <= len(self.writer) <= WRITER_CHARS_MAX or not self.writer.isprintable():
            reason = f"A writer's name has 1 to {WRITER_CHARS_MAX} printable characters."
            raise RequestInvalid(reason=reason, hint="Spark's sink takes the id of the query.")
        if not 0 <= self.number <= BATCH_MAX:
            raise RequestInvalid(reason=f"There is no batch {self.number}.", hint="They count from 0.")


@dataclass(frozen=True, slots=True)
class NewPart:
    """Messages on their way in: an Arrow stream that was checked, how many it holds, and when it came."""

    content: bytes
    messages: int
    at_us: int


class PartHead(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a part without reading it."""

    version: int
    messages: int
    size_bytes: int
    at_us: int


class LastBatch(msgspec.Struct, frozen=True, array_like=True):
    """The last batch that a writer committed; one that does not last is forgotten after a while."""

    version: int
    writer: str
    number: int
    messages: int
    at_us: int
    lasts: bool


@dataclass(frozen=True, slots=True)
class FoundPart:
    """A part that is stored."""

    key: bytes
    head: PartHead

    @property
    def batch(self) -> int:
        """The number of its batch."""
        return read_u64(self.key, _BATCH_AT)

    @property
    def part_id(self) -> int:
        """Its own number, never given out twice."""
        return read_u64(self.key, _PART_AT)


Stored = TypeVar("Stored", PartHead, LastBatch)


class Getter(Protocol):
    """What an engine and a staging both answer."""

    def get(self, key: bytes) -> bytes | None: ...


def last_batch(reader: Getter, topic: Topic, writer: str) -> LastBatch | None:
    """Return the last batch that a writer committed into a topic."""
    stored = reader.get(_committed_key(topic, writer))
    return None if stored is None else _decoded(stored, LastBatch, topic)


def find_part(reader: Getter, topic: Topic, name: BatchName, part_id: int) -> FoundPart | None:
    """Return a part by its number; one of another batch is not found."""
    key = join(_head_prefix(topic, name.writer), u64(name.number), u64(part_id))
    stored = reader.get(key)
    return None if stored is None else FoundPart(key, _decoded(stored, PartHead, topic))


def parts_until(reader: Reader, topic: Topic, name: BatchName) -> list[FoundPart]:
    """Return the parts of a writer up to a batch, those that nobody will name any more among them."""
    prefix = _head_prefix(topic, name.writer)
    span = KeyRange(prefix, join(prefix, u64(name.number + 1)))
    return [FoundPart(key, _decoded(stored, PartHead, topic)) for key, stored in reader.scan(span)]


def content_of(reader: Reader, topic: Topic, part: FoundPart) -> bytes:
    """Return the messages of a part, an Arrow stream."""
    stored = reader.get(_content_key(topic, part.part_id))
    if stored is None or len(stored) != part.head.size_bytes:
        raise StorageCorrupt(place=_place(topic), reason=f"the content of part {part.part_id} is missing")
    return stored


def stage_part(staging: Staging, topic: Topic, name: BatchName, part_id: int, part: NewPart) -> None:
    """Store a part under its number."""
    check_there(staging, topic)
    head = PartHead(PARTS_VERSION, part.messages, len(part.content), part.at_us)
    key = join(_head_prefix(topic, name.writer), u64(name.number), u64(part_id))
    staging.put(key, msgspec.msgpack.encode(head))
    staging.put(_content_key(topic, part_id), part.content)


def stage_last_batch(staging: Staging, topic: Topic, committed: LastBatch) -> None:
    """Remember what a writer committed last."""
    staging.put(_committed_key(topic, committed.writer), msgspec.msgpack.encode(committed))


def stage_removal(staging: Staging, topic: Topic, parts: Sequence[FoundPart]) -> int:
    """Remove parts and give how many were still there."""
    still_there = [part for part in parts if staging.get(part.key) is not None]
    for part in still_there:
        staging.delete(part.key)
        staging.delete(_content_key(topic, part.part_id))
    return len(still_there)


def check_there(staging: Staging, topic: Topic) -> None:
    """Refuse a topic that was deleted since the request came in: what went into it could never be read."""
    if staging.get(keys.definition_key(topic.id)) is None:
        raise TopicNotFound(topic=topic.name)


def old_parts(reader: Reader, topic: Topic, horizon_us: int) -> list[FoundPart]:
    """Return the parts that were stored before a time; blocking."""
    heads = prefix_range(join(KeySpace.TOPIC_PART, u64(topic.id), _HEAD))
    found = (FoundPart(key, _decoded(stored, PartHead, topic)) for key, stored in reader.scan(heads))
    return [part for part in found if part.head.at_us < horizon_us]


def old_writers(reader: Reader, topic: Topic, horizon_us: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of writers whose one batch was committed before a time; blocking."""
    span = prefix_range(join(KeySpace.TOPIC_PART, u64(topic.id), _COMMITTED))
    for key, stored in reader.scan(span):
        committed = _decoded(stored, LastBatch, topic)
        if not committed.lasts and committed.at_us < horizon_us:
            yield key, stored


def _committed_key(topic: Topic, writer: str) -> bytes:
    return join(KeySpace.TOPIC_PART, u64(topic.id), _COMMITTED, _digest(writer))


def _head_prefix(topic: Topic, writer: str) -> bytes:
    return join(KeySpace.TOPIC_PART, u64(topic.id), _HEAD, _digest(writer))


def _content_key(topic: Topic, part_id: int) -> bytes:
    return join(KeySpace.TOPIC_PART, u64(topic.id), _CONTENT, u64(part_id))


def _digest(writer: str) -> bytes:
    return hashlib.blake2b(writer.encode(), digest_size=16).digest()


def _decoded(stored: bytes, kind: type[Stored], topic: Topic) -> Stored:
    try:
        decoded = msgspec.msgpack.decode(stored, type=kind)
    except msgspec.DecodeError as problem:
        raise StorageCorrupt(place=_place(topic), reason=str(problem)) from problem
    if decoded.version != PARTS_VERSION:
        raise StorageCorrupt(
            place=_place(topic), reason=f"version {decoded.version}, this reads {PARTS_VERSION}"
        )
    return decoded


def _place(topic: Topic) -> str:
    return f"the parts of topic '{topic.name}'"
