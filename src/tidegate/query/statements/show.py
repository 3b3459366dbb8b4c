"""SHOW and DESCRIBE: takes a parsed statement, gives the step that tells what tables there are.

SHOW TOPICS, DESCRIBE TOPIC, SHOW CONSUMER GROUPS: gives the steps that tell what topics there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tidegate.errors import NamespaceNotFound, TableNotFound
from tidegate.model.access import Operation
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import DefaultKind, Row, Table, TableColumn
from tidegate.model.timeranges import format_time
from tidegate.query.scans.system import SYSTEM_SCHEMAS
from tidegate.query.statements.parameters import Bound
from tidegate.query.statements.topic_access import TopicParts
from tidegate.query.step import Caller, Outcome, Step, found
from tidegate.sql.statements import (
    DescribeTable,
    DescribeTopic,
    ShowGroups,
    ShowTables,
    ShowTopics,
    TableName,
)
from tidegate.tables.definitions import TableDirectory
from tidegate.topics.definitions import Topic
from tidegate.topics.groups.types import GroupShape
from tidegate.topics.routes import Route

_TEXT, _BOOLEAN, _INT = ColumnType.TEXT, ColumnType.BOOLEAN, ColumnType.INT
_BIGINT, _TIME = ColumnType.BIGINT, ColumnType.TIMESTAMP
# The columns of DESCRIBE TABLE.
DESCRIBED = [
    ("column", _TEXT),
    ("type", _TEXT),
    ("required", _BOOLEAN),
    ("default", _TEXT),
    ("key", _BOOLEAN),
    ("indexes", _TEXT),
]


class Showing:
    """Plans statements that tell of tables; any thread may ask."""

    def __init__(self, tables: TableDirectory, lake_names: Callable[[str], Sequence[str]]) -> None:
        self._tables = tables
        self._lake_names = lake_names

    def show_tables(self, statement: ShowTables, caller: Caller) -> Step:
        """Plan SHOW TABLES: our own and those of the lake."""
        caller.check(Operation.TABLE_LIST)

        def work() -> Outcome:
            namespace = statement.namespace
            if namespace not in (None, "lake") and namespace not in self._tables.namespaces(caller.tenant):
                raise NamespaceNotFound(namespace=namespace)
            rows: list[Row] = [
                (table.namespace, table.name, str(table.kind)) for table in self._tables.of(caller.tenant)
            ]
            rows += [("lake", name, "LAKE") for name in self._lake_names(caller.tenant)]
            chosen = [row for row in rows if namespace in (None, row[0])]
            return found([("namespace", _TEXT), ("table", _TEXT), ("kind", _TEXT)], sorted(chosen))

        return Step("show", work=work, is_short=True)

    def show_namespaces(self, caller: Caller) -> Step:
        """Plan SHOW NAMESPACES."""
        caller.check(Operation.TABLE_LIST)

        def work() -> Outcome:
            tables = self._tables.of(caller.tenant)
            rows: list[Row] = [
                (name, sum(table.namespace == name for table in tables))
                for name in self._tables.namespaces(caller.tenant)
            ]
            return found([("namespace", _TEXT), ("tables", ColumnType.BIGINT)], rows)

        return Step("show", work=work, is_short=True)

    def describe(self, statement: DescribeTable, caller: Caller) -> Step:
        """Plan DESCRIBE TABLE of one of our own tables, or of a system table."""
        caller.check(Operation.TABLE_LIST)
        return Step("show", work=lambda: self._described(statement.table, caller), is_short=True)

    def _described(self, name: TableName, caller: Caller) -> Outcome:
        if name.namespace == "system":
            if name.name not in SYSTEM_SCHEMAS:
                known = ", ".join(f"system.{known}" for known in SYSTEM_SCHEMAS)
                raise TableNotFound(table=name.full_name, known=known)
            kinds = SYSTEM_SCHEMAS[name.name]
            return found(
                DESCRIBED, [(name, str(kind), False, None, False, None) for name, kind in kinds.items()]
            )
        table = self._tables.get(caller.tenant, name.namespace, name.name)
        return found(DESCRIBED, [_described(table, column) for column in table.columns])


def _described(table: Table, column: TableColumn) -> Row:
    default = column.default
    text = None
    if default is not None:
        text = str(default.value) if default.kind == DefaultKind.VALUE else f"{default.kind.upper()}()"
    names = [index.name for index in table.indexes if column.name in index.columns]
    is_key = column.name in table.primary_key
    return (column.name, column.type_text, column.required, text, is_key, ", ".join(names) or None)


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
    """Return how many messages a topic holds, and their bytes."""
    counters = [topics.log.counters(topic, number) for number in range(topic.partitions)]
    return sum(held.end - held.start for held in counters), sum(held.stored_bytes for held in counters)


def source_name(tables: TableDirectory, route: Route) -> str:
    """Return the full name of the table that a route is of."""
    table = tables.by_id(route.table_id)
    return f"table {route.table_id}" if table is None else table.full_name


def route_text(route: Route) -> str:
    """Return a route as ALTER TOPIC … ADD SOURCE writes it behind the table."""
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
