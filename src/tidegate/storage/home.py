"""The home folder: takes a path, gives the places inside it, keeps the layout version, a token and two locks.

layout.json      the layout version; written last, so a folder without it is not finished and is finished
again tidegate.toml    settings, the user's own admin.token      the admin's bearer token, mode 0600 locks/
server.lock and worker.lock: an flock, and the pid of its holder for messages run/server.json  address of
the running server engine/          RocksDB           lake/         Delta tables checkpoints/     Spark's,
one folder a pipeline    pipelines/  one Python file a pipeline    logs/
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tidegate.errors import HomeLocked, HomeTooNew, HomeUnusable, StorageFull

LAYOUT_VERSION = 1
LAYOUT_FILE = "layout.json"
TOKEN_FILE = "admin.token"  # noqa: S105 - the name of a file
FOLDERS = ("locks", "run", "engine", "lake", "checkpoints", "pipelines", "logs")
# What may stand in a folder before it becomes a home: the user's settings, and what an interrupted start
# left.
ALLOWED_BEFORE = frozenset({*FOLDERS, "tidegate.toml", TOKEN_FILE, "lost+found"})
# A holder that stops, or the Java part of a worker that was killed, has the lock for a moment longer.
LEAVING_HOLDER_WAIT_SECONDS = 30.0
STOPPING = "stopping"
# Shorter ones can be guessed; our own have 43.
TOKEN_CHARS_MIN = 16
TOKEN_HINT = "Put a long random text into admin.token in the home folder, with mode 0600."  # noqa: S105
LOCK_POLL_SECONDS = 0.1

LockKind = Literal["server", "worker"]


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the server of a home answers."""

    url: str
    pid: int


