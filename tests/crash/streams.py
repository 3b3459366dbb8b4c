"""Writers of STREAM tables through every kill: what had its time to reach the file is there, once and whole.

Every append is one statement of a few rows, with numbers that are never used again: it is there with all of
its rows or with none. One stream answers when a row is on the disk, the other gathers rows in memory for the
flush interval; of that one, a kill may take what was acknowledged just before it.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tidegate
from tests.crash.cluster import FLUSH_SECONDS, Cluster
from tests.crash.door import Crew, Door, UnsureError, doors_of
from tests.crash.history import Fault
from tests.crash.journal import Journal
from tests.crash.pulse import STATEMENT as MAKE_BEATS
from tests.crash.pulse import Pulse

BUFFERED, SYNCED = "crash.buffered", "crash.synced"
COLUMNS = "(n BIGINT, batch BIGINT, size INT, body TEXT)"
STATEMENTS = (
    "CREATE NAMESPACE IF NOT EXISTS crash",
    f"CREATE STREAM TABLE {BUFFERED} {COLUMNS} WITH (ttl_seconds = 86400, durability = 'buffered')",
    f"CREATE STREAM TABLE {SYNCED} {COLUMNS} WITH (ttl_seconds = 86400, durability = 'fsync')",
    MAKE_BEATS,
)
USERS = ("carl", "Dora")  # a name with a capital letter has another file than one without
BATCH_ROWS_MAX = 40
BATCH_NUMBERS = 100
# Eight writers share two processors with Spark: more load would only make the run longer.
PAUSE_SECONDS_MAX = 0.2
# A machine under full load may come late to a flush. Counted in beats, as the flush interval is.
LATE_SECONDS = 1.0
SEEN_ROWS = 60
STATEMENTS_BETWEEN_LOOKS = 15
PAGE = 5_000


@dataclass(slots=True)
class Batch:
    """One append: when it was sent, and when its answer came, on the journal's clock."""

    number: int
    size: int
    sent_seconds: float
    acked_seconds: float | None = None


class Kill(NamedTuple):
    """A kill of the server: it died between these moments, on the journal's clock."""

    begun_seconds: float
    ended_seconds: float


class Writer:
    """One user of one stream: what was sent, what was seen, what was wrong."""

    def __init__(self, journal: Journal, table: str, user: str) -> None:
        self.table = table
        self.user = user
        self.batches: dict[int, Batch] = {}
        self.seen: set[int] = set()
        self._journal = journal

    @property
    def acknowledged(self) -> int:
        """How many appends were acknowledged."""
        return sum(batch.acked_seconds is not None for batch in list(self.batches.values()))

    def run(self, door: Door, crew: Crew, seed: int) -> None:
        """Append until told to stop; look at the newest rows now and then."""
        choice = random.Random(seed)
        while not crew.stopping.is_set():
            self._append(door, choice.randint(1, BATCH_ROWS_MAX), bound=choice.random() < 0.5)
            if len(self.batches) % STATEMENTS_BETWEEN_LOOKS == 0:
                self._see(door)
            time.sleep(choice.random() * PAUSE_SECONDS_MAX)

    def subject(self, batch: int) -> str:
        """Name an append in the journal."""
        return f"{self.table}/{self.user}/{batch}"

    def rows(self, door: Door) -> tuple[list[tuple[int, int, int, str]], list[str]]:
        """Return all rows of this user, and the warnings that came with them."""
        rows: list[tuple[int, int, int, str]] = []
        warnings: list[str] = []
        after = -1
        while True:
            # In the order of their numbers: equal ones come side by side, and on one page or the next.
            sql = f"SELECT n, batch, size, body FROM {self.table} WHERE n > ? ORDER BY n LIMIT {PAGE}"
            answer = door.read(sql, [after])
            warnings += answer.get("warnings", [])
            page = answer["rows"]
            rows += [(row[0], row[1], row[2], row[3]) for row in page]
            if len(page) < PAGE:
                return rows, warnings
            after = page[-1][0] - 1  # the last number comes again: it may be there twice
            while rows and rows[-1][0] > after:
                rows.pop()

    def _append(self, door: Door, size: int, *, bound: bool) -> None:
        number = len(self.batches)
        rows = [[n, number, size, body_text(n)] for n in numbers_of(number, size)]
        sent = self._journal.add("sent", self.subject(number), rows=size)
        batch = self.batches[number] = Batch(number, size, sent.at_seconds)
        values, params = ", ".join(["(?, ?, ?, ?)"] * size), [cell for row in rows for cell in row]
        if not bound:
            values, params = ", ".join(f"({a}, {b}, {c}, '{d}')" for a, b, c, d in rows), []
        try:
            door.ask(f"INSERT INTO {self.table} (n, batch, size, body) VALUES {values}", params)
        except UnsureError as problem:
            self._journal.add("unsure", self.subject(number), error=str(problem)[:80])
            return
        batch.acked_seconds = self._journal.add("acked", self.subject(number)).at_seconds

    def _see(self, door: Door) -> None:
        """Look at the newest rows: what a reader saw is in the file."""
        found = door.read(f"SELECT batch FROM {self.table} LAST {SEEN_ROWS}")["rows"]
        self.seen |= {row[0] for row in found}


