"""The definitions of topics: id, name, partitions and retention.

A topic's id is never used twice, so a topic that is deleted and created again shares nothing with the old
one. A name belongs to a tenant: in another one it is not found.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from tidegate.errors import (
    PartitionNotFound,
    RequestInvalid,
    TopicExists,
    TopicNotFound,
    TopicReplaced,
)
from tidegate.model.access import DEFAULT_TENANT
from tidegate.model.names import DEAD_SUFFIX, check_topic_name, shorten
from tidegate.model.quotas import TenantQuotas, Unlimited, check_count
from tidegate.storage.engine import Reader
from tidegate.storage.group_commit import Staging
from tidegate.storage.keys import I64_MAX, read_u64, u64
from tidegate.storage.versions import decode_versioned
from tidegate.topics import keys

DEFINITION_VERSION = 1
# A hundred years; a time that far back still fits into 64 bits of microseconds.
RETENTION_SECONDS_MAX = 100 * 366 * 86_400
# A key takes 63 bytes for so long, and for half as long again until its segment expires.
DEDUP_SECONDS_MAX = 100 * 86_400


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of a topic by age and by bytes of one partition; None is without limit.

    `dedup_seconds` is how long its dedup keys are remembered, whether or not their messages are still in the
    log; None is a topic without dedup keys.
    """

    seconds: int | None = None
    max_bytes: int | None = None
    dedup_seconds: int | None = None

    def __post_init__(self) -> None:
        _check_limit("seconds", self.seconds, RETENTION_SECONDS_MAX)
        _check_limit("bytes", self.max_bytes, I64_MAX)
        if self.dedup_seconds is not None and not 1 <= self.dedup_seconds <= DEDUP_SECONDS_MAX:
            raise RequestInvalid(
                reason=f"Dedup keys are kept for 1 to {DEDUP_SECONDS_MAX} seconds, not {self.dedup_seconds}.",
                hint="Choose a number in that range (up to 100 days), or none (null) to take no dedup keys.",
            )

    @property
    def is_endless(self) -> bool:
        """True if no message ever expires."""
        return self.seconds is None and self.max_bytes is None


def _check_limit(unit: str, value: int | None, most: int) -> None:
    if value is not None and not 1 <= value <= most:
        raise RequestInvalid(
            reason=f"Retention is 1 to {most} {unit}, not {value}.",
            hint="Choose a number in that range, or none (null) to keep everything.",
        )


class Topic(msgspec.Struct, frozen=True):
    """The definition of a topic."""

    id: int
    name: str
    partitions: int
    created_us: int
    version: int = DEFINITION_VERSION
    tenant: str = DEFAULT_TENANT
    retention_seconds: int | None = None
    retention_max_bytes: int | None = None
    dedup_seconds: int | None = None

    @property
    def retention(self) -> Retention:
        """The retention of the topic."""
        return Retention(self.retention_seconds, self.retention_max_bytes, self.dedup_seconds)

    @property
    def is_dead(self) -> bool:
        """True for a topic of dead letters, which has no dead letters of its own."""
        return self.name.endswith(DEAD_SUFFIX)

    @property
    def dead_name(self) -> str:
        """The name of the topic of this one's dead letters."""
        return self.name + DEAD_SUFFIX

    def check_partition(self, partition: int) -> int:
        """Return the partition, or raise PartitionNotFound."""
        if not 0 <= partition < self.partitions:
            raise PartitionNotFound(topic=self.name, partition=partition, last=self.partitions - 1)
        return partition

    def check_id(self, topic_id: int | None) -> None:
        """Raise TopicReplaced for a reader that has offsets of an earlier topic of this name."""
        if topic_id is not None and topic_id != self.id:
            raise TopicReplaced(topic=self.name)

    def partition_of(self, key: str) -> int:
        """Return the partition of a key: CRC-32 of its UTF-8 bytes, modulo the number of partitions."""
        return zlib.crc32(key.encode()) % self.partitions


