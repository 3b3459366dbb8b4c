"""Scans of STREAM tables: the range of times or the last rows that are needed, and their rows as Arrow."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.model.tables import Table, Value
from tidegate.model.times import TIME_US_MAX, format_time
from tidegate.query.scans.source import ScanBudget, ScanPlan, ScanRequest, ScanResult, chosen_columns
from tidegate.query.scans.tables import NOTHING, KeyBounds, cut, gather, key_bounds
from tidegate.streams.store import StreamStore

TIME_COLUMN = "_time"


class StreamSpan(NamedTuple):
    """Times from `start_us` (in) to `stop_us` (out), or the newest rows alone; None is no bound."""

    start_us: int | None = None
    stop_us: int | None = None
    last: int | None = None


class StreamTable:
    """A stream as one caller sees it: the rows of one user."""

    def __init__(self, table: Table, user: str, streams: StreamStore) -> None:
        self.full_name = table.full_name
        self.kind = str(table.kind)
        self.columns = table.shown_columns
        self.compared = frozenset({TIME_COLUMN})
        self._table = table
        self._user = user
        self._streams = streams

    def access(self, request: ScanRequest) -> ScanPlan:
        columns = chosen_columns((name for name, _ in self.columns), request.columns)
        # The newest rows of all are not the newest of those that meet a comparison.
        if request.last is not None and not request.comparisons:
            return ScanPlan(f"last {request.last}", columns, StreamSpan(last=request.last), is_small=True)
        span = key_bounds((TIME_COLUMN,), {}, request.comparisons)
        if span.is_empty:
            return ScanPlan(NOTHING, columns, None, is_small=True)
        times = _times(span)
        return ScanPlan(_words(times), columns, times)

    def scan(self, plan: ScanPlan, budget: ScanBudget) -> ScanResult:
        span: StreamSpan | None = plan.access_path
        budget.charge(0)
        if span is None:
            return ScanResult(gather((), self.columns, plan.columns, budget))
        found = self._streams.read(
            self._table, self._user, start_us=span.start_us, stop_us=span.stop_us, last=span.last
        )
        rows = gather(cut(found.rows), self.columns, plan.columns, budget)
        return ScanResult(rows, tuple(found.warnings))


def _times(span: KeyBounds) -> StreamSpan:
    return StreamSpan(
        None if span.low is None else _whole(span.low) + (not span.low_in),
        None if span.high is None else _whole(span.high) + span.high_in,
    )


def _whole(value: Value) -> int:
    return int(value)  # type: ignore[arg-type]


def _words(span: StreamSpan) -> str:
    if span.start_us is None and span.stop_us is None:
        return "whole table"
    start = "" if span.start_us is None else f"from {format_time(span.start_us)}"
    stop = "" if span.stop_us is None else f"before {format_time(min(span.stop_us, TIME_US_MAX))}"
    return f"time range ({' '.join(part for part in (start, stop) if part)})"
