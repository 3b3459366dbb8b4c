"""A standby: local stores that follow the changelog files of a checkpoint as they appear.

It reads the checkpoint and writes nothing to it, but marks on damaged snapshots. Its local stores are in the
folder where tasks of this machine look for theirs (`local_root` of the settings), so a partition that moves
here begins warm; with a root of its own they are second copies, for reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tidegate.checkpoint import epochs
from tidegate.checkpoint.backend import Backend
from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.checkpoint.commit_record import committed_batches
from tidegate.checkpoint.inspect import newest_backend
from tidegate.checkpoint.local.lock import lock_folder
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.local.store import LocalStore, acquire, local_files, return_store
from tidegate.checkpoint.recovery import RestoreReport, StatePartition, restore
from tidegate.checkpoint.rescale import Redistribution, no_operator_state
from tidegate.checkpoint.settings import StateSettings, backend_factory
from tidegate.checkpoint.store import CheckpointStore, checkpoint_path, operator_store
from tidegate.errors import InvariantBroken, StateNotFound, StorageCorrupt, TidegateError
from tidegate.model.clock import Clock

# Files that are pruned while they are read mean that newer ones are there; in a damaged checkpoint none are.
TRIES_MAX = 3
# For caches and write buffers of all local stores of a standby: it reads nothing again that it has written.
MEMORY_BYTES_MAX = 256 << 20

# Returns settings that open an operator's local stores as its tasks do.
SettingsOf = Callable[[CheckpointStore], StateSettings]
# Returns the local store of a folder, or None when it is in use.
AcquireStore = Callable[[Path], LocalStore | None]


@dataclass(frozen=True, slots=True)
class FollowResult:
    """The result of following one partition: the batch of its local store, and by how many batches it moved.

    `is_in_use`: a task or another standby of this machine has the local store; nothing was done then.
    `problem` is why it could not follow.
    """

    operator: str
    partition: int
    batch: int = -1
    moved: int = 0
    is_rebuilt: bool = False
    is_in_use: bool = False
    damaged: tuple[str, ...] = ()
    problem: TidegateError | None = None


class Standby:
    """The local store of one partition, idle current from the checkpoint alone; used by one thread."""

    def __init__(
        self, checkpoint: str | Path, operator: str, partition: int, settings: StateSettings, clock: Clock
    ) -> None:
        self._store = operator_store(str(checkpoint), operator)
        self._number = partition
        # The store is for the worker that takes the partition over, which then opens it itself.
        self._directory = replace(settings.local_directory(clock), is_served=False)

    def follow(self) -> int:
        """Restore the local store to the newest published batch, and return by how many batches it moved.

        One that is rebuilt moves by all batches of its epoch. After a change of parallelism it continues in
        the new epoch, with the key groups that the partition has there. StateNotFound while there is no such
        partition.
        """
        with self._current() as (_, result):
            return result.moved

    def follow_if_free(self) -> FollowResult:
        """Do the same, unless another process of this machine has the local store: it is not requested.

        A process that requests it gets it: at once while this one waits, else when the batch is applied.
        """
        with local_files(self._partition().local_folder):
            restored = self._restore(self._acquire_idle)
        if restored is None:
            return FollowResult(self._store.root.name, self._number, is_in_use=True)
        local, result = restored
        return_store(self._directory, local)
        return result

    @contextmanager
    def open(self) -> Iterator[Backend]:
        """Follow, and yield the local store's backend for reading."""
        with self._current() as (backend, _):
            yield backend

    @contextmanager
    def _current(self) -> Iterator[tuple[Backend, FollowResult]]:
        restored = self._restore(self._acquire)
        if restored is None:
            raise InvariantBroken(reason="acquire returns a local store or a private one")
        local, result = restored
        try:
            yield local.backend, result
        finally:
            return_store(self._directory, local)

    def _acquire(self, folder: Path) -> LocalStore | None:
        return acquire(self._directory, folder)

    def _acquire_idle(self, folder: Path) -> LocalStore | None:
        idle = pool().take(folder)
        if idle is None:
            lock = lock_folder(folder)
            idle = None if lock is None else LocalStore(lock, self._directory, is_private=False)
        if idle is not None:
            idle.lock.touch(self._directory.clock.now_us())
        return idle

    def _restore(self, acquire_store: AcquireStore) -> tuple[LocalStore, FollowResult] | None:
        problem: StorageCorrupt | None = None
        for _ in range(TRIES_MAX):
            partition = self._partition()
            batches = committed_batches(self._store, partition.epoch.number, self._number)
            local = acquire_store(partition.local_folder)
            if local is None:
                return None
            try:
                report = restore(local, partition, max(batches, default=partition.epoch.first_batch - 1))
                return local, self._result(partition, report)
            except StorageCorrupt as found:
                local.release()
                problem = found
            except BaseException:
                local.release()
                raise
        raise problem or InvariantBroken(reason="no attempt was made")

    def _result(self, partition: StatePartition, report: RestoreReport) -> FollowResult:
        is_rebuilt = report.source != "local"
        start = partition.epoch.first_batch - 1 if is_rebuilt else report.from_batch
        return FollowResult(
            self._store.root.name,
            self._number,
            report.to_batch,
            report.to_batch - start,
            is_rebuilt=is_rebuilt,
            damaged=report.damaged,
        )

    def _partition(self) -> StatePartition:
        known = epochs.list_epochs(self._store)
        if not known or self._number >= known[-1].parallelism:
            raise StateNotFound(state=f"{self._store.root.name}, partition {self._number}")
        return StatePartition(self._store, known[-1], self._number, self._directory)


