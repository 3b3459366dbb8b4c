"""A standby: takes the change files of a partition as they appear, keeps a copy of its state current.

It reads the checkpoint and writes nothing to it, but marks on damaged snapshots. Its copy lies where tasks of
this machine look for theirs (`local_root` of the settings), so a partition that moves here begins warm; with
a root of its own it is a second copy for whoever wants to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tidegate.checkpoint import epochs
from tidegate.checkpoint.backend import Backend
from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.checkpoint.commit_record import head_batches
from tidegate.checkpoint.local.lock import claim
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.local.store import LocalCopy, acquire, local_files, put_back
from tidegate.checkpoint.recovery import Partition, RestoreReport, bring
from tidegate.checkpoint.rescale import Redistribution, no_operator_state
from tidegate.checkpoint.settings import StateSettings, backend_factory
from tidegate.checkpoint.snapshot import read_manifest, snapshot_batches
from tidegate.checkpoint.store import Depot, checkpoint_path, operator_depot
from tidegate.errors import InvariantBroken, StateNotFound, StorageCorrupt, TidegateError
from tidegate.model.clock import Clock

# Files that are pruned while they are read mean that newer ones are there; a damaged checkpoint has none.
TRIES_MAX = 3
# For caches and write buffers of all copies of a standby: it reads nothing again that it has written.
MEMORY_BYTES_MAX = 256 << 20

# Returns settings that open an operator's copies as its tasks do.
SettingsOf = Callable[[Depot], StateSettings]
# Gives the copy in a folder, or None when it cannot be had.
Take = Callable[[Path], LocalCopy | None]


@dataclass(frozen=True, slots=True)
class Followed:
    """What became of one partition's copy: at which batch it stands, and by how many it moved on.

    `is_in_use` says that a task or another standby of this machine has the copy; nothing was done then.
    `problem` is why it could not be brought on.
    """

    operator: str
    partition: int
    batch: int = -1
    moved: int = 0
    is_anew: bool = False
    is_in_use: bool = False
    damaged: tuple[str, ...] = ()
    problem: TidegateError | None = None


class Standby:
    """A second copy of one partition's state, fed from the checkpoint alone; used by one thread."""

    def __init__(
        self, checkpoint: str | Path, operator: str, partition: int, settings: StateSettings, clock: Clock
    ) -> None:
        self._depot = operator_depot(str(checkpoint), operator)
        self._number = partition
        # What a standby has is for those who take over: they have it for themselves.
        self._place = replace(settings.place(clock), is_served=False)

    def follow(self) -> int:
        """Bring the copy to the newest batch that is published, and say how many batches it moved on.

        A copy that is made anew moves on by all batches of its epoch. After a change of parallelism it goes
        on in the new epoch, with the key groups that the partition has there. StateNotFound while there is no
        such partition.
        """
        with self._current() as (_, followed):
            return followed.moved

    def follow_if_free(self) -> Followed:
        """Do the same, unless somebody of this machine has the copy: nobody is asked to give it up.

        Whoever asks for it gets it: at once while this one waits, else when the batch at hand is applied.
        """
        with local_files(self._partition().copy_folder):
            brought = self._brought(self._free)
        if brought is None:
            return Followed(self._depot.root.name, self._number, is_in_use=True)
        copy, followed = brought
        put_back(self._place, copy)
        return followed

    @contextmanager
    def opened(self) -> Iterator[Backend]:
        """Follow, and give the copy for reading."""
        with self._current() as (backend, _):
            yield backend

    @contextmanager
    def _current(self) -> Iterator[tuple[Backend, Followed]]:
        brought = self._brought(self._asked_for)
        if brought is None:
            raise InvariantBroken(reason="a copy that is asked for is given, or a private one")
        copy, followed = brought
        try:
            yield copy.backend, followed
        finally:
            put_back(self._place, copy)

    def _asked_for(self, folder: Path) -> LocalCopy | None:
        return acquire(self._place, folder)

    def _free(self, folder: Path) -> LocalCopy | None:
        kept = pool().take(folder)
        if kept is None:
            held = claim(folder)
            kept = None if held is None else LocalCopy(held, self._place, is_private=False)
        if kept is not None:
            kept.held.touch(self._place.clock.now_us())
        return kept

    def _brought(self, take: Take) -> tuple[LocalCopy, Followed] | None:
        problem: StorageCorrupt | None = None
        for _ in range(TRIES_MAX):
            partition = self._partition()
            batches = head_batches(self._depot, partition.epoch.number, self._number)
            copy = take(partition.copy_folder)
            if copy is None:
                return None
            try:
                report = bring(copy, partition, max(batches, default=partition.epoch.first_batch - 1))
                return copy, self._followed(partition, report)
            except StorageCorrupt as found:
                copy.give_up()
                problem = found
            except BaseException:
                copy.give_up()
                raise
        raise problem or InvariantBroken(reason="no attempt was made")

    def _followed(self, partition: Partition, report: RestoreReport) -> Followed:
        is_anew = report.way != "local"
        start = partition.epoch.first_batch - 1 if is_anew else report.from_batch
        return Followed(
            self._depot.root.name,
            self._number,
            report.to_batch,
            report.to_batch - start,
            is_anew=is_anew,
            damaged=report.damaged,
        )

    def _partition(self) -> Partition:
        known = epochs.listed(self._depot)
        if not known or self._number >= known[-1].parallelism:
            raise StateNotFound(state=f"{self._depot.root.name}, partition {self._number}")
        return Partition(self._depot, known[-1], self._number, self._place)


