"""Shapes of answers: what each endpoint gives, for the description of the API and for whoever reads it.

The endpoints write their answers by hand, because a struct for each message would cost more than the message
itself. Tests hold real answers against these shapes, strictly: a field more or less is a failure.

Shapes of what the worker reports, as answers have them: the worker, its pipelines, their operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class Worker(msgspec.Struct, rename="camel"):
    """The Spark worker as it reported last."""

    pid: int
    state: str
    memory_bytes: int
    spark_version: str
    state_disk_used_bytes: int | None
    state_disk_size_bytes: int | None
    seen_seconds_ago: float


class Dedup(msgspec.Struct, rename="camel"):
    """What an operator that deduplicates caught and stored; counts are since its partitions changed."""

    unique: int
    duplicates: int
    late: int
    keys: int
    bytes: int
    segments: int
    filter_bytes: int
    filter_probes: int
    filter_maybe: int
    filter_false: int
    reads: int
    lookup_seconds: float
    stream_time: str | None


class Operator(msgspec.Struct, rename="camel"):
    """The state of one operator as of its last whole batch; `next_timer` is the earliest that is set."""

    name: str
    partitions: int
    epoch: int
    batch: int | None
    entries: int
    state_bytes: int
    checkpoint_bytes: int
    dead_rows: int
    next_timer: str | None
    snapshot_batch: int | None
    dedup: Dedup | None


class Pipeline(msgspec.Struct, rename="camel"):
    """A pipeline as the worker reported it last, or a stopped one; `lag` is what it has not taken yet."""

    name: str
    state: str
    batches: int
    rows: int
    rows_per_second: float
    last_batch_seconds: float | None
    error: str | None
    restarts: int
    topic: str | None
    table: str | None
    offsets: dict[str, dict[str, int]]
    operators: list[Operator]
    lag: int | None


class _Shape(msgspec.Struct, rename="camel"):
    pass


@dataclass(frozen=True, slots=True)
class Media:
    """An answer that no struct describes: its content types, what it is, whether callers keep a copy."""

    content_types: tuple[str, ...]
    says: str
    kept: bool = False
    json_type: str = "string"


PAGE = Media(("text/html",), "A page for people.")
API_PAGE = Media(("text/html",), "A page that runs this server's own script.", kept=True)
REDIRECT = Media((), "The browser goes on to another page.")
METRICS = Media(("text/plain", "application/openmetrics-text"), "Figures, in Prometheus' formats.")
DESCRIPTION = Media(("application/json",), "OpenAPI 3.1.", kept=True, json_type="object")
FILE = Media(("text/javascript", "text/css"), "A file of the page.", kept=True)


class ErrorBody(_Shape):
    """What went wrong, and what to do about it."""

    code: str
    message: str
    hint: str
    details: dict[str, Any]


class Error(_Shape):
    """Every error has this shape."""

    error: ErrorBody


class Health(_Shape):
    """The process answers."""

    status: Literal["ok"]


class Part(_Shape):
    """One thing that the server stands on, and why it does not work."""

    ok: bool
    reason: str


class Ready(_Shape):
    """The server takes work."""

    status: Literal["ready"]
    parts: dict[str, Part]


class Column(_Shape):
    """A column of a result."""

    name: str
    type: str


class Partition(_Shape):
    """The offsets that a partition holds: start is in, end is not."""

    partition: int
    start: int
    end: int
    bytes: int


class TopicSource(_Shape):
    """A table whose changes go into a topic."""

    table: str
    op: Literal["INSERT", "UPDATE", "DELETE"]
    where: str | None
    partition_by: list[str]
    payload: Literal["key", "full", "diff"]
    preview: int


class TopicSchema(_Shape):
    """The columns of payloads that came from a table, at one moment of its life."""

    number: int
    source: str
    columns: list[Column]


class Topic(_Shape):
    """A topic: its shape, what it holds, and what feeds it."""

    name: str
    created_at: str
    partitions: list[Partition]
    messages: int
    bytes: int
    retention_seconds: int | None
    retention_max_bytes: int | None
    dedup_seconds: int | None
    duplicates: int
    sources: list[TopicSource]
    schemas: list[TopicSchema]


class TopicChanged(Topic):
    """A topic as it is now, and what the change does to the order of keys."""

    notice: str | None


class TopicCleared(_Shape):
    """How many messages went."""

    cleared: int


class Topics(_Shape):
    """Topics by name, a page at a time."""

    topics: list[Topic]
    next: str | None


class TopicDeleted(_Shape):
    """The name of the topic that is gone."""

    deleted: str


class Place(_Shape):
    """Where a message is; where the first one is, of a duplicate that was dropped."""

    partition: int
    offset: int
    message_id: str
    duplicate: bool | UnsetType = UNSET


class Published(_Shape):
    """One place for each message, in the order of the request."""

    offsets: list[Place]


class Message(_Shape):
    """A message as it was stored."""

    topic: str
    partition: int
    offset: int
    message_id: str
    lease: str | None
    deliveries: int | None
    op: str
    ts: str
    source: str | None
    user: str | None
    payload_mode: str
    key: str | None
    payload: msgspec.Raw


class Consumed(_Shape):
    """Messages, the offsets from which to go on, and how many a group missed because they are gone."""

    messages: list[Message]
    next_offsets: dict[str, int]
    missed: dict[str, int] | UnsetType = UNSET


class Acked(_Shape):
    """How many messages are done with, and the lowest offset that is not, by partition."""

    acked: int
    position: dict[str, int]


class Nacked(_Shape):
    """How many messages come again, and how many became dead letters."""

    nacked: int
    dead: int


class Extended(_Shape):
    """How many leases end at this time now."""

    extended: int
    expires_at: str


class GroupMoved(_Shape):
    """Where a group goes on, by partition."""

    position: dict[str, int]


class GroupDeleted(_Shape):
    """The name of the group that is gone."""

    deleted: str


class GroupMember(_Shape):
    """Someone who consumes for a group; null where only its leases are known."""

    member: str
    last_seen_at: str | None
    holds: int
    waits: int


class GroupMoment(_Shape):
    """The last message of a kind, and when."""

    offset: int
    at: str


class GroupPartition(_Shape):
    """Where a group stands in a partition; lag counts what is not acknowledged."""

    partition: int
    start: int
    end: int
    position: int
    next: int
    lag: int
    in_flight: int
    waiting: int
    last_delivered: GroupMoment | None
    last_acked: GroupMoment | None


class Group(_Shape):
    """A consumer group: where it stands, and who is in it."""

    group: str
    created_at: str
    lag: int
    in_flight: int
    waiting: int
    missed: int
    members: list[GroupMember]
    partitions: list[GroupPartition]


class Groups(_Shape):
    """The consumer groups of a topic, by name."""

    groups: list[Group]


class Plan(_Shape):
    """Half-open offset ranges, by partition."""

    topic_id: int
    start: dict[str, int]
    end: dict[str, int]
    latest: dict[str, int]


class SqlResult(_Shape):
    """What one statement of several gave."""

    columns: list[Column]
    rows: list[list[Any]]
    row_count: int
    warnings: list[str] | UnsetType = UNSET


class SqlRows(_Shape):
    """The rows of a statement, or how many it wrote; of several statements, the last one's and all."""

    columns: list[Column]
    rows: list[list[Any]]
    row_count: int
    took_ms: float
    warnings: list[str] | UnsetType = UNSET
    results: list[SqlResult] | UnsetType = UNSET


class Pipelines(_Shape):
    """Every pipeline that the worker runs."""

    pipelines: list[Pipeline]


class Table(_Shape):
    """A lake table; one that cannot be read has an error instead of figures."""

    name: str
    version: int | None
    files: int | None
    bytes: int | None
    error: str | UnsetType = UNSET


class Status(_Shape):
    """How the server is; what belongs to the whole instance is null in other tenants than the first."""

    version: str
    tenant: str
    home: str | None
    pid: int | None
    uptime_seconds: float
    memory_bytes: int | None
    disk_free_bytes: int | None
    topics: list[Topic]
    topics_total: int
    messages_total: int
    messages_per_second: float
    worker: Worker | None
    pipelines: list[Pipeline]
    tables: list[Table]


class ReportTaken(_Shape):
    """The report is noted."""

    ok: bool
