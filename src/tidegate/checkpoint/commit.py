"""A batch that is done now: takes changes, output and facts, gives a head in the checkpoint, or nothing.

The steps and what a kill after each leaves are argued in batch.py.

A batch that a task has opened: takes nothing, gives what the batch gave out, whoever did it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import xxhash

from tidegate.checkpoint.backend import Backend, Changes, Parted, Sizes, Version
from tidegate.checkpoint.changelog import ChangeWriter, read_changes
from tidegate.checkpoint.commit_record import (
    Head,
    RunFacts,
    StoredFile,
    added,
    encode_head,
    head_batches,
    head_name,
)
from tidegate.checkpoint.crash_points import reached
from tidegate.checkpoint.entry_count import moved_by
from tidegate.checkpoint.epochs import Epoch, times_after
from tidegate.checkpoint.local.store import LocalCopy
from tidegate.checkpoint.output_file import OutputWriter, read_output
from tidegate.checkpoint.pruning import remove_output
from tidegate.checkpoint.recovery import Partition, RestoreReport, apply_parts
from tidegate.checkpoint.settings import Asked
from tidegate.checkpoint.snapshotter import CopyDamaged, SnapshotRules, is_due, take
from tidegate.checkpoint.store import Depot, StoreWriter, partition_folder
from tidegate.errors import BatchTaken, InvariantBroken, StateMismatch, TidegateError
from tidegate.model.clock import Clock


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
        """Return the head of the batch: the one that `publish` made, or the one that is replayed."""
        return self.heads[0] if self.heads else None

    def outputs(self) -> Iterator[pa.RecordBatch]:
        """Yield what the batch gave out, once it is published, by whichever attempt."""
        for head in self._published():
            yield from self._read(head, head.out)

    def dead(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that were set aside, once the batch is published."""
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
        """Return how the copy came to the batch before; None for a batch that is replayed."""
        return None

    @property
    def before(self) -> Head | None:
        """Return the head of the batch before, in this epoch; None for its first, and for one replayed."""
        return None

    @property
    def backend(self) -> Backend:
        """Return the partition's entries as they were after the batch before; fresh batches alone have it."""
        raise self._wrong("backend")

    @property
    def newest_event_ms(self) -> int | None:
        """Return the newest event time that all partitions together had seen before this batch."""
        raise self._wrong("newest_event_ms")

    @property
    def newest_event_us(self) -> int | None:
        """Return the same in microseconds, where the operator keeps it so."""
        raise self._wrong("newest_event_us")

    @property
    def snapshot_due(self) -> bool:
        """Return whether a snapshot will be taken after this batch."""
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


log = logging.getLogger(__name__)

# Attempts at one batch whose files would have the same id; each dead one leaves one until it is pruned.
IDS_MAX = 1_000
# A head stays small: of damage found by its restore it names so many, the log has them all.
DAMAGED_SHOWN_MAX = 10


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a fresh batch works with: its partition, the copy at the batch before, and that batch's head."""

    partition: Partition
    copy: LocalCopy
    before: Head | None
    report: RestoreReport
    rules: SnapshotRules
    clock: Clock


