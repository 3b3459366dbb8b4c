"""Locks on folders of this machine: one holder at a time, who can be asked to release.

The lock is the kernel's (flock) on `<folder>/lock`: it goes with the process that held it, however that one
ends. The holder may write the address at which it serves the folder's store into the lock file. A holder that
does not use a folder is asked to release it through `<folder>/wanted`, a named pipe: whoever waits writes a
byte, and the holder reads it when it gets to it. A byte too many or too few costs a close or a wait.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

LOCK_NAME = "lock"
REQUESTS_NAME = "wanted"
# In the name of a folder that is being removed.
GONE = ".gone."
# Between two attempts at a lock that another process holds.
PAUSE_MS = 2
# A waiter repeats its request so often: the holder may have drained the first one.
REQUEST_EVERY_PAUSES = 10


class FolderLock:
    """A folder that only this worker may use until `release`."""

    def __init__(self, folder: Path, lock: int, requests: int) -> None:
        self.folder = folder
        self._lock = lock
        self._requests = requests

    @property
    def request_fd(self) -> int:
        """Return the file descriptor that becomes readable when another process requests the folder."""
        return self._requests

    @property
    def inode(self) -> int:
        """Return a number that no later lock on a folder of this name has while this one is held."""
        return os.fstat(self._lock).st_ino

    def is_lost(self) -> bool:
        """Return whether the folder was removed under its holder: another one may have locked it."""
        try:
            return not os.path.samestat(os.fstat(self._lock), (self.folder / LOCK_NAME).stat())
        except FileNotFoundError:
            return True

    def is_requested(self) -> bool:
        """Return whether another process has requested the folder since the last call."""
        try:
            return bool(os.read(self._requests, 4096))
        except BlockingIOError:
            return False

    def touch(self, now_us: int) -> None:
        """Record when the folder was last used."""
        os.utime(self._lock, ns=(now_us * 1_000, now_us * 1_000))

    def write_address(self, address: bytes) -> None:
        """Write the address at which the holder serves the folder's store into the lock file."""
        if os.pread(self._lock, len(address) + 1, 0) != address:
            used = os.fstat(self._lock)
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, address, 0)
            os.utime(self._lock, ns=(used.st_atime_ns, used.st_mtime_ns))

    def remove(self) -> None:
        """Remove the folder with all in it, and release the lock.

        It is renamed first: as soon as its lock file is gone, the next holder may be in it.
        """
        renamed = self.folder.with_name(f"{self.folder.name}{GONE}{os.getpid()}.{self._lock}")
        try:
            self.folder.rename(renamed)
        except OSError:
            renamed = self.folder
        shutil.rmtree(renamed, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Release the folder; a waiting process can lock it at once.

        Unlocked explicitly, not by closing alone: a forked child may have the same lock open.
        """
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Close a lock that was inherited from a parent by fork: the parent holds it on."""
        os.close(self._requests)
        os.close(self._lock)


def lock_folder(folder: Path, *, wait_ms_max: int = 0) -> FolderLock | None:
    """Lock a folder, created if it is missing; None when another process holds it for longer than that.

    Pauses are counted, not timed, so that a clock that does not advance does not make a wait without end.
    """
    for pause in range(max(1, wait_ms_max // PAUSE_MS)):
        found = _try_lock(folder)
        if found is not None:
            return found
        if not wait_ms_max:
            return None
        if pause % REQUEST_EVERY_PAUSES == 0:
            request_lock(folder)
        time.sleep(PAUSE_MS / 1_000)
    return _try_lock(folder)


def holder_address(folder: Path) -> bytes | None:
    """Return the address at which the holder of a folder serves it, if it serves it; it may be gone since."""
    try:
        return (folder / LOCK_NAME).read_bytes() or None
    except OSError:
        return None


def request_lock(folder: Path) -> None:
    """Ask the holder of a folder, if it lives, to release it."""
    try:
        pipe = os.open(folder / REQUESTS_NAME, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no holder reads it: the lock is free, or will be at once
        return
    try:
        os.write(pipe, b"?")
    except OSError:  # the pipe is full of requests, or its reader has just gone
        return
    finally:
        os.close(pipe)


def _try_lock(folder: Path) -> FolderLock | None:
    """Lock a folder now or not at all.

    A lock file that was removed between opening and locking it protects nothing: its folder is created again.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / LOCK_NAME
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # the folder went between the two calls
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        try:
            if os.path.samestat(os.fstat(lock), path.stat()):
                return FolderLock(folder, lock, _open_pipe(folder))
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(lock)  # a lock that nobody has would last as long as this worker
            raise
        os.close(lock)


def _open_pipe(folder: Path) -> int:
    """Open the pipe of requests, drained; open for reading and writing, so that it never reports an end."""
    path = folder / REQUESTS_NAME
    if not path.is_fifo():
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while os.read(pipe, 4096):
            pass
    except BlockingIOError:
        pass
    return pipe


def sweep(root: Path, pattern: str, unused_before_us: int | None = None) -> list[Path]:
    """Remove folders that no process holds, if they were last used before a time; return those removed."""
    removed = []
    for lock in sorted(root.glob(f"{pattern}/{LOCK_NAME}")):
        try:
            found = _try_lock(lock.parent) if _is_unused(lock, unused_before_us) else None
            if found is None:
                continue
            # Checked again: another process may have used it and released it in between.
            if _is_unused(lock, unused_before_us):
                found.remove()
                removed.append(lock.parent)
            else:
                found.release()
        except OSError:  # another process was first, or it is another user's
            continue
    return removed


def remove_leftovers(folder: Path) -> None:
    """Remove what is left of folders beside this one whose removal was cut off."""
    for left in folder.parent.glob(f"{folder.name}*{GONE}*"):
        shutil.rmtree(left, ignore_errors=True)


def _is_unused(lock: Path, before_us: int | None) -> bool:
    return before_us is None or lock.stat().st_mtime_ns < before_us * 1_000
