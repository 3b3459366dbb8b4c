"""Topics on the wire: their description, published and consumed messages, offset ranges, staged batches."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from tidegate.model.wire.struct import WireStruct


class PartitionResponse(WireStruct):
    """The offsets that a partition holds, from `start` up to and without `end`."""

    partition: int
    start: int
    end: int
    bytes: int


class TopicSource(WireStruct):
    """A table whose changes feed a topic."""

    table: str
    op: Literal["INSERT", "UPDATE", "DELETE"]
    where: str | None
    partition_by: list[str]
    payload: Literal["key", "full", "diff"]
    preview: int


class ColumnResponse(WireStruct):
    """A column and its type."""

    name: str
    type: str


class TopicSchema(WireStruct):
    """The columns of the rows that a table sent into a topic, from some moment on."""

    number: int
    source: str
    columns: list[ColumnResponse]


class TopicResponse(WireStruct):
    """A topic: its settings, what it holds, and what feeds it."""

    name: str
    created_at: str
    partitions: list[PartitionResponse]
    messages: int
    bytes: int
    retention_seconds: int | None
    retention_max_bytes: int | None
    dedup_seconds: int | None
    duplicates: int
    sources: list[TopicSource]
    schemas: list[TopicSchema]


class TopicChangeResponse(TopicResponse):
    """A topic after a change; the notice says what more partitions do to the order of keys."""

    notice: str | None


class TopicPage(WireStruct):
    """Topics by name, one page."""

    topics: list[TopicResponse]
    next: str | None


class ClearResponse(WireStruct):
    """The number of messages that were removed."""

    cleared: int


class NewMessage(WireStruct, forbid_unknown_fields=True):
    """A message to publish; without a partition its key chooses one.

    A topic with `dedupSeconds` stores one message of a `dedupKey` in that time.
    """

    payload: msgspec.Raw
    key: str | None = None
    partition: int | None = None
    dedup_key: str | None = None


class PublishedMessage(WireStruct):
    """The place of a published message; of a duplicate, the place of the first message of its dedup key."""

    partition: int
    offset: int
    message_id: str
    duplicate: bool | UnsetType = UNSET


class PublishResponse(WireStruct):
    """The place of each message, in the order of the request."""

    offsets: list[PublishedMessage]


class MessageResponse(WireStruct):
    """A message as it was stored; one that a group fetched has a lease and the number of its deliveries.

    `unreadable` says why the payload is null, because it is damaged in the log, or a text, because it is no
    JSON. The Python client sets it, too, where it cannot decode a payload, which is then the text.
    """

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
    unreadable: str | UnsetType = UNSET


class MessagePage(WireStruct):
    """Messages, the offset of each partition to continue from, and how many messages a group missed."""

    messages: list[MessageResponse]
    next_offsets: dict[int, int]
    missed: dict[int, int] | UnsetType = UNSET


class OffsetRangesResponse(WireStruct):
    """Half-open offset ranges by partition."""

    topic_id: int
    start: dict[int, int]
    end: dict[int, int]
    latest: dict[int, int]


class PartResponse(WireStruct):
    """A stored part of a batch; without an id where the batch was committed before."""

    part: str | None
    topic_id: int
    messages: int


class CommitResponse(WireStruct):
    """Whether the batch was written now, how many messages it has, and how many of them were duplicates."""

    committed: bool
    messages: int
    duplicates: int


class AbortResponse(WireStruct):
    """The number of parts that were removed."""

    removed: int
