"""What moves in the demo beside the status: who is here, who visits, what the agent answers.

Following a topic: takes what is published from now on and hands it over, in a thread of its own.

Questions and answers: the demo's agent as the console view sees it. Follows a topic.

People put questions into the table `demo.questions`; the table feeds the topic `demo.asked`; the agent takes
them from there as a consumer group, and its answers go to the topic `demo.answers`, which this follows.

Who is there: the live panel of the demo. Follows a STREAM table over a socket, in a thread of its own.

`People` is pure and keeps one line a person; `PresenceFeed` fills it. A person who was not heard of for the
time to live of the table is gone: expiry is no change, so whoever follows a stream applies it.

Sessions: the demo's second pipeline as the console view sees it. Follows a topic.

People click; clicks go to the topic `demo.clicks`; the pipeline `sessions` keeps a session for each person in
its state, and tells of it in the topic `demo.sessions`, which this follows.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.cli.console.view import Picture
    from tidegate.model.clock import Clock
    from tidegate.sdk.client import Client
    from tidegate.sdk.live import RowChange


class DemoFeeds:
    """Follows all of it from the first picture of a demo on; one thread calls it."""

    def __init__(self, connect: Callable[[], Client], clock: Clock) -> None:
        self._presence = PresenceFeed(connect, clock)
        self._exchanges = ExchangeFeed(connect)
        self._visits = VisitFeed(connect)
        self._is_started = False

    def drawn(self, picture: Picture) -> Picture:
        """Return the picture with the demo in it; as it is where the server has no demo."""
        if picture.status is None or not is_demo(picture.status):
            return picture
        if not self._is_started:
            self._is_started = True
            self._presence.start()
            self._exchanges.start()
            self._visits.start()
        return replace(
            picture,
            people=self._presence.here(),
            exchanges=self._exchanges.newest(),
            visits=self._visits.now(),
        )

    def stop(self) -> None:
        """Follow no more."""
        if self._is_started:
            self._presence.stop()
            self._exchanges.stop()
            self._visits.stop()


def is_demo(status: Mapping[str, Any]) -> bool:
    """Return whether a status is that of the demo: it has the topic that the agent answers into."""
    return any(topic["name"] == ANSWERS_TOPIC for topic in status["topics"])


WAIT_MS = 1000  # how long a question for more may wait, and with it whoever stops
RETRY_SECONDS = 1.0  # while there is no server, or the topic is not made yet


class TopicFollower:
    """Hands over the payloads of a topic's new messages until it is told to stop."""

    def __init__(self, connect: Callable[[], Client], topic: str, take: Callable[[list[Any]], None]) -> None:
        """`take` is called in the follower's thread, with the payloads in their order."""
        self._connect = connect
        self._topic = topic
        self._take = take
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"follows-{topic}", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more; a question under way is left to itself."""
        self._leave.set()

    def _run(self) -> None:
        while not self._leave.is_set():
            try:
                self._follow()
            except TidegateError:
                # There is no server or no topic yet, or not any more: the view says so by itself.
                self._leave.wait(RETRY_SECONDS)

    def _follow(self) -> None:
        with self._connect() as client:
            start: str | dict[str, Any] = "latest"
            while not self._leave.is_set():
                page = client.topic(self._topic).consume(start, wait_ms=WAIT_MS)
                start = {"offsets": page["nextOffsets"]}
                self._take([message["payload"] for message in page["messages"]])


ASKED_TOPIC = "demo.asked"
ANSWERS_TOPIC = "demo.answers"
AGENT_GROUP = "agent"
# Questions and answers of a week are enough to look back on; the demo may run for long.
KEPT_SECONDS = 7 * 86_400
QUESTIONS_DEFINITION = (
    "CREATE SHARED TABLE IF NOT EXISTS demo.questions (id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(),"
    " who TEXT NOT NULL, text TEXT NOT NULL, asked_at TIMESTAMP DEFAULT NOW())"
)
QUESTIONS_ROUTE = f"ALTER TOPIC {ASKED_TOPIC} ADD SOURCE demo.questions ON INSERT WITH (payload = 'full')"
EXCHANGES_KEPT = 8


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question, what was answered, and how long that took."""

    who: str
    question: str
    answer: str
    seconds: float


def exchange_of(payload: object) -> Exchange:
    """Read a message of the answers; of one that someone else put there, as much as there is."""
    fields: Mapping[str, Any] = payload if isinstance(payload, dict) else {"answer": payload}
    seconds = fields.get("seconds")
    return Exchange(
        str(fields.get("who", "")),
        str(fields.get("question", "")),
        str(fields.get("answer", "")),
        float(seconds) if isinstance(seconds, int | float) else 0.0,
    )