class HomeLock:
    """One lock of a home, held until `release` or until every process that inherited `fd` is gone."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def mark_stopping(self) -> None:
        """Say that the holder is on its way out, so that its successor waits and is not refused."""
        if self.fd >= 0:
            os.pwrite(self.fd, f"{os.getpid()} {STOPPING}".encode(), 0)

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(frozen=True, slots=True)
class Home:
    """A home folder that is complete and of a layout that this version knows."""

    path: Path

    @classmethod
    def open(cls, path: Path, make_token: Callable[[], str]) -> Home:
        """Open a home, or make one where the folder is absent or empty; never leave one half made."""
        path = path.expanduser().absolute()
        try:
            found = _layout_of(path)
            if found is None:
                _make(path, make_token)
            elif found > LAYOUT_VERSION:
                raise HomeTooNew(home=str(path), found=found, known=LAYOUT_VERSION)
        except OSError as problem:
            raise _refusal(path, problem) from problem
        return cls(path)

    @classmethod
    def existing(cls, path: Path) -> Home:
        """Open a home that is there; refuse to make one."""
        path = path.expanduser().absolute()
        found = _layout_of(path)
        if found is None:
            raise HomeUnusable(
                home=str(path),
                reason="there is no home there",
                hint="Make one with 'tidegate up --home DIR'.",
            )
        if found > LAYOUT_VERSION:
            raise HomeTooNew(home=str(path), found=found, known=LAYOUT_VERSION)
        return cls(path)

    @property
    def engine_path(self) -> Path:
        return self.path / "engine"

    @property
    def lake_path(self) -> Path:
        return self.path / "lake"

    @property
    def checkpoints_path(self) -> Path:
        return self.path / "checkpoints"

    @property
    def pipelines_path(self) -> Path:
        return self.path / "pipelines"

    @property
    def logs_path(self) -> Path:
        return self.path / "logs"

    @property
    def run_path(self) -> Path:
        return self.path / "run"

    @property
    def token_path(self) -> Path:
        return self.path / TOKEN_FILE

    def read_token(self) -> str:
        """Give the admin's token; one that could be guessed is refused."""
        try:
            token = self.token_path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as problem:
            reason = f"{TOKEN_FILE} cannot be read ({problem})"
            raise HomeUnusable(home=str(self.path), reason=reason, hint=TOKEN_HINT) from problem
        if len(token) < TOKEN_CHARS_MIN:
            reason = f"the token in {TOKEN_FILE} has fewer than {TOKEN_CHARS_MIN} characters"
            raise HomeUnusable(home=str(self.path), reason=reason, hint=TOKEN_HINT)
        return token

    def lock(self, kind: LockKind, *, wait_seconds: float = LEAVING_HOLDER_WAIT_SECONDS) -> HomeLock:
        """Take the lock for a kind of process; refuse with the pid of a living holder.

        A holder that stops, or that is dead and whose child has the lock still, is waited for.
        """
        path = self.path / "locks" / f"{kind}.lock"
        try:
            path.parent.mkdir(exist_ok=True, mode=0o700)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise _refusal(self.path, problem) from problem
        polls_left = int(wait_seconds / LOCK_POLL_SECONDS)
        while not _try_lock(fd):
            holder, leaving = _holder_of(path)
            if polls_left <= 0 or not leaving:
                os.close(fd)
                raise HomeLocked(kind=kind, home=str(self.path), pid=holder)
            polls_left -= 1
            time.sleep(LOCK_POLL_SECONDS)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        return HomeLock(fd)

    def write_address(self, url: str, pid: int) -> None:
        """Say where the server answers."""
        try:
            self.run_path.mkdir(exist_ok=True, mode=0o700)
            write_file_atomically(
                self.run_path / "server.json", json.dumps({"url": url, "pid": pid}).encode()
            )
        except OSError as problem:
            raise _refusal(self.path, problem) from problem

    def clear_address(self) -> None:
        """Say that no server answers."""
        (self.run_path / "server.json").unlink(missing_ok=True)

    def server_address(self) -> ServerAddress | None:
        """Give the address that the last server wrote, or None; it may have died since."""
        try:
            text = (self.run_path / "server.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            address = json.loads(text)
            return ServerAddress(address["url"], address["pid"])
        except (ValueError, KeyError, TypeError) as problem:
            reason = f"run/server.json is damaged ({problem})"
            raise HomeUnusable(
                home=str(self.path), reason=reason, hint="Start the server again."
            ) from problem


def write_file_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace a file: readers see the old bytes or the new ones; the new ones are on disk on return."""
    spare = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        fd = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(spare, path)  # noqa: PTH105 - os, so that the order of the calls is plain
    except OSError:
        spare.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _layout_of(path: Path) -> int | None:
    try:
        text = (path / LAYOUT_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (NotADirectoryError, PermissionError) as problem:
        raise HomeUnusable(home=str(path), reason=problem.strerror or "not readable") from problem
    except UnicodeDecodeError as problem:
        raise HomeUnusable(home=str(path), reason=f"{LAYOUT_FILE} is damaged") from problem
    try:
        return int(json.loads(text)["layout"])
    except (ValueError, KeyError, TypeError) as problem:
        raise HomeUnusable(home=str(path), reason=f"{LAYOUT_FILE} is damaged") from problem


def _make(path: Path, make_token: Callable[[], str]) -> None:
    existed = path.exists()
    if existed:
        foreign = sorted(entry.name for entry in path.iterdir() if not _ours(entry.name))
        if foreign:
            raise HomeUnusable(home=str(path), reason=f"it holds other things ({', '.join(foreign[:3])})")
    made: list[Path] = []
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in FOLDERS:
            if not (path / name).exists():
                (path / name).mkdir(mode=0o700)
                made.append(path / name)
        if not (path / TOKEN_FILE).exists():
            write_file_atomically(path / TOKEN_FILE, f"{make_token()}\n".encode("ascii"), mode=0o600)
            made.append(path / TOKEN_FILE)
        write_file_atomically(path / LAYOUT_FILE, json.dumps({"layout": LAYOUT_VERSION}).encode())
    except OSError:
        _unmake(path, made, remove_root=not existed)
        raise


def _ours(name: str) -> bool:
    return name in ALLOWED_BEFORE or (name.startswith((TOKEN_FILE, LAYOUT_FILE)) and name.endswith(".new"))


def _unmake(path: Path, made: list[Path], *, remove_root: bool) -> None:
    for place in reversed(made):
        if place.is_dir():
            place.rmdir()
        else:
            place.unlink(missing_ok=True)
    if remove_root and path.exists():
        path.rmdir()


def _refusal(path: Path, problem: OSError) -> HomeUnusable | StorageFull:
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(path=str(path), free_bytes=0, hint="Free some space and start again.")
    return HomeUnusable(home=str(path), reason=problem.strerror or str(problem))


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder_of(path: Path) -> tuple[int, bool]:
    """Give the holder's pid, 0 where it has not said, and whether it is gone or on its way out."""
    words = path.read_text(encoding="ascii").split()
    if not words:
        return 0, True
    holder = int(words[0])
    return holder, STOPPING in words or not _alive(holder)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] == "Z"
