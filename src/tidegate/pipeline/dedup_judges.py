"""Judges of a deduplication: take rows of a batch, give the decision, a new one or that of before.

`Deciding` asks the store and hands on what is to be published. `Redoing` reads what was published: from the
own head, or, where the number of instances has changed since, from those of all old ones that had its keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import InvariantBroken, PlanChanged, StateMismatch
from tidegate.pipeline.dedup_columns import Part
from tidegate.state.backend import Changes
from tidegate.state.batch import Opened
from tidegate.state.change_files import read_changes
from tidegate.state.depot import partition_folder
from tidegate.state.heads import Head, head_name, read_head
from tidegate.state.layout import groups_of
from tidegate.state.outputs import read_output
from tidegate.state.rescale import shares
from tidegate.state.segments.columns import GROUP_BYTES, Found, KeyColumn
from tidegate.state.segments.decide import DUPLICATE, OUTCOMES, BatchColumns, Decision, Lookup, decide
from tidegate.state.segments.outer_keys import segments_in
from tidegate.state.segments.redo import Keep, Published, duplicates_table, redo
from tidegate.state.segments.rule import SegmentRule
from tidegate.state.segments.store import SegmentStore, Tallies

Longs = npt.NDArray[np.int64]
Marks = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


class Judge(Protocol):
    """Gives the decision on the rows of a batch, or of one part of it."""

    @property
    def knows_firsts(self) -> bool:
        """Say whether the decisions have the first times of duplicates."""
        ...

    def __call__(self, rows: BatchColumns, part: Part | None) -> Decision:
        """Give the decision; each part is judged once."""
        ...


class Verdict:
    """What became of every row of a batch."""

    def __init__(self, outcome: Marks, first_us: Longs | None, *, knows_firsts: bool) -> None:
        """`first_us` has room for the first times, where they are given out."""
        self.outcome = outcome
        self.counts = dict.fromkeys(OUTCOMES, 0)
        self.newest_us: int | None = None
        self._first_us = first_us
        self._knows_firsts = knows_firsts

    def add(self, decision: Decision, numbers: Longs | None) -> None:
        """Take the decision on some rows, or on all."""
        place: Any = slice(None) if numbers is None else numbers
        self.outcome[place] = decision.outcome
        if self._first_us is not None:
            self._first_us[place] = decision.first_us
        for name, count in decision.counts.items():
            self.counts[name] += count
        seen = [at_us for at_us in (self.newest_us, decision.newest_us) if at_us is not None]
        self.newest_us = max(seen, default=None)

    def firsts(self, start: int, stop: int) -> tuple[Longs, npt.NDArray[np.bool_]]:
        """Give the first times of a range of rows, and which rows have none."""
        if self._first_us is None:
            raise InvariantBroken(reason="first times are kept where they are given out")
        is_none = (
            self.outcome[start:stop] != DUPLICATE if self._knows_firsts else np.ones(stop - start, np.bool_)
        )
        return self._first_us[start:stop], is_none


class NothingStored:
    """The store of a batch job that remembers nothing: every key is new."""

    def __init__(self, *, with_offsets: bool) -> None:
        self._with_offsets = with_offsets

    def lookup(self, keys: KeyColumn, from_us: Longs, to_us: Longs) -> Found:  # noqa: ARG002
        """Give nothing."""
        none = np.empty(0, np.int64)
        return Found(none, none, none if self._with_offsets else None)


class Deciding:
    """Decides against what is stored. `left` are the changes that are still to be published at the end."""

    knows_firsts = True

    def __init__(
        self,
        store: Lookup,
        rule: SegmentRule,
        stream_us: int | None,
        opened: Opened | None,
        *,
        keeps_firsts: bool,
    ) -> None:
        """`opened` takes the changes of all parts but the last, and, where they are kept, the first times."""
        self.left = Changes()
        self._store = store
        self._rule = rule
        self._stream_us = stream_us
        self._opened = opened
        self._keeps_firsts = keeps_firsts
        self._segments: set[int] = set()

    def __call__(self, rows: BatchColumns, part: Part | None) -> Decision:
        decision = decide(rows, self._store, self._rule, self._stream_us)
        if isinstance(self._store, SegmentStore):
            self._segments |= segments_in(decision.changes)
            self._store.check_segments(self._segments)
        if self._opened is not None:
            if self._keeps_firsts and decision.counts[OUTCOMES[DUPLICATE]]:
                for batch in duplicates_table(rows, decision).to_batches():
                    self._opened.write_out(batch)
            if part is None or part.number == part.count - 1:
                self.left = decision.changes
            else:
                self._opened.add_changes(decision.changes)
        return decision


class Redoing:
    """Gives the decisions of a published batch again."""

    def __init__(self, opened: Opened, heads: tuple[Head, ...]) -> None:
        """`heads` are those that hold what was accepted of this instance's keys."""
        asked = opened.asked
        notes = heads[0].notes
        self._opened = opened
        self._heads = heads
        self._rule = SegmentRule(notes["retention_us"], notes["interval_us"])
        self._stream_us: int | None = notes["stream_us"]
        self._groups = None
        if asked.number < opened.epoch.first_batch:
            self._groups = groups_of(asked.partition, asked.parallelism, asked.max_parallelism)
        self._firsts = [batch for head in heads for batch in self._output(head)]
        self.knows_firsts = bool(self._firsts)

    def __call__(self, rows: BatchColumns, part: Part | None) -> Decision:
        firsts = pa.Table.from_batches(self._firsts) if self._firsts else None
        published = Published(self._opened.asked.operator, self._changes(), firsts, self._keep(part))
        return redo(rows, published, self._rule, self._stream_us)

    def _changes(self) -> Iterator[Changes]:
        for head in self._heads:
            yield from read_changes(
                self._opened.depot, partition_folder(head.epoch, head.partition), head.changes
            )

    def _output(self, head: Head) -> Iterator[pa.RecordBatch]:
        return read_output(self._opened.depot, partition_folder(head.epoch, head.partition), head.out)

    def _keep(self, part: Part | None) -> Keep | None:
        """Say which of the published keys are those of the rows at hand; None: all of them."""
        if part is None and self._groups is None:
            return None

        def keep(keys: KeyColumn) -> Flags:
            kept = np.ones(len(keys), np.bool_) if part is None else part.holds(keys)
            return kept if self._groups is None else kept & _within(keys, self._groups)

        return keep


