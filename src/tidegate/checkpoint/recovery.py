"""Recovery of a local store: in any condition, to its state after a given batch, with a report of how.

The sources that a recovery starts from, best first:

    local       the local store is at a batch of this epoch whose commit record has the same id: parts that it
                lacks are repaired alone, then the changelog files since are applied
    snapshot    the newest whole snapshot that is not later, then the changelog files since
    initial     what the epoch began with (nothing, or the state of its parents), then all changelog files

A local store that is ahead, of another epoch, without a version (a batch was cut off in the middle) or with
another commit id is not used at all. What turns out damaged is named in the log and in the report, and the
next source is tried; when there is none left, the first damaged file is named in the error. `Findings` hold
what turned out damaged, so that no later source depends on it. In the checkpoint only the marks of damaged
snapshots are written, so a kill at any moment costs the work and nothing else.

A store of parts (a folder for each segment of a deduplicating store) may lose one: its bytes are damaged and
it was set aside, or somebody removed its folder. The part is repaired to what it was at the version of the
store: its files of the newest whole snapshot that is not later, then what the changelog files since have of
it. A part that the snapshot does not have began later, and begins empty. A kill meanwhile leaves a part that
is still missing: the backend counts it as whole only after `finish_part`, synced, at the store's version.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import xxhash

from tidegate.checkpoint.backend import Backend, StateChanges, SupportsParts, Version
from tidegate.checkpoint.changelog import read_changes
from tidegate.checkpoint.commit_record import CommitRecord, commit_record_name, read_commit_record
from tidegate.checkpoint.epochs import INITIAL_COMMIT_ID, RECORD_NAME, Epoch
from tidegate.checkpoint.local.store import LocalDirectory, LocalStore, StoreMoved, acquire, return_store
from tidegate.checkpoint.rescale import RescaleSources, assemble
from tidegate.checkpoint.snapshot import (
    Manifest,
    SnapshotFile,
    fetch,
    manifest_name,
    mark_damaged,
    read_manifest,
    snapshot_batches,
)
from tidegate.checkpoint.store import CheckpointStore, partition_folder
from tidegate.errors import StateMismatch, StorageCorrupt, TidegateError

log = logging.getLogger(__name__)

# In a local store's folder: the epoch record from which its initial state was built.
INITIAL_NAME = "ground"
# In a local store's folder: files of a snapshot on their way into a part.
REPAIR_NAME = "mending"
# Parts of one store that turn out damaged one after the other while it catches up; then it is rebuilt.
REPAIRS_MAX = 8

RecoverySource = Literal["local", "snapshot", "initial"]


@dataclass(frozen=True, slots=True)
class StatePartition:
    """One partition of an epoch in a checkpoint or savepoint, and the directory of its local stores."""

    store: CheckpointStore
    epoch: Epoch
    number: int
    directory: LocalDirectory

    @property
    def folder(self) -> str:
        """Return the name of its folder in the checkpoint store."""
        return partition_folder(self.epoch.number, self.number)

    @property
    def local_folder(self) -> Path:
        """Return the folder of its local store."""
        return self.directory.folder(self.store, self.epoch.number, self.number)

    def commit_record(self, batch: int) -> CommitRecord | None:
        """Return its commit record of a batch; None when that batch is not committed."""
        return read_commit_record(self.store, self.epoch.number, self.number, batch)


@dataclass(slots=True)
class Findings:
    """The damage found by a recovery: snapshots, and the newest batch at which the log is broken."""

    damaged: list[str] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    other_kinds: set[str] = field(default_factory=set)
    first: StorageCorrupt | None = None
    log_broken_at: int | None = None

    def note(self, problem: StorageCorrupt) -> None:
        """Add damage to the report and to the log."""
        self.damaged.append(str(problem))
        log.warning("damage found, trying the next recovery source error=%s", problem)

    def note_snapshot(self, batch: int, problem: StorageCorrupt) -> None:
        """Note a damaged snapshot: it is not used again."""
        self.note(problem)
        self.snapshots.append(batch)
        self.first = self.first or problem


@dataclass(frozen=True, slots=True)
class RepairedPart:
    """A part that was repaired: where it began, and what was read for it."""

    name: str
    from_batch: int
    to_batch: int
    changelog_files: int
    size_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.name} was missing or damaged in the local store and was restored alone: from batch "
            f"{self.from_batch}, with {self.changelog_files} changelog files up to batch {self.to_batch}"
        )


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """How a local store was restored: from which source, what was read, and what was found damaged.

    `parts` are those that the local store lacked and that were repaired alone.
    """

    source: RecoverySource
    from_batch: int
    to_batch: int
    changelog_files: int
    snapshot_bytes: int
    damaged: tuple[str, ...]
    parts: tuple[RepairedPart, ...] = ()


# ---- restoring a store ------------------------------------------------------------------------------------


def restore(local: LocalStore, partition: StatePartition, batch: int) -> RestoreReport:
    """Restore a local store to a batch of its partition, opened; StorageCorrupt when no source leads there.

    StateMismatch when that batch was never committed here.
    """
    check_done(partition, batch)
    findings = Findings()
    report = _catch_up_local(local, partition, batch, findings)
    if report is not None:
        _log_restored(local, report)
        return report
    for manifest in recovery_paths(partition, batch, findings):
        report = _try_path(local, partition, manifest, batch, findings)
        if report is not None:
            mark_all_damaged(partition, findings)
            _log_restored(local, report)
            return report
    local.wipe()
    raise findings.first or no_recovery_path(partition, batch, findings)


def _log_restored(local: LocalStore, report: RestoreReport) -> None:
    """Log where a recovery began and what it read; a local store that was current is not logged."""
    if report.source == "local" and not report.changelog_files:
        return
    log.info(
        "store restored source=%s folder=%s from_batch=%d to_batch=%d changelog_files=%d snapshot_bytes=%d",
        *(report.source, local.folder, report.from_batch, report.to_batch),
        *(report.changelog_files, report.snapshot_bytes),
    )


@contextmanager
def open_restored(
    directory: LocalDirectory, store: CheckpointStore, epoch: Epoch, partition: int, batch: int
) -> Iterator[Backend]:
    """Open the local store of a partition as it was after a batch; nobody else writes to it meanwhile.

    Rescaling opens the parents of an epoch so.
    """
    source = StatePartition(store, epoch, partition, directory)
    local = acquire(directory, source.local_folder)
    try:
        restore(local, source, batch)
        yield local.backend
    finally:
        return_store(directory, local)


def apply_parts(backend: Backend, parts: Iterable[StateChanges], version: Version) -> None:
    """Apply the parts of a batch's changes, the last one with the version.

    A batch of several parts removes the version with the first and sets it with the last: a kill in between
    leaves a store without a version, which is rebuilt. A segmented store keeps the version from before, and
    applies the whole batch once more.
    """
    before: StateChanges | None = None
    for part in parts:
        if before is not None and isinstance(backend, SupportsParts):
            backend.apply_early(before, version)
        elif before is not None:
            backend.write_partly(before)
        before = part
    backend.apply(before or StateChanges(), version)


def check_done(partition: StatePartition, batch: int) -> None:
    """Refuse a batch that was never committed here, with StateMismatch."""
    first = partition.epoch.first_batch
    if batch < first - 1:
        reason = f"batch {batch} is older than its epoch, which begins with batch {first}."
    elif batch >= first and not is_committed(partition, batch):
        reason = (
            f"batch {batch} of partition {partition.number} was never done, and the next one needs it. Every "
            "partition of every batch must run: nothing between the operator and the sink may skip some."
        )
    else:
        return
    raise StateMismatch(operator=partition.store.root.name, reason=reason)


def is_committed(partition: StatePartition, batch: int) -> bool:
    """Return whether a batch has its commit record."""
    return partition.store.exists(commit_record_name(partition.epoch.number, partition.number, batch))


# ---- from the local store ---------------------------------------------------------------------------------


def _catch_up_local(
    local: LocalStore, partition: StatePartition, batch: int, findings: Findings
) -> RestoreReport | None:
    """Catch the local store up from its own version; None when it must be rebuilt.

    A part that turns out damaged meanwhile is repaired, and the others stay.
    """
    first: int | None = None
    parts: list[RepairedPart] = []
    for _ in range(REPAIRS_MAX):
        start = _local_start(local, partition, batch, findings)
        if start is None:
            return None
        first = start.batch if first is None else first
        if not _repair_parts(local, partition, start, findings, parts):
            return None
        try:
            _catch_up(local.backend, partition, start.batch, batch, findings)
        except StoreMoved:
            continue
        except StorageCorrupt as problem:
            findings.note(problem)
            if not missing_parts(local.backend):
                return None
            continue
        if parts:
            mark_all_damaged(partition, findings)
        size_bytes = sum(part.size_bytes for part in parts)
        damaged = (*findings.damaged, *map(str, parts))
        return RestoreReport("local", first, batch, batch - first, size_bytes, damaged, tuple(parts))
    return None


def _local_start(
    local: LocalStore, partition: StatePartition, batch: int, findings: Findings
) -> Version | None:
    """Open the local store and return its version; None when it cannot be caught up from there."""
    try:
        backend = local.open()
        version = None if backend is None else backend.version()
        if version is None or version.epoch != partition.epoch.number or version.batch > batch:
            return None
        if version.batch < partition.epoch.first_batch:
            is_same = version.commit_id == INITIAL_COMMIT_ID and _stored_initial_id(local) == _initial_id(
                partition
            )
        else:
            commit = partition.commit_record(version.batch)
            is_same = commit is not None and commit.commit_id == version.commit_id
        if not is_same or (version.batch < batch and not is_committed(partition, version.batch + 1)):
            return None  # of another run, or so old that the log since is pruned
        return version
    except StateMismatch:
        return None  # of a checkpoint that was in this folder before; this one's own was compared already
    except StorageCorrupt as problem:
        findings.note(problem)
        return None


def missing_parts(backend: Backend) -> list[str]:
    """Return the parts that a store lacks; none for a store without parts."""
    return backend.missing_parts() if isinstance(backend, SupportsParts) else []


def _repair_parts(
    local: LocalStore,
    partition: StatePartition,
    target: Version,
    findings: Findings,
    repaired: list[RepairedPart],
) -> bool:
    """Repair the parts that the store lacks, and add them to a list; False when one cannot be.

    The others, and those repaired before it, are whole.
    """
    backend = local.backend
    if not isinstance(backend, SupportsParts):
        return True
    room = local.folder / REPAIR_NAME
    try:
        for part in backend.missing_parts():
            try:
                repaired.append(_repair_part(backend, part, partition, target, findings, room))
            finally:
                shutil.rmtree(room, ignore_errors=True)
            log.warning("part of a local store repaired folder=%s result=%s", local.folder, repaired[-1])
        return True
    except StorageCorrupt as problem:
        findings.note(problem)
        return False


def _repair_part(
    backend: SupportsParts,
    part: str,
    partition: StatePartition,
    target: Version,
    findings: Findings,
    room: Path,
) -> RepairedPart:
    for manifest in _part_starts(partition, target.batch, findings):
        shutil.rmtree(room, ignore_errors=True)
        try:
            size_bytes = _fetch_part(partition.store, manifest, part, room)
            backend.replace_part(part, room)
        except StorageCorrupt as problem:
            if manifest is None:
                raise
            findings.note_snapshot(manifest.batch, problem)
            continue
        start = partition.epoch.first_batch - 1 if manifest is None else manifest.batch
        batches = range(start + 1, target.batch + 1)
        for version, pieces in read_log(partition, batches, findings):
            for piece in pieces:
                backend.apply_to_part(part, piece, version)
        backend.finish_part(part)
        return RepairedPart(part, start, target.batch, len(batches), size_bytes)
    reason = f"no snapshot and no complete sequence of changelog files restores {part}"
    raise findings.first or StorageCorrupt(place=str(partition.store.path(partition.folder)), reason=reason)


def _part_starts(partition: StatePartition, batch: int, findings: Findings) -> Iterator[Manifest | None]:
    """Yield the snapshots that a part can begin with, newest first, and None where it can begin empty.

    An epoch that began with the state of parents is rebuilt as a whole: no part of that is stored alone.
    """
    yield from usable_snapshots(partition, batch, findings)
    if partition.epoch.parent is None and reaches_initial_state(partition, batch, findings):
        yield None


def _fetch_part(store: CheckpointStore, manifest: Manifest | None, part: str, room: Path) -> int:
    """Copy a part's files of a snapshot into a new folder, under their names in the part."""
    if manifest is None:
        room.mkdir(parents=True)
        return 0
    own = replace(manifest, files=tuple(_files_of(manifest, part)))
    fetch(store, own, room)
    return own.size_bytes


