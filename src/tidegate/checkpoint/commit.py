"""The commit of one batch of one partition: its output, its changelog file and its commit record.

`OpenBatch` is a batch that this attempt runs and publishes; `ReplayedBatch` one that was committed before, by
whichever attempt. The steps, and what a kill after each leaves, are argued in batch.py.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import xxhash

from tidegate.checkpoint.backend import Backend, Sizes, StateChanges, SupportsParts, Version
from tidegate.checkpoint.changelog import ChangelogWriter, read_changes
from tidegate.checkpoint.commit_record import (
    CommitRecord,
    RunFacts,
    StoredFile,
    add_counts,
    commit_record_name,
    committed_batches,
    encode_commit_record,
)
from tidegate.checkpoint.crash_points import crash_point
from tidegate.checkpoint.entry_count import count_change
from tidegate.checkpoint.epochs import Epoch, times_after
from tidegate.checkpoint.local.store import LocalStore
from tidegate.checkpoint.output_file import OutputWriter, read_output
from tidegate.checkpoint.pruning import remove_output
from tidegate.checkpoint.recovery import RestoreReport, StatePartition, apply_parts
from tidegate.checkpoint.settings import BatchRequest
from tidegate.checkpoint.snapshotter import LocalStoreDamaged, SnapshotRules, is_due, take_snapshot
from tidegate.checkpoint.store import CheckpointStore, StoreWriter, partition_folder
from tidegate.errors import BatchTaken, InvariantBroken, StateMismatch, TidegateError
from tidegate.model.clock import Clock

log = logging.getLogger(__name__)

# Attempts at one batch whose files would have the same id; a killed one leaves one until it is pruned.
IDS_MAX = 1_000
# A commit record stays small: it names so much of the damage that recovery found, the log has all of it.
DAMAGED_SHOWN_MAX = 10


class _BatchOutput:
    """The output of a batch, readable once its commit records are there; used by one thread."""

    def __init__(
        self,
        request: BatchRequest,
        store: CheckpointStore,
        epoch: Epoch,
        commits: tuple[CommitRecord, ...] = (),
    ) -> None:
        self.request = request
        self.store = store
        self.epoch = epoch
        self.commits = commits

    @property
    def commit(self) -> CommitRecord | None:
        """Return the commit record of the batch: the one that `publish` made, or the one that is replayed."""
        return self.commits[0] if self.commits else None

    def outputs(self) -> Iterator[pa.RecordBatch]:
        """Yield the output of the published batch, whichever attempt published it."""
        for commit in self._published():
            yield from self._read(commit)

    def _published(self) -> tuple[CommitRecord, ...]:
        return self.commits

    def _read(self, commit: CommitRecord) -> Iterator[pa.RecordBatch]:
        folder, stored = partition_folder(commit.epoch, commit.partition), commit.out
        if stored is None or self.store.exists(f"{folder}/{stored.file}"):
            return read_output(self.store, folder, stored)
        # Only the newest batch's output is retained: a newer one means that Spark has this one for good.
        if commit.batch < max(committed_batches(self.store, commit.epoch, commit.partition), default=-1):
            reason = f"batch {commit.batch} was committed, and its output is no longer stored."
            raise StateMismatch(operator=self.request.operator, reason=reason)
        return read_output(self.store, folder, stored)


class ReplayedBatch(_BatchOutput):
    """A batch that was committed before: its stored output is returned again, state is not touched.

    `commits` has one record, or those of all old instances whose output this instance returns after a change
    of parallelism; there may be none.
    """

    replayed: Literal[True] = True


@dataclass(frozen=True, slots=True)
class OpenBatchContext:
    """The context of an open batch: its partition, its local store, and the commit of the batch before.

    `before` is None for the first batch of an epoch.
    """

    partition: StatePartition
    local: LocalStore
    before: CommitRecord | None
    report: RestoreReport
    rules: SnapshotRules
    clock: Clock


class OpenBatch(_BatchOutput):
    """A batch that is not committed yet, with its state at the batch before; nothing happens until `publish`.

    Used by one thread, inside `open_batch`.
    """

    replayed: Literal[False] = False

    def __init__(self, request: BatchRequest, context: OpenBatchContext) -> None:
        super().__init__(request, context.partition.store, context.partition.epoch)
        self._context = context
        self._began_us = context.clock.now_us()
        self._files: _AttemptFiles | None = None
        self._is_decided = True
        self._is_snapshot_requested = False
        self.is_spilled = False
        self._has_early = False
        self._entry_count: int | None = None
        self.is_local_current = True
        self.is_local_damaged = False
        self._due = self._is_snapshot_due()

    @property
    def report(self) -> RestoreReport:
        """Return how the local store was restored to the batch before."""
        return self._context.report

    @property
    def before(self) -> CommitRecord | None:
        """Return the commit record of the batch before, in this epoch; None for the first batch."""
        return self._context.before

    @property
    def backend(self) -> Backend:
        """Return the partition's entries as they were after the batch before."""
        return self._context.local.backend

    @property
    def newest_event_ms(self) -> int | None:
        """Return the newest event time that all partitions together had seen before this batch."""
        return times_after(self.store, self.epoch, self.request.number - 1).newest_event_ms

    @property
    def newest_event_us(self) -> int | None:
        """Return the same in microseconds, where the operator records it so."""
        return times_after(self.store, self.epoch, self.request.number - 1).newest_event_us

    @property
    def snapshot_due(self) -> bool:
        """Return whether a snapshot will be taken after this batch."""
        return self._due

    def write_out(self, batch: pa.RecordBatch) -> None:
        """Add rows to the output of the batch; all have one schema."""
        self._own_files().write("out", batch)

    def write_dead(self, batch: pa.RecordBatch) -> None:
        """Add failed rows; all have one schema."""
        self._own_files().write("dead", batch)

    def spill(self, changes: StateChanges) -> None:
        """Write a part of the changes early, so that they need not stay in memory.

        The caller then writes the same part to the backend (`write_partly`), through which it is read again.
        """
        if self._has_early:
            raise InvariantBroken(reason="a batch that added changes early has none in the local store")
        self.is_spilled = True
        self._count(changes)
        self._own_files().changes.add(changes)

    def add_changes(self, changes: StateChanges) -> None:
        """Write a part of the changes early, so that they need not stay in memory.

        The backend does not have it before `publish`, which applies all parts in order.
        """
        if self.is_spilled:
            raise InvariantBroken(reason="a batch that spilled has parts in the local store; it adds none")
        self._has_early = True
        self._own_files().changes.add(changes)

    def publish(self, changes: StateChanges, facts: RunFacts) -> CommitRecord:
        """Commit the batch: BatchTaken when another attempt was first; nothing of this one stays then.

        When this raises before the commit record is linked, nothing has happened and the files are removed.
        Once linking has begun and its end is not known (the disk failed), the files stay: a commit record may
        name them.
        """
        request, context = self.request, self._context
        if self.commits:
            raise InvariantBroken(reason="a batch is published once")
        crash_point("worked", request.partition, request.number)
        self._is_snapshot_requested = facts.is_snapshot_requested
        self._count(changes)
        files = self._own_files()
        files.changes.add(changes)
        stored = files.changes.close()
        crash_point("changes-written", request.partition, request.number)
        commit = self._commit_record(files, stored, facts)
        if context.before is None:
            self.store.sync_above(self._name)
        else:
            self.store.sync(self._name)
        crash_point("out-written", request.partition, request.number)
        spare = self.store.prepare(self._name, encode_commit_record(commit))
        self._is_decided = False
        is_first = self.store.link_new(spare, self._name)
        if is_first and self._is_already_pruned():
            self.store.remove(self._name)
            is_first = False
        self._is_decided = True
        if not is_first:
            raise BatchTaken(operator=request.operator, partition=request.partition, batch=request.number)
        self.commits = (commit,)
        crash_point("head-linked", request.partition, request.number)
        self._apply(changes, commit)
        crash_point("applied", request.partition, request.number)
        return commit

    def finish(self) -> None:
        """Clean up after a published batch: the output before is removed, a snapshot is taken if it is due.

        The batch is committed whatever becomes of this, so a failure here is logged and nothing more. A local
        store of which no snapshot can be taken is marked damaged, so that the next batch restores it.
        """
        context = self._context
        try:
            if context.before is not None:
                old = [file.file for file in (context.before.out, context.before.dead) if file is not None]
                remove_output(self.store, context.before.epoch, context.before.partition, old)
            # Checked again: a snapshot may have been finished while this batch ran.
            is_due_now = self._is_snapshot_requested or (self._due and self._is_snapshot_due())
            if self.commit is not None and self.is_local_current and is_due_now:
                take_snapshot(context.local, self.store, self.commit, context.rules, context.clock)
        except LocalStoreDamaged as problem:
            self.is_local_damaged = True
            log.warning(
                "local store damaged, restored with the next batch commit=%s error=%s", self._name, problem
            )
        except (TidegateError, OSError) as problem:
            log.warning(
                "cleanup after batch failed batch=%d store=%s error=%s",
                self.request.number,
                self.store.root,
                problem,
            )

    def discard(self) -> None:
        """Remove the files of a batch that was not published; those that a commit record may name stay."""
        if self._files is not None and not self.commits and self._is_decided:
            self._files.discard()

    def _published(self) -> tuple[CommitRecord, ...]:
        if not self.commits:
            raise InvariantBroken(reason="output is returned after the batch is published, not before")
        return self.commits

    def _is_already_pruned(self) -> bool:
        """Return whether the batch was committed long ago: its record was pruned, and its name is free again.

        Commit records are pruned oldest first: while the one before is there, this one was never removed.
        """
        before, request = self._context.before, self.request
        if before is not None:
            return not self.store.exists(commit_record_name(before.epoch, before.partition, before.batch))
        return committed_batches(self.store, self.epoch.number, request.partition)[-1] > request.number

    def _apply(self, changes: StateChanges, commit: CommitRecord) -> None:
        """Apply the changes to the local store; when that fails, the store is behind the committed batch."""
        self.is_local_current = False
        version = Version(commit.epoch, commit.batch, commit.commit_id)
        try:
            if self._has_early:
                parts = read_changes(self.store, self._context.partition.folder, commit.changes)
                apply_parts(self.backend, parts, version)
            else:
                self.backend.apply(changes, version)
            self.is_local_current = True
        except TidegateError as problem:
            log.warning(
                "local store did not apply the batch commit=%s batch=%d error=%s",
                self._name,
                commit.batch,
                problem,
            )

    def _is_snapshot_due(self) -> bool:
        context = self._context
        return is_due(self.store, self.epoch, context.before, self.request.partition, context.rules)

    @property
    def _name(self) -> str:
        return commit_record_name(self.epoch.number, self.request.partition, self.request.number)

    def _own_files(self) -> _AttemptFiles:
        if self._files is None:
            self._files = _AttemptFiles.create(
                self.store, self._context.partition.folder, self.request, self._began_us
            )
        return self._files

    def _count(self, changes: StateChanges) -> None:
        """Count the entries that changes add; a backend of parts counts them itself."""
        if isinstance(self.backend, SupportsParts):
            return
        if self._entry_count is None:
            before = self._context.before
            self._entry_count = self.backend.sizes().entry_count if before is None else before.entry_count
        self._entry_count = max(0, self._entry_count + count_change(self.backend, changes))

    def _sizes(self, changes: StoredFile) -> Sizes:
        """Return how large the state is with this batch in it."""
        found = self.backend.sizes()
        count = found.entry_count if self._entry_count is None else self._entry_count
        return Sizes(found.size_bytes + changes.size_bytes, count)

    def _commit_record(self, files: _AttemptFiles, changes: StoredFile, facts: RunFacts) -> CommitRecord:
        request, context = self.request, self._context
        now_us = context.clock.now_us()
        sizes = self._sizes(changes)
        return CommitRecord(
            epoch=self.epoch.number,
            partition=request.partition,
            batch=request.number,
            commit_id=files.commit_id,
            plan_id=request.plan_id,
            attempt=request.attempt,
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
            log_bytes=changes.size_bytes + (context.before.log_bytes if context.before else 0),
            published_at_ms=now_us // 1_000,
            took_ms=max(0, now_us - self._began_us) // 1_000,
            damaged=context.report.damaged[:DAMAGED_SHOWN_MAX],
            dead_rows_total=facts.dead_rows + (context.before.dead_rows_total if context.before else 0),
            run=request.run,
            call=request.call,
            newest_event_us=facts.newest_event_us,
            counts=facts.counts,
            totals=add_counts(context.before.totals if context.before else {}, facts.counts),
            notes=facts.notes,
        )


