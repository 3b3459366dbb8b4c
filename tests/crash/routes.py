"""Writers of tables that topics follow, through every kill: replaying the messages rebuilds the tables.

One topic carries whole rows (`full`), another what changed (`diff`); both follow a SHARED and a USER table.
A follower reads them from the first message on, through every kill, and replays. The replay is strict: an
insert finds no row, an update or a delete finds the row exactly as it is said to have been before.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tidegate
from tests.crash.cluster import Cluster
from tests.crash.door import Crew, Door, doors_of
from tests.crash.history import Fault
from tests.crash.journal import Journal
from tests.crash.tables import COLUMNS, WRITER_IDS, Writer

SHARED, OWN = "crash.followed_rows", "crash.followed_own"
NAMES = ("id", "writer", "grp", "op", "value")
TOPICS = {"full": "crash.rows_full", "diff": "crash.rows_diff"}
PARTITIONS = 3
STATEMENTS = (
    "CREATE NAMESPACE IF NOT EXISTS crash",
    f"CREATE SHARED TABLE {SHARED} {COLUMNS}",
    f"CREATE USER TABLE {OWN} {COLUMNS}",
    *(f"CREATE TOPIC {topic} PARTITIONS {PARTITIONS}" for topic in TOPICS.values()),
    *(
        f"ALTER TOPIC {topic} ADD SOURCE {table} ON INSERT, UPDATE, DELETE WITH (payload = '{payload}')"
        for payload, topic in TOPICS.items()
        for table in (SHARED, OWN)
    ),
)
USERS = ("eva", "fred")
PAGE = 2_000
READ_PAGE = 5_000
# Where the follower has read everything, it looks again after this.
PAUSE_SECONDS = 0.2
WRONG_SHOWN = 5


class RowKey(NamedTuple):
    """Which row: of which table, of which user (a SHARED table's rows are nobody's), by which key."""

    table: str
    user: str | None
    number: int


@dataclass(slots=True)
class Replay:
    """Rows as the messages of one topic leave them, and what did not fit."""

    payload_mode: str
    rows: dict[RowKey, dict[str, Any]] = field(default_factory=dict)
    next_offsets: dict[str, int] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    count: int = 0
    wrong: list[tuple[RowKey, str]] = field(default_factory=list)

    def take(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Replay messages, in the order of their partitions."""
        for message in messages:
            self._place(message)
            self.apply(message)

    def apply(self, message: Mapping[str, Any]) -> None:
        """Do to the rows what one message says."""
        payload, op = message["payload"], message["op"]
        if self.payload_mode == "diff":
            key = payload["key"]
            old = {name: change["old"] for name, change in payload["changed"].items()}
            new = {name: change["new"] for name, change in payload["changed"].items()}
        else:
            key = old = new = payload
        place = RowKey(message["source"], message["user"], key["id"])
        before = self.rows.get(place)
        wrong = self._unfit(op, before, old)
        if wrong:
            self.wrong.append((place, f"{op} at {message['partition']}:{message['offset']}: {wrong}"))
        if op == "DELETE":
            self.rows.pop(place, None)
        else:
            self.rows[place] = {**(before or {}), **{name: new[name] for name in NAMES if name in new}}

    def _place(self, message: Mapping[str, Any]) -> None:
        partition, offset = str(message["partition"]), message["offset"]
        place = RowKey(message["source"], message["user"], -1)
        if offset != self.next_offsets.get(partition, 0):
            expected = self.next_offsets.get(partition, 0)
            self.wrong.append((place, f"offset {offset} of partition {partition} came where {expected} was"))
        if message["messageId"] in self.ids:
            self.wrong.append((place, f"message id {message['messageId']} a second time"))
        self.next_offsets[partition] = offset + 1
        self.ids.add(message["messageId"])
        self.count += 1

    def _unfit(self, op: str, before: dict[str, Any] | None, old: Mapping[str, Any]) -> str:
        """Return why a message does not fit to the row before it."""
        if (before is None) != (op == "INSERT"):
            return f"the row before it is {before}"
        # A full UPDATE has the new row only.
        if before is None or (self.payload_mode == "full" and op == "UPDATE"):
            return ""
        differing = [name for name in NAMES if name in old and old[name] != before[name]]
        return f"{differing} were {before}, not {dict(old)}" if differing else ""