class Fresh(Opened):
    """A batch that nobody has done yet; nothing happens to it until `publish`."""

    def __init__(self, asked: Asked, around: Surroundings) -> None:
        super().__init__(asked, around.partition.depot, around.partition.epoch, None)
        self._around = around
        self._began_us = around.clock.now_us()
        self._files: _Files | None = None
        self._is_decided = True
        self._is_wanted = False
        self.is_spilled = False
        self._has_early = False
        self._entry_count: int | None = None
        self.is_copy_current = True
        self.is_copy_damaged = False
        self._due = self._is_snapshot_due()

    @property
    def report(self) -> RestoreReport | None:
        return self._around.report

    @property
    def before(self) -> Head | None:
        return self._around.before

    @property
    def backend(self) -> Backend:
        return self._around.copy.backend

    @property
    def newest_event_ms(self) -> int | None:
        return times_after(self.depot, self.epoch, self.asked.number - 1).newest_event_ms

    @property
    def newest_event_us(self) -> int | None:
        return times_after(self.depot, self.epoch, self.asked.number - 1).newest_event_us

    @property
    def snapshot_due(self) -> bool:
        return self._due

    def write_out(self, batch: pa.RecordBatch) -> None:
        self._own_files().write("out", batch)

    def write_dead(self, batch: pa.RecordBatch) -> None:
        self._own_files().write("dead", batch)

    def spill(self, changes: Changes) -> None:
        if self._has_early:
            raise InvariantBroken(reason="a batch that added changes early has none of them in the copy")
        self.is_spilled = True
        self._count(changes)
        self._own_files().changes.add(changes)

    def add_changes(self, changes: Changes) -> None:
        if self.is_spilled:
            raise InvariantBroken(reason="a batch that spilled has parts in the copy; it adds none beside")
        self._has_early = True
        self._own_files().changes.add(changes)

    def publish(self, changes: Changes, facts: RunFacts) -> Head:
        """Commit the batch: BatchTaken when another attempt was first; nothing of this one stays then.

        When this raises before the head is linked, nothing has happened and the files are removed. Once
        linking has begun and its end is not known (the disk failed), the files stay: a head may name them.
        """
        asked, around = self.asked, self._around
        if self.heads:
            raise InvariantBroken(reason="a batch is published once")
        reached("worked", asked.partition, asked.number)
        self._is_wanted = facts.snapshot_wanted
        self._count(changes)
        files = self._own_files()
        files.changes.add(changes)
        stored = files.changes.close()
        reached("changes-written", asked.partition, asked.number)
        head = self._head(files, stored, facts)
        if around.before is None:
            self.depot.sync_above(self._name)
        else:
            self.depot.sync(self._name)
        reached("out-written", asked.partition, asked.number)
        spare = self.depot.prepare(self._name, encode_head(head))
        self._is_decided = False
        is_first = self.depot.link_new(spare, self._name)
        if is_first and self._is_over():
            self.depot.remove(self._name)
            is_first = False
        self._is_decided = True
        if not is_first:
            raise BatchTaken(operator=asked.operator, partition=asked.partition, batch=asked.number)
        self.heads = (head,)
        reached("head-linked", asked.partition, asked.number)
        self._apply(changes, head)
        reached("applied", asked.partition, asked.number)
        return head

    def _is_over(self) -> bool:
        """Return whether the batch was done long ago: its head was pruned, and its name is free again.

        Heads are pruned oldest first: while the one before is there, this one was never removed.
        """
        before, asked = self._around.before, self.asked
        if before is not None:
            return not self.depot.exists(head_name(before.epoch, before.partition, before.batch))
        return head_batches(self.depot, self.epoch.number, asked.partition)[-1] > asked.number

    def finish(self) -> None:
        """Do what is due after a published batch: the output before goes, a snapshot is taken.

        The batch is done whatever becomes of this, so a failure here is named in the log and nothing more.
        A copy of which no snapshot can be taken is called damaged, so that the next batch makes it again.
        """
        around = self._around
        try:
            if around.before is not None:
                old = [file.file for file in (around.before.out, around.before.dead) if file is not None]
                remove_output(self.depot, around.before.epoch, around.before.partition, old)
            # Looked at again: a snapshot may have come to its end while this batch ran.
            is_due_now = self._is_wanted or (self._due and self._is_snapshot_due())
            if self.head is not None and self.is_copy_current and is_due_now:
                take(around.copy, self.depot, self.head, around.rules, around.clock)
        except CopyDamaged as problem:
            self.is_copy_damaged = True
            log.warning(
                "the copy of %s is made again after batch %d: %s", self._name, self.asked.number, problem
            )
        except (TidegateError, OSError) as problem:
            log.warning("after batch %d of %s: %s", self.asked.number, self.depot.root, problem)

    def discard(self) -> None:
        """Remove the files of a batch that was not published; those that a head may name stay."""
        if self._files is not None and not self.heads and self._is_decided:
            self._files.discard()

    def _apply(self, changes: Changes, head: Head) -> None:
        """Tell the copy; when it cannot take it, the batch is done all the same, and the copy is behind."""
        self.is_copy_current = False
        version = Version(head.epoch, head.batch, head.head_id)
        try:
            if self._has_early:
                parts = read_changes(self.depot, self._around.partition.folder, head.changes)
                apply_parts(self.backend, parts, version)
            else:
                self.backend.apply(changes, version)
            self.is_copy_current = True
        except TidegateError as problem:
            log.warning("the copy of %s did not take batch %d: %s", self._name, head.batch, problem)

    def _is_snapshot_due(self) -> bool:
        around = self._around
        return is_due(self.depot, self.epoch, around.before, self.asked.partition, around.rules)

    @property
    def _name(self) -> str:
        return head_name(self.epoch.number, self.asked.partition, self.asked.number)

    def _own_files(self) -> _Files:
        if self._files is None:
            self._files = _Files.claim(self.depot, self._around.partition.folder, self.asked, self._began_us)
        return self._files

    def _count(self, changes: Changes) -> None:
        """Count what the copy gets by changes that it has not taken yet; one of parts knows by itself."""
        if isinstance(self.backend, Parted):
            return
        if self._entry_count is None:
            before = self._around.before
            self._entry_count = self.backend.sizes().entry_count if before is None else before.entry_count
        self._entry_count = max(0, self._entry_count + moved_by(self.backend, changes))

    def _sizes(self, changes: StoredFile) -> Sizes:
        """Return how large the state is with this batch in it."""
        found = self.backend.sizes()
        count = found.entry_count if self._entry_count is None else self._entry_count
        return Sizes(found.size_bytes + changes.size_bytes, count)

    def _head(self, files: _Files, changes: StoredFile, facts: RunFacts) -> Head:
        asked, around = self.asked, self._around
        now_us = around.clock.now_us()
        sizes = self._sizes(changes)
        return Head(
            epoch=self.epoch.number,
            partition=asked.partition,
            batch=asked.number,
            head_id=files.head_id,
            plan_id=asked.plan_id,
            attempt=asked.attempt,
            changes=changes,
            out=files.close("out"),
            dead=files.close("dead"),
            rows_in=facts.rows_in,
            rows_out=facts.rows_out,
            dead_rows=facts.dead_rows,
            newest_event_ms=facts.newest_event_ms,
            next_event_timer_ms=facts.next_event_timer_ms,
            next_processing_timer_ms=facts.next_processing_timer_ms,
            watermark_ms=facts.watermark_ms,
            batch_time_ms=facts.batch_time_ms,
            schema=facts.schema,
            size_bytes=sizes.size_bytes,
            entry_count=sizes.entry_count,
            log_bytes=changes.size_bytes + (around.before.log_bytes if around.before else 0),
            published_at_ms=now_us // 1_000,
            took_ms=max(0, now_us - self._began_us) // 1_000,
            damaged=around.report.damaged[:DAMAGED_SHOWN_MAX],
            dead_rows_total=facts.dead_rows + (around.before.dead_rows_total if around.before else 0),
            run=asked.run,
            call=asked.call,
            newest_event_us=facts.newest_event_us,
            counts=facts.counts,
            totals=added(around.before.totals if around.before else {}, facts.counts),
            notes=facts.notes,
        )


