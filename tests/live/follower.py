"""A follower for the tests of this folder: rebuilds the rows of its SELECT from what it is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.errors import TidegateError
from tidegate.live.change_filter import ChangeFilter, CompiledSelect
from tidegate.live.hub import LiveHub
from tidegate.live.subscription import Subscription
from tidegate.model.changes import Change
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row, Table, TableColumn, TableKind, Value

COLUMNS = (("id", ColumnType.BIGINT), ("room", ColumnType.TEXT), ("n", ColumnType.BIGINT))
TABLE = Table(
    id=7,
    tenant="default",
    namespace="app",
    name="things",
    kind=TableKind.SHARED,
    columns=tuple(TableColumn(name, str(kind)) for name, kind in COLUMNS),
    primary_key=("id",),
    created_us=0,
)


@dataclass(frozen=True)
class Where:
    """A SELECT of all columns with a filter that is a function."""

    name: Hashable = "all"
    test: Callable[[Row], bool] = lambda _row: True
    equality: tuple[int, Value] | None = None
    columns: Sequence[tuple[str, ColumnType]] = COLUMNS
    positions: tuple[int, ...] = (0, 1, 2)

    @property
    def filter_key(self) -> Hashable:
        return self.name

    @property
    def shape_key(self) -> Hashable:
        return self.positions

    def matches(self, row: Row) -> bool:
        return self.test(row)

    def project(self, row: Row) -> Row:
        return tuple(row[at] for at in self.positions)


def in_room(room: str) -> Where:
    return Where(("room", room), lambda row: row[1] == room, (1, room))


def above(n: int) -> Where:
    return Where(("above", n), lambda row: isinstance(row[2], int) and row[2] > n)


def inserted(*row: Value) -> Change:
    return Change("insert", None, row)


def read_frames(stream: bytes) -> Iterator[dict[str, Any]]:
    """Yield the messages in whole frames, as a client of the protocol reads them."""
    at = 0
    while at < len(stream):
        assert stream[at] == 0x81, "a whole message of text"
        length, at = stream[at + 1], at + 2
        assert length < 128, "a server masks nothing"
        if length > 125:
            size = 2 if length == 126 else 8
            length, at = int.from_bytes(stream[at : at + size], "big"), at + size
        yield json.loads(stream[at : at + length])
        at += length
    assert at == len(stream)


class Follower:
    """One socket with one subscription; `is_full` is set by the test."""

    def __init__(
        self, hub: LiveHub, select: CompiledSelect, user: str = "", table_id: int = TABLE.id
    ) -> None:
        self.is_full = False
        self.messages: list[dict[str, Any]] = []
        self.writes: list[bytes] = []
        self.rows: dict[Value, list[Value]] = {}
        self.behind = False
        self.is_lost = False
        self.problem: TidegateError | None = None
        self.hub = hub
        self.select = select
        self.user = user
        self.live = Subscription("a", self, table_id, user, ChangeFilter(select))

    def begin(self, table: dict[Value, Row]) -> None:
        """Take a snapshot of a table that nobody writes to meanwhile."""
        seq = self.hub.begin(TABLE.id)
        self.rows = {key: list(row) for key, row in table.items() if self.select.matches(row)}
        self.live = Subscription("a", self, TABLE.id, self.user, ChangeFilter(self.select))
        assert self.hub.attach(self.live, seq)
        self.is_lost, self.behind = False, True

    def catch_up(self) -> None:
        """Go on from where it is, until it is full."""
        while self.behind and not self.is_full:
            self.behind = not self.hub.catch_up(self.live)

    def write(self, frames: bytes) -> None:
        self.writes.append(frames)
        for message in read_frames(frames):
            self.messages.append(message)
            self._apply(message)

    def _apply(self, message: dict[str, Any]) -> None:
        op, row = message["op"], message["row"]
        if op == "insert":
            assert row[0] not in self.rows, "an insert of what is there"
            self.rows[row[0]] = row
        elif op == "update":
            assert self.rows[row[0]] == message["old"]
            self.rows[row[0]] = row
        else:
            assert self.rows.pop(row[0]) == row

    def fell_behind(self, _subscription: Subscription) -> None:
        self.behind = True

    def lost(self, _subscription: Subscription) -> None:
        self.is_lost, self.behind = True, False

    def failed(self, _subscription: Subscription, problem: TidegateError) -> None:
        self.problem = problem
