"""The operator of one batch: a copy of the user's operator with bound states, and what these share."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.state.context import Context, OpenContext
from tidegate.state.cursor import KeyCursor
from tidegate.state.kinds.declaration import State
from tidegate.state.operator import KeyedOperator
from tidegate.state.operator_plan import OperatorPlan
from tidegate.state.runtime.chunks import Chunk
from tidegate.state.timers import TimerClock, Timers
from tidegate.state.write_batch import WriteBatch

# Kinds with one entry for each key, so that the entries of a chunk follow from its keys.
ONE_ENTRY_KINDS = ("value", "reducing", "aggregating")


@dataclass(frozen=True, slots=True)
class BoundOperator:
    """An operator with bound states, for one batch of one partition."""

    plan: OperatorPlan
    # the copy; its bound states hide the declared ones of the class
    operator: KeyedOperator[Any, Any]
    states: Mapping[str, State]
    write_batch: WriteBatch
    cursor: KeyCursor
    timers: Timers
    known: OpenContext
    event_time: str | None

    @property
    def clock(self) -> TimerClock:
        """Return the default clock of timers."""
        return "event" if self.event_time is not None else "processing"

    def context(self) -> Context:
        """Return a context for `process` and `on_timer`."""
        return Context(self.known, self.cursor, self.set_timers, self.clock)

    @property
    def set_timers(self) -> Timers | None:
        """Return the timers that the operator may set; None where it has no `on_timer`."""
        return self.timers if self.plan.has_timers else None

    def prefetch(self, chunk: Chunk) -> None:
        """Read the entries of a chunk's keys with one call, for all states with one entry for each key."""
        entries: list[bytes] = []
        for state in self.states.values():
            if state.kind in ONE_ENTRY_KINDS:
                entries += state.entry_keys(chunk.groups, chunk.stored)
        self.write_batch.forget_cache()
        if entries:
            self.write_batch.prefetch(entries)


def bound_copy(operator: KeyedOperator[Any, Any], states: Mapping[str, State]) -> KeyedOperator[Any, Any]:
    """Return a copy of an operator with bound states; the operator itself stays as it is."""
    fresh = copy.copy(operator)
    for attribute, state in states.items():
        # Not by the class's own __setattr__: a frozen dataclass may be an operator.
        object.__setattr__(fresh, attribute, state)
    return fresh