class CheckpointStandby:
    """Standbys of all partitions of a checkpoint, or of one operator; used by one thread."""

    def __init__(
        self, checkpoint: str | Path, operator: str | None, settings_of: SettingsOf, clock: Clock
    ) -> None:
        self._checkpoint = str(checkpoint)
        self._operator = operator
        self._settings_of = settings_of
        self._clock = clock
        self._standbys: dict[tuple[str, int], Standby] = {}

    def follow(self) -> Iterator[FollowResult]:
        """Follow with every local store that is free, one after the other, and yield each result.

        A problem with one does not affect the others. StateNotFound while there is no state, or no such
        operator.
        """
        for operator, parallelism in self._operators().items():
            for partition in range(parallelism):
                yield self._result(operator, partition)

    def _result(self, operator: str, partition: int) -> FollowResult:
        try:
            return self._standby(operator, partition).follow_if_free()
        except TidegateError as problem:
            return FollowResult(operator, partition, problem=problem)

    def _standby(self, operator: str, partition: int) -> Standby:
        found = self._standbys.get((operator, partition))
        if found is None:
            settings = self._settings_of(operator_store(self._checkpoint, operator))
            found = Standby(self._checkpoint, operator, partition, settings, self._clock)
            self._standbys[operator, partition] = found
        return found

    def _operators(self) -> dict[str, int]:
        """Return the operators that have state, with their numbers of partitions."""
        root = checkpoint_path(self._checkpoint) / "state"
        found = {}
        for name in CheckpointStore(root).names():
            known = epochs.list_epochs(CheckpointStore(root / name)) if self._operator in (None, name) else []
            if known:
                found[name] = known[-1].parallelism
        if not found:
            raise StateNotFound(state=self._operator or self._checkpoint)
        return found


def keyed_settings(
    store: CheckpointStore, local_root: str | None, redistribution: Redistribution = no_operator_state
) -> StateSettings:
    """Return settings that open the local stores of keyed state as its tasks do, read from the checkpoint."""
    options = RocksSettings.production(memory_bytes_max=MEMORY_BYTES_MAX)
    backend = backend_factory(newest_backend(store) or "rocksdb", options)
    return StateSettings(backend=backend, redistribution=redistribution, local_root=local_root)
