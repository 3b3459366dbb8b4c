"""The second pipeline of the demo: clicks of `demo.clicks` become sessions in the topic `demo.sessions`.

Some clicks are sent twice, and counted once. Each click writes an update of its session; a timer closes a
session that has been quiet for a while.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tidegate import spark as tide

CLICK = "id STRING, who STRING, feature STRING, at TIMESTAMP"
QUIET = timedelta(seconds=8)


@dataclass
class Click:
    """Someone used a feature."""

    who: str
    feature: str
    at: datetime


@dataclass
class Session:
    """The state of a person's session."""

    started_at: datetime
    last_at: datetime
    clicks: int = 0


@dataclass
class SessionUpdate:
    """An output row: a session after a click, or at its end."""

    key: str
    who: str
    state: str
    clicks: int
    seconds: float
    feature: str | None


class Sessions(tide.KeyedOperator[Click, SessionUpdate]):
    """Keeps one session for each person who clicks."""

    session = tide.ValueState(Session, ttl=tide.Ttl("1 h"))
    features = tide.MapState(str, int, ttl=tide.Ttl("1 h"))

    def process(self, event: Click, ctx: tide.KeyedContext) -> Iterator[SessionUpdate]:
        session = self.session.value() or Session(event.at, event.at)
        session.clicks += 1
        session.started_at = min(session.started_at, event.at)
        session.last_at = max(session.last_at, event.at)
        self.session.update(session)
        self.features.put(event.feature, (self.features.get(event.feature) or 0) + 1)
        ctx.timer(ctx.now + QUIET, clock="processing")
        yield self._update(ctx.key, "open", session)

    def on_timer(self, timer: tide.Timer, ctx: tide.KeyedContext) -> Iterator[SessionUpdate]:
        session = self.session.value()
        if session is None or timer.at < session.last_at + QUIET:
            return  # closed already, or there was a click since, with a timer of its own
        yield self._update(ctx.key, "closed", session)
        self.session.clear()
        self.features.clear()

    def _update(self, who: str, state: str, session: Session) -> SessionUpdate:
        most = max(self.features.entries(), key=lambda entry: entry[1], default=None)
        seconds = (session.last_at - session.started_at).total_seconds()
        return SessionUpdate(who, who, state, session.clicks, seconds, most[0] if most else None)


@tide.pipeline(name="sessions")
def sessions(ctx: tide.Context) -> Any:
    """Read each click once, keep a session for each person, and write its updates."""
    messages = ctx.spark.readStream.format("tidegate.topic").option("topic", "demo.clicks").load()
    clicks = messages.selectExpr(f"from_json(payload, '{CLICK}') AS click").selectExpr("click.*")
    once = tide.deduplicate(
        clicks, name="clicks", on="id", event_time="at", retention="1 h", checkpoint=ctx.checkpoint
    )
    updates = tide.process(
        once, name="sessions", key="who", operator=Sessions(), event_time="at", checkpoint=ctx.checkpoint
    )
    return updates.writeStream.format("tidegate.topic").option("topic", "demo.sessions")
