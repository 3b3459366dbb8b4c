"""Our side of the measurements of state: the operators, and the queries around them.

The operators live in a module of their own: Spark's Python workers import it by its name.
"""

# Operators have the parameters of their class, used or not.
# ruff: noqa: ARG002

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.state.stream import PARTITIONS, Query
from tidegate import spark as tide

LIST_EVENTS = 5


class Count(tide.KeyedOperator[Any, Any]):
    """Count per key, in the vectorised form."""

    output = "k long, n long"
    n = tide.ValueState(int, default=0)

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Add up a batch."""
        totals = self.n.get_many(ctx.keys) + np.bincount(ctx.key_index, minlength=len(ctx.keys))
        self.n.put_many(ctx.keys, totals)
        yield pa.record_batch({"k": ctx.keys, "n": pa.array(totals)})


@dataclass(frozen=True, slots=True)
class Seen:
    """One row."""

    k: int
    ts: int


@dataclass(frozen=True, slots=True)
class Counted:
    """A key and how often it was seen."""

    k: int
    n: int


class CountRows(tide.KeyedOperator[Seen, Counted]):
    """Count per key, row by row."""

    n = tide.ValueState(int, default=0)

    def process(self, event: Seen, ctx: Any) -> Iterator[Counted]:
        """Count one row."""
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        yield Counted(event.k, n)


class Keep(tide.KeyedOperator[Any, Any]):
    """Keep bytes that do not compress for each key: state of a known size."""

    output = "k long"
    kept = tide.ValueState(bytes)

    def __init__(self, value_bytes: int) -> None:
        self.value_bytes = value_bytes

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Write every key of the batch."""
        width = self.value_bytes
        drawn = np.random.default_rng(batch.num_rows).bytes(width * len(ctx.keys))
        self.kept.put_many(ctx.keys, [drawn[at : at + width] for at in range(0, len(drawn), width)])
        yield pa.record_batch({"k": ctx.keys})


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """One use of a feature."""

    user_id: int
    feature: str
    timestamp: int


@dataclass(slots=True)
class UserSession:
    """What is known of a session."""

    start_time: int
    event_count: int = 0
    total_duration: int = 0


@dataclass(frozen=True, slots=True)
class SessionOutput:
    """The summary of a session."""

    user_id: int
    session_duration: int
    event_count: int
    top_features: list[tuple[str, int]]


class SessionTracker(tide.KeyedOperator[SessionEvent, SessionOutput]):
    """A value, a list, a map and a timer for each event."""

    session = tide.ValueState(UserSession, ttl=tide.Ttl("24 h"))
    events = tide.ListState(SessionEvent)
    features = tide.MapState(str, int)

    def process(self, event: SessionEvent, ctx: Any) -> Iterator[SessionOutput]:
        """Take one event; every hundredth gives a summary."""
        session = self.session.value() or UserSession(event.timestamp)
        session.event_count += 1
        session.total_duration = event.timestamp - session.start_time
        self.features.put(event.feature, (self.features.get(event.feature) or 0) + 1)
        self.events.add(event)
        self.session.update(session)
        ctx.timer(event.timestamp - event.timestamp % 60_000 + 30 * 60_000)
        if session.event_count % 100 == 0:
            yield self._summary(event.user_id, session)

    def on_timer(self, timer: Any, ctx: Any) -> Iterator[SessionOutput]:
        """Forget what is old."""
        self.events.clear()
        yield from ()

    def _summary(self, user_id: int, session: UserSession) -> SessionOutput:
        ranked = sorted(self.features.entries(), key=lambda pair: -pair[1])
        return SessionOutput(user_id, session.total_duration, session.event_count, ranked[:LIST_EVENTS])


def ours(operator: Any, *, partitions: int = PARTITIONS, key: str = "k", **options: Any) -> Query:
    """Return a query that runs an operator of ours."""

    def query(rows: Any, checkpoint: str) -> Any:
        return tide.process(
            rows,
            name="bench",
            key=key,
            operator=operator,
            checkpoint=checkpoint,
            partitions=partitions,
            **options,
        )

    return query
