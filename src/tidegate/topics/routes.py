"""Routes: the rules by which changes of tables feed topics, by table and by topic.

    TOPIC_ROUTE | topic id u64 | table id u64 | op u8 → the route as JSON

A topic has at most one route for one operation of one table. A change is visible once it is durable, and
closes its group commit: on the committer's thread memory therefore always agrees with the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from tidegate.errors import RequestInvalid, RouteExists, RouteNotFound, StorageCorrupt
from tidegate.model.changes import Op
from tidegate.model.tables import Table
from tidegate.storage.engine import KeyRange, Reader
from tidegate.storage.group_commit import Staging
from tidegate.storage.keys import KeySpace, join, prefix_range, read_u8, read_u64, u8, u64
from tidegate.storage.versions import decode_versioned
from tidegate.topics.definitions import Topic
from tidegate.topics.payloads import PREVIEW_NAME

Payload = Literal["key", "full", "diff"]

ROUTE_VERSION = 1
# A preview is for people who browse a topic; programs that need the row use payload = 'full'.
PREVIEW_CHARS_MAX = 1_000
OPS: dict[Op, int] = {"insert": 1, "update": 2, "delete": 3}
_OP_AT = 17


class Route(msgspec.Struct, frozen=True):
    """One operation of one table that feeds a topic: which rows, and what of them is the payload."""

    topic_id: int
    table_id: int
    op: Op
    where: str | None = None
    partition_by: tuple[str, ...] = ()
    payload: Payload = "key"
    preview_chars: int = 0
    created_us: int = 0
    version: int = ROUTE_VERSION


def route_key(topic_id: int, table_id: int, op: Op) -> bytes:
    """Return the key of one route."""
    return join(KeySpace.TOPIC_ROUTE, u64(topic_id), u64(table_id), u8(OPS[op]))


def route_range() -> KeyRange:
    """Return the keys of all routes."""
    return prefix_range(KeySpace.TOPIC_ROUTE)


class RouteDirectory:
    """All routes. Changes are staged on the committer's thread; reads are for any, from memory."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        # By table and by topic; tuples are replaced and never changed, so that readers may keep them.
        self._by_table: dict[int, tuple[Route, ...]] = {}
        self._by_topic: dict[int, tuple[Route, ...]] = {}
        self.reload()

    def reload(self) -> None:
        """Read every route again: the engine was reopened, and the disk decides."""
        found = [_decoded(key, value) for key, value in self._reader.scan(route_range())]
        self._set(found)

    def __len__(self) -> int:
        return sum(map(len, self._by_topic.values()))

    def feeds(self, table_id: int) -> bool:
        """True if a table has any route; one lookup in a dict."""
        return table_id in self._by_table

    def of_table(self, table_id: int) -> tuple[Route, ...]:
        """Return the routes of a table, by topic and operation."""
        return self._by_table.get(table_id, ())

    def of_topic(self, topic_id: int) -> tuple[Route, ...]:
        """Return the routes into a topic, by table and operation."""
        return self._by_topic.get(topic_id, ())

    def stage_add(self, staging: Staging, topic: Topic, table: Table, route: Route) -> Route:
        """Add a route; one operation of one table feeds a topic once."""
        _check_preview(table, route)
        key = route_key(topic.id, table.id, route.op)
        if staging.get(key) is not None:
            raise RouteExists(topic=topic.name, table=table.full_name, op=route.op.upper())
        staging.put(key, msgspec.json.encode(route))
        staging.when_durable(lambda: self._set([*self._all(), route]))
        # Rows that are written after this change is answered must be routed, and rows before it must not.
        staging.close_group()
        return route

    def stage_drop(
        self, staging: Staging, topic: Topic, table: Table, ops: Iterable[Op] | None = None
    ) -> list[Route]:
        """Remove routes of a table into a topic, all of them where no operation is named."""
        existing = {route.op: route for route in self.of_topic(topic.id) if route.table_id == table.id}
        chosen: list[Op] = list(existing) if ops is None else list(dict.fromkeys(ops))
        missing = [op for op in chosen if op not in existing]
        if missing or not chosen:
            words = ", ".join(op.upper() for op in missing) or "change"
            raise RouteNotFound(topic=topic.name, table=table.full_name, op=words)
        return self._stage_remove(staging, [existing[op] for op in chosen])

    def stage_drop_table(self, staging: Staging, table: Table) -> list[Route]:
        """Remove the routes of a table that is dropped; the messages that they wrote stay."""
        return self._stage_remove(staging, self.of_table(table.id))

    def stage_drop_topic(self, staging: Staging, topic: Topic) -> list[Route]:
        """Remove the routes into a topic that is deleted."""
        return self._stage_remove(staging, self.of_topic(topic.id))

    def _stage_remove(self, staging: Staging, gone: Sequence[Route]) -> list[Route]:
        for route in gone:
            staging.delete(route_key(route.topic_id, route.table_id, route.op))
        if gone:
            keys = {_place_of(route) for route in gone}
            staging.when_durable(
                lambda: self._set([route for route in self._all() if _place_of(route) not in keys])
            )
            staging.close_group()
        return list(gone)

    def _all(self) -> list[Route]:
        return [route for routes in self._by_topic.values() for route in routes]

    def _set(self, routes: Iterable[Route]) -> None:
        by_table: dict[int, list[Route]] = {}
        by_topic: dict[int, list[Route]] = {}
        for route in sorted(routes, key=_place_of):
            by_table.setdefault(route.table_id, []).append(route)
            by_topic.setdefault(route.topic_id, []).append(route)
        self._by_table = {table_id: tuple(found) for table_id, found in by_table.items()}
        self._by_topic = {topic_id: tuple(found) for topic_id, found in by_topic.items()}


def _place_of(route: Route) -> tuple[int, int, int]:
    return route.topic_id, route.table_id, OPS[route.op]


def _check_preview(table: Table, route: Route) -> None:
    if not 0 <= route.preview_chars <= PREVIEW_CHARS_MAX:
        reason = f"A preview has 0 to {PREVIEW_CHARS_MAX} characters, not {route.preview_chars}."
        raise RequestInvalid(reason=reason, hint="payload = 'full' sends the whole row.")
    if route.preview_chars and route.payload != "key":
        reason = f"A preview goes with payload = 'key'; payload = '{route.payload}' shows the row already."
        raise RequestInvalid(reason=reason, hint="Leave preview out.")
    if route.preview_chars and PREVIEW_NAME in table.primary_key:
        reason = (
            f"The primary key of '{table.full_name}' has a column '{PREVIEW_NAME}': a preview would hide it."
        )
        raise RequestInvalid(reason=reason, hint="Leave preview out.")


def _decoded(key: bytes, value: bytes) -> Route:
    place = f"a route of table {read_u64(key, 9)} into topic {read_u64(key, 1)}"
    route = decode_versioned(value, Route, ROUTE_VERSION, place)
    if key != route_key(route.topic_id, route.table_id, route.op):
        raise StorageCorrupt(place=place, reason=f"its key says operation {read_u8(key, _OP_AT)}")
    return route
