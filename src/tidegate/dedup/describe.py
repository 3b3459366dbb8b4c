"""The state of a deduplication, read from the commit records of a checkpoint.

Only commit records are read: it works while the query runs, when it does not, and on any copy of a
checkpoint. Partitions are summed. Totals are of all batches since the number of partitions last changed.
Segments are those after the last whole batch; the bytes that it added are estimated (statistics.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.checkpoint.commit_record import CommitRecord, Times, read_commit_record
from tidegate.checkpoint.inspect import OperatorState
from tidegate.checkpoint.inspect import describe as describe_operators
from tidegate.checkpoint.store import operator_store
from tidegate.errors import StorageCorrupt

KIND = "dedup"
# Notes with this key list the segments after the batch. Those of older commit records list them before the
# batch: the keys that it added are in none of their segments.
AFTER = "after_batch"
US_PER_MS = 1_000


@dataclass(frozen=True, slots=True)
class FilterTally:
    """The counters of filters: `maybe` of `probes` led to a read, `false` of them found nothing."""

    probes: int = 0
    maybe: int = 0
    false: int = 0

    @property
    def false_rate(self) -> float | None:
        """Return the share of absent keys that the filters did not exclude; None before the first one."""
        absent = self.probes - self.maybe + self.false
        return self.false / absent if absent > 0 else None


@dataclass(frozen=True, slots=True)
class SegmentState:
    """One segment summed over all partitions; times are microseconds since 1970, the end is exclusive.

    `expires_us` is the stream time at which it is removed. It is active while the stream time lies in it.
    """

    start_us: int
    end_us: int
    keys: int
    size_bytes: int
    filter_bytes: int
    oldest_us: int | None
    newest_us: int | None
    filters: FilterTally
    expires_us: int
    is_live: bool
    is_active: bool


@dataclass(frozen=True, slots=True)
class DedupState:
    """The state of one deduplication after its last whole batch; `stream_us` is None before any row."""

    operator: str
    partitions: int
    batch: int
    retention_us: int
    interval_us: int
    exact_keys: bool
    stream_us: int | None
    unique: int
    duplicates: int
    late: int
    filters: FilterTally
    reads: int
    lookup_us: int
    checkpoint_bytes: int
    added_keys: int
    unlisted_keys: int
    segments: tuple[SegmentState, ...]

    @property
    def keys(self) -> int:
        """Return the keys of all segments, and those that an older commit record does not list."""
        return sum(one.keys for one in self.segments) + self.unlisted_keys

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all segments on local disks, without their filters."""
        return sum(one.size_bytes for one in self.segments)

    @property
    def filter_bytes(self) -> int:
        """Return the bytes of all filters."""
        return sum(one.filter_bytes for one in self.segments)

    @property
    def duplicate_rate(self) -> float | None:
        """Return the share of duplicates in all rows; None before the first row."""
        rows = self.unique + self.duplicates + self.late
        return self.duplicates / rows if rows else None

    @property
    def lookup_seconds(self) -> float | None:
        """Return the mean duration of one read of the store; None before the first."""
        return self.lookup_us / 1_000_000 / self.reads if self.reads else None


def describe(checkpoint: str | Path) -> list[DedupState]:
    """Return the deduplications of a checkpoint, in the order of their names."""
    found = (dedup_state(checkpoint, one) for one in describe_operators(checkpoint))
    return [one for one in found if one is not None]


def dedup_state(checkpoint: str | Path, operator: OperatorState) -> DedupState | None:
    """Return the state of one operator; None if it is of another kind, or has not done a batch yet."""
    commits, batch = _newest_commits(checkpoint, operator)
    noted = [commit for commit in commits if commit.notes.get("kind") == KIND]
    if not noted:
        return None
    try:
        return _summed(operator, batch, noted)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        place = f"{checkpoint}/state/{operator.operator}, batch {batch}"
        raise StorageCorrupt(place=place, reason="what it notes of its segments lacks a part") from problem


