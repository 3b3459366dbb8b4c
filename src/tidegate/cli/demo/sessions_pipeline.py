"""The demo's second pipeline: clicks of `demo.clicks` become sessions, which go to the topic `demo.sessions`.

Some clicks are sent twice, and counted once. Each click tells of the session as it stands; one that has been
quiet for a while is closed by a timer.
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
    """What is remembered of a person."""

    started_at: datetime
    last_at: datetime
    clicks: int = 0


@dataclass
class Told:
    """What is told of a session."""

    key: str
    who: str
    state: str
    clicks: int
    seconds: float
    feature: str | None


class Sessions(tide.KeyedOperator[Click, Told]):
    """Follows who clicks what, until they are quiet."""

    session = tide.ValueState(Session, ttl=tide.Ttl("1 h"))
    features = tide.MapState(str, int, ttl=tide.Ttl("1 h"))

    def process(self, event: Click, ctx: tide.KeyedContext) -> Iterator[Told]:
        session = self.session.value() or Session(event.at, event.at)
        session.clicks += 1
        session.started_at = min(session.started_at, event.at)
        session.last_at = max(session.last_at, event.at)
        self.session.update(session)
        self.features.put(event.feature, (self.features.get(event.feature) or 0) + 1)
        ctx.timer(ctx.now + QUIET, clock="processing")
        yield self._told(ctx.key, "open", session)

    def on_timer(self, timer: tide.Timer, ctx: tide.KeyedContext) -> Iterator[Told]:
        session = self.session.value()
        if session is None or timer.at < session.last_at + QUIET:
            return  # closed already, or there was a click since, with a timer of its own
        yield self._told(ctx.key, "closed", session)
        self.session.clear()
        self.features.clear()

    def _told(self, who: str, state: str, session: Session) -> Told:
        most = max(self.features.entries(), key=lambda entry: entry[1], default=None)
        seconds = (session.last_at - session.started_at).total_seconds()
        return Told(who, who, state, session.clicks, seconds, most[0] if most else None)


@tide.pipeline(name="sessions")
def sessions(ctx: tide.Context) -> Any:
    """Read clicks, each once, keep a session for each person, tell of it."""
    messages = ctx.spark.readStream.format("tidegate.topic").option("topic", "demo.clicks").load()
    clicks = messages.selectExpr(f"from_json(payload, '{CLICK}') AS click").selectExpr("click.*")
    once = tide.deduplicate(
        clicks, name="clicks", on="id", event_time="at", retention="1 h", checkpoint=ctx.checkpoint
    )
    told = tide.process(
        once, name="sessions", key="who", operator=Sessions(), event_time="at", checkpoint=ctx.checkpoint
    )
    return told.writeStream.format("tidegate.topic").option("topic", "demo.sessions")