class _Files:
    """The files of one attempt at a batch, under an id that no other attempt has."""

    def __init__(self, depot: Depot, stem: str, head_id: str, writer: StoreWriter) -> None:
        self.head_id = head_id
        self.changes = ChangeWriter(writer)
        self._depot = depot
        self._stem = stem
        self._outputs: dict[str, OutputWriter] = {}

    @classmethod
    def claim(cls, depot: Depot, folder: str, asked: Asked, began_us: int) -> _Files:
        """Find an id whose change file is not there and make it: the id is this attempt's."""
        text = f"{asked.attempt}|{asked.plan_id}|{began_us}|{os.uname().nodename}|{os.getpid()}"
        for number in range(IDS_MAX):
            head_id = xxhash.xxh3_64_hexdigest(f"{text}|{number}".encode())
            stem = f"{folder}/v{asked.number}.{head_id}"
            try:
                return cls(depot, stem, head_id, depot.writer(f"{stem}.changes"))
            except FileExistsError:
                continue
        raise InvariantBroken(reason=f"{IDS_MAX} attempts at {folder}, batch {asked.number}, left files")

    def write(self, kind: str, batch: pa.RecordBatch) -> None:
        """Add rows to an output file, made with the first."""
        found = self._outputs.get(kind)
        if found is None:
            writer = self._depot.writer(f"{self._stem}.{kind}")
            found = self._outputs[kind] = OutputWriter(writer, batch.schema)
        found.write(batch)

    def close(self, kind: str) -> StoredFile | None:
        """Put an output file on the disk; None when the batch has none."""
        found = self._outputs.get(kind)
        return None if found is None else found.close()

    def discard(self) -> None:
        """Remove all files of this attempt."""
        self.changes.discard()
        for output in self._outputs.values():
            output.discard()