def _files_of(manifest: Manifest, part: str) -> Iterator[SnapshotFile]:
    for file in manifest.files:
        folder, mark, name = file.name.partition("/")
        if mark and folder == part:
            yield replace(file, name=name)


# ---- from the checkpoint ----------------------------------------------------------------------------------


def recovery_paths(partition: StatePartition, batch: int, findings: Findings) -> Iterator[Manifest | None]:
    """Yield the snapshots to try, newest first, and None at last for the initial state of the epoch."""
    yield from usable_snapshots(partition, batch, findings)
    if reaches_initial_state(partition, batch, findings):
        yield None


def usable_snapshots(partition: StatePartition, batch: int, findings: Findings) -> Iterator[Manifest]:
    """Yield the snapshots from which a batch may be reached, newest first."""
    epoch, store = partition.epoch.number, partition.store
    for number in reversed(snapshot_batches(store, epoch, partition.number)):
        if number > batch or number in findings.snapshots:
            continue
        if findings.log_broken_at is not None and number < findings.log_broken_at:
            return
        try:
            manifest = read_manifest(store, epoch, partition.number, number)
            commit = partition.commit_record(number)
        except StorageCorrupt as problem:
            findings.note_snapshot(number, problem)
            continue
        if manifest is None:
            continue
        if manifest.backend != partition.directory.factory.kind:
            findings.other_kinds.add(manifest.backend)
            continue
        if commit is not None and commit.commit_id != manifest.commit_id:
            log.warning("snapshot belongs to another run of its batch, not used batch=%d", number)
            continue
        yield manifest


