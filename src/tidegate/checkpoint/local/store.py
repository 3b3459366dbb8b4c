"""Local copies: takes a partition, gives its copy on this machine, keeps it for the next batch.

A copy is a folder `<root>/<hash of the checkpoint>/<operator>/e<epoch>/<partition>` with the backend's
files in `db`. It is never the truth: whatever is wrong with it, it is removed and made again. One worker
holds it at a time (claims.py); it stays open after a task (kept.py), and is lent or given up when another
worker of this machine asks for it. Beside it lie, each with a lock of its own, private copies of attempts
that could not wait (`<partition>.private.…`) and the files of snapshots on their way into the checkpoint
(`<partition>.snapshot.…`); what a dead worker left of these, or of a removal (`….gone.…`), is removed by the
next one that opens the copy. Which attempts opened a partition is kept by the operator (attempts.py).
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from tidegate.checkpoint.backend import Backend, BackendFactory
from tidegate.checkpoint.local.attempts import forget_unused
from tidegate.checkpoint.local.lock import Claim, claim, remove_gone, sweep
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.rescale import Redistribution, no_operator_state
from tidegate.checkpoint.store import Depot, checkpoint_error
from tidegate.errors import InvariantBroken, StorageFailed, TidegateError
from tidegate.model.clock import Clock
from tidegate.storage.files import is_full

log = logging.getLogger(__name__)

ROOT_VARIABLE = "TIDEGATE_STATE_DIR"
# A copy that no task used for a week is of no use: catching it up costs as much as making it again.
UNUSED_US_MAX = 7 * 24 * 3_600 * 1_000_000
# Private copies of one worker for one partition; names are tried in turn.
PRIVATE_COPIES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where copies are on this machine, and how one is opened and waited for."""

    root: Path
    factory: BackendFactory
    keep_open: bool
    wait_ms_max: int
    clock: Clock
    # How operator state is shared out when the number of partitions changes.
    redistribution: Redistribution = no_operator_state
    # Whether a store that is kept open is served to other processes, and theirs are used.
    is_served: bool = False

    def open_backend(self, folder: Path) -> Backend:
        """Open a backend in a folder."""
        return self.factory.open(folder, lambda: int(self.clock.monotonic_seconds() * 1e9))

    def folder(self, depot: Depot, epoch: int, partition: int) -> Path:
        """Return the folder of a partition's copy."""
        return self.operator_folder(depot) / f"e{epoch}" / str(partition)

    def operator_folder(self, depot: Depot) -> Path:
        """Return the folder of all that belongs to one operator of a checkpoint."""
        address = xxhash.xxh3_64_hexdigest(str(depot.root.resolve()).encode())
        return self.root / address / depot.root.name


def default_root() -> Path:
    """Return folder for copies when the settings name none: from the environment, else a temporary one."""
    named = os.environ.get(ROOT_VARIABLE)
    return Path(named) if named else Path(tempfile.gettempdir()) / f"tidegate-state-{os.getuid()}"


@contextmanager
def local_files(folder: Path) -> Iterator[None]:
    """Return what the disk refuses below a folder for copies as an error of ours that names it."""
    try:
        yield
    except OSError as problem:
        if is_full(problem):
            raise checkpoint_error(folder, problem) from problem
        reason = f"copies of the state cannot be kept there ({problem.strerror or problem})"
        hint = f"Set local_dir, or {ROOT_VARIABLE}, to a folder that the user of this worker may write to."
        raise StorageFailed(path=str(folder), reason=reason, hint=hint) from problem


class CopyMoved(Exception):
    """The copy is open elsewhere than before: at which batch it stands is to be looked at again."""