class TopicDirectory:
    """All topics by tenant and name. Reads are from memory; a change is visible once it is durable."""

    def __init__(self, reader: Reader, partitions_max: int, quotas: TenantQuotas | None = None) -> None:
        self._reader = reader
        self._partitions_max = partitions_max
        self.quotas = quotas or Unlimited()
        self._by_name: dict[tuple[str, str], Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self.reload()

    def reload(self) -> None:
        """Read every definition again: the engine was reopened, and the disk decides."""
        found = [_decoded(key, value) for key, value in self._reader.scan(keys.definition_range())]
        self._by_name = {(topic.tenant, topic.name): topic for topic in found}
        self._by_id = {topic.id: topic for topic in found}

    def __iter__(self) -> Iterator[Topic]:
        """Return every topic of every tenant."""
        return iter(sorted(self._by_name.values(), key=lambda topic: (topic.tenant, topic.name)))

    def __len__(self) -> int:
        return len(self._by_name)

    def of(self, tenant: str) -> list[Topic]:
        """Return the topics of a tenant, by name."""
        mine = [topic for topic in list(self._by_name.values()) if topic.tenant == tenant]
        return sorted(mine, key=lambda topic: topic.name)

    def count(self, tenant: str) -> int:
        """Return the number of topics of a tenant."""
        return sum(owner == tenant for owner, _ in list(self._by_name))

    def get(self, tenant: str, name: str) -> Topic:
        """Return a topic by name."""
        topic = self._by_name.get((tenant, name))
        if topic is None:
            raise TopicNotFound(topic=shorten(name))
        return topic

    def by_id(self, topic_id: int) -> Topic | None:
        """Return a topic by its id; None when it is gone."""
        return self._by_id.get(topic_id)

    def stage_create(
        self,
        staging: Staging,
        tenant: str,
        name: str,
        partitions: int,
        now_us: int,
        retention: Retention = Retention(),  # noqa: B008 - frozen
    ) -> Topic:
        """Create a topic; TopicExists for a name that is taken, QuotaReached for a tenant that has enough."""
        check_topic_name(name)
        self._check_partitions(partitions)
        if (tenant, name) in self._by_name:
            raise TopicExists(topic=name, partitions=self._by_name[tenant, name].partitions)
        limit = self.quotas.of_tenant(tenant).topics
        if limit:
            check_count(tenant, "topics", self.count(tenant), limit)
        return self._stage_new(staging, tenant, name, partitions, now_us, retention)

    def _stage_new(
        self,
        staging: Staging,
        tenant: str,
        name: str,
        partitions: int,
        now_us: int,
        retention: Retention = Retention(),  # noqa: B008 - frozen
    ) -> Topic:
        stored = staging.get(keys.NEXT_ID)
        topic_id = 1 if stored is None else read_u64(stored)
        topic = Topic(
            topic_id,
            name,
            partitions,
            now_us,
            tenant=tenant,
            retention_seconds=retention.seconds,
            retention_max_bytes=retention.max_bytes,
            dedup_seconds=retention.dedup_seconds,
        )
        staging.put(keys.NEXT_ID, u64(topic_id + 1))
        self._stage(staging, topic)
        # Two creates of one name in one group must not both pass the check above.
        staging.close_group()
        return topic

    def stage_change(
        self,
        staging: Staging,
        topic: Topic,
        *,
        partitions: int | None = None,
        retention: Retention | None = None,
    ) -> Topic:
        """Add partitions, or change the retention; what is None stays as it is.

        Partitions cannot be removed: their messages would be lost.
        """
        after = staged_topic(staging, topic)
        if partitions is not None:
            self._check_partitions(partitions)
            if partitions < after.partitions:
                raise RequestInvalid(
                    reason=f"Topic '{topic.name}' has {after.partitions} partitions; "
                    f"they cannot become {partitions}.",
                    hint="Partitions can only be added. Make another topic to have fewer.",
                )
            after = msgspec.structs.replace(after, partitions=partitions)
        if retention is not None:
            if retention.dedup_seconds is None and after.dedup_seconds is not None:
                # Nobody would remove them any more.
                staging.delete_keys(keys.dedup_everything(topic.id))
            after = msgspec.structs.replace(
                after,
                retention_seconds=retention.seconds,
                retention_max_bytes=retention.max_bytes,
                dedup_seconds=retention.dedup_seconds,
            )
        self._stage(staging, after)
        return after

    def stage_dead(self, staging: Staging, topic: Topic, now_us: int) -> Topic:
        """Return the topic of a topic's dead letters; the first one creates it, with unlimited retention.

        No quota refuses it: the messages would jam their group.
        """
        known = self._by_name.get((topic.tenant, topic.dead_name))
        if known is not None:
            return known
        # Not durable yet, but perhaps created by this same change. A change before it in the group cannot
        # have created it: that one would have closed its group.
        for key, value in staging.written().items():
            if value is not None and keys.is_definition(key):
                made = _decoded(key, value)
                if (made.tenant, made.name) == (topic.tenant, topic.dead_name):
                    return made
        return self._stage_new(staging, topic.tenant, topic.dead_name, topic.partitions, now_us)

    def stage_delete(self, staging: Staging, tenant: str, name: str) -> Topic:
        """Remove a topic and everything of it."""
        topic = self.get(tenant, name)
        staging.delete(keys.definition_key(topic.id))
        for span in keys.everything_of(topic.id):
            staging.delete_keys(span)
        staging.when_durable(lambda: self._forget(topic))
        return topic

    def _stage(self, staging: Staging, topic: Topic) -> None:
        staging.put(keys.definition_key(topic.id), msgspec.json.encode(topic))
        staging.when_durable(lambda: self._learn(topic))

    def _learn(self, topic: Topic) -> None:
        self._by_name[topic.tenant, topic.name] = topic
        self._by_id[topic.id] = topic

    def _forget(self, topic: Topic) -> None:
        known = self._by_name.get((topic.tenant, topic.name))
        if known is not None and known.id == topic.id:
            del self._by_name[topic.tenant, topic.name]
        self._by_id.pop(topic.id, None)

    def _check_partitions(self, partitions: int) -> None:
        if not 1 <= partitions <= self._partitions_max:
            reason = f"A topic has 1 to {self._partitions_max} partitions, not {partitions}."
            raise RequestInvalid(reason=reason, hint="Choose a number in that range.")


def staged_topic(staging: Staging, topic: Topic) -> Topic:
    """Return a topic as the changes staged so far leave it."""
    key = keys.definition_key(topic.id)
    stored = staging.get(key)
    if stored is None:
        raise TopicNotFound(topic=topic.name)
    return _decoded(key, stored)


def _decoded(key: bytes, value: bytes) -> Topic:
    place = f"the definition of topic {keys.topic_id_of(key)}"
    return decode_versioned(value, Topic, DEFINITION_VERSION, place)


def order_notice(topic: str, before: int, after: int) -> str:
    """Return the notice of what more partitions do to the order of keys."""
    return (
        f"Topic '{topic}' has {after} partitions now, not {before}. A key may have another partition from "
        "here on: its new messages can be read before its older ones. Whoever needs the order of a key reads "
        "what was there before to its end first. Consumer groups begin the new partitions at their start."
    )