class FollowedRows:
    """Two writers of a SHARED table, two users of a USER table, two topics that follow both.

    Promises: row and message are one write, so that a replay of either topic gives exactly the tables' rows;
    what was acknowledged is there, in both; no message is twice, out of order or in a gap; what a follower
    read stays.
    """

    def __init__(self, journal: Journal, seed: int) -> None:
        self._journal = journal
        self._seed = seed
        self._crew = Crew()
        self._doors: dict[str, Door] = {}
        self._followed = {topic: Replay(payload) for payload, topic in TOPICS.items()}
        self._writers = [
            *(Writer(journal, SHARED, number, number * WRITER_IDS) for number in range(len(USERS))),
            *(Writer(journal, OWN, number, 0) for number in range(len(USERS))),
        ]

    @property
    def acknowledged_count(self) -> int:
        """How many statements were acknowledged."""
        return sum(writer.acknowledged for writer in self._writers)

    def prepare(self, cluster: Cluster) -> None:
        """Make users, tables, topics and routes."""
        self._doors = doors_of(cluster, USERS)
        with cluster.client() as client:
            for statement in STATEMENTS:
                client.sql(statement)
            token = client.users.make_token("eva")["token"]
        self._doors["follower"] = Door(cluster.home, token)

    def start(self, cluster: Cluster) -> None:  # noqa: ARG002 - the doors know where
        """Begin, and go on through every kill."""
        for place, writer in enumerate(self._writers):
            door = self._doors[USERS[writer.number]]
            self._crew.start(writer.run, door, self._crew, self._seed * 1000 + 300 + place)
        self._crew.start(self._follow)

    def finish(self) -> None:
        """Let every writer end its last statement."""
        self._crew.finish()

    def drained(self, client: tidegate.Client) -> bool:  # noqa: ARG002 - row and message are one write
        """Everything is where it goes."""
        return True

    def verify(self, cluster: Cluster) -> list[Fault]:  # noqa: ARG002 - the doors know where
        """Look at the tables, replay the topics anew, and compare."""
        found: list[Fault] = []
        for writer in self._writers:
            writer.look(self._doors[USERS[writer.number]])
            found += writer.faults
            writer.faults = []
        tables = self._tables()
        for topic, followed in self._followed.items():
            self._read(topic, followed)
            again = Replay(followed.payload_mode)
            self._read(topic, again)
            found += compare(topic, tables, followed)
            found += compare(f"{topic}, read anew", tables, again)
            self._journal.add("replayed", topic, messages=again.count, rows=len(again.rows))
        return found

    def _follow(self) -> None:
        while not self._crew.stopping.is_set():
            for topic, replay in self._followed.items():
                self._read(topic, replay)
            time.sleep(PAUSE_SECONDS)

    def _read(self, topic: str, replay: Replay) -> None:
        """Replay what a topic has beyond what was read."""
        while True:
            offsets = {str(number): replay.next_offsets.get(str(number), 0) for number in range(PARTITIONS)}
            body = {"from": {"offsets": offsets}, "limit": PAGE}
            messages = self._doors["follower"].repeat(f"topics/{topic}/consume", body)["messages"]
            replay.take(messages)
            if not messages:
                return

    def _tables(self) -> dict[RowKey, dict[str, Any]]:
        rows = {RowKey(SHARED, None, row["id"]): row for row in self._rows(SHARED, USERS[0])}
        for user in USERS:
            rows |= {RowKey(OWN, user, row["id"]): row for row in self._rows(OWN, user)}
        return rows

    def _rows(self, table: str, user: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        after = -1
        while True:
            sql = f"SELECT {', '.join(NAMES)} FROM {table} WHERE id > ? ORDER BY id LIMIT {READ_PAGE}"
            page = self._doors[user].read(sql, [after])["rows"]
            rows += [dict(zip(NAMES, row, strict=True)) for row in page]
            if len(page) < READ_PAGE:
                return rows
            after = page[-1][0]


def compare(topic: str, tables: Mapping[RowKey, dict[str, Any]], replay: Replay) -> list[Fault]:
    """Find what the replay of a topic has otherwise than the tables."""
    faults = []
    differing = [key for key in {*tables, *replay.rows} if tables.get(key) != replay.rows.get(key)]
    if differing:
        shown = [f"{key}: {tables.get(key)}, replayed {replay.rows.get(key)}" for key in differing]
        subjects = tuple(subject(key, tables.get(key) or replay.rows.get(key)) for key in differing)
        told = f"{topic}: {len(differing)} rows differ: {shown[:WRONG_SHOWN]}"
        faults.append(Fault("replaying a topic rebuilds the tables", told, subjects))
    if replay.wrong:
        told = f"{topic}: {len(replay.wrong)} do not: {replay.wrong[:WRONG_SHOWN]}"
        subjects = tuple(subject(key, replay.rows.get(key)) for key, _ in replay.wrong)
        faults.append(Fault("every message fits to the row before it", told, subjects))
        replay.wrong = []
    return faults


def subject(key: RowKey, row: Mapping[str, Any] | None) -> str:
    """Name the group of a row as its writer does in the journal."""
    return (
        f"{key.table}/{row['writer']}/{row['grp']}" if row and "grp" in row else f"{key.table}/{key.number}"
    )
