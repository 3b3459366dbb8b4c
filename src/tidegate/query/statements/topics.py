"""The planner of statements about topics, and consumed messages as rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Table
from tidegate.query.duckdb.result import QueryAnswer
from tidegate.query.statements.parameters import BoundParameters
from tidegate.query.statements.show import TopicShowPlanner
from tidegate.query.statements.topic_ddl import TopicDdlPlanner
from tidegate.query.statements.topic_messages import TopicMessagePlanner
from tidegate.query.step import Caller, StatementKind, StatementResult, Step, check_params, result_of_answer
from tidegate.query.topic_access import TopicAccess
from tidegate.sql import statements as sql
from tidegate.storage.group_commit import Staging
from tidegate.tables.definitions import TableDirectory

_TEXT, _INT, _BIGINT = ColumnType.TEXT, ColumnType.INT, ColumnType.BIGINT
# What statements are counted as; the others are definitions.
_KINDS: Mapping[type[sql.TopicStatement], StatementKind] = {
    **dict.fromkeys((sql.ShowTopics, sql.DescribeTopic, sql.ShowGroups), "show"),
    **dict.fromkeys((sql.Ack, sql.Nack, sql.Extend), "ack"),
    sql.Consume: "consume",
    sql.Publish: "publish",
}
# The columns of CONSUME.
CONSUMED: Mapping[str, ColumnType] = {
    **{"topic": _TEXT, "partition": _INT, "offset": _BIGINT, "message_id": _BIGINT, "lease": _TEXT},
    **{"deliveries": _INT, "op": _TEXT, "ts": ColumnType.TIMESTAMP, "source": _TEXT, "user": _TEXT},
    **{"payload_mode": _TEXT, "key": _TEXT, "payload": ColumnType.JSON},
}
_ARROW = {_TEXT: pa.string(), _INT: pa.int32(), _BIGINT: pa.int64()}


class TopicStatements:
    """Plans statements about topics; any thread may ask.

    `published` is called with the tenant and how many messages a PUBLISH stored; `rows_of` returns how many
    rows a table has.
    """

    def __init__(
        self,
        topics: TopicAccess,
        tables: TableDirectory,
        published: Callable[[str, int], None] = lambda _tenant, _count: None,
        rows_of: Callable[[Table], int] = lambda _table: 0,
    ) -> None:
        defining, showing = TopicDdlPlanner(topics, tables, rows_of), TopicShowPlanner(topics, tables)
        messages = TopicMessagePlanner(topics, published)
        self._defining = defining
        self._plans: dict[type[sql.TopicStatement], Callable[[Any, BoundParameters, Caller], Step]] = {
            sql.CreateTopic: defining.create,
            sql.AddSource: defining.add_source,
            sql.DropSource: defining.drop_source,
            sql.SetRetention: defining.set_retention,
            sql.SetPartitions: defining.set_partitions,
            sql.DropTopic: defining.drop,
            sql.ClearTopic: defining.clear,
            sql.ResetGroup: defining.reset,
            sql.DropGroup: defining.drop_group,
            sql.ShowTopics: showing.show_topics,
            sql.DescribeTopic: showing.describe,
            sql.ShowGroups: showing.show_groups,
            sql.Publish: messages.publish,
            sql.Consume: messages.consume,
            sql.Ack: messages.ack,
            sql.Nack: messages.nack,
            sql.Extend: messages.extend,
        }

    def step(self, statement: sql.TopicStatement, params: Sequence[Any], caller: Caller) -> Step:
        """Plan one statement; Forbidden where the caller may not run it."""
        check_params(statement.parameter_count, params)
        return self._plans[type(statement)](statement, BoundParameters(params), caller)

    def stage_drop_routes(self, staging: Staging, table: Table) -> list[str]:
        """Drop the routes of a dropped table, and return a warning for each topic that it fed."""
        return self._defining.stage_drop_routes(staging, table)


def topic_kind(statement: sql.TopicStatement) -> StatementKind:
    """Return the kind under which a statement about topics is counted."""
    return _KINDS.get(type(statement), "ddl")


def consumed_result(table: pa.Table, missed: Mapping[int, int], topic: str | None = None) -> StatementResult:
    """Return messages as rows; `table` has the columns of MESSAGE_SCHEMA, with a group lease and deliveries.

    `topic` is its name, where the table has no column of it. What retention took from a group before it came
    to it is a warning.
    """
    arrays = []
    for name, kind in CONSUMED.items():
        if name in table.column_names:
            arrays.append(table.column(name))
        else:
            value = topic if name == "topic" else None
            arrays.append(pa.repeat(pa.scalar(value, _ARROW[kind]), table.num_rows))
    rows = pa.table(arrays, names=list(CONSUMED))
    warnings = [
        f"Partition {partition}: {count} messages are missed: they were removed before the group read them."
        for partition, count in sorted(missed.items())
        if count
    ]
    return result_of_answer(QueryAnswer(rows, [str(kind) for kind in CONSUMED.values()], warnings))
