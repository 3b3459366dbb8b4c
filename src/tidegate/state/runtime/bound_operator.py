"""A running operator: the copy of a user's operator with bound states, and what its states share."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.state.context import Context, OpenContext
from tidegate.state.kinds.declaration import State
from tidegate.state.operator import KeyedOperator
from tidegate.state.operator_plan import OperatorPlan
from tidegate.state.runtime.chunks import Chunk
from tidegate.state.runtime.cursor import Cursor
from tidegate.state.runtime.write_batch import Stage
from tidegate.state.timers import TimerClock, Timers

if TYPE_CHECKING:
    from tidegate.state.kinds.value import BoundValue

# Kinds that keep one entry for a key, so that all entries of a chunk's keys are known before its rows are.
ONE_ENTRY_KINDS = ("value", "reducing", "aggregating")


@dataclass(frozen=True, slots=True)
class Running:
    """An operator at work on one batch of one partition."""

    plan: OperatorPlan
    # the copy that has bound states in the place of its declared ones
    operator: KeyedOperator[Any, Any]
    states: Mapping[str, State]
    stage: Stage
    cursor: Cursor
    timers: Timers
    known: OpenContext
    event_time: str | None

    @property
    def clock(self) -> TimerClock:
        """Return the clock that timers go by unless told otherwise."""
        return "event" if self.event_time is not None else "processing"

    def context(self) -> Context:
        """Return a context for the row form."""
        return Context(self.known, self.cursor, self.set_timers, self.clock)

    @property
    def set_timers(self) -> Timers | None:
        """Return what operators set timers with; None where no `on_timer` would be told."""
        return self.timers if self.plan.has_timers else None

    def prefetch(self, chunk: Chunk) -> None:
        """Read the entries of a chunk's keys at once, of every state that keeps one for a key."""
        wanted: list[bytes] = []
        for state in self.states.values():
            if state.kind in ONE_ENTRY_KINDS:
                bound: BoundValue[Any, Any] = state  # type: ignore[assignment]
                wanted += bound.entry_keys(chunk.groups, chunk.stored)
        self.stage.forget_cache()
        if wanted:
            self.stage.prefetch(wanted)


def bound_copy(operator: KeyedOperator[Any, Any], states: Mapping[str, State]) -> KeyedOperator[Any, Any]:
    """Return a copy of an operator with bound states; the operator itself stays as it is."""
    fresh = copy.copy(operator)
    for attribute, state in states.items():
        # Past the class's own __setattr__: a frozen dataclass may be an operator.
        object.__setattr__(fresh, attribute, state)
    return fresh
