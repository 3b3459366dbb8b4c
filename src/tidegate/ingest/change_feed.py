"""Change feeds: the messages that routes write for the changes of a statement.

The messages are in the write batch of the rows: after a crash a row and its message are both there or neither
is. A statement's changes keep their order in every partition.

A message's key is the text of the columns that decide its partition: those of PARTITION BY, else the primary
key, with the user in front in a USER table. One column is written as JSON without quotes, several as a JSON
array.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from tidegate.errors import SqlInvalid, SqlUnsupported, TidegateError
from tidegate.model.changes import Change, Changes, InsertedRows, Op
from tidegate.model.clock import Clock
from tidegate.model.names import shorten
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row, Table, TableKind, Value
from tidegate.model.values import json_column
from tidegate.sql.expressions.compile import LiveFilter, RowColumns, compile_filter
from tidegate.storage.group_commit import Staging
from tidegate.tables.validation import KEY_COLUMNS_MAX, column_position
from tidegate.topics.definitions import Topic, TopicDirectory
from tidegate.topics.log.protocol import MessageLog
from tidegate.topics.log.record_batch import Origin
from tidegate.topics.payload_schemas import PayloadSchemas
from tidegate.topics.payloads import CODECS, DiffEncoder, encode_full, encode_keys, preview_texts
from tidegate.topics.routes import Route, RouteDirectory

USER_COLUMN = "_user"
# It is compiled for every route, sometimes on the committer's thread, where all writers wait.
WHERE_CHARS_MAX = 4_000
_SOURCE_WORDS = (
    ("the WHERE of a source does", re.compile(r"\blive queries do\b", re.IGNORECASE)),
    ("this source", re.compile(r"\bthis live query\b", re.IGNORECASE)),
    ("the WHERE of a source", re.compile(r"\b(a|the) live query\b", re.IGNORECASE)),
    # A route has no parameters, and the positions are those of a generated text.
    ("Write it another way.", re.compile(r"\bBind a parameter\.")),
    ("", re.compile(r" \(line \d+, column \d+\)")),
)
_op: Callable[[Change], Op] = itemgetter(0)
_old: Callable[[Change], Any] = itemgetter(1)

_logger = logging.getLogger(__name__)


def check_route(
    table: Table, where: str | None, partition_by: Sequence[str], payload: str
) -> tuple[str, ...]:
    """Return the columns of PARTITION BY as the table spells them; raise an error for an invalid route."""
    if table.kind == TableKind.STREAM:
        reason = f"'{table.full_name}' is a STREAM table: its rows are in files, and cannot be one write with"
        raise SqlUnsupported(
            reason=f"{reason} their messages.", hint="Route a USER or SHARED table, or publish the messages."
        )
    if payload not in CODECS:
        raise SqlInvalid(reason=f"payload is 'key', 'full' or 'diff', not '{shorten(payload)}'.")
    if where is not None:
        _check_where(table, where)
    names = tuple(_spelled(table, name) for name in partition_by)
    if len(set(names)) < len(names):
        raise SqlInvalid(reason="PARTITION BY names a column twice.")
    if len(names) > KEY_COLUMNS_MAX:
        raise SqlInvalid(reason=f"PARTITION BY has {len(names)} columns, and {KEY_COLUMNS_MAX} is the most.")
    return names


def _check_where(table: Table, where: str) -> None:
    """Raise SqlInvalid or SqlUnsupported for a WHERE that no route can have."""
    if len(where) > WHERE_CHARS_MAX:
        reason = f"the WHERE of a source has {len(where):,} characters, and {WHERE_CHARS_MAX:,} is the most."
        raise SqlInvalid(reason=reason, hint="Send more rows, and let the reader choose; IN takes a list.")
    try:
        compile_filter(where, RowColumns(table.shown_columns), ())
    except (SqlInvalid, SqlUnsupported) as problem:
        reason = _about_source(str(problem.values["reason"]))
        raise type(problem)(reason=reason, hint=_about_source(problem.hint)) from problem


def _about_source(words: str) -> str:
    """Return an error text about live queries, which have the same language, in the terms of a source."""
    for ours, theirs in _SOURCE_WORDS:
        words = theirs.sub(ours, words)
    return words[:1].upper() + words[1:] if words.startswith("the WHERE") else words


class TopicRouter:
    """Writes the messages of changed rows. A Follower of the row writer, on the committer's thread."""

    def __init__(
        self,
        routes: RouteDirectory,
        schemas: PayloadSchemas,
        directory: TopicDirectory,
        log: MessageLog,
        clock: Clock,
    ) -> None:
        self._routes = routes
        self._schemas = schemas
        self._directory = directory
        self._log = log
        self._clock = clock
        # The compiled routes of each table, for as long as neither the routes nor the table change.
        self._plans: dict[int, _TablePlans] = {}
        # Rows that the WHERE of any route failed on since the server started; none of them was sent.
        self.fault_count = 0

    def wants(self, table: Table) -> bool:
        """True if any route has the table as its source."""
        return self._routes.feeds(table.id)

    def prepare(self, tables: Iterable[Table]) -> None:
        """Compile the routes of tables before the first write, so that no writer waits for it."""
        for table in tables:
            if self.wants(table):
                try:
                    self._plans_of(table)
                except TidegateError as problem:
                    _logger.error(
                        "route cannot be compiled, writes will be refused table=%s error=%s",
                        table.full_name,
                        problem,
                    )

    def stage(self, staging: Staging, changes: Changes) -> None:
        """Add the messages of a statement to its write batch."""
        for topic_id, by_op in self._plans_of(changes.table).by_topic.items():
            topic = self._directory.by_id(topic_id)
            # A topic that was deleted gets nothing, and the statement does not fail.
            if topic is not None:
                self._stage_topic(staging, topic, by_op, changes)

    def durable(self, changes: Changes) -> None:
        """Do nothing: the log notifies readers itself."""

    def _stage_topic(self, staging: Staging, topic: Topic, by_op: dict[Op, _Plan], changes: Changes) -> None:
        number = 0
        for op, run in _runs(changes.rows):
            plan = by_op.get(op)
            if plan is None:
                continue
            chosen = run if plan.filter is None else self._chosen(plan, run)
            if not chosen:
                continue
            if not number:
                number = self._schemas.stage_number(staging, topic.id, changes.table, self._clock.now_us())
            origin = plan.origin(number, changes.user)
            keys, payloads = plan.messages(chosen, changes.user)
            if topic.partitions == 1:
                self._log.stage_append(staging, topic, 0, keys, payloads, origin)
                continue
            for partition, some_keys, some in _divided(topic, keys, payloads):
                self._log.stage_append(staging, topic, partition, some_keys, some, origin)

    def _chosen(self, plan: _Plan, run: Sequence[Change]) -> Sequence[Change]:
        """Return the changes for which a WHERE is true, and count those on which it fails."""
        matches = plan.filter
        if matches is None:
            return run
        before, shown = matches.faults, plan.shown
        chosen: Sequence[Change]
        if isinstance(run, InsertedRows):
            chosen = InsertedRows([row for row in run.rows if matches(row)])
        else:
            chosen = [change for change in run if matches(shown(change))]
        if matches.faults > before:
            self.fault_count += matches.faults - before
            if before == 0:
                _logger.warning(
                    "the filter of a route failed, the row was not sent table=%s reason=%s",
                    plan.source,
                    matches.first_fault,
                )
        return chosen

    def _plans_of(self, table: Table) -> _TablePlans:
        routes = self._routes.of_table(table.id)
        plans = self._plans.get(table.id)
        if plans is None or plans.routes is not routes or plans.schema_id != table.schema_id:
            plans = _TablePlans(routes, table)
            current = {known: old for known, old in self._plans.items() if self._routes.feeds(known)}
            self._plans = {**current, table.id: plans}
        return plans