StateBatch = OpenBatch | ReplayedBatch


class _AttemptFiles:
    """The files of one attempt at a batch, under an id that no other attempt has."""

    def __init__(self, store: CheckpointStore, stem: str, commit_id: str, writer: StoreWriter) -> None:
        self.commit_id = commit_id
        self.changes = ChangelogWriter(writer)
        self._store = store
        self._stem = stem
        self._outputs: dict[str, OutputWriter] = {}

    @classmethod
    def create(
        cls, store: CheckpointStore, folder: str, request: BatchRequest, began_us: int
    ) -> _AttemptFiles:
        """Create the changelog file under an id that is free; from then on the id belongs to this attempt."""
        text = f"{request.attempt}|{request.plan_id}|{began_us}|{os.uname().nodename}|{os.getpid()}"
        for number in range(IDS_MAX):
            commit_id = xxhash.xxh3_64_hexdigest(f"{text}|{number}".encode())
            stem = f"{folder}/v{request.number}.{commit_id}"
            try:
                return cls(store, stem, commit_id, store.writer(f"{stem}.changes"))
            except FileExistsError:
                continue
        raise InvariantBroken(reason=f"{IDS_MAX} attempts at {folder}, batch {request.number}, left files")

    def write(self, kind: str, batch: pa.RecordBatch) -> None:
        """Add rows to an output file, which is created with the first."""
        found = self._outputs.get(kind)
        if found is None:
            writer = self._store.writer(f"{self._stem}.{kind}")
            found = self._outputs[kind] = OutputWriter(writer, batch.schema)
        found.write(batch)

    def close(self, kind: str) -> StoredFile | None:
        """Sync an output file and return its description; None when the batch has none."""
        found = self._outputs.get(kind)
        return None if found is None else found.close()

    def discard(self) -> None:
        """Remove all files of this attempt."""
        self.changes.discard()
        for output in self._outputs.values():
            output.discard()