def replayed_heads(opened: Opened) -> tuple[Head, ...]:
    """Give the heads that hold what a published batch accepted of an instance's keys.

    After a change of the number of instances these are of all old ones that had some of its key groups.
    """
    asked, epoch = opened.asked, opened.epoch
    if asked.number >= epoch.first_batch:
        return opened.heads
    if epoch.parent is None:
        raise InvariantBroken(reason=f"batch {asked.number} lies before an epoch that comes from nowhere")
    found = []
    for partition in shares(epoch, asked.partition):
        head = read_head(opened.depot, epoch.parent.epoch, partition, asked.number)
        if head is None:
            reason = f"batch {asked.number} of partition {partition}, epoch {epoch.parent.epoch}, is gone."
            raise StateMismatch(operator=asked.operator, reason=reason)
        if head.plan_id != asked.plan_id:
            raise PlanChanged(operator=asked.operator, partition=asked.partition, batch=asked.number)
        # Whoever linked it may have been killed before its name was on the disk for good.
        opened.depot.sync(head_name(head.epoch, head.partition, head.batch))
        found.append(head)
    return tuple(found)


def counted(before: Tallies, after: Tallies) -> dict[str, int]:
    """Give what lookups did between two moments, as heads count it."""
    old, new = asdict(before), asdict(after)
    did = {name: new[name] - old[name] for name in new}
    did["lookup_us"] = did.pop("lookup_ns") // 1_000
    return did


def _within(keys: KeyColumn, groups: range) -> Flags:
    if isinstance(keys.bytes_, list):
        numbers = np.array([int.from_bytes(key[:GROUP_BYTES]) for key in keys.bytes_], np.int64)
    else:
        numbers = np.ascontiguousarray(keys.bytes_[:, :GROUP_BYTES]).view(">u2").reshape(-1).astype(np.int64)
    return (numbers >= groups.start) & (numbers < groups.stop)
