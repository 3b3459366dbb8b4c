"""The local store of a partition: its state on this machine, which may be lost at any moment.

A local store is a folder `<root>/<hash of the checkpoint>/<operator>/e<epoch>/<partition>` with the backend's
files in `db-<kind>.<inode of its lock>`. It is never the truth: whatever is wrong with it, it is removed and
restored from the checkpoint. One worker holds its lock at a time (lock.py); it stays open after a task
(pool.py), and is served or released when another worker of this machine needs it. Beside it lie, each with a
lock of its own, private stores of attempts that could not wait (`<partition>.private.…`) and the files of
snapshots on their way into the checkpoint (`<partition>.snapshot.…`); what a dead worker left of these, or of
a removal (`….gone.…`), is removed by the next one that opens the store. The operator's folder also has the
attempts that opened each partition (attempts.py).
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
from tidegate.checkpoint.local.lock import FolderLock, lock_folder, remove_leftovers, sweep
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.rescale import Redistribution, no_operator_state
from tidegate.checkpoint.store import CheckpointStore, checkpoint_error
from tidegate.errors import InvariantBroken, StorageFailed, TidegateError
from tidegate.model.clock import Clock
from tidegate.storage.files import is_full

log = logging.getLogger(__name__)

ROOT_VARIABLE = "TIDEGATE_STATE_DIR"
# A store that no task used for a week is of no use: catching it up costs as much as restoring it.
UNUSED_US_MAX = 7 * 24 * 3_600 * 1_000_000
# Private stores of one worker for one partition; names are tried in turn.
PRIVATE_STORES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class LocalDirectory:
    """The directory of local stores on this machine, and how one is opened and waited for."""

    root: Path
    factory: BackendFactory
    keep_open: bool
    wait_ms_max: int
    clock: Clock
    # How operator state is redistributed when the number of partitions changes.
    redistribution: Redistribution = no_operator_state
    # Whether a store that is held open is served to other processes, and theirs are used.
    is_served: bool = False

    def open_backend(self, folder: Path) -> Backend:
        """Open a backend in a folder."""
        return self.factory.open(folder, lambda: int(self.clock.monotonic_seconds() * 1e9))

    def folder(self, store: CheckpointStore, epoch: int, partition: int) -> Path:
        """Return the folder of a partition's local store."""
        return self.operator_folder(store) / f"e{epoch}" / str(partition)

    def operator_folder(self, store: CheckpointStore) -> Path:
        """Return the folder of all that belongs to one operator of a checkpoint."""
        address = xxhash.xxh3_64_hexdigest(str(store.root.resolve()).encode())
        return self.root / address / store.root.name


def default_root() -> Path:
    """Return the root of local stores without a setting: from the environment, else a temporary one."""
    named = os.environ.get(ROOT_VARIABLE)
    return Path(named) if named else Path(tempfile.gettempdir()) / f"tidegate-state-{os.getuid()}"


@contextmanager
def local_files(folder: Path) -> Iterator[None]:
    """Turn an OSError of the disk below a folder of local stores into an error that names the folder."""
    try:
        yield
    except OSError as problem:
        if is_full(problem):
            raise checkpoint_error(folder, problem) from problem
        reason = f"it cannot hold local stores ({problem.strerror or problem})"
        hint = f"Set local_dir, or {ROOT_VARIABLE}, to a folder that the user of this worker may write to."
        raise StorageFailed(path=str(folder), reason=reason, hint=hint) from problem


class StoreMoved(Exception):
    """The store is open elsewhere than before: its version must be read again."""


