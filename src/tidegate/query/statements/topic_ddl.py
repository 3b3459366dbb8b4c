"""The planner of CREATE, ALTER, DROP, CLEAR and RESET for topics and consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, get_args

from tidegate.errors import (
    GroupNotFound,
    InvariantBroken,
    NamespaceNotFound,
    RouteCycle,
    SqlUnsupported,
    TableNotFound,
    TopicExists,
    TopicNotFound,
)
from tidegate.ingest.change_feed import check_route
from tidegate.model.access import Operation
from tidegate.model.changes import Op
from tidegate.model.names import TOPIC_NAME_CHARS_MAX, check_topic_name
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Table
from tidegate.query.statements.parameters import BoundParameters
from tidegate.query.step import Caller, Errors, StatementResult, Step, definition_step, result_of_rows
from tidegate.query.topic_access import TopicAccess
from tidegate.sql.statements import (
    AddSource,
    ClearTopic,
    CreateTopic,
    DropGroup,
    DropSource,
    DropTopic,
    ResetGroup,
    SetPartitions,
    SetRetention,
    TableName,
    TopicName,
)
from tidegate.storage.group_commit import Staging
from tidegate.tables.definitions import TableDirectory
from tidegate.topics.definitions import Retention, Topic, order_notice
from tidegate.topics.routes import Payload, Route

SUBJECT_CHARS_MAX = 2 * TOPIC_NAME_CHARS_MAX  # of a name in the audit trail
_INT, _BIGINT = ColumnType.INT, ColumnType.BIGINT
T = TypeVar("T")


class TopicDdlPlanner:
    """Plans statements that make, change and drop topics; any thread may ask."""

    def __init__(self, topics: TopicAccess, tables: TableDirectory, rows_of: Callable[[Table], int]) -> None:
        self._topics = topics
        self._tables = tables
        self._rows_of = rows_of

    def create(self, statement: CreateTopic, _bound: BoundParameters, caller: Caller) -> Step:
        """Plan CREATE TOPIC."""
        caller.check(Operation.TOPIC_CREATE)
        retention = _changed(Retention(), statement.retention)
        name, partitions = check_topic_name(statement.topic.name), statement.partitions

        def change(staging: Staging) -> StatementResult:
            now_us, directory = self._topics.clock.now_us(), self._topics.directory
            try:
                directory.stage_create(staging, caller.tenant, name, partitions, now_us, retention)
            except TopicExists as problem:
                if not statement.if_not_exists:
                    raise
                there = directory.get(caller.tenant, name)
                same = there.partitions == partitions and there.retention == retention
                return StatementResult(warnings=() if same else [f"{problem.message} It stays as it is."])
            return StatementResult()

        return self._change(change, Operation.TOPIC_CREATE, statement.topic, lambda result: result)

    def add_source(self, statement: AddSource, _bound: BoundParameters, caller: Caller) -> Step:
        """Plan ALTER TOPIC … ADD SOURCE."""
        caller.check(Operation.TOPIC_CHANGE)
        where = None if statement.where is None else statement.where.sql
        # Checked once before it is staged: compiling a WHERE must not delay the committer.
        checked = self._source(statement.table, caller)
        checked_columns = check_route(checked, where, statement.partition_by, statement.payload)

        def change(staging: Staging) -> None:
            topic = self._get(statement.topic, caller)
            table = self._source(statement.table, caller)
            columns = checked_columns
            if table is not checked:  # it was changed, or created again, since
                columns = check_route(table, where, statement.partition_by, statement.payload)
            now_us = self._topics.clock.now_us()
            for op in _ops(statement.operations):
                route = Route(
                    topic.id,
                    table.id,
                    op,
                    where,
                    columns,
                    _payload(statement.payload),
                    statement.preview_chars,
                    now_us,
                )
                self._topics.routes.stage_add(staging, topic, table, route)

        def warn(_done: None) -> StatementResult:
            count, name = self._rows_of(checked), checked.full_name
            if not count:
                return StatementResult()
            again = f"UPSERT INTO {name} SELECT * FROM {name}"  # noqa: S608 - for people to read
            reason = f"The {count} rows that '{name}' has already are not sent. With ON UPDATE and payload "
            return StatementResult(warnings=[f"{reason}'full' or 'key', {again} sends them as updates."])

        return self._change(change, Operation.TOPIC_CHANGE, statement.topic, warn)

    def _source(self, name: TableName, caller: Caller) -> Table:
        """Return the table that feeds a topic, or raise why there is none."""
        if name.namespace in ("lake", "system"):
            raise SqlUnsupported(
                reason=f"Tables of {name.namespace} cannot feed a topic.",
                hint="A source is a USER or SHARED table. A pipeline can write its rows into a topic.",
            )
        try:
            return self._tables.get(caller.tenant, name.namespace, name.name)
        except (TableNotFound, NamespaceNotFound):
            if any(topic.name == name.full_name for topic in self._topics.directory.of(caller.tenant)):
                raise RouteCycle(source=name.full_name) from None
            raise

    def drop_source(self, statement: DropSource, _bound: BoundParameters, caller: Caller) -> Step:
        """Plan ALTER TOPIC … DROP SOURCE."""
        caller.check(Operation.TOPIC_CHANGE)
        ops = _ops(statement.operations) or None

        def change(staging: Staging) -> None:
            topic = self._get(statement.topic, caller)
            table = self._source(statement.table, caller)
            self._topics.routes.stage_drop(staging, topic, table, ops)

        return self._change(change, Operation.TOPIC_CHANGE, statement.topic)

    def set_retention(self, statement: SetRetention, _bound: BoundParameters, caller: Caller) -> Step:
        """Plan ALTER TOPIC … SET RETENTION; limits that are not named stay."""
        caller.check(Operation.TOPIC_CHANGE)
        _changed(Retention(), statement.retention)  # refuses what no topic can have

        def change(staging: Staging) -> None:
            topic = self._get(statement.topic, caller)
            retention = _changed(topic.retention, statement.retention)
            self._topics.stage_change(staging, topic, None, retention)
            staging.close_group()  # the next change has to see this one

        return self._change(change, Operation.TOPIC_CHANGE, statement.topic)

    def set_partitions(self, statement: SetPartitions, _bound: BoundParameters, caller: Caller) -> Step:
        """Plan ALTER TOPIC … ADD PARTITIONS or SET PARTITIONS; a warning says what it does to order."""
        caller.check(Operation.TOPIC_CHANGE)

        def change(staging: Staging) -> tuple[Topic, Topic]:
            before = self._get(statement.topic, caller)
            count = before.partitions + statement.count if statement.more else statement.count
            after = self._topics.stage_change(staging, before, count, None)
            staging.close_group()  # the next change has to see this one
            return before, after

        def warn(changed: tuple[Topic, Topic]) -> StatementResult:
            before, after = changed
            if after.partitions == before.partitions:
                return StatementResult(
                    warnings=[f"Topic '{after.name}' has {after.partitions} partitions already."]
                )
            return StatementResult(warnings=[order_notice(after.name, before.partitions, after.partitions)])

        return self._change(change, Operation.TOPIC_CHANGE, statement.topic, warn)

    def drop(self, statement: DropTopic, _bound: BoundParameters, caller: Caller) -> Step:
        """Plan DROP TOPIC."""
        caller.check(Operation.TOPIC_DELETE)
        return self._change(
            lambda staging: self._topics.stage_delete(staging, caller.tenant, statement.topic.name),
            Operation.TOPIC_DELETE,
            statement.topic,
            allowed=TopicNotFound if statement.if_exists else (),
        )

    def clear(self, statement: ClearTopic, _bound: BoundParameters, caller: Caller) -> Step:
        """Plan CLEAR TOPIC."""
        caller.check(Operation.TOPIC_CLEAR)
        return self._change(
            lambda staging: self._topics.stage_clear(staging, self._get(statement.topic, caller)),
            Operation.TOPIC_CLEAR,
            statement.topic,
            lambda cleared: result_of_rows([("cleared", _BIGINT)], [(cleared,)]),
        )

    def reset(self, statement: ResetGroup, bound: BoundParameters, caller: Caller) -> Step:
        """Plan RESET CONSUMER GROUP."""
        caller.check(Operation.TOPIC_RESET)
        group = bound.text(statement.group, "GROUP")
        start = bound.start(statement.start)
        partition = bound.optional_number(statement.partition, "PARTITION")

        def change(staging: Staging) -> dict[int, int]:
            topic = self._get(statement.topic, caller)
            if start.kind in ("offset", "after") and partition is None and topic.partitions > 1:
                raise SqlUnsupported(
                    reason=f"Topic '{topic.name}' has {topic.partitions} partitions: an offset is of one.",
                    hint=f"Say which: RESET CONSUMER GROUP … PARTITION n TO {start.kind.upper()} n.",
                )
            return self._topics.groups.stage_reset(staging, topic, group, start, partition)

        def show(positions: dict[int, int]) -> StatementResult:
            return result_of_rows([("partition", _INT), ("position", _BIGINT)], sorted(positions.items()))

        return self._change(change, Operation.TOPIC_RESET, statement.topic, show)

    def drop_group(self, statement: DropGroup, bound: BoundParameters, caller: Caller) -> Step:
        """Plan DROP CONSUMER GROUP."""
        caller.check(Operation.TOPIC_RESET)
        group = bound.text(statement.group, "GROUP")

        def change(staging: Staging) -> None:
            self._topics.groups.stage_delete(staging, self._get(statement.topic, caller), group)

        allowed = GroupNotFound if statement.if_exists else ()
        return self._change(change, Operation.TOPIC_RESET, statement.topic, allowed=allowed)

    def stage_drop_routes(self, staging: Staging, table: Table) -> list[str]:
        """Drop the routes of a dropped table, and return a warning for each topic that it fed."""
        dropped = self._topics.routes.stage_drop_table(staging, table)
        ops: dict[int, list[str]] = {}
        for route in dropped:
            ops.setdefault(route.topic_id, []).append(route.op.upper())
        warnings = []
        for topic_id, words in ops.items():
            topic = self._topics.directory.by_id(topic_id)
            if topic is not None:
                warnings.append(
                    f"Topic '{topic.name}' has no source '{table.full_name}' any more "
                    f"({', '.join(words)}); its messages stay."
                )
        return warnings

    def _get(self, name: TopicName, caller: Caller) -> Topic:
        return self._topics.directory.get(caller.tenant, name.name)

    def _change(
        self,
        change: Callable[[Staging], T],
        operation: Operation,
        topic: TopicName,
        then: Callable[[T], StatementResult] | None = None,
        *,
        allowed: Errors = (),
    ) -> Step:
        # A name that is too long for any topic is shortened for the audit trail.
        audit = (operation, f"topic/{topic.name[:SUBJECT_CHARS_MAX]}")
        return definition_step(self._topics.committer, change, audit, then, allowed=allowed, is_short=True)


def _changed(retention: Retention, named: Mapping[str, int | None]) -> Retention:
    return Retention(
        named.get("seconds", retention.seconds),
        named.get("max_bytes", retention.max_bytes),
        named.get("dedup_seconds", retention.dedup_seconds),
    )


def _ops(words: tuple[str, ...]) -> list[Op]:
    known: tuple[Op, ...] = get_args(Op)
    return [op for word in words for op in known if op == word]


def _payload(word: str) -> Payload:
    known: tuple[Payload, ...] = get_args(Payload)
    for payload in known:
        if payload == word:
            return payload
    raise InvariantBroken(reason=f"payload '{word}' was read and is not known")
