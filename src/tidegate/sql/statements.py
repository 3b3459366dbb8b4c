"""Parsed statements: what `parse` returns.

They are frozen, and independent of the text. Names are folded to small letters unless they are quoted. A
position is an offset in the whole text that was parsed. Parameters are numbered from 1 within their
statement; `?` takes the next number. The SQL of a fragment is DuckDB's, with its parameters written $n.

In statements about topics, a value that may be bound beside the text is a Param, or else what it has to be: a
text, a whole number, a duration, a time in microseconds. The text is checked by the parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal as OneOf
from typing import TypeAlias

import msgspec

from tidegate.model.durations import Duration
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import DefaultKind, TableKind

Option: TypeAlias = bool | int | float | str


# Structs, not dataclasses: a statement holds thousands, and structs are made several times faster.
class Literal(msgspec.Struct, frozen=True, gc=False):
    """A constant: 1 is an int, 1.5 a Decimal, 1e3 a float, X'00' bytes; TIMESTAMP '…', DATE '…' are text."""

    value: bool | int | float | Decimal | str | bytes | None


class Param(msgspec.Struct, frozen=True, gc=False):
    """A value that is passed as a parameter."""

    number: int


class FunctionCall(msgspec.Struct, frozen=True, gc=False):
    """NOW(), SNOWFLAKE_ID() or UUID_V7()."""

    kind: DefaultKind


class UseDefault(msgspec.Struct, frozen=True, gc=False):
    """The word DEFAULT in a list of values."""


USE_DEFAULT = UseDefault()

Simple: TypeAlias = Literal | Param | FunctionCall
Cell: TypeAlias = Literal | Param | FunctionCall | UseDefault


@dataclass(frozen=True, slots=True)
class Fragment:
    """An expression or a query; `simple` when it is nothing but a constant, a parameter or a call."""

    sql: str
    params: tuple[int, ...]
    simple: Simple | None
    position: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as a statement names it; the names are checked where the table is looked up."""

    namespace: str
    name: str
    position: int = field(default=0, compare=False)

    @property
    def full_name(self) -> str:
        """The name as statements write it."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column as CREATE TABLE and ALTER TABLE define it; one of the primary key is required."""

    name: str
    type: ColumnType
    required: bool
    default: Fragment | None
    position: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Where:
    """A condition; `equals` when it is nothing but `column = simple AND column = simple …`."""

    fragment: Fragment
    equals: Mapping[str, Simple] | None