class LocalStore:
    """One partition's local store, held by this worker: a locked folder and, when open, the backend in it."""

    def __init__(self, lock: FolderLock, directory: LocalDirectory, *, is_private: bool) -> None:
        self.lock = lock
        self.is_private = is_private
        self._directory = directory
        self._backend: Backend | None = None

    @property
    def folder(self) -> Path:
        """Return the store's folder."""
        return self.lock.folder

    @property
    def is_served(self) -> bool:
        """True if other processes may use it while it is held open."""
        return self._directory.is_served

    @property
    def open_options(self) -> str:
        """Return how it is opened, as text: a store is served only to those who would open it in this way."""
        return repr(self._directory.factory)

    @property
    def kind(self) -> str:
        """Return the kind of its backend; a store is never opened by another kind."""
        return self._directory.factory.kind

    def is_for(self, directory: LocalDirectory) -> bool:
        """True if a directory's stores are opened in the same way: another retention forgets other keys."""
        return self._directory.factory == directory.factory

    @property
    def files(self) -> Path:
        """Return the folder in which the backend stores its files.

        Its name has the inode of the lock: should somebody remove the store under a worker that has it open,
        and another one rebuild it, the two never write to one folder. RocksDB would take the other's files
        for its own, and put them into a snapshot.
        """
        return self.folder / f"db-{self.kind}.{self.lock.inode}"

    @property
    def backend(self) -> Backend:
        """Return the open backend."""
        if self._backend is None:
            raise InvariantBroken(reason="the local store is not open")
        return self._backend

    @property
    def is_open(self) -> bool:
        """Return whether there is a backend; a store that could not be restored has none."""
        return self._backend is not None

    def open(self) -> Backend | None:
        """Open what is there; None when nothing is. Damage is StorageCorrupt, and the store stays closed."""
        self._rename_files()
        if self._backend is None and self.files.is_dir():
            self._backend = self._directory.open_backend(self.files)
        return self._backend

    def _rename_files(self) -> None:
        """Rename the files after this lock: the whole folder may be a copy, or of an older version."""
        if self._backend is None and not self.files.is_dir() and not self.lock.is_lost():
            found = list(self.folder.glob(f"db-{self.kind}*"))
            if len(found) == 1:
                found[0].rename(self.files)

    def wipe(self) -> Path:
        """Remove everything in the store; return the folder, not created yet, for the next one."""
        self.close()
        left = [self.files, self._unfinished]
        if not self.lock.is_lost():
            left += [*self.folder.glob("db-*"), *self.folder.glob("unfinished*")]
        for folder in left:
            shutil.rmtree(folder, ignore_errors=True)
        return self._unfinished

    def adopt(self) -> Backend:
        """Rename the folder that `wipe` returned, now filled, to the store's files, and open them.

        The rename makes it the store, whole; a kill before leaves a folder that the next `wipe` removes.
        """
        self._unfinished.rename(self.files)
        self._backend = self._directory.open_backend(self.files)
        return self._backend

    def close(self) -> None:
        """Close the backend; the lock stays."""
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def release(self) -> None:
        """Close the store and release its lock; a private one is removed."""
        try:
            self.close()
        finally:
            if self.is_private:
                self.lock.remove()
            else:
                self.lock.release()

    def keep_open(self) -> None:
        """Leave the store open for the next task, in this worker."""
        pool().put(self)

    @property
    def _unfinished(self) -> Path:
        return self.folder / f"unfinished.{self.lock.inode}"


# Returns a store that another worker has open and serves; None when none does.
ConnectRemote = Callable[[LocalDirectory, Path], LocalStore | None]


def acquire(
    directory: LocalDirectory, folder: Path, connect_remote: ConnectRemote | None = None
) -> LocalStore:
    """Return a partition's local store to this task: the open one, the one on the disk, or a private one.

    A holder that does not use it serves it to a task that may use remote stores, else releases it at once; a
    holder whose task still runs is waited for a short while, and then a private store is restored from the
    checkpoint, so that no task waits without limit.
    """
    idle = pool().take(folder)
    if idle is not None and idle.is_for(directory):
        idle.lock.touch(directory.clock.now_us())
        return idle
    if idle is not None:
        idle.release()
    lock = lock_folder(folder)
    if lock is None and connect_remote is not None:
        remote = connect_remote(directory, folder)
        if remote is not None:
            return remote
    lock = lock or lock_folder(folder, wait_ms_max=directory.wait_ms_max)
    if lock is not None:
        sweep(folder.parent, f"{folder.name}.private.*")
        sweep(folder.parent, f"{folder.name}.snapshot.*")
        remove_leftovers(folder)
        lock.touch(directory.clock.now_us())
        return LocalStore(lock, directory, is_private=False)
    log.warning("store in use for too long, using a private one folder=%s", folder)
    return LocalStore(lock_beside(folder, "private"), directory, is_private=True)


def lock_beside(folder: Path, purpose: str) -> FolderLock:
    """Lock a new folder beside a local store."""
    for number in range(PRIVATE_STORES_MAX):
        beside = folder.with_name(f"{folder.name}.{purpose}.{os.getpid()}.{number}")
        if beside.exists():
            continue
        lock = lock_folder(beside)
        if lock is not None:
            return lock
    raise InvariantBroken(reason=f"{PRIVATE_STORES_MAX} folders for '{purpose}' lie beside {folder}")


def return_store(directory: LocalDirectory, local: LocalStore) -> None:
    """Return a store after a task: it stays open in this worker, or is closed."""
    if directory.keep_open and not local.is_private:
        local.keep_open()
    else:
        local.release()


def discard_store(local: LocalStore) -> None:
    """Remove a store that is not to be trusted: its batch failed in the middle, or its bytes are damaged."""
    try:
        local.wipe()
    except TidegateError as problem:
        log.warning("store not closed before its removal folder=%s error=%s", local.folder, problem)
    local.release()


def remove_unused(directory: LocalDirectory) -> list[Path]:
    """Remove the stores below a root that no task used for a week; return those removed."""
    before_us = directory.clock.now_us() - UNUSED_US_MAX
    forget_unused(directory.root, before_us)
    return sweep(directory.root, "*/*/*/*", before_us)
