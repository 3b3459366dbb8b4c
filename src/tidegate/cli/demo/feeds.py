"""What the console view shows of the demo: who is here, who visits, and what the agent answers.

Three feeds, each in a thread of its own, which tries again while there is no server or its topic or table is
not there yet:

    PresenceFeed   the STREAM table `demo.presence`, over a socket. A row older than the table's time to live
                   has expired: expiry is no change, so whoever follows a stream applies it itself
    ExchangeFeed   the topic `demo.answers`. Questions are rows of `demo.questions`, which feeds the topic
                   `demo.asked`; the agent reads that as a consumer group
    VisitFeed      the topic `demo.sessions`, into which the pipeline `sessions` writes the sessions that it
                   makes of the topic `demo.clicks`
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.model.clock import Clock
    from tidegate.sdk.client import Client
    from tidegate.sdk.live import RowChange

WAIT_MS = 1000  # how long a request for more messages may wait, and with it a stop
RETRY_SECONDS = 1.0  # while there is no server, or the topic or table is not there yet


@dataclass(frozen=True, slots=True)
class DemoPanels:
    """What the console view shows of the demo."""

    users: Sequence[Person] | None
    exchanges: Sequence[Exchange] | None
    visits: Visits | None


class DemoFeeds:
    """All feeds, started with the first picture of a demo; one thread calls it."""

    def __init__(self, connect: Callable[[], Client], clock: Clock) -> None:
        self._presence = PresenceFeed(connect, clock)
        self._exchanges = ExchangeFeed(connect)
        self._visits = VisitFeed(connect)
        self._is_started = False

    def panels(self, status: Mapping[str, Any] | None) -> DemoPanels | None:
        """Return the newest of every feed; None where the server has no demo."""
        if status is None or not is_demo(status):
            return None
        if not self._is_started:
            self._is_started = True
            for feed in (self._presence, self._exchanges, self._visits):
                feed.start()
        return DemoPanels(self._presence.here(), self._exchanges.newest(), self._visits.now())

    def stop(self) -> None:
        """Stop all feeds."""
        if self._is_started:
            for feed in (self._presence, self._exchanges, self._visits):
                feed.stop()


def is_demo(status: Mapping[str, Any]) -> bool:
    """True if a status is that of the demo: it has the topic of the agent's answers."""
    return any(topic["name"] == ANSWERS_TOPIC for topic in status["topics"])


class Feed:
    """A thread that follows something on the server until it is stopped."""

    def __init__(self, connect: Callable[[], Client], name: str) -> None:
        self._connect = connect
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """End soon; a request that is under way is not waited for."""
        self._stopping.set()

    @abstractmethod
    def _follow(self, client: Client) -> None:
        """Follow over one connection until it is lost or the feed is stopped."""

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._connect() as client:
                    self._follow(client)
            except TidegateError:
                # There is no server, topic or table yet, or no longer: the view shows that by itself.
                self._stopping.wait(RETRY_SECONDS)


class TopicFeed(Feed):
    """Takes the payloads of a topic's new messages, in order."""

    def __init__(self, connect: Callable[[], Client], topic: str) -> None:
        super().__init__(connect, f"follows-{topic}")
        self._topic = topic

    @abstractmethod
    def take(self, payloads: list[Any]) -> None:
        """Take the next payloads; called in the feed's thread."""

    def _follow(self, client: Client) -> None:
        start: str | dict[str, Any] = "latest"
        while not self._stopping.is_set():
            page = client.topic(self._topic).consume(start, wait_ms=WAIT_MS)
            start = {"offsets": page["nextOffsets"]}
            self.take([message["payload"] for message in page["messages"]])


QUESTIONS_TOPIC = "demo.asked"
ANSWERS_TOPIC = "demo.answers"
AGENT_GROUP = "agent"
# A week of questions and answers is enough; the demo may run for long.
RETENTION_SECONDS = 7 * 86_400
QUESTIONS_DEFINITION = (
    "CREATE SHARED TABLE IF NOT EXISTS demo.questions (id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(),"
    " who TEXT NOT NULL, text TEXT NOT NULL, asked_at TIMESTAMP DEFAULT NOW())"
)
QUESTIONS_ROUTE = f"ALTER TOPIC {QUESTIONS_TOPIC} ADD SOURCE demo.questions ON INSERT WITH (payload = 'full')"
EXCHANGES_MAX = 8


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question, its answer, and how long that took."""

    who: str
    question: str
    answer: str
    seconds: float


def exchange_of(payload: object) -> Exchange:
    """Return the exchange of a message of the answers; fields that are not there are empty."""
    fields: Mapping[str, Any] = payload if isinstance(payload, dict) else {"answer": payload}
    seconds = fields.get("seconds")
    return Exchange(
        str(fields.get("who", "")),
        str(fields.get("question", "")),
        str(fields.get("answer", "")),
        float(seconds) if isinstance(seconds, int | float) else 0.0,
    )


class ExchangeFeed(TopicFeed):
    """The newest answers; `newest` may be called by any thread."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        super().__init__(connect, ANSWERS_TOPIC)
        self._lock = threading.Lock()
        self._exchanges: deque[Exchange] = deque(maxlen=EXCHANGES_MAX)

    def newest(self) -> list[Exchange]:
        """Return the last exchanges, the newest last."""
        with self._lock:
            return list(self._exchanges)

    def take(self, payloads: list[Any]) -> None:
        """Add the exchanges of some messages."""
        with self._lock:
            self._exchanges.extend(map(exchange_of, payloads))