class StreamRows:
    """Two users who append to a buffered stream and to a synced one.

    Promises: every append is there wholly or not at all, and once; of the synced stream every acknowledged
    one; of the buffered one all that were acknowledged longer than the flush interval before the next kill
    of the server, in time that it could work; what a reader saw stays; no frame is torn or damaged.
    """

    def __init__(self, journal: Journal, seed: int) -> None:
        self._journal = journal
        self._seed = seed
        self._crew = Crew()
        self._pulse = Pulse(journal)
        self._doors: dict[str, Door] = {}
        self._writers = [Writer(journal, table, user) for table in (BUFFERED, SYNCED) for user in USERS]

    @property
    def acknowledged_count(self) -> int:
        """How many appends were acknowledged."""
        return sum(writer.acknowledged for writer in self._writers)

    def prepare(self, cluster: Cluster) -> None:
        """Make users and streams."""
        self._doors = doors_of(cluster, USERS)
        with cluster.client() as client:
            for statement in STATEMENTS:
                client.sql(statement)

    def start(self, cluster: Cluster) -> None:  # noqa: ARG002 - the doors know where
        """Begin, and go on through every kill."""
        for place, writer in enumerate(self._writers):
            self._crew.start(
                writer.run, self._doors[writer.user], self._crew, self._seed * 1000 + 200 + place
            )
        self._crew.start(self._pulse.run, self._doors[USERS[0]], self._crew)

    def finish(self) -> None:
        """Let every writer end its last statement."""
        self._crew.finish()

    def drained(self, client: tidegate.Client) -> bool:  # noqa: ARG002 - nothing goes elsewhere
        """Everything is where it goes."""
        return True

    def verify(self, cluster: Cluster) -> list[Fault]:  # noqa: ARG002 - the doors know where
        """Compare the rows of every user with what was sent."""
        kills = [
            Kill(event.values["begun"], event.at_seconds)
            for event in self._journal.of_kind("kill")
            if event.subject == "server"
        ]
        found: list[Fault] = []
        for writer in self._writers:
            rows, warnings = writer.rows(self._doors[writer.user])
            waits_seconds = FLUSH_SECONDS + LATE_SECONDS if writer.table == BUFFERED else None
            lived_seconds = self._pulse.lived_seconds
            needed = needed_batches(writer.batches.values(), kills, waits_seconds, lived_seconds)
            found += compare(writer.subject, writer.batches, needed | writer.seen, rows)
            found += [Fault("no frame is torn or damaged", warning) for warning in warnings]
            writer.seen |= {row[1] for row in rows}
        return found


def numbers_of(batch: int, size: int) -> range:
    """Return the numbers of an append's rows."""
    return range(batch * BATCH_NUMBERS, batch * BATCH_NUMBERS + size)


def body_text(n: int) -> str:
    """Return the text of a row; its length follows from its number."""
    return f"{n}/" + "b" * (n * 31 % 400)


def needed_batches(
    batches: Iterable[Batch],
    kills: Sequence[Kill],
    waits_seconds: float | None,
    lived_seconds: Callable[[float, float], float],
) -> set[int]:
    """Name the appends that must be there.

    Without `waits_seconds` all that were acknowledged. With it, those acknowledged longer than that, as
    `lived_seconds` counts, before the first kill that may have come after they were sent: an answer may be
    read from the socket after its server was killed.
    """
    needed = set()
    for batch in batches:
        acked = batch.acked_seconds
        if acked is None:
            continue
        begun = min(
            (kill.begun_seconds for kill in kills if kill.ended_seconds >= batch.sent_seconds), default=None
        )
        if waits_seconds is None or begun is None or lived_seconds(acked, begun) > waits_seconds:
            needed.add(batch.number)
    return needed


def compare(
    subject: Any,
    sent: Mapping[int, Batch],
    needed: Iterable[int],
    rows: Sequence[tuple[int, int, int, str]],
) -> list[Fault]:
    """Find appends that are missing, in parts, twice, changed, or were never made."""
    by_batch: dict[int, list[tuple[int, int, int, str]]] = {}
    for row in rows:
        by_batch.setdefault(row[1], []).append(row)
    wrong: dict[str, list[int]] = {}
    for number in needed:
        if number not in by_batch:
            wrong.setdefault("what was acknowledged in time, or seen, is there", []).append(number)
    for number, found in by_batch.items():
        numbers = Counter(row[0] for row in found)
        if number not in sent:
            wrong.setdefault("no row is there that nobody sent", []).append(number)
        elif max(numbers.values()) > 1:
            wrong.setdefault("no row is there twice", []).append(number)
        elif sorted(numbers) != list(numbers_of(number, sent[number].size)):
            wrong.setdefault("an append is there wholly or not at all", []).append(number)
        elif any(row[3] != body_text(row[0]) or row[2] != sent[number].size for row in found):
            wrong.setdefault("a row is as it was sent", []).append(number)
    return [
        Fault(promise, f"{len(numbers)} appends: {numbers[:5]}", tuple(map(subject, numbers)))
        for promise, numbers in wrong.items()
    ]
