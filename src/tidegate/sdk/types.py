"""The types of answers: dictionaries whose keys are those of the JSON.

Generated from model/wire by scripts/generate_sdk_types.py: change the structs there, and run it again.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class PartitionDict(TypedDict):
    """The offsets that a partition holds, from `start` up to and without `end`."""

    partition: int
    start: int
    end: int
    bytes: int


class TopicSourceDict(TypedDict):
    """A table whose changes feed a topic."""

    table: str
    op: Literal["INSERT", "UPDATE", "DELETE"]
    where: str | None
    partitionBy: list[str]
    payload: Literal["key", "full", "diff"]
    preview: int


class ColumnDict(TypedDict):
    """A column and its type."""

    name: str
    type: str


class TopicSchemaDict(TypedDict):
    """The columns of the rows that a table sent into a topic, from some moment on."""

    number: int
    source: str
    columns: list[ColumnDict]


class TopicDict(TypedDict):
    """A topic: its settings, what it holds, and what feeds it."""

    name: str
    createdAt: str
    partitions: list[PartitionDict]
    messages: int
    bytes: int
    retentionSeconds: int | None
    retentionMaxBytes: int | None
    dedupSeconds: int | None
    duplicates: int
    sources: list[TopicSourceDict]
    schemas: list[TopicSchemaDict]


class TopicChangeDict(TopicDict):
    """A topic after a change; the notice says what more partitions do to the order of keys."""

    notice: str | None


class NewMessageDict(TypedDict):
    """A message to publish; without a partition its key chooses one.

    A topic with `dedupSeconds` stores one message of a `dedupKey` in that time.
    """

    payload: Any
    key: NotRequired[str | None]
    partition: NotRequired[int | None]
    dedupKey: NotRequired[str | None]


class PublishedMessageDict(TypedDict):
    """The place of a published message; of a duplicate, the place of the first message of its dedup key."""

    partition: int
    offset: int
    messageId: str
    duplicate: NotRequired[bool]


class MessageDict(TypedDict):
    """A message as it was stored; one that a group fetched has a lease and the number of its deliveries.

    `unreadable` says why the payload is null, because it is damaged in the log, or a text, because it is no
    JSON. The Python client sets it, too, where it cannot decode a payload, which is then the text.
    """

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
    unreadable: NotRequired[str]


class MessagePageDict(TypedDict):
    """Messages, the offset of each partition to continue from, and how many messages a group missed."""

    messages: list[MessageDict]
    nextOffsets: dict[str, int]
    missed: NotRequired[dict[str, int]]


class AckDict(TypedDict):
    """The number of messages that were acknowledged, and the lowest offset that is not, by partition."""

    acked: int
    position: dict[str, int]


class NackDict(TypedDict):
    """The number of messages that will be redelivered or became dead letters, and of those dead letters."""

    nacked: int
    dead: int


class ExtendDict(TypedDict):
    """The number of leases that were extended, and when they end."""

    extended: int
    expiresAt: str


class GroupMemberDict(TypedDict):
    """A member of a group: the messages it holds, and its long polls; only leases are known of some."""

    member: str
    lastSeenAt: str | None
    holds: int
    waits: int


class OffsetTimeDict(TypedDict):
    """The offset of a message, and when something happened to it."""

    offset: int
    at: str


class GroupPartitionDict(TypedDict):
    """The position of a group in a partition; the lag counts what is not acknowledged."""

    partition: int
    start: int
    end: int
    position: int
    next: int
    lag: int
    inFlight: int
    waiting: int
    lastDelivered: OffsetTimeDict | None
    lastAcked: OffsetTimeDict | None


class GroupDict(TypedDict):
    """A consumer group: its lag, its members and partitions, and its counters.

    `missed` counts since the group was created, `delivered` to `nacked` since the server started. `delivered`
    includes `redelivered`.
    """

    group: str
    createdAt: str
    lag: int
    inFlight: int
    waiting: int
    missed: int
    delivered: int
    redelivered: int
    acked: int
    nacked: int
    members: list[GroupMemberDict]
    partitions: list[GroupPartitionDict]


class MeDict(TypedDict):
    """The user whom the token belongs to, in the tenant where they act."""

    tenant: str
    user: str
    roles: list[str]
    expiresAt: str | None
    instanceAdmin: bool


class TenantDict(TypedDict):
    """A tenant."""

    name: str
    enabled: bool
    createdAt: str


class QuotaUseDict(TypedDict):
    """A quota: its limit, 0 for none, and what is used of it; null for what was not measured."""

    limit: int
    used: int | None


class TenantQuotaDict(TypedDict):
    """The quotas of a tenant; `own` names those that were set for it, the others are from the settings."""

    tenant: str
    requestsPerSecond: QuotaUseDict
    publishedBytesPerSecond: QuotaUseDict
    topics: QuotaUseDict
    groups: QuotaUseDict
    tables: QuotaUseDict
    diskBytes: QuotaUseDict
    own: list[str]


class UserQuotaDict(TypedDict):
    """The quotas of a user, as those of a tenant."""

    tenant: str
    user: str
    requestsPerSecond: QuotaUseDict
    publishedBytesPerSecond: QuotaUseDict
    own: list[str]


class QuotaDict(TypedDict):
    """The quotas of the caller and of the tenant where they act."""

    tenant: TenantQuotaDict
    user: UserQuotaDict


class UserDict(TypedDict):
    """A user of a tenant."""

    name: str
    tenant: str
    roles: list[str]
    enabled: bool
    createdAt: str


class UserDeleteDict(TypedDict):
    """The name of the user who was deleted, and what was removed with them.

    `userRemoved` is false where there was no such user any more. `rows` are rows of USER tables, `logs` are
    files of STREAM tables.
    """

    deleted: str
    userRemoved: bool
    rows: NotRequired[int]
    logs: NotRequired[int]
    tables: NotRequired[list[str]]


class NewTokenDict(TypedDict):
    """A new token; its text is shown this once."""

    id: str
    token: str
    label: str
    expiresAt: str | None


class TokenDict(TypedDict):
    """A token without its secret."""

    id: str
    kind: str
    label: str
    createdAt: str
    expiresAt: str | None
    endedAt: str | None
    lastUsedAt: str | None


class AuditEventDict(TypedDict):
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


class JobSummaryDict(TypedDict):
    """Work that the server does by itself, as lists show it."""

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


class JobStepDict(TypedDict):
    """One entry of a job's history."""

    at: str
    state: str
    note: str


class JobDict(JobSummaryDict):
    """A job and its history."""

    history: list[JobStepDict]


class LinkDict(TypedDict):
    """A link that signs in a browser, once."""

    url: str
    expiresAt: str


class BackupStartDict(TypedDict):
    """A frozen copy of the home, on the server's machine, to be packed by the client."""

    id: str
    path: str
    job: str
