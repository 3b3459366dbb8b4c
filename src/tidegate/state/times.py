"""Times that outlive a batch: takes the heads of all partitions, gives what they know together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from tidegate.state.heads import Head


@dataclass(frozen=True, slots=True)
class Times:
    """What all partitions know after a batch: the newest event time, and when the next timers are due."""

    newest_event_ms: int | None = None
    next_event_timer_ms: int | None = None
    next_processing_timer_ms: int | None = None
    newest_event_us: int | None = None

    @classmethod
    def of(cls, heads: Iterable[Head]) -> Times:
        """Give what the heads of one batch know together."""
        found = list(heads)
        return cls(
            max((h.newest_event_ms for h in found if h.newest_event_ms is not None), default=None),
            min((h.next_event_timer_ms for h in found if h.next_event_timer_ms is not None), default=None),
            min(
                (h.next_processing_timer_ms for h in found if h.next_processing_timer_ms is not None),
                default=None,
            ),
            max((h.newest_event_us for h in found if h.newest_event_us is not None), default=None),
        )

    def record(self) -> dict[str, int | None]:
        """Give the times as records have them; microseconds stand there only where somebody keeps them."""
        known: dict[str, int | None] = asdict(self)
        if self.newest_event_us is None:
            del known["newest_event_us"]
        return known


NO_TIMES = Times()
