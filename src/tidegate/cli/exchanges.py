"""Questions and answers: the demo's agent as the console view sees it. Follows a topic.

People put questions into the table `demo.questions`; the table feeds the topic `demo.asked`; the agent takes
them from there as a consumer group, and its answers go to the topic `demo.answers`, which this follows.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.cli.following import TopicFollower

if TYPE_CHECKING:
    from tidegate.sdk.client import Client

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
        """Give the last exchanges, the newest last."""
        with self._lock:
            return list(self._known)

    def _take(self, payloads: list[Any]) -> None:
        with self._lock:
            self._known.extend(map(exchange_of, payloads))