def _newest_commits(checkpoint: str | Path, operator: OperatorState) -> tuple[list[CommitRecord], int]:
    """Return the commit records of the last whole batch; for an epoch without one, those it begins from."""
    commits = [part.commit for part in operator.partitions if part.commit is not None]
    parent = operator.epoch.parent
    if commits or parent is None or parent.savepoint is not None:
        return commits, operator.last_batch
    checkpoint_store = operator_store(str(checkpoint), operator.operator)
    before = [
        read_commit_record(checkpoint_store, parent.epoch, number, parent.batch)
        for number in range(parent.parallelism)
    ]
    return [commit for commit in before if commit is not None], parent.batch


def _summed(operator: OperatorState, batch: int, commits: Sequence[CommitRecord]) -> DedupState:
    notes = commits[0].notes
    retention_us, interval_us = int(notes["retention_us"]), int(notes["interval_us"])
    # The newest event of the batch counts from the next batch on: it is the stream time now.
    known = [Times.of(commits).newest_event_us, *(commit.notes.get("stream_us") for commit in commits)]
    stream_us = max((one for one in known if one is not None), default=None)
    totals = {name: sum(commit.totals.get(name, 0) for commit in commits) for name in _TOTALS}
    return DedupState(
        operator=operator.operator,
        partitions=len(commits),
        batch=batch,
        retention_us=retention_us,
        interval_us=interval_us,
        exact_keys=bool(notes.get("exact_keys", False)),
        stream_us=stream_us,
        unique=totals["unique"],
        duplicates=totals["duplicate"],
        late=totals["late"],
        filters=FilterTally(totals["filter_probes"], totals["filter_maybe"], totals["filter_false"]),
        reads=totals["reads"],
        lookup_us=totals["lookup_us"],
        checkpoint_bytes=operator.checkpoint_bytes,
        added_keys=sum(commit.counts.get("unique", 0) for commit in commits),
        unlisted_keys=sum(
            commit.counts.get("unique", 0) for commit in commits if not commit.notes.get(AFTER)
        ),
        segments=_segments(commits, retention_us, interval_us, stream_us),
    )


_TOTALS = (
    *("unique", "duplicate", "late", "reads", "lookup_us"),
    *("filter_probes", "filter_maybe", "filter_false"),
)


def _segments(
    commits: Iterable[CommitRecord], retention_us: int, interval_us: int, stream_us: int | None
) -> tuple[SegmentState, ...]:
    """Return the segments of all partitions, the oldest first."""
    parts: dict[int, list[Mapping[str, Any]]] = {}
    for commit in commits:
        for one in commit.notes.get("segments", ()):
            parts.setdefault(int(one["start_ms"]) * US_PER_MS, []).append(one)
    return tuple(
        _segment(start_us, parts[start_us], retention_us, interval_us, stream_us)
        for start_us in sorted(parts)
    )


def _segment(
    start_us: int,
    parts: Sequence[Mapping[str, Any]],
    retention_us: int,
    interval_us: int,
    stream_us: int | None,
) -> SegmentState:
    end_us = start_us + interval_us

    def added(name: str) -> int:
        return sum(int(part.get(name) or 0) for part in parts)

    oldest = [part["oldest_us"] for part in parts if part.get("oldest_us") is not None]
    newest = [part["newest_us"] for part in parts if part.get("newest_us") is not None]
    return SegmentState(
        start_us=start_us,
        end_us=end_us,
        keys=added("keys"),
        size_bytes=added("size_bytes"),
        filter_bytes=added("filter_bytes"),
        oldest_us=min(oldest, default=None),
        newest_us=max(newest, default=None),
        filters=FilterTally(added("filter_probes"), added("filter_maybe"), added("filter_false")),
        expires_us=end_us + retention_us,
        is_live=stream_us is None or stream_us < end_us + retention_us,
        is_active=stream_us is not None and start_us <= stream_us < end_us,
    )