class ExchangeFeed:
    """Follows the answers until it is told to stop; `newest` may be asked from any thread."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._lock = threading.Lock()
        self._known: deque[Exchange] = deque(maxlen=EXCHANGES_KEPT)
        self._follower = TopicFollower(connect, ANSWERS_TOPIC, self._take)

    def start(self) -> None:
        """Begin to follow."""
        self._follower.start()

    def stop(self) -> None:
        """Follow no more; a question under way is left to itself."""
        self._follower.stop()

    def newest(self) -> list[Exchange]:
        """Return the last exchanges, the newest last."""
        with self._lock:
            return list(self._known)

    def _take(self, payloads: list[Any]) -> None:
        with self._lock:
            self._known.extend(map(exchange_of, payloads))


DEMO_TOPIC = "demo.readings"
PRESENCE_TTL_SECONDS = 15
PRESENCE_SQL = "SELECT who, room, typing FROM demo.presence"
PRESENCE_DEFINITION = (
    "CREATE STREAM TABLE IF NOT EXISTS demo.presence (who TEXT PRIMARY KEY, room TEXT, typing BOOLEAN)"
    f" WITH (ttl_seconds = {PRESENCE_TTL_SECONDS})"
)
# While there is no server, or the table is not made yet.


@dataclass(frozen=True, slots=True)
class Person:
    """Someone who is there."""

    who: str
    room: str
    typing: bool
    seen_seconds: float


class People:
    """Everyone who was heard of lately, by name."""

    def __init__(self) -> None:
        self._known: dict[str, Person] = {}

    def take(self, change: RowChange, now_seconds: float) -> None:
        """Learn of one row."""
        if change.kind == "lagged":
            self._known.clear()
            return
        row: dict[str, Any] = change.row
        if change.kind == "delete":
            self._known.pop(row["who"], None)
        else:
            self._known[row["who"]] = Person(row["who"], row["room"], bool(row["typing"]), now_seconds)

    def here(self, now_seconds: float) -> list[Person]:
        """Return those who are there, by name."""
        oldest = now_seconds - PRESENCE_TTL_SECONDS
        return sorted(
            (person for person in list(self._known.values()) if person.seen_seconds > oldest),
            key=lambda person: person.who,
        )


class PresenceFeed:
    """Follows the table until it is told to stop; `here` may be asked from any thread."""

    def __init__(self, connect: Callable[[], Client], clock: Clock) -> None:
        self._connect = connect
        self._clock = clock
        self._people = People()
        self._lock = threading.Lock()
        self._leave = threading.Event()
        self._close: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="presence-feed", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more."""
        self._leave.set()
        self._close()

    def here(self) -> list[Person]:
        """Return those who are there now."""
        with self._lock:
            return self._people.here(self._clock.monotonic_seconds())

    def _run(self) -> None:
        while not self._leave.is_set():
            try:
                self._follow()
            except TidegateError:
                # There is no server or no table yet, or not any more: the view says so by itself.
                self._leave.wait(RETRY_SECONDS)

    def _follow(self) -> None:
        with self._connect() as client, client.subscribe(PRESENCE_SQL, reconnect_seconds=0) as changes:
            self._close = changes.close
            self._take_all(changes)

    def _take_all(self, changes: Iterable[RowChange]) -> None:
        for change in changes:
            with self._lock:
                self._people.take(change, self._clock.monotonic_seconds())
            if self._leave.is_set():
                return


CLICKS_TOPIC = "demo.clicks"
SESSIONS_TOPIC = "demo.sessions"
VISITS_MAX = 1_000  # someone else may publish there, without end


@dataclass(frozen=True, slots=True)
class Visit:
    """A session of one person as it was told last."""

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
    """Read a message of the sessions; None for one that someone else put there."""
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


class VisitFeed:
    """Follows the sessions until it is told to stop; `now` may be asked from any thread."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, Visit] = {}
        self._closed = 0
        self._follower = TopicFollower(connect, SESSIONS_TOPIC, self.take)

    def start(self) -> None:
        """Begin to follow."""
        self._follower.start()

    def stop(self) -> None:
        """Follow no more; a question under way is left to itself."""
        self._follower.stop()

    def now(self) -> Visits:
        """Return the sessions as they stand."""
        with self._lock:
            longest = sorted(self._open.values(), key=lambda visit: (-visit.clicks, visit.who))
            return Visits(tuple(longest), self._closed)

    def take(self, payloads: list[Any]) -> None:
        """Take what was told, in order."""
        with self._lock:
            for visit in filter(None, map(visit_of, payloads)):
                if visit.is_open and (visit.who in self._open or len(self._open) < VISITS_MAX):
                    self._open[visit.who] = visit
                elif not visit.is_open and self._open.pop(visit.who, None) is not None:
                    self._closed += 1