DEMO_TOPIC = "demo.readings"
PRESENCE_TTL_SECONDS = 15
PRESENCE_SQL = "SELECT who, room, typing FROM demo.presence"
PRESENCE_DEFINITION = (
    "CREATE STREAM TABLE IF NOT EXISTS demo.presence (who TEXT PRIMARY KEY, room TEXT, typing BOOLEAN)"
    f" WITH (ttl_seconds = {PRESENCE_TTL_SECONDS})"
)


@dataclass(frozen=True, slots=True)
class Person:
    """Someone who is here."""

    who: str
    room: str
    typing: bool
    seen_seconds: float


class PresenceTable:
    """The newest row of everyone, by name."""

    def __init__(self) -> None:
        self._rows: dict[str, Person] = {}

    def apply(self, change: RowChange, now_seconds: float) -> None:
        """Apply one change of the stream."""
        if change.kind == "lagged":
            self._rows.clear()
            return
        row: dict[str, Any] = change.row
        if change.kind == "delete":
            self._rows.pop(row["who"], None)
        else:
            self._rows[row["who"]] = Person(row["who"], row["room"], bool(row["typing"]), now_seconds)

    def here(self, now_seconds: float) -> list[Person]:
        """Return those whose row has not expired, by name."""
        oldest = now_seconds - PRESENCE_TTL_SECONDS
        return sorted(
            (person for person in list(self._rows.values()) if person.seen_seconds > oldest),
            key=lambda person: person.who,
        )


class PresenceFeed(Feed):
    """Those who are here; `here` may be called by any thread."""

    def __init__(self, connect: Callable[[], Client], clock: Clock) -> None:
        super().__init__(connect, "presence-feed")
        self._clock = clock
        self._table = PresenceTable()
        self._lock = threading.Lock()
        self._close: Callable[[], None] = lambda: None

    def stop(self) -> None:
        """Close the socket."""
        super().stop()
        self._close()

    def here(self) -> list[Person]:
        """Return those who are here now."""
        with self._lock:
            return self._table.here(self._clock.monotonic_seconds())

    def _follow(self, client: Client) -> None:
        with client.subscribe(PRESENCE_SQL, reconnect_seconds=0) as changes:
            self._close = changes.close
            self._apply_all(changes)

    def _apply_all(self, changes: Iterable[RowChange]) -> None:
        for change in changes:
            with self._lock:
                self._table.apply(change, self._clock.monotonic_seconds())
            if self._stopping.is_set():
                return


CLICKS_TOPIC = "demo.clicks"
SESSIONS_TOPIC = "demo.sessions"
VISITS_MAX = 1_000  # someone else may publish there, without end


@dataclass(frozen=True, slots=True)
class Visit:
    """A session of one person, as in its newest message."""

    who: str
    is_open: bool
    clicks: int
    seconds: float
    feature: str


@dataclass(frozen=True, slots=True)
class Visits:
    """The open sessions, the longest first, and how many were closed since the view began."""

    open: tuple[Visit, ...] = ()
    closed: int = 0


def visit_of(payload: object) -> Visit | None:
    """Return the session in a message; None for a message of someone else."""
    if not isinstance(payload, Mapping) or not isinstance(payload.get("who"), str):
        return None
    clicks, seconds = payload.get("clicks"), payload.get("seconds")
    return Visit(
        payload["who"],
        payload.get("state") == "open",
        clicks if isinstance(clicks, int) else 0,
        float(seconds) if isinstance(seconds, int | float) else 0.0,
        str(payload.get("feature") or ""),
    )


class VisitFeed(TopicFeed):
    """The sessions; `now` may be called by any thread."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        super().__init__(connect, SESSIONS_TOPIC)
        self._lock = threading.Lock()
        self._open: dict[str, Visit] = {}
        self._closed = 0

    def now(self) -> Visits:
        """Return the open sessions and the number of closed ones."""
        with self._lock:
            longest = sorted(self._open.values(), key=lambda visit: (-visit.clicks, visit.who))
            return Visits(tuple(longest), self._closed)

    def take(self, payloads: list[Any]) -> None:
        """Apply some messages, in order."""
        with self._lock:
            for visit in filter(None, map(visit_of, payloads)):
                if visit.is_open and (visit.who in self._open or len(self._open) < VISITS_MAX):
                    self._open[visit.who] = visit
                elif not visit.is_open and self._open.pop(visit.who, None) is not None:
                    self._closed += 1
