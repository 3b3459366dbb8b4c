"""Writers of SHARED and USER tables through every kill; what was acknowledged is there once, and wholly.

Each writer has groups of rows of its own, and every statement writes a whole group: it inserts one, replaces
one (and may make it larger), changes one or deletes one. All rows of a group carry the number of the
statement that wrote them last. So a group is as one of its statements left it, with all of its rows, or it
is not there.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tidegate
from tests.crash.cluster import Cluster
from tests.crash.door import Crew, Door, RefusedError, UnsureError, doors_of
from tests.crash.history import Fault
from tests.crash.journal import Journal

SHARED, OWN = "crash.shared_rows", "crash.own_rows"
COLUMNS = "(id BIGINT PRIMARY KEY, writer INT NOT NULL, grp BIGINT NOT NULL, op BIGINT NOT NULL, value TEXT)"
STATEMENTS = (
    "CREATE NAMESPACE IF NOT EXISTS crash",
    f"CREATE SHARED TABLE {SHARED} {COLUMNS}",
    f"CREATE USER TABLE {OWN} {COLUMNS}",
)
USERS = ("ann", "bob")
# One row in a third of the statements: those take the quick path by key.
GROUP_ROWS = (1, 1, 2, 5, 12, 30)
GROUP_ROWS_MAX = 100
WRITER_IDS = 10**9
# Eight writers share two processors with Spark: more load would only make the run longer.
PAUSE_SECONDS_MAX = 0.2
# Between two looks at all rows of a writer, while nothing is killed; after a kill it looks at once.
STATEMENTS_BETWEEN_LOOKS = 40
PAGE = 5_000
# After a lost answer some statements are sent again, as clients do, and some are left as they are.
GIVE_UP_CHANCE = 0.5


class State(NamedTuple):
    """What a group is: the statement that wrote it last, and how many rows it has."""

    op: int
    size: int


@dataclass(slots=True)
class Group:
    """Rows that every statement writes together; more than one state is possible after a lost answer."""

    number: int
    possible: list[State | None] = field(default_factory=lambda: [None])


class Writer:
    """One writer of one table: its groups, and what it found wrong."""

    def __init__(self, journal: Journal, table: str, number: int, first_id: int) -> None:
        self.table = table
        self.number = number
        self.groups: dict[int, Group] = {}
        self.acknowledged = 0
        self.faults: list[Fault] = []
        self._journal = journal
        self._first_id = first_id
        self._ops = 0

    def run(self, door: Door, crew: Crew, seed: int) -> None:
        """Write until told to stop; look at everything after each lost answer, and now and then."""
        choice = random.Random(seed)
        while not crew.stopping.is_set():
            sure = self._write(door, choice)
            if not sure or self._ops % STATEMENTS_BETWEEN_LOOKS == 0:
                self.look(door)
            time.sleep(choice.random() * PAUSE_SECONDS_MAX)

    def look(self, door: Door) -> None:
        """Compare all rows with what may be there; what was seen must stay."""
        self.faults += compare(self.subject, self.groups.values(), self._rows(door), self._first_id)

    def subject(self, group: int) -> str:
        """Name a group in the journal."""
        return f"{self.table}/{self.number}/{group}"

    def _write(self, door: Door, choice: random.Random) -> bool:
        """Send one statement; say whether its outcome is known."""
        kind, group = self._choose(choice)
        self._ops += 1
        (before,) = group.possible
        after = None if kind == "DELETE" else State(self._ops, _new_size(kind, before, choice))
        self._journal.add("sent", self.subject(group.number), statement=kind, op=self._ops)
        self.groups[group.number] = group
        group.possible = [before, after]
        if not self._sent(door, kind, group, after or before, choice):
            return False
        group.possible = [after]
        self.acknowledged += 1
        self._journal.add("acked", self.subject(group.number), op=self._ops)
        return True

    def _sent(self, door: Door, kind: str, group: Group, state: State | None, choice: random.Random) -> bool:
        """Send a statement until it is answered, or give up after a lost answer; say which it was."""
        lost = False
        while True:
            try:
                self._send(door, kind, group, state, choice)
                return True
            except UnsureError as problem:
                self._journal.add("unsure", self.subject(group.number), error=str(problem)[:80])
                lost = True
                if choice.random() < GIVE_UP_CHANCE:
                    return False
            except RefusedError as refusal:
                # An insert that comes again finds its own rows when it was done and its answer was lost.
                if not (lost and kind == "INSERT" and refusal.code == "ROW_EXISTS"):
                    raise
                return True

    def _choose(self, choice: random.Random) -> tuple[str, Group]:
        settled = [group for group in self.groups.values() if len(group.possible) == 1 and group.possible[0]]
        kind = choice.choices(["INSERT", "UPSERT", "UPDATE", "DELETE"], [5, 3, 3, 1])[0]
        if kind == "INSERT" or not settled:
            return "INSERT", Group(len(self.groups))
        return kind, choice.choice(settled)

    def _send(self, door: Door, kind: str, group: Group, state: State | None, choice: random.Random) -> None:
        if state is None:
            raise AssertionError("a statement on a group that is not there")
        if kind in {"INSERT", "UPSERT"}:
            sql, params = self._values(group, state, bound=choice.random() < 0.5)
            door.ask(f"{kind} INTO {self.table} (id, writer, grp, op, value) VALUES {sql}", params)
            return
        where, keys = "writer = ? AND grp = ?", [self.number, group.number]
        if len(group_ids(self._first_id, group.number, state.size)) == 1:
            where, keys = "id = ?", group_ids(self._first_id, group.number, 1)
        if kind == "UPDATE":
            value = value_text(self.number, state.op)
            door.ask(f"UPDATE {self.table} SET op = ?, value = ? WHERE {where}", [state.op, value, *keys])
        else:
            door.ask(f"DELETE FROM {self.table} WHERE {where}", keys)

    def _values(self, group: Group, state: State, *, bound: bool) -> tuple[str, list[Any]]:
        value = value_text(self.number, state.op)
        rows = [
            [number, self.number, group.number, state.op, value]
            for number in group_ids(self._first_id, group.number, state.size)
        ]
        if bound:
            return ", ".join(["(?, ?, ?, ?, ?)"] * len(rows)), [cell for row in rows for cell in row]
        return ", ".join(f"({a}, {b}, {c}, {d}, '{e}')" for a, b, c, d, e in rows), []

    def _rows(self, door: Door) -> list[tuple[int, int, int, str]]:
        """Return all rows of this writer: id, group, statement and value."""
        rows: list[tuple[int, int, int, str]] = []
        after = -1
        while True:
            wanted = f"SELECT id, grp, op, value FROM {self.table} WHERE writer = ? AND id > ?"
            page = door.read(f"{wanted} ORDER BY id LIMIT {PAGE}", [self.number, after])["rows"]
            rows += [(row[0], row[1], row[2], row[3]) for row in page]
            if len(page) < PAGE:
                return rows
            after = page[-1][0]


class TableRows:
    """Two writers of a SHARED table, and two users who write a USER table under the same keys.

    Promises: a group is as the last acknowledged statement left it; one whose answer was lost is as before
    it or after it, wholly; what a look found stays; no row is there twice, and none that nobody wrote.
    """

    def __init__(self, journal: Journal, seed: int) -> None:
        self._seed = seed
        self._crew = Crew()
        self._doors: dict[str, Door] = {}
        self._writers = [
            *(Writer(journal, SHARED, number, number * WRITER_IDS) for number in range(len(USERS))),
            *(Writer(journal, OWN, number, 0) for number in range(len(USERS))),
        ]

    @property
    def acknowledged_count(self) -> int:
        """How many statements were acknowledged."""
        return sum(writer.acknowledged for writer in self._writers)

    def prepare(self, cluster: Cluster) -> None:
        """Make users and tables."""
        self._doors = doors_of(cluster, USERS)
        with cluster.client() as client:
            for statement in STATEMENTS:
                client.sql(statement)

    def start(self, cluster: Cluster) -> None:  # noqa: ARG002 - the doors know where
        """Begin, and go on through every kill."""
        for place, writer in enumerate(self._writers):
            door = self._doors[USERS[writer.number]]
            self._crew.start(writer.run, door, self._crew, self._seed * 1000 + 100 + place)

    def finish(self) -> None:
        """Let every writer end its last statement."""
        self._crew.finish()

    def drained(self, client: tidegate.Client) -> bool:  # noqa: ARG002 - nothing goes elsewhere
        """Everything is where it goes."""
        return True

    def verify(self, cluster: Cluster) -> list[Fault]:  # noqa: ARG002 - the doors know where
        """Look at everything once more, and tell what all looks found."""
        found: list[Fault] = []
        for writer in self._writers:
            writer.look(self._doors[USERS[writer.number]])
            found += writer.faults
            writer.faults = []
        return found


def group_ids(first_id: int, group: int, size: int) -> list[int]:
    """Return the keys of a group's rows."""
    start = first_id + group * GROUP_ROWS_MAX
    return list(range(start, start + size))