def reaches_initial_state(partition: StatePartition, batch: int, findings: Findings) -> bool:
    """Return whether a batch can be reached from what the epoch began with."""
    if findings.log_broken_at is not None:
        return False
    return partition.epoch.first_batch > batch or is_committed(partition, partition.epoch.first_batch)


def no_recovery_path(partition: StatePartition, batch: int, findings: Findings) -> TidegateError:
    """Return the error for a batch that no source leads to."""
    if findings.other_kinds:
        kinds = ", ".join(sorted(findings.other_kinds))
        reason = f"its snapshots were made by backend {kinds}, not by {partition.directory.factory.kind}."
        return StateMismatch(operator=partition.store.root.name, reason=reason)
    return StorageCorrupt(
        place=str(partition.store.path(partition.folder)),
        reason=f"no snapshot and no complete sequence of changelog files restores batch {batch}",
    )


def mark_all_damaged(partition: StatePartition, findings: Findings) -> None:
    """Mark the damaged snapshots that were skipped, so that no later one shares their files.

    When the recovery failed, none is marked: somebody may put the right bytes back.
    """
    for batch in findings.snapshots:
        try:
            mark_damaged(partition.store, partition.epoch.number, partition.number, batch)
        except TidegateError as problem:
            log.warning("damaged snapshot not marked batch=%d error=%s", batch, problem)


