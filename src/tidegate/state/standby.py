"""A standby: takes the change files of a partition as they appear, keeps a copy of its state current.

It reads the checkpoint and writes nothing to it. Its copy lies where tasks of this machine look for theirs
(`local_root` of the settings), so a partition that moves here begins warm; with a root of its own it is a
second copy for whoever wants to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.errors import InvariantBroken, StateNotFound, StorageCorrupt
from tidegate.model.clock import Clock
from tidegate.state import epochs
from tidegate.state.asking import StateSettings
from tidegate.state.backend import Backend
from tidegate.state.depot import operator_depot
from tidegate.state.heads import head_batches
from tidegate.state.local import LocalCopy, acquire, put_back
from tidegate.state.restore import Partition, bring

# Files that are pruned while they are read mean that newer ones are there; a damaged checkpoint has none.
TRIES_MAX = 3


class Standby:
    """A second copy of one partition's state, fed from the checkpoint alone; used by one thread."""

    def __init__(
        self, checkpoint: str | Path, operator: str, partition: int, settings: StateSettings, clock: Clock
    ) -> None:
        self._depot = operator_depot(str(checkpoint), operator)
        self._number = partition
        self._place = settings.place(clock)

    def follow(self) -> int:
        """Bring the copy to the newest batch that is published, and say how many batches it moved on.

        A copy that is made anew moves on by all batches of its epoch. After a change of parallelism it goes
        on in the new epoch, with the key groups that the partition has there. StateNotFound while there is no
        such partition.
        """
        with self._current() as (_, moved):
            return moved

    @contextmanager
    def opened(self) -> Iterator[Backend]:
        """Follow, and give the copy for reading."""
        with self._current() as (backend, _):
            yield backend

    @contextmanager
    def _current(self) -> Iterator[tuple[Backend, int]]:
        copy, moved = self._brought()
        try:
            yield copy.backend, moved
        finally:
            put_back(self._place, copy)

    def _brought(self) -> tuple[LocalCopy, int]:
        problem: StorageCorrupt | None = None
        for _ in range(TRIES_MAX):
            partition = self._partition()
            batches = head_batches(self._depot, partition.epoch.number, self._number)
            copy = acquire(self._place, partition.copy_folder)
            try:
                report = bring(copy, partition, max(batches, default=partition.epoch.first_batch - 1))
                is_anew = report.way != "local"
                start = partition.epoch.first_batch - 1 if is_anew else report.from_batch
                return copy, report.to_batch - start
            except StorageCorrupt as found:
                copy.give_up()
                problem = found
            except BaseException:
                copy.give_up()
                raise
        raise problem or InvariantBroken(reason="no attempt was made")

    def _partition(self) -> Partition:
        known = epochs.listed(self._depot)
        if not known or self._number >= known[-1].parallelism:
            raise StateNotFound(state=f"{self._depot.root.name}, partition {self._number}")
        return Partition(self._depot, known[-1], self._number, self._place)
