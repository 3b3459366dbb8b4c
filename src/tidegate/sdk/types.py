"""The shapes of answers: dictionaries with known keys, named as they are on the wire."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class PartitionShown(TypedDict):
    """A partition holds the offsets from `start` up to, and without, `end`."""

    partition: int
    start: int
    end: int
    bytes: int


class SourceShown(TypedDict):
    """A table whose changes go into a topic."""

    table: str
    op: str
    where: str | None
    partitionBy: list[str]
    payload: str
    preview: int


class ColumnShown(TypedDict):
    """A column and its type."""

    name: str
    type: str


class PayloadSchemaShown(TypedDict):
    """The columns of the rows that a table sent into a topic, from some moment on."""

    number: int
    source: str
    columns: list[ColumnShown]


class TopicShown(TypedDict):
    """A topic and what it holds."""

    name: str
    createdAt: str
    messages: int
    bytes: int
    partitions: list[PartitionShown]
    retentionSeconds: int | None
    retentionMaxBytes: int | None
    dedupSeconds: int | None
    duplicates: int
    sources: list[SourceShown]
    schemas: list[PayloadSchemaShown]


class TopicChanged(TopicShown):
    """A topic that was changed; the notice says what more partitions do to the order of keys."""

    notice: str | None


class Outgoing(TypedDict):
    """A message to publish; without a partition its key chooses one.

    A topic with `dedup_seconds` stores one message of a `dedupKey` in that time.
    """

    payload: Any
    key: NotRequired[str | None]
    partition: NotRequired[int | None]
    dedupKey: NotRequired[str | None]


class Placed(TypedDict):
    """Where a published message is; of a duplicate, where the first one of its dedup key is."""

    partition: int
    offset: int
    messageId: str
    duplicate: NotRequired[bool]


class Message(TypedDict):
    """A message of a topic; taken by a group it has a lease, and how often it was delivered."""

    topic: str
    partition: int
    offset: int
    messageId: str
    lease: str | None
    deliveries: int | None
    op: str
    ts: str
    source: str | None
    user: str | None
    payloadMode: str
    key: str | None
    payload: Any


class MessagePage(TypedDict):
    """Messages, and where to go on: `consume({"offsets": page["nextOffsets"]})`."""

    messages: list[Message]
    nextOffsets: dict[str, int]
    missed: NotRequired[dict[str, int]]


class Acked(TypedDict):
    """How many messages were acknowledged, and the first that is not, by partition."""

    acked: int
    position: dict[str, int]


class Nacked(TypedDict):
    """How many messages were given back, and how many of them are dead letters now."""

    nacked: int
    dead: int


class Extended(TypedDict):
    """How many leases run anew, and until when."""

    extended: int
    expiresAt: str


class MemberShown(TypedDict):
    """A consumer of a group: how many messages it holds, how many of its questions wait."""

    member: str
    lastSeenAt: str | None
    holds: int
    waits: int


class MomentShown(TypedDict):
    """When something happened to which message."""

    offset: int
    at: str


class GroupPartitionShown(TypedDict):
    """Where a group is in a partition."""

    partition: int
    start: int
    end: int
    position: int
    next: int
    lag: int
    inFlight: int
    waiting: int
    lastDelivered: MomentShown | None
    lastAcked: MomentShown | None


class GroupShown(TypedDict):
    """A consumer group of a topic."""

    group: str
    createdAt: str
    lag: int
    inFlight: int
    waiting: int
    missed: int
    members: list[MemberShown]
    partitions: list[GroupPartitionShown]


class Me(TypedDict):
    """Who the token belongs to."""

    tenant: str
    user: str
    roles: list[str]
    expiresAt: str | None
    instanceAdmin: bool


class Tenant(TypedDict):
    """A tenant."""

    name: str
    enabled: bool
    createdAt: str


class User(TypedDict):
    """A user of a tenant."""

    name: str
    tenant: str
    roles: list[str]
    enabled: bool
    createdAt: str


class TokenMade(TypedDict):
    """A new token; its text is told once."""

    id: str
    token: str
    label: str
    expiresAt: str | None


class TokenShown(TypedDict):
    """A token without its secret."""

    id: str
    kind: str
    label: str
    createdAt: str
    expiresAt: str | None
    endedAt: str | None
    lastUsedAt: str | None


class AuditEvent(TypedDict):
    """Who did what, when, and how it ended."""

    id: int
    at: str
    tenant: str
    user: str
    action: str
    subject: str
    outcome: str
    requestId: str
    details: dict[str, Any]


class JobMoment(TypedDict):
    """One line of a job's history."""

    at: str
    state: str
    note: str


class Job(TypedDict):
    """Work that the server does by itself; `history` is there when one job is shown."""

    id: str
    kind: str
    subject: str
    state: str
    progress: float
    attempts: int
    owner: str | None
    createdBy: str
    createdAt: str
    startedAt: str | None
    finishedAt: str | None
    details: dict[str, Any]
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    history: NotRequired[list[JobMoment]]


class Link(TypedDict):
    """A link that opens the server in a browser, once."""

    url: str
    expiresAt: str


class BackupBegun(TypedDict):
    """A frozen copy of the home, waiting on the server's machine to be packed."""

    id: str
    path: str
    job: str
