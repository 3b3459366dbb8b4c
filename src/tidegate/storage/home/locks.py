"""The locks of a home: one process of a kind at a time, by flock, with the pid of the holder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tidegate.errors import HomeLocked
from tidegate.storage.files import home_error

# A holder that is stopping, or the Java process of a killed worker, has the lock for a moment longer.
LEAVING_HOLDER_WAIT_SECONDS = 30.0
LOCK_POLL_SECONDS = 0.1
STOPPING = "stopping"
UNDER = "under"
# The text of a holder in the lock file; it overwrites the one before.
_HOLDER_BYTES = 80

LockKind = Literal["server", "worker"]


class HomeLock:
    """One lock of a home, held until `release` or until every process that inherited `fd` is gone."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def mark_stopping(self) -> None:
        """Mark the holder as stopping, so that its successor waits and is not refused."""
        self._write(STOPPING)

    def mark_supervised(self, supervisor: int) -> None:
        """Mark the holder as stopping with another process: once that is gone, its successor waits."""
        self._write(f"{UNDER} {supervisor}")

    def mark_brief(self, name: str) -> None:
        """Mark the holder as a short command of this name, which servers and workers wait for."""
        self._write(f"{STOPPING} {name}")

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _write(self, words: str) -> None:
        if self.fd >= 0:
            os.pwrite(self.fd, f"{os.getpid()} {words}".ljust(_HOLDER_BYTES).encode("ascii"), 0)


def take_lock(home: Path, kind: LockKind, wait_seconds: float) -> HomeLock:
    """Take the lock for a kind of process; HomeLocked names the pid of a living holder.

    A holder that is stopping, whose supervisor is gone, or that is dead while a child of it still has the
    lock, is waited for.
    """
    path = lock_path(home, kind)
    try:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise home_error(home, problem) from problem
    polls_left = int(wait_seconds / LOCK_POLL_SECONDS)
    while not try_flock(fd):
        holder, leaving, name = _holder_of(path)
        if polls_left <= 0 or not leaving:
            os.close(fd)
            hint = "Wait until it has ended, then try again." if name else None
            raise HomeLocked(kind=name or kind, home=str(home), pid=holder, hint=hint)
        polls_left -= 1
        time.sleep(LOCK_POLL_SECONDS)
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return HomeLock(fd)


def try_flock(fd: int) -> bool:
    """Lock an open file; return False where another process has it locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def flocked_folder(path: Path) -> Iterator[bool]:
    """Hold a lock on a folder while the block runs; False where the folder was removed during the wait."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield is_at(fd, path)
    finally:
        os.close(fd)


def is_at(fd: int, path: Path) -> bool:
    """True if an open file or folder still has its name."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def is_flocked(path: Path) -> bool:
    """True if a living process holds a lock on a file; False for a file that does not exist."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_flock(fd)
    finally:
        os.close(fd)


def is_alive(pid: int) -> bool:
    """True if a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def lock_path(home: Path, kind: LockKind) -> Path:
    """Return the file of a lock."""
    return home / "locks" / f"{kind}.lock"


def running_pid(path: Path) -> int | None:
    """Return the pid in a lock's file; None where the process is gone or stopping, or there is no pid."""
    try:
        holder, leaving, _ = _holder_of(path)
    except (FileNotFoundError, ValueError):
        return None
    return None if leaving else holder


def _holder_of(path: Path) -> tuple[int, bool, str]:
    """Return the holder's pid (0: none written), whether it is stopping or gone, and a command's name."""
    words = path.read_text(encoding="ascii").split()
    if not words:
        return 0, True, ""
    holder, mark, rest = int(words[0]), words[1:2], words[2:]
    if mark == [UNDER]:
        return holder, not (is_alive(holder) and is_alive(int(rest[0]))), ""
    return holder, mark == [STOPPING] or not is_alive(holder), " ".join(rest)


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] == "Z"