def _try_path(
    local: LocalStore, partition: StatePartition, manifest: Manifest | None, batch: int, findings: Findings
) -> RestoreReport | None:
    """Rebuild the local store from a snapshot or the initial state, and catch it up; None on damage."""
    try:
        if manifest is None:
            source: RecoverySource = "initial"
            start, size_bytes = partition.epoch.first_batch - 1, 0
            _build_initial_state(local, partition)
        else:
            source = "snapshot"
            start, size_bytes = manifest.batch, manifest.size_bytes
            findings.snapshots.append(start)
            _install_snapshot(local, partition, manifest)
            findings.snapshots.remove(start)
        count = _catch_up(local.backend, partition, start, batch, findings)
        return RestoreReport(source, start, batch, count, size_bytes, tuple(findings.damaged))
    except StorageCorrupt as problem:
        findings.note(problem)
        findings.first = findings.first or problem
        return None


def _install_snapshot(local: LocalStore, partition: StatePartition, manifest: Manifest) -> None:
    fetch(partition.store, manifest, local.wipe())
    version = local.adopt().version()
    if version != Version(manifest.epoch, manifest.batch, manifest.commit_id):
        name = manifest_name(manifest.epoch, manifest.partition, manifest.batch)
        reason = f"it opens at {version}, not at the batch that it names"
        raise StorageCorrupt(place=str(partition.store.path(name)), reason=reason)


