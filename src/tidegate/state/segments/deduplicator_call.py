"""One call of a Python consumer: takes an opened batch and its rows, gives what became of them, published."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

from tidegate.errors import StateMismatch
from tidegate.state.batch import Opened, RunFacts
from tidegate.state.segments.columns import Bytes, Longs
from tidegate.state.segments.decide import DUPLICATE, OUTCOMES, BatchColumns, counts_of, decide
from tidegate.state.segments.deduplicator_recent import Recent
from tidegate.state.segments.noting import Additions, notes_after
from tidegate.state.segments.outer_keys import segments_in
from tidegate.state.segments.rule import SegmentRule
from tidegate.state.segments.store import SegmentStore

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of the messages of one call, in their order.

    `outcome` has "unique", "duplicate" or "late" for each; `first_us` the earliest time that a duplicate is
    in conflict with, in microseconds since 1970, None for others; `counts` how many there are of each.
    """

    outcome: list[str]
    first_us: list[int | None]
    counts: dict[str, int]

    def __len__(self) -> int:
        return len(self.outcome)

    @classmethod
    def of(cls, outcome: Bytes, first_us: Longs) -> Self:
        """Give outcomes as a consumer reads them."""
        is_duplicate = (outcome == DUPLICATE).tolist()
        firsts = [us if is_one else None for us, is_one in zip(first_us.tolist(), is_duplicate, strict=True)]
        return cls([OUTCOMES[one] for one in outcome.tolist()], firsts, counts_of(outcome))

    @classmethod
    def none(cls) -> Self:
        """Give the outcomes of no messages."""
        return cls([], [], dict.fromkeys(OUTCOMES, 0))

    @property
    def first_time(self) -> list[dt.datetime | None]:
        """Give the first times as datetimes of UTC."""
        return [None if us is None else _EPOCH + dt.timedelta(microseconds=us) for us in self.first_us]


def work(
    opened: Opened, rows: BatchColumns, recent: Recent, rule: SegmentRule, accept: Callable[[], object]
) -> tuple[Outcomes, Recent]:
    """Decide the rows of a call and publish it; give what became of them, and what is kept for the next.

    `accept` is called once nothing in the rows speaks against them, before anything of them is stored.
    """
    store = opened.backend
    if not isinstance(store, SegmentStore):
        raise StateMismatch(operator=opened.asked.operator, reason="its state does not lie in segments.")
    stream_us = opened.newest_event_us
    store.expire(stream_us)
    before = asdict(store.tallies())
    outcome, first_us = np.zeros(len(rows), np.uint8), np.zeros(len(rows), np.int64)
    recalled = recent.recall(rows, outcome, first_us)
    rest = np.arange(len(rows))
    if len(recalled):
        rest = np.setdiff1d(rest, recalled, assume_unique=True)
    decision = decide(_part(rows, rest), store, rule, stream_us, is_redelivered=True)
    store.check_segments(segments_in(decision.changes))
    accept()
    outcome[rest], first_us[rest] = decision.outcome, decision.first_us
    newest_us = max([int(rows.times_us.max()), *([] if stream_us is None else [stream_us])])
    recent = recent.after(rows, outcome, first_us, (opened.asked.number, newest_us - rule.retention_us))
    for batch in recent.table.to_batches():
        opened.write_out(batch)
    added = Additions(store.settings)
    added.add(decision.changes)
    told = Outcomes.of(outcome, first_us)
    facts = RunFacts(
        rows_in=len(rows),
        rows_out=told.counts["unique"],
        newest_event_ms=newest_us // 1_000,
        newest_event_us=newest_us,
        counts=told.counts | _lookups(before, asdict(store.tallies())),
        notes=notes_after(store, rule, stream_us, added),
    )
    opened.publish(decision.changes, facts)
    return told, recent


def _part(rows: BatchColumns, numbers: Longs) -> BatchColumns:
    """Give some of the rows, in their order."""
    if len(numbers) == len(rows):
        return rows
    offsets = None if rows.offsets is None else rows.offsets[numbers]
    taken = rows.keys.take(numbers), rows.times_us[numbers], offsets
    return BatchColumns(*taken, lambda asked: rows.tie(numbers[asked]))


def _lookups(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Give what the lookups of one call did, as a head counts it."""
    found = {name: after[name] - before[name] for name in after}
    found["lookup_us"] = found.pop("lookup_ns") // 1_000
    return found