class LocalCopy:
    """One partition's copy, held by this worker: a claimed folder and, when open, the backend in it."""

    def __init__(self, held: Claim, place: Place, *, is_private: bool) -> None:
        self.held = held
        self.is_private = is_private
        self._place = place
        self._backend: Backend | None = None

    @property
    def folder(self) -> Path:
        """Return the copy's folder."""
        return self.held.folder

    @property
    def is_served(self) -> bool:
        """True if other processes may use it while it is kept open."""
        return self._place.is_served

    @property
    def opened_as(self) -> str:
        """Return how it is opened, as text: a store is served only to those who would open it in this way."""
        return repr(self._place.factory)

    @property
    def kind(self) -> str:
        """Return the kind of its backend; a copy is never opened by another kind."""
        return self._place.factory.kind

    def is_for(self, place: Place) -> bool:
        """True if it is opened as another would open it: with another retention it forgets other keys."""
        return self._place.factory == place.factory

    @property
    def files(self) -> Path:
        """Return the folder in which the backend keeps its files.

        It has the mark of the claim: should somebody remove the copy under a worker that has it open, and
        another one make it anew, the two never write to one folder. RocksDB would take the other's files for
        its own, and put them into a snapshot.
        """
        return self.folder / f"db-{self.kind}.{self.held.mark}"

    @property
    def backend(self) -> Backend:
        """Return the open backend."""
        if self._backend is None:
            raise InvariantBroken(reason="the copy is not open")
        return self._backend

    @property
    def is_open(self) -> bool:
        """Return whether there is a backend; a copy that could not be brought to its batch has none."""
        return self._backend is not None

    def open(self) -> Backend | None:
        """Open what is there; None when nothing is. Damage is StorageCorrupt, and the copy stays closed."""
        self._settle()
        if self._backend is None and self.files.is_dir():
            self._backend = self._place.open_backend(self.files)
        return self._backend

    def _settle(self) -> None:
        """Give the files the mark of this claim: the whole folder may be a copy, or of an older version."""
        if self._backend is None and not self.files.is_dir() and not self.held.is_lost():
            found = list(self.folder.glob(f"db-{self.kind}*"))
            if len(found) == 1:
                found[0].rename(self.files)

    def open_beside(self, folder: Path) -> Backend:
        """Open a backend in another folder, as this copy would be opened."""
        return self._place.open_backend(folder)

    def wipe(self) -> Path:
        """Remove everything in the copy; give the folder in which the next one is made, not there yet."""
        self.close()
        left = [self.files, self._unfinished]
        if not self.held.is_lost():
            left += [*self.folder.glob("db-*"), *self.folder.glob("unfinished*")]
        for folder in left:
            shutil.rmtree(folder, ignore_errors=True)
        return self._unfinished

    def adopt(self) -> Backend:
        """Take the folder that `wipe` gave, now filled, as the copy, and open it.

        The rename makes it the copy, whole; a kill before leaves a folder that the next `wipe` removes.
        """
        self._unfinished.rename(self.files)
        self._backend = self._place.open_backend(self.files)
        return self._backend

    def close(self) -> None:
        """Close the backend; the claim stays."""
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def give_up(self) -> None:
        """Close the copy and let others have it; a private one is removed."""
        try:
            self.close()
        finally:
            if self.is_private:
                self.held.remove()
            else:
                self.held.release()

    def keep(self) -> None:
        """Let the copy stay open for the next task, in this worker."""
        pool().put(self)

    @property
    def _unfinished(self) -> Path:
        return self.folder / f"unfinished.{self.held.mark}"


# Gives a copy that another worker has open and lends; None when none does.
Borrow = Callable[[Place, Path], LocalCopy | None]


def acquire(place: Place, folder: Path, borrow: Borrow | None = None) -> LocalCopy:
    """Return a partition's copy to this task: the one kept open, the one on the disk, or else a private one.

    A holder that does not use it lends it to a task that may borrow, else gives it up at once; one whose task
    runs still is waited for a short while, and then a private copy is made from the checkpoint, so that no
    task waits for ever.
    """
    kept = pool().take(folder)
    if kept is not None and kept.is_for(place):
        kept.held.touch(place.clock.now_us())
        return kept
    if kept is not None:
        kept.give_up()
    held = claim(folder)
    if held is None and borrow is not None:
        borrowed = borrow(place, folder)
        if borrowed is not None:
            return borrowed
    held = held or claim(folder, wait_ms_max=place.wait_ms_max)
    if held is not None:
        sweep(folder.parent, f"{folder.name}.private.*")
        sweep(folder.parent, f"{folder.name}.snapshot.*")
        remove_gone(folder)
        held.touch(place.clock.now_us())
        return LocalCopy(held, place, is_private=False)
    log.warning("the copy in %s is in use for long; a private one is made", folder)
    return LocalCopy(claim_beside(folder, "private"), place, is_private=True)


def claim_beside(folder: Path, purpose: str) -> Claim:
    """Claim a new folder beside a copy."""
    for number in range(PRIVATE_COPIES_MAX):
        beside = folder.with_name(f"{folder.name}.{purpose}.{os.getpid()}.{number}")
        if beside.exists():
            continue
        held = claim(beside)
        if held is not None:
            return held
    raise InvariantBroken(reason=f"{PRIVATE_COPIES_MAX} folders for '{purpose}' lie beside {folder}")


def put_back(place: Place, copy: LocalCopy) -> None:
    """Give a copy back after a task: it stays open in this worker, or is closed."""
    if place.keep_open and not copy.is_private:
        copy.keep()
    else:
        copy.give_up()


def drop(copy: LocalCopy) -> None:
    """Remove a copy that is not to be trusted: its batch failed in the middle, or its bytes are damaged."""
    try:
        copy.wipe()
    except TidegateError as problem:
        log.warning("the copy in %s could not be closed: %s", copy.folder, problem)
    copy.give_up()


def remove_unused(place: Place) -> list[Path]:
    """Remove the copies below a root that no task used for a week; give what went."""
    before_us = place.clock.now_us() - UNUSED_US_MAX
    forget_unused(place.root, before_us)
    return sweep(place.root, "*/*/*/*", before_us)
