"""Statements about topics, read: what `parse` gives for them. Frozen, as the others.

A value that may be bound beside the text is a Param, or else what it has to be: a text, a whole number, a
duration, a time in microseconds. What stands in the text was checked where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal as OneOf
from typing import TypeAlias

from tidegate.model.durations import Duration
from tidegate.sql.statements import Fragment, Literal, Param, Statement, TableName

Text: TypeAlias = str | Param
Number: TypeAlias = int | Param
Span: TypeAlias = Duration | Param

StartKind = OneOf["earliest", "latest", "offset", "after", "timestamp"]


@dataclass(frozen=True, slots=True)
class TopicName:
    """A topic as a statement names it; whether the name obeys the rule is checked where it is looked up."""

    name: str
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class StartAt:
    """A place in a log: one of its ends, an offset, the one after it, or a time (microseconds, or bound)."""

    kind: StartKind
    value: Number = 0


@dataclass(frozen=True, slots=True)
class TopicStatement(Statement):
    """What all statements about topics are."""


@dataclass(frozen=True, slots=True)
class CreateTopic(TopicStatement):
    """CREATE TOPIC [IF NOT EXISTS] …; `retention` has the limits that are named.

    Their names are seconds, max_bytes and dedup_seconds.
    """

    topic: TopicName
    if_not_exists: bool
    partitions: int
    retention: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class AddSource(TopicStatement):
    """ALTER TOPIC … ADD SOURCE table ON …; `partition_by` is empty where the primary key decides."""

    topic: TopicName
    table: TableName
    operations: tuple[str, ...]
    where: Fragment | None
    partition_by: tuple[str, ...]
    payload: str
    preview_chars: int


@dataclass(frozen=True, slots=True)
class DropSource(TopicStatement):
    """ALTER TOPIC … DROP SOURCE table [ON …]; `operations` is empty where all go."""

    topic: TopicName
    table: TableName
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetRetention(TopicStatement):
    """ALTER TOPIC … SET RETENTION …, or SET (…): only the limits that are named change; None is no limit."""

    topic: TopicName
    retention: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class SetPartitions(TopicStatement):
    """ALTER TOPIC … SET PARTITIONS n, or ADD PARTITIONS n where `more`."""

    topic: TopicName
    count: int
    more: bool


@dataclass(frozen=True, slots=True)
class DropTopic(TopicStatement):
    """DROP TOPIC [IF EXISTS] …."""

    topic: TopicName
    if_exists: bool


@dataclass(frozen=True, slots=True)
class ClearTopic(TopicStatement):
    """CLEAR TOPIC …."""

    topic: TopicName


@dataclass(frozen=True, slots=True)
class ShowTopics(TopicStatement):
    """SHOW TOPICS."""


@dataclass(frozen=True, slots=True)
class DescribeTopic(TopicStatement):
    """DESCRIBE TOPIC …."""

    topic: TopicName


@dataclass(frozen=True, slots=True)
class ShowGroups(TopicStatement):
    """SHOW CONSUMER GROUPS ON …."""

    topic: TopicName


@dataclass(frozen=True, slots=True)
class DropGroup(TopicStatement):
    """DROP CONSUMER GROUP [IF EXISTS] 'g' ON …."""

    group: Text
    topic: TopicName
    if_exists: bool


@dataclass(frozen=True, slots=True)
class ResetGroup(TopicStatement):
    """RESET CONSUMER GROUP 'g' ON … [PARTITION n] TO …."""

    group: Text
    topic: TopicName
    partition: Number | None
    start: StartAt


@dataclass(frozen=True, slots=True)
class Consume(TopicStatement):
    """CONSUME FROM …; what is None was not said."""

    topic: TopicName
    group: Text | None
    member: Text | None
    partition: Number | None
    start: StartAt | None
    limit: Number | None
    wait: Span | None
    lease: Span | None


@dataclass(frozen=True, slots=True)
class Upto:
    """The offset up to which a partition is acknowledged; `partition` is None where it is not said."""

    partition: Number | None
    offset: Number


@dataclass(frozen=True, slots=True)
class Ack(TopicStatement):
    """ACK … UPTO …, or ACK … LEASES (…): one of `upto` and `leases` is empty."""

    topic: TopicName
    group: Text
    member: Text | None
    upto: tuple[Upto, ...]
    leases: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class Nack(TopicStatement):
    """NACK … LEASES (…) [DELAY '5 s' | DEAD] [REASON '…']."""

    topic: TopicName
    group: Text
    member: Text | None
    leases: tuple[Text, ...]
    delay: Span | None
    reason: Text | None
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Extend(TopicStatement):
    """EXTEND … LEASES (…) [LEASE '30 s']."""

    topic: TopicName
    group: Text
    member: Text | None
    leases: tuple[Text, ...]
    lease: Span | None


@dataclass(frozen=True, slots=True)
class Publish(TopicStatement):
    """PUBLISH INTO … VALUES (json), …; a payload in the text is JSON text, a bound one may be any value."""

    topic: TopicName
    key: Text | None
    partition: Number | None
    producer: Text | None
    sequence: Number | None
    payloads: tuple[Literal | Param, ...]
    # One for each payload, or none at all.
    dedup_keys: tuple[Text, ...] = ()
