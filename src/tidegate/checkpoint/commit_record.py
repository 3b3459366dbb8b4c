"""Heads: the commit point. Takes what a batch of one partition did, gives one small file that says so.

`e<epoch>/<partition>/v<batch>.head` is put once, by whoever is first; from then on the batch is done, and
every other attempt gives out what this one made. It names the change file and the output files with their
digests, which are on the disk before the head is. Format 1 is a JSON document, one line, its last member
the checksum:

    {"format": 1, "epoch": …, …, "checksum": "<xxh3-64 of the document without this member>"}

Times that outlive a batch: takes the heads of all partitions, gives what they know together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tidegate.checkpoint.store import Depot, partition_folder
from tidegate.errors import StorageCorrupt
from tidegate.storage.sealed_json import seal, unseal

HEAD_FORMAT = 1
_HEAD_NAME = re.compile(r"^v(\d+)\.head$")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a head names: its name beside it, its size and digest, and the rows or entries in it."""

    file: str
    size_bytes: int
    digest: str
    rows: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the run of a batch found out, beside its changes and its output."""

    rows_in: int = 0
    rows_out: int = 0
    dead_rows: int = 0
    newest_event_ms: int | None = None
    next_event_timer_ms: int | None = None
    next_processing_timer_ms: int | None = None
    watermark_ms: int | None = None
    batch_time_ms: int = 0
    schema: int = 0
    snapshot_wanted: bool = False
    newest_event_us: int | None = None
    # Figures of this batch that add up over batches, by name.
    counts: Mapping[str, int] = field(default_factory=dict)
    # What the operator says of itself after the batch, as JSON has it; small.
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Head:
    """What one batch of one partition did; there is one at most, whoever was first.

    `size_bytes` and `entry_count` say about how large the state is with the batch in it; `log_bytes` how long
    all change files of the epoch are together, this one counted; `damaged` what its restore found and went
    round.
    """

    epoch: int
    partition: int
    batch: int
    head_id: str
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
    format: int = HEAD_FORMAT


def added(totals: Mapping[str, int], counts: Mapping[str, int]) -> dict[str, int]:
    """Return totals with the figures of one more batch."""
    return {name: totals.get(name, 0) + counts.get(name, 0) for name in {**totals, **counts}}


def head_name(epoch: int, partition: int, batch: int) -> str:
    """Return the name of a head in the depot."""
    return f"{partition_folder(epoch, partition)}/v{batch}.head"


def encode_head(head: Head) -> bytes:
    """Return the bytes of a head's file."""
    return seal(asdict(head))


def decode_head(content: bytes, place: str) -> Head:
    """Return the head that a file holds; StorageCorrupt when it is damaged or of another format."""
    document = unseal(content, place, HEAD_FORMAT)
    try:
        files = {name: document[name] for name in ("changes", "out", "dead")}
        members: dict[str, Any] = document | {
            name: None if found is None else StoredFile(**found) for name, found in files.items()
        }
        members["damaged"] = tuple(document["damaged"])
        return Head(**members)
    except (KeyError, TypeError) as problem:
        raise StorageCorrupt(place=place, reason=f"it is no head of format {HEAD_FORMAT}") from problem


def read_head(depot: Depot, epoch: int, partition: int, batch: int) -> Head | None:
    """Return the head of a batch; None when that batch is not done."""
    name = head_name(epoch, partition, batch)
    content = depot.read(name)
    return None if content is None else decode_head(content, str(depot.path(name)))


def head_batches(depot: Depot, epoch: int, partition: int) -> list[int]:
    """Return the batches that have a head, in order."""
    names = depot.names(partition_folder(epoch, partition))
    return sorted(int(match[1]) for match in map(_HEAD_NAME.match, names) if match)


@dataclass(frozen=True, slots=True)
class Times:
    """What all partitions know after a batch: the newest event time, and when the next timers are due."""

    newest_event_ms: int | None = None
    next_event_timer_ms: int | None = None
    next_processing_timer_ms: int | None = None
    newest_event_us: int | None = None

    @classmethod
    def of(cls, heads: Iterable[Head]) -> Times:
        """Return what the heads of one batch know together."""
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
        """Return the times as records have them; microseconds stand there only where somebody keeps them."""
        known: dict[str, int | None] = asdict(self)
        if self.newest_event_us is None:
            del known["newest_event_us"]
        return known


NO_TIMES = Times()
