"""Claims: takes a folder on this machine, gives it to one holder at a time, keeps a lock file in it.

The lock is the kernel's (flock) on `<folder>/lock`: it goes with the worker that held it, however that one
ends. In the lock file a holder may write where it can be called. A holder that sits on a folder without need
is asked for it through `<folder>/wanted`, a named pipe: whoever waits writes a byte, and the holder reads it
when it gets to it. A byte too much or too few costs a close or a wait.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

LOCK_NAME = "lock"
WANTED_NAME = "wanted"
# In the name of a folder that is being removed.
GONE = ".gone."
# Between two looks at a lock that another one holds.
PAUSE_MS = 2
# A waiter asks again so often: the holder may have thrown the first request away.
ASK_EVERY_PAUSES = 10


class Claim:
    """A folder that this worker has for itself until `release`."""

    def __init__(self, folder: Path, lock: int, wanted: int) -> None:
        self.folder = folder
        self._lock = lock
        self._wanted = wanted

    @property
    def request_fd(self) -> int:
        """Return the file descriptor that becomes readable when somebody asks for the folder."""
        return self._wanted

    @property
    def mark(self) -> int:
        """Return a number that no later claim on a folder of this name has while this one is held."""
        return os.fstat(self._lock).st_ino

    def is_lost(self) -> bool:
        """Return whether the folder was taken away under its holder: another one may have it by now."""
        try:
            return not os.path.samestat(os.fstat(self._lock), (self.folder / LOCK_NAME).stat())
        except FileNotFoundError:
            return True

    def is_wanted(self) -> bool:
        """Return whether somebody asked for the folder since the last look."""
        try:
            return bool(os.read(self._wanted, 4096))
        except BlockingIOError:
            return False

    def touch(self, now_us: int) -> None:
        """Note when the folder was last used."""
        os.utime(self._lock, ns=(now_us * 1_000, now_us * 1_000))

    def note(self, address: bytes) -> None:
        """Write down where the holder can be called, for those who find the folder taken."""
        if os.pread(self._lock, len(address) + 1, 0) != address:
            used = os.fstat(self._lock)
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, address, 0)
            os.utime(self._lock, ns=(used.st_atime_ns, used.st_mtime_ns))

    def remove(self) -> None:
        """Remove the folder with all in it, and give up the claim.

        It goes under another name first: as soon as its lock file is gone, the next holder is in it.
        """
        gone = self.folder.with_name(f"{self.folder.name}{GONE}{os.getpid()}.{self._lock}")
        try:
            self.folder.rename(gone)
        except OSError:
            gone = self.folder
        shutil.rmtree(gone, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Give the folder up; the next one who wants it gets it at once.

        Unlocked by name, not by closing alone: a forked child may have the same lock open.
        """
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Drop a claim that was inherited from a parent by fork: the parent keeps it."""
        os.close(self._wanted)
        os.close(self._lock)


def claim(folder: Path, *, wait_ms_max: int = 0) -> Claim | None:
    """Claim a folder, made if it is not there; None when another one holds it for longer than that.

    Pauses are counted, not timed, so that a clock that stands still does not make a wait without end.
    """
    for pause in range(max(1, wait_ms_max // PAUSE_MS)):
        found = _try(folder)
        if found is not None:
            return found
        if not wait_ms_max:
            return None
        if pause % ASK_EVERY_PAUSES == 0:
            ask_for(folder)
        time.sleep(PAUSE_MS / 1_000)
    return _try(folder)


def holder_of(folder: Path) -> bytes | None:
    """Return where the holder of a folder can be called, if it wrote that down; it may be gone since."""
    try:
        return (folder / LOCK_NAME).read_bytes() or None
    except OSError:
        return None


def ask_for(folder: Path) -> None:
    """Ask the holder of a folder, if it lives, to give it up."""
    try:
        pipe = os.open(folder / WANTED_NAME, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no holder reads it: the lock is free, or will be at once
        return
    try:
        os.write(pipe, b"?")
    except OSError:  # the pipe is full of requests, or its reader has just gone
        return
    finally:
        os.close(pipe)


def _try(folder: Path) -> Claim | None:
    """Take the lock now or not at all.

    A lock file that was removed between opening and locking it protects nothing: its folder is made again.
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
                return Claim(folder, lock, _pipe(folder))
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(lock)  # a lock that nobody has would last as long as this worker
            raise
        os.close(lock)


def _pipe(folder: Path) -> int:
    """Open the pipe of requests, emptied; held for reading and writing, so that it never reports an end."""
    path = folder / WANTED_NAME
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
    """Remove folders that nobody holds, if they were last used before a time; give what went."""
    gone = []
    for lock in sorted(root.glob(f"{pattern}/{LOCK_NAME}")):
        try:
            found = _try(lock.parent) if _is_unused(lock, unused_before_us) else None
            if found is None:
                continue
            # Looked at again: somebody may have used it and given it back in between.
            if _is_unused(lock, unused_before_us):
                found.remove()
                gone.append(lock.parent)
            else:
                found.release()
        except OSError:  # another one was first, or it is another user's
            continue
    return gone


def remove_gone(folder: Path) -> None:
    """Remove what is left of folders beside this one whose removal was cut off."""
    for left in folder.parent.glob(f"{folder.name}*{GONE}*"):
        shutil.rmtree(left, ignore_errors=True)


def _is_unused(lock: Path, before_us: int | None) -> bool:
    return before_us is None or lock.stat().st_mtime_ns < before_us * 1_000
