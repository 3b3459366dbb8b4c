"""Sessions: the demo's second pipeline as the console view sees it. Follows a topic.

People click; clicks go to the topic `demo.clicks`; the pipeline `sessions` keeps a session for each person in
its state, and tells of it in the topic `demo.sessions`, which this follows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.cli.following import TopicFollower

if TYPE_CHECKING:
    from tidegate.sdk.client import Client

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
        """Give the sessions as they stand."""
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