def _build_initial_state(local: LocalStore, partition: StatePartition) -> None:
    unfinished = local.wipe()
    directory = partition.directory
    sources = RescaleSources(
        partial(open_restored, directory), directory.open_backend, directory.redistribution
    )
    assemble(partition.store, partition.epoch, partition.number, unfinished, sources)
    (local.folder / INITIAL_NAME).write_text(_initial_id(partition))
    local.adopt()


def _initial_id(partition: StatePartition) -> str:
    """Return what identifies the initial state of an epoch: the digest and the time of its record."""
    name = f"e{partition.epoch.number}/{RECORD_NAME}"
    content = partition.store.read(name) or b""
    made_ns = partition.store.path(name).stat().st_mtime_ns if content else 0
    return f"{xxhash.xxh3_64_hexdigest(content)} {made_ns}"


def _stored_initial_id(local: LocalStore) -> str | None:
    try:
        return (local.folder / INITIAL_NAME).read_text()
    except FileNotFoundError:
        return None


# ---- the changelog ----------------------------------------------------------------------------------------


def _catch_up(backend: Backend, partition: StatePartition, start: int, stop: int, findings: Findings) -> int:
    """Apply the batches after `start` up to and with `stop`, and return how many they are."""
    for version, parts in read_log(partition, range(start + 1, stop + 1), findings):
        apply_parts(backend, parts, version)
    return stop - start


def read_log(
    partition: StatePartition, batches: range, findings: Findings
) -> Iterator[tuple[Version, Iterator[StateChanges]]]:
    """Yield the changes of batches, each with its version.

    A damaged commit record or changelog file breaks the log at its batch: no older source leads past it.
    """
    for batch in batches:
        try:
            commit = partition.commit_record(batch)
            if commit is None:
                name = commit_record_name(partition.epoch.number, partition.number, batch)
                raise StorageCorrupt(place=str(partition.store.path(name)), reason="the file is missing")
            parts = read_changes(partition.store, partition.folder, commit.changes)
        except StorageCorrupt as problem:
            findings.log_broken_at = max(batch, findings.log_broken_at or 0)
            findings.first = findings.first or problem
            raise
        yield Version(commit.epoch, commit.batch, commit.commit_id), parts
