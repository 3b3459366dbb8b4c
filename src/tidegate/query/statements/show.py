"""SHOW TOPICS, DESCRIBE TOPIC, SHOW CONSUMER GROUPS: gives the steps that tell what topics there are."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.model.access import Operation
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row
from tidegate.model.timeranges import format_time
from tidegate.query.bound import Bound
from tidegate.query.steps import Caller, Outcome, Step, found
from tidegate.query.topic_parts import TopicParts
from tidegate.sql.topic_statements import DescribeTopic, ShowGroups, ShowTopics
from tidegate.tables.definitions import TableDirectory
from tidegate.topics.definitions import Topic
from tidegate.topics.groups import GroupShape
from tidegate.topics.routes import Route

_TEXT, _INT, _BIGINT, _TIME = ColumnType.TEXT, ColumnType.INT, ColumnType.BIGINT, ColumnType.TIMESTAMP
_TOPICS = [
    *[("topic", _TEXT), ("partitions", _INT), ("messages", _BIGINT), ("size_bytes", _BIGINT)],
    *[("retention_seconds", _BIGINT), ("retention_max_bytes", _BIGINT), ("dedup_seconds", _BIGINT)],
    ("sources", _TEXT),
]
_FACTS = [("property", _TEXT), ("value", _TEXT)]
_GROUPS = [
    *[("group", _TEXT), ("lag", _BIGINT), ("in_flight", _BIGINT), ("waiting", _BIGINT)],
    *[("missed", _BIGINT), ("members", _TEXT), ("last_delivered", _TIME), ("last_acked", _TIME)],
    ("created", _TIME),
]


class TopicShowing:
    """Plans statements that tell of topics; any thread may ask."""

    def __init__(self, topics: TopicParts, tables: TableDirectory) -> None:
        self._topics = topics
        self._tables = tables

    def show_topics(self, _: ShowTopics, _bound: Bound, caller: Caller) -> Step:
        """Plan SHOW TOPICS."""
        caller.check(Operation.TOPIC_LIST)

        def work() -> Outcome:
            return found(_TOPICS, [self._listed(topic) for topic in self._topics.directory.of(caller.tenant)])

        return Step("show", work=work, is_short=True)

    def _listed(self, topic: Topic) -> Row:
        messages, size_bytes = held_by(self._topics, topic)
        names = dict.fromkeys(
            source_name(self._tables, route) for route in self._topics.routes.of_topic(topic.id)
        )
        return (
            *(topic.name, topic.partitions, messages, size_bytes),
            *(topic.retention_seconds, topic.retention_max_bytes, topic.dedup_seconds),
            ", ".join(names) or None,
        )

    def describe(self, statement: DescribeTopic, _bound: Bound, caller: Caller) -> Step:
        """Plan DESCRIBE TOPIC: a row for each fact, partition, source and payload schema."""
        caller.check(Operation.TOPIC_SHOW)

        def work() -> Outcome:
            topic = self._topics.directory.get(caller.tenant, statement.topic.name)
            return found(_FACTS, self._facts(topic))

        return Step("show", work=work, is_short=True)

    def _facts(self, topic: Topic) -> list[Row]:
        messages, size_bytes = held_by(self._topics, topic)
        counters = [self._topics.log.counters(topic, number) for number in range(topic.partitions)]
        rows: list[Row] = [
            ("topic", topic.name),
            ("created", format_time(topic.created_us)),
            ("partitions", str(topic.partitions)),
            ("messages", str(messages)),
            ("size_bytes", str(size_bytes)),
            ("retention_seconds", _limit(topic.retention_seconds)),
            ("retention_max_bytes", _limit(topic.retention_max_bytes)),
            ("dedup_seconds", "none" if topic.dedup_seconds is None else str(topic.dedup_seconds)),
        ]
        rows += [
            (f"partition {number}", f"earliest {held.start}, next {held.end}, {held.stored_bytes} bytes")
            for number, held in enumerate(counters)
        ]
        rows += [
            (f"source {source_name(self._tables, route)}", route_text(route))
            for route in self._topics.routes.of_topic(topic.id)
        ]
        for schema in self._topics.schemas.of(topic.id):
            columns = ", ".join(f"{column.name} {column.type_text}" for column in schema.columns)
            rows.append((f"schema {schema.number}", f"{schema.source} ({columns})"))
        return rows

    def show_groups(self, statement: ShowGroups, _bound: Bound, caller: Caller) -> Step:
        """Plan SHOW CONSUMER GROUPS."""
        caller.check(Operation.TOPIC_GROUPS)

        def work() -> Outcome:
            topic = self._topics.directory.get(caller.tenant, statement.topic.name)
            return found(_GROUPS, [_group_row(shape) for shape in self._topics.groups.describe(topic)])

        return Step("show", work=work, is_short=True)


def held_by(topics: TopicParts, topic: Topic) -> tuple[int, int]:
    """Give how many messages a topic holds, and their bytes."""
    counters = [topics.log.counters(topic, number) for number in range(topic.partitions)]
    return sum(held.end - held.start for held in counters), sum(held.stored_bytes for held in counters)


def source_name(tables: TableDirectory, route: Route) -> str:
    """Give the full name of the table that a route is of."""
    table = tables.by_id(route.table_id)
    return f"table {route.table_id}" if table is None else table.full_name


def route_text(route: Route) -> str:
    """Give a route as ALTER TOPIC … ADD SOURCE writes it behind the table."""
    parts = [f"ON {route.op.upper()}"]
    if route.where is not None:
        parts.append(f"WHERE {route.where}")
    if route.partition_by:
        parts.append(f"PARTITION BY ({', '.join(route.partition_by)})")
    preview = f", preview = {route.preview_chars}" if route.preview_chars else ""
    parts.append(f"WITH (payload = '{route.payload}'{preview})")
    return " ".join(parts)


def _limit(value: int | None) -> str:
    return "no limit" if value is None else str(value)


def _group_row(shape: GroupShape) -> Row:
    members = ", ".join(f"{member.member} ({member.holds})" for member in shape.members)
    return (
        *(shape.group, shape.lag, shape.in_flight, shape.waiting, shape.missed, members or None),
        _latest(part.last_delivered_us for part in shape.partitions),
        _latest(part.last_acked_us for part in shape.partitions),
        shape.created_us,
    )


def _latest(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)