class _TablePlans:
    """The plans of a table's routes, by topic and operation."""

    def __init__(self, routes: tuple[Route, ...], table: Table) -> None:
        self.routes = routes
        self.schema_id = table.schema_id
        self.by_topic: dict[int, dict[Op, _Plan]] = {}
        for route in routes:
            self.by_topic.setdefault(route.topic_id, {})[route.op] = _Plan(route, table)


class _Plan:
    """A route, compiled for one version of a table's schema."""

    def __init__(self, route: Route, table: Table) -> None:
        self.route = route
        self.source = table.full_name
        self.filter: LiveFilter | None = None
        if route.where is not None:
            self.filter = _compiled(route.where, table)
        # The row of a change that is sent: the new one, or the old one of a delete.
        self.shown: Callable[[Change], Any] = itemgetter(1 if route.op == "delete" else 2)
        self._table = table
        self._is_scoped = table.is_scoped
        self._texts = _KeyTexts(table, route.partition_by)
        self._key_places = table.key_positions
        self._diffs = DiffEncoder(table)
        self._origin = Origin()

    def origin(self, number: int, user: str) -> Origin:
        """Return what the messages share; equal consecutive calls return the same object."""
        whose = user if self._is_scoped else None
        last = self._origin
        if last.schema != number or last.user != whose:
            payload = self.route.payload
            last = Origin(self.route.op.upper(), self.source, payload, CODECS[payload], number, whose)
            self._origin = last
        return last

    def messages(self, changes: Sequence[Change], user: str) -> tuple[list[str], list[bytes]]:
        """Return the keys and the payloads of messages."""
        rows: Sequence[Row] = (
            changes.rows if isinstance(changes, InsertedRows) else list(map(self.shown, changes))
        )
        return self._texts.of(rows, user), self._payloads(rows, changes)

    def _payloads(self, rows: Sequence[Row], changes: Sequence[Change]) -> list[bytes]:
        route = self.route
        if route.payload == "full":
            return encode_full(rows)
        if route.payload == "diff":
            if route.op == "update":
                return self._diffs.updated(map(_old, changes), rows)
            return self._diffs.inserted(rows) if route.op == "insert" else self._diffs.deleted(rows)
        columns = [_column(rows, place) for place in self._key_places]
        previews = preview_texts(self._table, rows, route.preview_chars) if route.preview_chars else None
        return encode_keys(columns, previews)


