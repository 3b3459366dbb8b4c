"""The planner of SHOW and DESCRIBE, for tables and for topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tidegate.errors import NamespaceNotFound, TableNotFound
from tidegate.model.access import Operation
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import DefaultKind, Row, Table, TableColumn
from tidegate.model.times import format_time
from tidegate.query.scans.system import SYSTEM_SCHEMAS
from tidegate.query.scans.system_topics import source_name, stored_size
from tidegate.query.statements.parameters import BoundParameters
from tidegate.query.step import Caller, StatementResult, Step, result_of_rows
from tidegate.query.topic_access import TopicAccess
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
from tidegate.topics.groups.types import GroupDescription
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


class ShowPlanner:
    """Plans statements that show tables; any thread may ask."""

    def __init__(self, tables: TableDirectory, lake_names: Callable[[str], Sequence[str]]) -> None:
        self._tables = tables
        self._lake_names = lake_names

    def show_tables(self, statement: ShowTables, caller: Caller) -> Step:
        """Plan SHOW TABLES: those of namespaces and those of the lake."""
        caller.check(Operation.TABLE_LIST)

        def work() -> StatementResult:
            namespace = statement.namespace
            if namespace not in (None, "lake") and namespace not in self._tables.namespaces(caller.tenant):
                raise NamespaceNotFound(namespace=namespace)
            rows: list[Row] = [
                (table.namespace, table.name, str(table.kind)) for table in self._tables.of(caller.tenant)
            ]
            rows += [("lake", name, "LAKE") for name in self._lake_names(caller.tenant)]
            chosen = [row for row in rows if namespace in (None, row[0])]
            return result_of_rows([("namespace", _TEXT), ("table", _TEXT), ("kind", _TEXT)], sorted(chosen))

        return Step("show", work=work, is_short=True)

    def show_namespaces(self, caller: Caller) -> Step:
        """Plan SHOW NAMESPACES."""
        caller.check(Operation.TABLE_LIST)

        def work() -> StatementResult:
            tables = self._tables.of(caller.tenant)
            rows: list[Row] = [
                (name, sum(table.namespace == name for table in tables))
                for name in self._tables.namespaces(caller.tenant)
            ]
            return result_of_rows([("namespace", _TEXT), ("tables", ColumnType.BIGINT)], rows)

        return Step("show", work=work, is_short=True)

    def describe(self, statement: DescribeTable, caller: Caller) -> Step:
        """Plan DESCRIBE TABLE of a table in a namespace, or of a system table."""
        caller.check(Operation.TABLE_LIST)
        return Step("show", work=lambda: self._described(statement.table, caller), is_short=True)

    def _described(self, name: TableName, caller: Caller) -> StatementResult:
        if name.namespace == "system":
            if name.name not in SYSTEM_SCHEMAS:
                known = ", ".join(f"system.{known}" for known in SYSTEM_SCHEMAS)
                raise TableNotFound(table=name.full_name, known=known)
            kinds = SYSTEM_SCHEMAS[name.name]
            return result_of_rows(
                DESCRIBED, [(name, str(kind), False, None, False, None) for name, kind in kinds.items()]
            )
        table = self._tables.get(caller.tenant, name.namespace, name.name)
        return result_of_rows(DESCRIBED, [_described(table, column) for column in table.columns])


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


class TopicShowPlanner:
    """Plans statements that show topics; any thread may ask."""

    def __init__(self, topics: TopicAccess, tables: TableDirectory) -> None:
        self._topics = topics
        self._tables = tables

    def show_topics(self, _: ShowTopics, _bound: BoundParameters, caller: Caller) -> Step:
        """Plan SHOW TOPICS."""
        caller.check(Operation.TOPIC_LIST)

        def work() -> StatementResult:
            return result_of_rows(
                _TOPICS, [self._listed(topic) for topic in self._topics.directory.of(caller.tenant)]
            )

        return Step("show", work=work, is_short=True)

    def _listed(self, topic: Topic) -> Row:
        messages, size_bytes = stored_size(self._topics, topic)
        names = dict.fromkeys(
            source_name(self._tables, route) for route in self._topics.routes.of_topic(topic.id)
        )
        return (
            *(topic.name, topic.partitions, messages, size_bytes),
            *(topic.retention_seconds, topic.retention_max_bytes, topic.dedup_seconds),
            ", ".join(names) or None,
        )

    def describe(self, statement: DescribeTopic, _bound: BoundParameters, caller: Caller) -> Step:
        """Plan DESCRIBE TOPIC: a row for each fact, partition, source and payload schema."""
        caller.check(Operation.TOPIC_SHOW)

        def work() -> StatementResult:
            topic = self._topics.directory.get(caller.tenant, statement.topic.name)
            return result_of_rows(_FACTS, self._facts(topic))

        return Step("show", work=work, is_short=True)

    def _facts(self, topic: Topic) -> list[Row]:
        messages, size_bytes = stored_size(self._topics, topic)
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

    def show_groups(self, statement: ShowGroups, _bound: BoundParameters, caller: Caller) -> Step:
        """Plan SHOW CONSUMER GROUPS."""
        caller.check(Operation.TOPIC_GROUPS)

        def work() -> StatementResult:
            topic = self._topics.directory.get(caller.tenant, statement.topic.name)
            return result_of_rows(
                _GROUPS, [_group_row(shape) for shape in self._topics.groups.describe(topic)]
            )

        return Step("show", work=work, is_short=True)


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


def _group_row(shape: GroupDescription) -> Row:
    members = ", ".join(f"{member.member} ({member.holds})" for member in shape.members)
    return (
        *(shape.group, shape.lag, shape.in_flight, shape.waiting, shape.missed, members or None),
        _latest(part.last_delivered_us for part in shape.partitions),
        _latest(part.last_acked_us for part in shape.partitions),
        shape.created_us,
    )


def _latest(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)
