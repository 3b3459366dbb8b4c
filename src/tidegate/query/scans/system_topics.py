"""The system tables about topics, their sources, and consumer groups, as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate.errors import TopicNotFound
from tidegate.query.scans.system import system_arrow
from tidegate.query.topic_access import TopicAccess
from tidegate.tables.definitions import TableDirectory
from tidegate.topics.definitions import Topic
from tidegate.topics.groups.types import GroupDescription, PartitionDescription
from tidegate.topics.routes import Route

if TYPE_CHECKING:
    import pyarrow as pa


def topic_functions(
    topics: TopicAccess, tables: TableDirectory, tenant: str
) -> dict[str, Callable[[], pa.Table]]:
    """Return the system tables about the topics of a tenant, each made when it is read."""

    def mine() -> list[Topic]:
        return topics.directory.of(tenant)

    def shapes() -> Iterator[tuple[Topic, GroupDescription]]:
        for topic in mine():
            for shape in groups_of(topics, topic):
                yield topic, shape

    return {
        "topics": lambda: system_arrow("topics", [_topic_row(topics, topic) for topic in mine()]),
        "topic_sources": lambda: system_arrow(
            "topic_sources", [row for topic in mine() for row in _source_rows(topics, tables, topic)]
        ),
        "topic_groups": lambda: system_arrow(
            "topic_groups", [_group_row(topic, shape) for topic, shape in shapes()]
        ),
        "topic_offsets": lambda: system_arrow(
            "topic_offsets",
            [_offset_row(topic, shape, part) for topic, shape in shapes() for part in shape.partitions],
        ),
    }


def groups_of(topics: TopicAccess, topic: Topic) -> list[GroupDescription]:
    """Return the groups of a topic; none where it was deleted since the list was made."""
    try:
        return topics.groups.describe(topic)
    except TopicNotFound:
        return []


def _topic_row(topics: TopicAccess, topic: Topic) -> tuple[Any, ...]:
    messages, size_bytes = stored_size(topics, topic)
    return (
        *(topic.name, topic.partitions, messages, size_bytes),
        *(topic.retention_seconds, topic.retention_max_bytes),
        *(len(topics.routes.of_topic(topic.id)), len(topics.groups.names(topic))),
        *(_dead_letters(topics, topic), topic.dedup_seconds, topic.created_us),
    )


def _dead_letters(topics: TopicAccess, topic: Topic) -> int:
    """Return how many dead letters of a topic there are."""
    try:
        dead = topics.directory.get(topic.tenant, topic.dead_name)
    except TopicNotFound:
        return 0
    return stored_size(topics, dead)[0]


def _source_rows(topics: TopicAccess, tables: TableDirectory, topic: Topic) -> list[tuple[Any, ...]]:
    return [
        (
            *(topic.name, source_name(tables, route), route.op.upper(), route.where),
            *(", ".join(route.partition_by) or None, route.payload, route.preview_chars, route.created_us),
        )
        for route in topics.routes.of_topic(topic.id)
    ]


def _group_row(topic: Topic, shape: GroupDescription) -> tuple[Any, ...]:
    return (
        *(topic.name, shape.group, shape.lag, shape.in_flight, shape.waiting, shape.missed),
        *(len(shape.members), shape.created_us),
        *(shape.counters.delivered, shape.counters.redelivered, shape.counters.acked, shape.counters.nacked),
    )


def _offset_row(topic: Topic, shape: GroupDescription, part: PartitionDescription) -> tuple[Any, ...]:
    return (
        *(topic.name, shape.group, part.partition, part.start, part.end, part.position, part.next),
        *(part.lag, part.in_flight, part.waiting),
        *(part.last_delivered_offset, part.last_delivered_us, part.last_acked_offset, part.last_acked_us),
    )


def stored_size(topics: TopicAccess, topic: Topic) -> tuple[int, int]:
    """Return how many messages a topic holds, and their bytes."""
    counters = [topics.log.counters(topic, number) for number in range(topic.partitions)]
    return sum(counter.end - counter.start for counter in counters), sum(
        counter.stored_bytes for counter in counters
    )


def source_name(tables: TableDirectory, route: Route) -> str:
    """Return the full name of the table that a route is of."""
    table = tables.by_id(route.table_id)
    return f"table {route.table_id}" if table is None else table.full_name
