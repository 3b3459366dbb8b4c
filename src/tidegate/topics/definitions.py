"""Topic definitions: takes a name and a number of partitions, gives the topic, keeps it under its own id.

A topic's id is never given out twice, so a topic that is deleted and made again shares nothing with the old
one. A name belongs to a tenant: in another one it is not found.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import msgspec

from tidegate.errors import (
    PartitionNotFound,
    RequestInvalid,
    StorageCorrupt,
    TopicExists,
    TopicNotFound,
    TopicReplaced,
)
from tidegate.model.access import DEFAULT_TENANT
from tidegate.model.names import check_topic_name, shorten
from tidegate.storage.commit import Staging
from tidegate.storage.engine import Reader
from tidegate.topics import keys

_ID = struct.Struct(">Q")
DEFINITION_VERSION = 1


class Topic(msgspec.Struct, frozen=True):
    """A topic's name and shape."""

    id: int
    name: str
    partitions: int
    created_us: int
    version: int = DEFINITION_VERSION
    tenant: str = DEFAULT_TENANT

    def check_partition(self, partition: int) -> int:
        """Give the partition back, or say which ones there are."""
        if not 0 <= partition < self.partitions:
            raise PartitionNotFound(topic=self.name, partition=partition, last=self.partitions - 1)
        return partition

    def check_id(self, topic_id: int | None) -> None:
        """Refuse a reader that has offsets of an earlier topic of this name."""
        if topic_id is not None and topic_id != self.id:
            raise TopicReplaced(topic=self.name)

    def partition_of(self, key: str) -> int:
        """Give the partition of a key: CRC-32 of its UTF-8 bytes, modulo the number of partitions."""
        return zlib.crc32(key.encode()) % self.partitions


class TopicDirectory:
    """All topics by tenant and name. Reads are from memory; a change is seen once it is durable."""

    def __init__(self, reader: Reader, partitions_max: int) -> None:
        self._reader = reader
        self._partitions_max = partitions_max
        self._by_name: dict[tuple[str, str], Topic] = {}
        self.reload()

    def reload(self) -> None:
        """Read every definition again: the engine was opened anew, and the disk is right."""
        found = (_decoded(key, value) for key, value in self._reader.scan(keys.definition_range()))
        self._by_name = {(topic.tenant, topic.name): topic for topic in found}

    def __iter__(self) -> Iterator[Topic]:
        """Give every topic of every tenant."""
        return iter(sorted(self._by_name.values(), key=lambda topic: (topic.tenant, topic.name)))

    def __len__(self) -> int:
        return len(self._by_name)

    def of(self, tenant: str) -> list[Topic]:
        """Give the topics of a tenant, by name."""
        mine = [topic for topic in self._by_name.values() if topic.tenant == tenant]
        return sorted(mine, key=lambda topic: topic.name)

    def get(self, tenant: str, name: str) -> Topic:
        """Give a topic by name."""
        topic = self._by_name.get((tenant, name))
        if topic is None:
            raise TopicNotFound(topic=shorten(name))
        return topic

    def stage_create(self, staging: Staging, tenant: str, name: str, partitions: int, now_us: int) -> Topic:
        """Make a topic; a name that is taken is refused."""
        check_topic_name(name)
        if not 1 <= partitions <= self._partitions_max:
            reason = f"A topic has 1 to {self._partitions_max} partitions, not {partitions}."
            raise RequestInvalid(reason=reason, hint="Choose a number in that range.")
        if (tenant, name) in self._by_name:
            raise TopicExists(topic=name, partitions=self._by_name[tenant, name].partitions)
        stored = staging.get(keys.NEXT_ID)
        topic_id = _ID.unpack(stored)[0] if stored else 1
        topic = Topic(topic_id, name, partitions, now_us, tenant=tenant)
        staging.put(keys.NEXT_ID, _ID.pack(topic_id + 1))
        staging.put(keys.definition_key(topic_id), msgspec.json.encode(topic))
        staging.when_durable(lambda: self._by_name.__setitem__((tenant, name), topic))
        # Two creates of one name in one group must not both pass the check above.
        staging.closes_group = True
        return topic

    def stage_delete(self, staging: Staging, tenant: str, name: str) -> Topic:
        """Remove a topic and every byte of it."""
        topic = self.get(tenant, name)
        staging.delete(keys.definition_key(topic.id))
        for span in keys.everything_of(topic.id):
            staging.delete_range(span.start, span.stop)
        staging.when_durable(lambda: self._forget(topic))
        return topic

    def _forget(self, topic: Topic) -> None:
        if self._by_name.get((topic.tenant, topic.name)) == topic:
            del self._by_name[topic.tenant, topic.name]


def _decoded(key: bytes, value: bytes) -> Topic:
    place = f"the definition of topic {keys.topic_id_of(key)}"
    try:
        topic = msgspec.json.decode(value, type=Topic)
    except msgspec.DecodeError as problem:
        raise StorageCorrupt(place=place, reason=str(problem)) from problem
    if topic.version != DEFINITION_VERSION:
        raise StorageCorrupt(place=place, reason=f"version {topic.version}, this reads {DEFINITION_VERSION}")
    return topic
