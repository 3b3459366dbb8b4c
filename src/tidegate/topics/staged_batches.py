"""Parts of batches: messages that wait for their batch to be committed, and the last batch of each writer.

committed   TOPIC_PART | topic id u64 | 0 | writer 16                               the last batch of a writer
head        TOPIC_PART | topic id u64 | 1 | writer 16 | batch u64 | part id u64     its size and its time
content     TOPIC_PART | topic id u64 | 2 | part id u64                             messages, as Arrow

Keys have a digest of the writer's name, 16 bytes. Heads are apart from the content, so that listing parts
never reads messages. Values of heads and of `committed` are MessagePack with a version in front.

A writer belongs to the user who used it first (`topics/owners.py`). `committed` is there from the first part
on, with batch -1 until one is committed. In version 1 it has no owner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from tidegate.errors import RequestInvalid, StorageCorrupt, TopicNotFound
from tidegate.storage.engine import KeyRange, Reader
from tidegate.storage.group_commit import Staging
from tidegate.storage.keys import KeySpace, join, prefix_range, read_u64, u8, u64
from tidegate.storage.versions import decode_versioned
from tidegate.topics import keys
from tidegate.topics.definitions import Topic
from tidegate.topics.owners import NO_OWNER, check_owner

PARTS_VERSION = 1
WRITER_VERSION = 2
WRITER_VERSION_WITHOUT_OWNER = 1
NO_BATCH = -1
WRITER_CHARS_MAX = 200
# Batches are counted from 0; a larger number is a mistake upstream, and would not fit into a signed integer.
BATCH_MAX = 2**62

_COMMITTED, _HEAD, _CONTENT = u8(0), u8(1), u8(2)
_BATCH_AT = 1 + 8 + 1 + 16
_PART_AT = _BATCH_AT + 8


@dataclass(frozen=True, slots=True)
class BatchName:
    """The name of one batch of one writer; a batch is committed once, however often it is tried."""

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
    """A part to be stored: a checked Arrow stream, its number of messages, and the time."""

    content: bytes
    messages: int
    at_us: int


class PartHead(msgspec.Struct, frozen=True, array_like=True):
    """The size and time of a part, which are read without its content."""

    version: int
    messages: int
    size_bytes: int
    at_us: int


class LastBatch(msgspec.Struct, frozen=True, array_like=True):
    """The last batch that a writer committed, and its owner; one without `lasts` is removed after a while."""

    version: int
    writer: str
    number: int
    messages: int
    at_us: int
    lasts: bool
    owner: str = NO_OWNER


@dataclass(frozen=True, slots=True)
class StoredPart:
    """The key and the head of a stored part."""

    key: bytes
    head: PartHead

    @property
    def batch(self) -> int:
        """The number of its batch."""
        return read_u64(self.key, _BATCH_AT)

    @property
    def part_id(self) -> int:
        """Its number, which is never used twice."""
        return read_u64(self.key, _PART_AT)


def last_batch(reader: Reader | Staging, topic: Topic, writer: str) -> LastBatch | None:
    """Return the last batch that a writer committed into a topic."""
    stored = reader.get(_committed_key(topic, writer))
    return None if stored is None else _writer(stored, topic)


def check_writer(reader: Reader | Staging, topic: Topic, writer: str, user: str) -> None:
    """Raise OwnedByAnother for a writer of another user."""
    last = last_batch(reader, topic, writer)
    check_owner("writer", writer, topic, None if last is None else last.owner, user)


def stage_claim(staging: Staging, topic: Topic, writer: str, user: str, now_us: int) -> LastBatch:
    """Return the last batch of a writer, which belongs to the user from now on.

    Raise OwnedByAnother for one of another user.
    """
    last = last_batch(staging, topic, writer)
    check_owner("writer", writer, topic, None if last is None else last.owner, user)
    if last is None or last.number == NO_BATCH:
        # Stored again with every part: it is not removed while there are parts.
        last = LastBatch(WRITER_VERSION, writer, NO_BATCH, 0, now_us, lasts=False, owner=user)
        stage_last_batch(staging, topic, last)
    elif last.owner == NO_OWNER:
        last = replace(last, version=WRITER_VERSION, owner=user)
        stage_last_batch(staging, topic, last)
    return last


def find_part(reader: Reader | Staging, topic: Topic, name: BatchName, part_id: int) -> StoredPart | None:
    """Return a part by its number; one of another batch is not found."""
    key = join(_head_prefix(topic, name.writer), u64(name.number), u64(part_id))
    stored = reader.get(key)
    return None if stored is None else StoredPart(key, _part_head(stored, topic))


def parts_bytes(reader: Reader, topic: Topic) -> int:
    """Return the bytes of all parts of a topic; reads their heads alone."""
    span = prefix_range(join(KeySpace.TOPIC_PART, u64(topic.id), _HEAD))
    return sum(_part_head(stored, topic).size_bytes for _, stored in reader.scan(span))


def parts_until(reader: Reader, topic: Topic, name: BatchName) -> list[StoredPart]:
    """Return the parts of a writer up to a batch, abandoned ones included."""
    prefix = _head_prefix(topic, name.writer)
    span = KeyRange(prefix, join(prefix, u64(name.number + 1)))
    return [StoredPart(key, _part_head(stored, topic)) for key, stored in reader.scan(span)]


def content_of(reader: Reader, topic: Topic, part: StoredPart) -> bytes:
    """Return the messages of a part, an Arrow stream."""
    stored = reader.get(_content_key(topic, part.part_id))
    if stored is None or len(stored) != part.head.size_bytes:
        raise StorageCorrupt(place=_place(topic), reason=f"the content of part {part.part_id} is missing")
    return stored


def stage_part(staging: Staging, topic: Topic, name: BatchName, part_id: int, part: NewPart) -> None:
    """Store a part under its number."""
    head = PartHead(PARTS_VERSION, part.messages, len(part.content), part.at_us)
    key = join(_head_prefix(topic, name.writer), u64(name.number), u64(part_id))
    staging.put(key, msgspec.msgpack.encode(head))
    staging.put(_content_key(topic, part_id), part.content)


def stage_last_batch(staging: Staging, topic: Topic, committed: LastBatch) -> None:
    """Store the last batch of a writer."""
    staging.put(_committed_key(topic, committed.writer), msgspec.msgpack.encode(committed))


def stage_removal(staging: Staging, topic: Topic, parts: Sequence[StoredPart]) -> int:
    """Remove parts; return the number of those that still existed."""
    existing = [part for part in parts if staging.get(part.key) is not None]
    for part in existing:
        staging.delete(part.key)
        staging.delete(_content_key(topic, part.part_id))
    return len(existing)


def check_exists(staging: Staging, topic: Topic) -> None:
    """Raise TopicNotFound for a topic that was deleted since the request came in."""
    if staging.get(keys.definition_key(topic.id)) is None:
        raise TopicNotFound(topic=topic.name)


def old_parts(reader: Reader, topic: Topic, horizon_us: int) -> list[StoredPart]:
    """Return the parts that were stored before a time; blocking."""
    heads = prefix_range(join(KeySpace.TOPIC_PART, u64(topic.id), _HEAD))
    found = (StoredPart(key, _part_head(stored, topic)) for key, stored in reader.scan(heads))
    return [part for part in found if part.head.at_us < horizon_us]


def old_writers(reader: Reader, topic: Topic, horizon_us: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of writers without `lasts` whose batch was committed before a time; blocking."""
    span = prefix_range(join(KeySpace.TOPIC_PART, u64(topic.id), _COMMITTED))
    for key, stored in reader.scan(span):
        committed = _writer(stored, topic)
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


def _part_head(stored: bytes, topic: Topic) -> PartHead:
    return decode_versioned(stored, PartHead, PARTS_VERSION, _place(topic), msgspec.msgpack.decode)


def _writer(stored: bytes, topic: Topic) -> LastBatch:
    first = WRITER_VERSION_WITHOUT_OWNER
    decode = msgspec.msgpack.decode
    return decode_versioned(stored, LastBatch, WRITER_VERSION, _place(topic), decode, version_min=first)


def _place(topic: Topic) -> str:
    return f"the parts of topic '{topic.name}'"
