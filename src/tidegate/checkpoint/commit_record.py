"""The commit record of one batch of one partition: the commit point.

`e<epoch>/<partition>/v<batch>.head` is linked once, by the attempt that is first; from then on the batch is
committed, and every other attempt returns the output that this one stored. It names the changelog file and
the output files with their digests, which are synced before it is linked. Format 1 is a JSON document, one
line, its last member the checksum:

    {"format": 1, "epoch": …, …, "checksum": "<xxh3-64 of the document without this member>"}

`Times` are those of the commit records of all partitions of a batch taken together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tidegate.checkpoint.store import CheckpointStore, partition_folder
from tidegate.errors import StorageCorrupt
from tidegate.storage.sealed_json import seal, unseal

COMMIT_RECORD_FORMAT = 1
# The name of the commit id in stored JSON.
STORED_ID = "head_id"
_COMMIT_RECORD_NAME = re.compile(r"^v(\d+)\.head$")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a commit record names: its name beside it, its size and digest, and its rows or entries."""

    file: str
    size_bytes: int
    digest: str
    rows: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The figures of a batch, beside its changes and its output."""

    rows_in: int = 0
    rows_out: int = 0
    dead_rows: int = 0
    newest_event_ms: int | None = None
    next_event_timer_ms: int | None = None
    next_processing_timer_ms: int | None = None
    watermark_ms: int | None = None
    batch_time_ms: int = 0
    schema: int = 0
    is_snapshot_requested: bool = False
    newest_event_us: int | None = None
    # Figures of this batch that add up over batches, by name.
    counts: Mapping[str, int] = field(default_factory=dict)
    # Values of the operator after the batch that JSON can store; small.
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """The commit record of one batch of one partition; there is one at most.

    `size_bytes` and `entry_count` are estimates of the state with the batch in it; `log_bytes` is the length
    of all changelog files of the epoch up to this one; `damaged` is what its recovery found damaged and
    avoided.
    """

    epoch: int
    partition: int
    batch: int
    commit_id: str
    plan_id: str
    attempt: str
    changes: StoredFile
    out: StoredFile | None
    dead: StoredFile | None
    rows_in: int
    rows_out: int
    dead_rows: int
    newest_event_ms: int | None
    next_event_timer_ms: int | None
    next_processing_timer_ms: int | None
    watermark_ms: int | None
    batch_time_ms: int
    schema: int
    size_bytes: int
    entry_count: int
    log_bytes: int
    published_at_ms: int
    took_ms: int
    damaged: tuple[str, ...] = ()
    # Of all batches of the epoch, so that a reader need not have seen every one.
    dead_rows_total: int = 0
    # The run of the query that published it, and which of its operators.
    run: str | None = None
    call: str = ""
    newest_event_us: int | None = None
    # Of this batch; `totals` of all batches of the epoch.
    counts: Mapping[str, int] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    format: int = COMMIT_RECORD_FORMAT


def add_counts(totals: Mapping[str, int], counts: Mapping[str, int]) -> dict[str, int]:
    """Return totals with the figures of one more batch added."""
    return {name: totals.get(name, 0) + counts.get(name, 0) for name in {**totals, **counts}}


def stored_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields under their names in stored JSON: a commit id is `head_id` in every format."""
    return {STORED_ID if name == "commit_id" else name: value for name, value in fields.items()}


def loaded_fields(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of stored JSON under the names that classes have."""
    return {"commit_id" if name == STORED_ID else name: value for name, value in stored.items()}


def commit_record_name(epoch: int, partition: int, batch: int) -> str:
    """Return the name of a commit record in the checkpoint store."""
    return f"{partition_folder(epoch, partition)}/v{batch}.head"


def encode_commit_record(commit: CommitRecord) -> bytes:
    """Return the bytes of a commit record's file."""
    return seal(stored_fields(asdict(commit)))


def decode_commit_record(content: bytes, place: str) -> CommitRecord:
    """Return the commit record of a file; StorageCorrupt when it is damaged or of another format."""
    document = unseal(content, place, COMMIT_RECORD_FORMAT)
    try:
        files = {name: document[name] for name in ("changes", "out", "dead")}
        members: dict[str, Any] = document | {
            name: None if found is None else StoredFile(**found) for name, found in files.items()
        }
        members["damaged"] = tuple(document["damaged"])
        return CommitRecord(**loaded_fields(members))
    except (KeyError, TypeError) as problem:
        raise StorageCorrupt(
            place=place, reason=f"it is no commit record of format {COMMIT_RECORD_FORMAT}"
        ) from problem


def read_commit_record(store: CheckpointStore, epoch: int, partition: int, batch: int) -> CommitRecord | None:
    """Return the commit record of a batch; None when that batch is not committed."""
    name = commit_record_name(epoch, partition, batch)
    content = store.read(name)
    return None if content is None else decode_commit_record(content, str(store.path(name)))


def committed_batches(store: CheckpointStore, epoch: int, partition: int) -> list[int]:
    """Return the batches that have a commit record, in order."""
    names = store.names(partition_folder(epoch, partition))
    return sorted(int(match[1]) for match in map(_COMMIT_RECORD_NAME.match, names) if match)


@dataclass(frozen=True, slots=True)
class Times:
    """The times of all partitions after a batch: the newest event, and when the next timers are due."""

    newest_event_ms: int | None = None
    next_event_timer_ms: int | None = None
    next_processing_timer_ms: int | None = None
    newest_event_us: int | None = None

    @classmethod
    def of(cls, commits: Iterable[CommitRecord]) -> Times:
        """Return the times of the commit records of one batch together."""
        found = list(commits)
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
        """Return the times as stored JSON has them; microseconds only where the operator records them."""
        known: dict[str, int | None] = asdict(self)
        if self.newest_event_us is None:
            del known["newest_event_us"]
        return known


NO_TIMES = Times()
