"""A batch that is done now: takes changes, output and facts, gives a head in the checkpoint, or nothing.

The steps and what a kill after each leaves are argued in batch.py.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

import pyarrow as pa
import xxhash

from tidegate.errors import BatchTaken, InvariantBroken, TidegateError
from tidegate.model.clock import Clock
from tidegate.state.asking import Asked
from tidegate.state.backend import Backend, Changes, Version
from tidegate.state.change_files import ChangeWriter, read_changes
from tidegate.state.depot import Depot, Writer
from tidegate.state.epochs import times_after
from tidegate.state.heads import Head, RunFacts, StoredFile, added, encode_head, head_batches, head_name
from tidegate.state.local import LocalCopy
from tidegate.state.opened import Opened
from tidegate.state.outputs import OutputWriter
from tidegate.state.points import reached
from tidegate.state.pruning import remove_output
from tidegate.state.restore import Partition, RestoreReport, apply_parts
from tidegate.state.snapshotting import SnapshotRules, is_due, take

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
        self.is_copy_current = True
        self._due = self._is_snapshot_due()

    @property
    def report(self) -> RestoreReport | None:
        return self._around.report

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
        """Say whether the batch was done long ago: its head was pruned, and its name is free again.

        Heads are pruned oldest first: while the one before is there, this one was never removed.
        """
        before, asked = self._around.before, self.asked
        if before is not None:
            return not self.depot.exists(head_name(before.epoch, before.partition, before.batch))
        return head_batches(self.depot, self.epoch.number, asked.partition)[-1] > asked.number

    def finish(self) -> None:
        """Do what is due after a published batch: the output before goes, a snapshot is taken.

        The batch is done whatever becomes of this, so a failure here is named in the log and nothing more.
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

    def _head(self, files: _Files, changes: StoredFile, facts: RunFacts) -> Head:
        asked, around = self.asked, self._around
        now_us = around.clock.now_us()
        sizes = self.backend.sizes()
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

    def __init__(self, depot: Depot, stem: str, head_id: str, writer: Writer) -> None:
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