def value_text(writer: int, op: int) -> str:
    """Return the value that a statement writes; some are long."""
    return f"{writer}/{op}/" + "v" * (op * 37 % 200)


def _new_size(kind: str, before: State | None, choice: random.Random) -> int:
    if before is None:
        return choice.choice(GROUP_ROWS)
    grown = choice.choice((0, 0, 3)) if kind == "UPSERT" else 0
    return min(GROUP_ROWS_MAX, before.size + grown)


def compare(
    subject: Any, groups: Iterable[Group], rows: Sequence[tuple[int, int, int, str]], first_id: int
) -> list[Fault]:
    """Find groups that are in no state in which they may be; settle those that might be in several."""
    by_group: dict[int, list[tuple[int, int, int, str]]] = {}
    for row in rows:
        by_group.setdefault(row[1], []).append(row)
    faults: list[Fault] = []
    for group in groups:
        found = by_group.pop(group.number, [])
        name = subject(group.number)
        state, wrong = _state_of(group.number, found, first_id)
        if wrong:
            faults.append(Fault("a statement is done wholly or not at all", wrong, (name,)))
        elif state not in group.possible:
            told = f"{name} is {state}, and may be {group.possible}"
            faults.append(Fault("what was acknowledged or seen stays as it was", told, (name,)))
        group.possible = [state]
    for number in by_group:
        faults.append(Fault("no row is there that nobody wrote", f"group {number}", (subject(number),)))
    return faults


def _state_of(
    group: int, rows: Sequence[tuple[int, int, int, str]], first_id: int
) -> tuple[State | None, str]:
    """Return the state that the rows show, or say what is wrong with them."""
    if not rows:
        return None, ""
    ops = {row[2] for row in rows}
    state = State(max(ops), len(rows))
    if len(ops) > 1:
        return state, f"rows of statements {sorted(ops)} in one group"
    if sorted(row[0] for row in rows) != group_ids(first_id, group, len(rows)):
        return state, f"keys {sorted(row[0] for row in rows)} of {group_ids(first_id, group, len(rows))}"
    if {row[3].partition("/")[2] for row in rows} != {value_text(0, state.op).partition("/")[2]}:
        return state, f"another value than statement {state.op} wrote: {rows[0][3][:40]}"
    return state, ""