class CheckpointStandby:
    """Standbys of all partitions of a checkpoint, or of those of one operator; used by one thread."""

    def __init__(
        self, checkpoint: str | Path, operator: str | None, settings_of: SettingsOf, clock: Clock
    ) -> None:
        self._checkpoint = str(checkpoint)
        self._operator = operator
        self._settings_of = settings_of
        self._clock = clock
        self._standbys: dict[tuple[str, int], Standby] = {}

    def follow(self) -> Iterator[Followed]:
        """Bring every copy that is free to the newest batch, one after the other, and say what became of it.

        What is wrong with one keeps none of the others. StateNotFound while there is no state, or no such
        operator.
        """
        for operator, parallelism in self._operators().items():
            for partition in range(parallelism):
                yield self._followed(operator, partition)

    def _followed(self, operator: str, partition: int) -> Followed:
        try:
            return self._standby(operator, partition).follow_if_free()
        except TidegateError as problem:
            return Followed(operator, partition, problem=problem)

    def _standby(self, operator: str, partition: int) -> Standby:
        found = self._standbys.get((operator, partition))
        if found is None:
            settings = self._settings_of(operator_depot(self._checkpoint, operator))
            found = Standby(self._checkpoint, operator, partition, settings, self._clock)
            self._standbys[operator, partition] = found
        return found

    def _operators(self) -> dict[str, int]:
        """Return the operators that have state, and how many partitions each has."""
        root = checkpoint_path(self._checkpoint) / "state"
        found = {}
        for name in Depot(root).names():
            known = epochs.listed(Depot(root / name)) if self._operator in (None, name) else []
            if known:
                found[name] = known[-1].parallelism
        if not found:
            raise StateNotFound(state=self._operator or self._checkpoint)
        return found


def keyed_settings(
    depot: Depot, local_root: str | None, redistribution: Redistribution = no_operator_state
) -> StateSettings:
    """Return settings that open the copies of keyed state as its tasks do, from what the checkpoint says."""
    options = RocksSettings.production(memory_bytes_max=MEMORY_BYTES_MAX)
    backend = backend_factory(_kind(depot), options)
    return StateSettings(backend=backend, redistribution=redistribution, local_root=local_root)


def _kind(depot: Depot) -> str:
    """Return the kind of backend that made an operator's newest snapshot; the usual one while it has none."""
    for epoch in reversed(epochs.listed(depot)):
        for batch in reversed(snapshot_batches(depot, epoch.number, 0)):
            manifest = read_manifest(depot, epoch.number, 0, batch)
            if manifest is not None:
                return manifest.backend
    return "rocksdb"