@dataclass(frozen=True, slots=True)
class Point:
    """A SELECT of plain columns (None: all) of one table by equality; `equals` is empty only with LAST."""

    table: TableName
    columns: tuple[str, ...] | None
    equals: Mapping[str, Simple]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The base of all statements: position and text (without the semicolon), and the number of parameters."""

    position: int = 0
    text: str = ""
    parameter_count: int = 0


@dataclass(frozen=True, slots=True)
class CreateNamespace(Statement):
    """CREATE NAMESPACE [IF NOT EXISTS] name."""

    name: str
    if_not_exists: bool


@dataclass(frozen=True, slots=True)
class DropNamespace(Statement):
    """DROP NAMESPACE [IF EXISTS] name."""

    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class CreateTable(Statement):
    """CREATE USER|SHARED|STREAM TABLE; `primary_key` is empty where none is written."""

    table: TableName
    kind: TableKind
    if_not_exists: bool
    columns: tuple[ColumnSpec, ...]
    primary_key: tuple[str, ...]
    options: Mapping[str, Option]


@dataclass(frozen=True, slots=True)
class AlterAddColumn(Statement):
    """ALTER TABLE … ADD COLUMN …."""

    table: TableName
    column: ColumnSpec
    if_not_exists: bool


@dataclass(frozen=True, slots=True)
class AlterSet(Statement):
    """ALTER TABLE … SET (option = value, …)."""

    table: TableName
    options: Mapping[str, Option]


@dataclass(frozen=True, slots=True)
class DropTable(Statement):
    """DROP TABLE [IF EXISTS] …."""

    table: TableName
    if_exists: bool


@dataclass(frozen=True, slots=True)
class CreateIndex(Statement):
    """CREATE INDEX [IF NOT EXISTS] name ON … (column, …)."""

    name: str
    table: TableName
    columns: tuple[str, ...]
    if_not_exists: bool


@dataclass(frozen=True, slots=True)
class DropIndex(Statement):
    """DROP INDEX [IF EXISTS] name ON …."""

    name: str
    table: TableName
    if_exists: bool


@dataclass(frozen=True, slots=True)
class ShowTables(Statement):
    """SHOW TABLES [IN namespace]."""

    namespace: str | None


@dataclass(frozen=True, slots=True)
class ShowNamespaces(Statement):
    """SHOW NAMESPACES."""


@dataclass(frozen=True, slots=True)
class DescribeTable(Statement):
    """DESCRIBE [TABLE] …."""

    table: TableName


@dataclass(frozen=True, slots=True)
class Insert(Statement):
    """INSERT or UPSERT INTO …; at most one of `rows`, `fragments` and `query` is there.

    `rows` where every value is simple, `fragments` where one is an expression. Where none of the three is
    there, the rows come beside the text. `sources` are the tables that the query names.
    """

    table: TableName
    columns: tuple[str, ...] | None
    rows: tuple[tuple[Cell, ...], ...] | None
    fragments: tuple[tuple[Fragment | UseDefault, ...], ...] | None
    query: Fragment | None
    upsert: bool
    sources: tuple[TableName, ...] = ()


@dataclass(frozen=True, slots=True)
class Update(Statement):
    """UPDATE … SET column = expression, … [WHERE …]."""

    table: TableName
    assignments: tuple[tuple[str, Fragment], ...]
    where: Where | None


@dataclass(frozen=True, slots=True)
class Delete(Statement):
    """DELETE FROM … [WHERE …]."""

    table: TableName
    where: Where | None


@dataclass(frozen=True, slots=True)
class Select(Statement):
    """A query; `query` is its SQL, with LAST n written as ORDER BY and LIMIT.

    `last_alone`: only n rows of the one table need be read. `tables` are the names behind FROM and JOIN, as
    far as they can be seen without binding the query.
    """

    query: Fragment
    last: Simple | None
    last_alone: bool
    point: Point | None
    tables: tuple[TableName, ...]


@dataclass(frozen=True, slots=True)
class Explain(Statement):
    """EXPLAIN of a Select, Update or Delete."""

    statement: Statement


@dataclass(frozen=True, slots=True)
class ExecuteAs(Statement):
    """EXECUTE AS 'user' (statement)."""

    user: str
    statement: Statement


Text: TypeAlias = str | Param
Number: TypeAlias = int | Param
DurationValue: TypeAlias = Duration | Param

StartKind = OneOf["earliest", "latest", "offset", "after", "timestamp"]


@dataclass(frozen=True, slots=True)
class TopicName:
    """A topic as a statement names it; the name is checked where the topic is looked up."""

    name: str
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class StartAt:
    """A position in a log: one of its ends, an offset, the one after it, or a time in microseconds."""

    kind: StartKind
    value: Number = 0


@dataclass(frozen=True, slots=True)
class TopicStatement(Statement):
    """The base of statements about topics."""


@dataclass(frozen=True, slots=True)
class CreateTopic(TopicStatement):
    """CREATE TOPIC [IF NOT EXISTS] …; `retention` has the limits that are named.

    Their names are seconds, max_bytes and dedup_seconds.
    """

    topic: TopicName
    if_not_exists: bool
    partitions: int
    retention: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class AddSource(TopicStatement):
    """ALTER TOPIC … ADD SOURCE table ON …; `partition_by` is empty where the primary key decides."""

    topic: TopicName
    table: TableName
    operations: tuple[str, ...]
    where: Fragment | None
    partition_by: tuple[str, ...]
    payload: str
    preview_chars: int


@dataclass(frozen=True, slots=True)
class DropSource(TopicStatement):
    """ALTER TOPIC … DROP SOURCE table [ON …]; `operations` is empty where all go."""

    topic: TopicName
    table: TableName
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetRetention(TopicStatement):
    """ALTER TOPIC … SET RETENTION …, or SET (…): only the limits that are named change; None is no limit."""

    topic: TopicName
    retention: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class SetPartitions(TopicStatement):
    """ALTER TOPIC … SET PARTITIONS n, or ADD PARTITIONS n where `more`."""

    topic: TopicName
    count: int
    more: bool


@dataclass(frozen=True, slots=True)
class DropTopic(TopicStatement):
    """DROP TOPIC [IF EXISTS] …."""

    topic: TopicName
    if_exists: bool


@dataclass(frozen=True, slots=True)
class ClearTopic(TopicStatement):
    """CLEAR TOPIC …."""

    topic: TopicName


@dataclass(frozen=True, slots=True)
class ShowTopics(TopicStatement):
    """SHOW TOPICS."""


@dataclass(frozen=True, slots=True)
class DescribeTopic(TopicStatement):
    """DESCRIBE TOPIC …."""

    topic: TopicName


@dataclass(frozen=True, slots=True)
class ShowGroups(TopicStatement):
    """SHOW CONSUMER GROUPS ON …."""

    topic: TopicName


@dataclass(frozen=True, slots=True)
class DropGroup(TopicStatement):
    """DROP CONSUMER GROUP [IF EXISTS] 'g' ON …."""

    group: Text
    topic: TopicName
    if_exists: bool


@dataclass(frozen=True, slots=True)
class ResetGroup(TopicStatement):
    """RESET CONSUMER GROUP 'g' ON … [PARTITION n] TO …."""

    group: Text
    topic: TopicName
    partition: Number | None
    start: StartAt


@dataclass(frozen=True, slots=True)
class Consume(TopicStatement):
    """CONSUME FROM …; a clause that is not written is None."""

    topic: TopicName
    group: Text | None
    member: Text | None
    partition: Number | None
    start: StartAt | None
    limit: Number | None
    wait: DurationValue | None
    lease: DurationValue | None


@dataclass(frozen=True, slots=True)
class Upto:
    """The offset up to which a partition is acknowledged; `partition` is None where it is not written."""

    partition: Number | None
    offset: Number


@dataclass(frozen=True, slots=True)
class Ack(TopicStatement):
    """ACK … UPTO …, or ACK … LEASES (…): one of `upto` and `leases` is empty."""

    topic: TopicName
    group: Text
    member: Text | None
    upto: tuple[Upto, ...]
    leases: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class Nack(TopicStatement):
    """NACK … LEASES (…) [DELAY '5 s' | DEAD] [REASON '…']."""

    topic: TopicName
    group: Text
    member: Text | None
    leases: tuple[Text, ...]
    delay: DurationValue | None
    reason: Text | None
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Extend(TopicStatement):
    """EXTEND … LEASES (…) [LEASE '30 s']."""

    topic: TopicName
    group: Text
    member: Text | None
    leases: tuple[Text, ...]
    lease: DurationValue | None


@dataclass(frozen=True, slots=True)
class Publish(TopicStatement):
    """PUBLISH INTO … VALUES (json), …; a payload in the text is JSON text, a bound one may be any value."""

    topic: TopicName
    key: Text | None
    partition: Number | None
    producer: Text | None
    sequence: Number | None
    payloads: tuple[Literal | Param, ...]
    # One for each payload, or none at all.
    dedup_keys: tuple[Text, ...] = ()
