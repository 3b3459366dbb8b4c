"""A batch that a task has opened: takes nothing, gives what the batch gave out, whoever did it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tidegate.errors import InvariantBroken, StateMismatch
from tidegate.state.asking import Asked
from tidegate.state.backend import Backend, Changes
from tidegate.state.depot import Depot, partition_folder
from tidegate.state.epochs import Epoch
from tidegate.state.heads import Head, RunFacts, StoredFile, head_batches
from tidegate.state.outputs import read_output
from tidegate.state.restore import RestoreReport


class Opened:
    """A batch that a task has opened; used by one thread, inside `open_batch`.

    `replayed` says that it was done before: `outputs` and `dead` give what it gave, and nothing else may be
    called. A fresh one has `backend`, takes output and changes, and gives them out after `publish`.
    """

    def __init__(self, asked: Asked, depot: Depot, epoch: Epoch, heads: tuple[Head, ...] | None) -> None:
        self.asked = asked
        self.epoch = epoch
        self.replayed = heads is not None
        self.heads = heads or ()
        self.depot = depot

    @property
    def head(self) -> Head | None:
        """Give the head of the batch: the one that `publish` made, or the one that is replayed."""
        return self.heads[0] if self.heads else None

    def outputs(self) -> Iterator[pa.RecordBatch]:
        """Give what the batch gave out, once it is published, by whichever attempt."""
        for head in self._published():
            yield from self._read(head, head.out)

    def dead(self) -> Iterator[pa.RecordBatch]:
        """Give the rows that were set aside, once the batch is published."""
        for head in self._published():
            yield from self._read(head, head.dead)

    def _read(self, head: Head, stored: StoredFile | None) -> Iterator[pa.RecordBatch]:
        folder = partition_folder(head.epoch, head.partition)
        if stored is None or self.depot.exists(f"{folder}/{stored.file}"):
            return read_output(self.depot, folder, stored)
        # Only the newest batch's output is kept: a newer one means that this one was committed.
        if head.batch < max(head_batches(self.depot, head.epoch, head.partition), default=-1):
            reason = f"batch {head.batch} was given out and committed, and its output is no longer kept."
            raise StateMismatch(operator=self.asked.operator, reason=reason)
        return read_output(self.depot, folder, stored)

    def _published(self) -> tuple[Head, ...]:
        if not self.replayed and not self.heads:
            raise InvariantBroken(reason="output is given out after the batch is published, not before")
        return self.heads

    @property
    def report(self) -> RestoreReport | None:
        """Say how the copy came to the batch before; None for a batch that is replayed."""
        return None

    @property
    def backend(self) -> Backend:
        """Give the partition's entries as they were after the batch before; fresh batches alone have it."""
        raise self._wrong("backend")

    @property
    def newest_event_ms(self) -> int | None:
        """Give the newest event time that all partitions together had seen before this batch."""
        raise self._wrong("newest_event_ms")

    @property
    def newest_event_us(self) -> int | None:
        """Give the same in microseconds, where the operator keeps it so."""
        raise self._wrong("newest_event_us")

    @property
    def snapshot_due(self) -> bool:
        """Say whether a snapshot will be taken after this batch."""
        return False

    def write_out(self, batch: pa.RecordBatch) -> None:  # noqa: ARG002 - a replayed batch takes none
        """Add rows to what the batch gives out; all have one schema."""
        raise self._wrong("write_out")

    def write_dead(self, batch: pa.RecordBatch) -> None:  # noqa: ARG002
        """Add rows to those that are set aside; all have one schema."""
        raise self._wrong("write_dead")

    def spill(self, changes: Changes) -> None:  # noqa: ARG002
        """Take a part of the changes early, so that they need not stay in memory.

        The caller then gives the same part to the backend (`write_partly`), through which it is read again.
        """
        raise self._wrong("spill")

    def add_changes(self, changes: Changes) -> None:  # noqa: ARG002
        """Write a part of the changes early, so that they need not stay in memory.

        The backend knows nothing of it before `publish`, which gives it all parts in order.
        """
        raise self._wrong("add_changes")

    def publish(self, changes: Changes, facts: RunFacts) -> Head:  # noqa: ARG002
        """Commit the batch: BatchTaken when another attempt was first; nothing of this one stays then."""
        raise self._wrong("publish")

    def _wrong(self, name: str) -> InvariantBroken:
        return InvariantBroken(reason=f"{name} belongs to a batch that is done now, this one was done before")