def _compiled(where: str, table: Table) -> LiveFilter:
    """Return the compiled WHERE of a stored route; an error is not the fault of the writer who gets it."""
    try:
        return compile_filter(where, RowColumns(table.shown_columns), ())
    except TidegateError as problem:
        reason = (
            f"'{table.full_name}' feeds a topic by WHERE {shorten(where)}, which this version cannot read"
        )
        hint = "Drop that source (ALTER TOPIC … DROP SOURCE …), and add it again."
        raise SqlUnsupported(reason=f"{reason}: {_about_source(str(problem))}", hint=hint) from problem


class _KeyTexts:
    """Encodes the keys of the messages of one route."""

    def __init__(self, table: Table, partition_by: Sequence[str]) -> None:
        names = partition_by or table.primary_key
        own = {column.name for column in table.columns}
        # None is the user.
        self._places: list[int | None] = [
            None if name == USER_COLUMN and name not in own else column_position(table, name)
            for name in names
        ]
        if not partition_by and table.is_scoped:
            # Rows of two users with the same key are different rows.
            self._places.insert(0, None)
        self._kinds = [column.type for column in table.columns]

    def of(self, rows: Sequence[Row], user: str) -> list[str]:
        """Return the key of every row."""
        if len(self._places) == 1:
            place = self._places[0]
            if place is None:
                return [user] * len(rows)
            return _plain_texts(_column(rows, place), self._kinds[place])
        columns = [
            [_json_text(user)] * len(rows)
            if place is None
            else _json_texts(_column(rows, place), self._kinds[place])
            for place in self._places
        ]
        return [f"[{','.join(parts)}]" for parts in zip(*columns, strict=True)]


def _plain_texts(values: list[Value], kind: ColumnType) -> list[str]:
    """Return the JSON of values, texts without quotes."""
    if kind.name in ("INT", "BIGINT") and None not in values:
        return list(map(str, values))
    return [value if isinstance(value, str) else _json_text(value) for value in json_column(values, kind)]


def _json_texts(values: list[Value], kind: ColumnType) -> list[str]:
    if kind.name in ("INT", "BIGINT") and None not in values:
        return list(map(str, values))
    return list(map(_json_text, json_column(values, kind)))


def _json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _column(rows: Sequence[Row], place: int) -> list[Value]:
    return [row[place] for row in rows]


def _runs(rows: Sequence[Change]) -> Iterable[tuple[Op, Sequence[Change]]]:
    """Return consecutive changes with the same operation; most statements have only one."""
    if isinstance(rows, InsertedRows):
        return (("insert", rows),)
    if len(rows) == 1 or len(set(map(_op, rows))) == 1:
        return ((rows[0].op, rows),)
    return [(op, list(run)) for op, run in groupby(rows, key=_op)]


def _divided(
    topic: Topic, keys: Sequence[str], payloads: Sequence[bytes]
) -> Iterable[tuple[int, Sequence[str], Sequence[bytes]]]:
    """Return messages by partition of a topic, each in their order."""
    if len(keys) == 1:
        return ((topic.partition_of(keys[0]), keys, payloads),)
    parts: dict[int, tuple[int, list[str], list[bytes]]] = {}
    for number, key, payload in zip(map(topic.partition_of, keys), keys, payloads, strict=True):
        part = parts.get(number)
        if part is None:
            part = parts[number] = (number, [], [])
        part[1].append(key)
        part[2].append(payload)
    return parts.values()


def _spelled(table: Table, name: str) -> str:
    """Return a column of PARTITION BY as the table spells it."""
    is_user = name.lower() == USER_COLUMN and table.is_scoped
    if is_user and USER_COLUMN not in {column.name.lower() for column in table.columns}:
        return USER_COLUMN
    return table.columns[column_position(table, name)].name
