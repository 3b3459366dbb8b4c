"""Who is there: the live panel of the demo. Follows a STREAM table over a socket, in a thread of its own.

`People` is pure and keeps one line a person; `PresenceFeed` fills it. A person who was not heard of for the
time to live of the table is gone: expiry is no change, so whoever follows a stream applies it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.model.clock import Clock
    from tidegate.sdk.client import Client
    from tidegate.sdk.live import Change

DEMO_TOPIC = "demo.readings"
PRESENCE_TTL_SECONDS = 15
PRESENCE_SQL = "SELECT who, room, typing FROM demo.presence"
PRESENCE_DEFINITION = (
    "CREATE STREAM TABLE IF NOT EXISTS demo.presence (who TEXT PRIMARY KEY, room TEXT, typing BOOLEAN)"
    f" WITH (ttl_seconds = {PRESENCE_TTL_SECONDS})"
)
# While there is no server, or the table is not made yet.
RETRY_SECONDS = 1.0


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

    def take(self, change: Change, now_seconds: float) -> None:
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
        """Give those who are there, by name."""
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
        """Give those who are there now."""
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

    def _take_all(self, changes: Iterable[Change]) -> None:
        for change in changes:
            with self._lock:
                self._people.take(change, self._clock.monotonic_seconds())
            if self._leave.is_set():
                return
