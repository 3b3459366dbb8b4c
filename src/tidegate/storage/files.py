"""Files that survive a crash: atomic writes, syncs, links and copies, and the errors of a disk."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.errors import HomeUnusable, StorageFailed, StorageFull

COPY_BYTES = 1 << 20  # read and written at a time: large enough to be quick, small in memory

# A limit on the size of a file counts as a full disk: what failed is done once there is room.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Another disk, a file system without hard links, too many links to one file, or no permission to link it.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES)


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
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(path: Path) -> None:
    """Sync every folder below a path, the deepest first; files are synced by their writers."""
    for folder, _, _ in os.walk(path, topdown=False):
        sync_folder(Path(folder))


def copy_file(source: Path, target: Path, *, sync: bool = True) -> None:
    """Copy a file's bytes and mode; durable on return when `sync` is set."""
    with source.open("rb") as old:
        mode = os.fstat(old.fileno()).st_mode & 0o777
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as new:
            shutil.copyfileobj(old, new, COPY_BYTES)
            new.flush()
            if sync:
                os.fsync(new.fileno())


def link_or_copy(source: Path, target: Path, *, sync: bool = True) -> None:
    """Link an immutable file under a second name, or copy it where the disk has no links.

    A name that the same file has already is left alone; another file of that name is replaced.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        if not source.samefile(target):
            target.unlink()
            link_or_copy(source, target, sync=sync)
    except OSError as problem:
        if problem.errno not in _NO_LINK:
            raise
        copy_file(source, target, sync=sync)


def rename_new(source: Path, target: Path) -> None:
    """Rename a file unless the new name is taken: FileExistsError then, and nothing is changed."""
    try:
        os.link(source, target)
        source.unlink()
    except FileExistsError:
        raise
    except OSError as problem:
        if problem.errno not in _NO_LINK:
            raise
        # A disk without links: the name is taken first, empty, and replaced at once.
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        source.replace(target)


def files_below(root: Path) -> Iterator[str]:
    """Yield every file below a folder, as a path relative to it, in name order; links to folders count."""
    for folder, folders, names in os.walk(root, followlinks=True):
        folders.sort()
        for name in sorted(names):
            yield os.path.relpath(Path(folder) / name, root)


def is_full(problem: OSError) -> bool:
    """True if a call failed for want of room."""
    return problem.errno in _FULL


def disk_free_bytes(path: Path) -> int:
    """Return the free room for this user on the disk of a path; the path need not exist yet."""
    place = path.absolute()
    while True:
        try:
            return shutil.disk_usage(place).free
        except (FileNotFoundError, NotADirectoryError):
            if place == place.parent:
                raise
            place = place.parent


def require_room(
    folder: Path, size_bytes: int, *, bytes_min: int, free_bytes_of: Callable[[Path], int] = disk_free_bytes
) -> None:
    """Raise StorageFull if a write into a folder would leave less than `bytes_min` on the disk.

    A folder that was removed meanwhile raises StorageFailed: RocksDB would write on into deleted files.
    """
    try:
        folder.stat()
        free_bytes = free_bytes_of(folder)
    except OSError as problem:
        raise disk_error(folder, problem) from problem
    if free_bytes - size_bytes < bytes_min:
        raise StorageFull(path=str(folder), free_bytes=free_bytes)


def disk_error(
    path: Path, problem: OSError, *, hint: str | None = None, full_hint: str | None = None
) -> StorageFull | StorageFailed:
    """Return the error for a failed call: StorageFull where the disk is full, else StorageFailed."""
    if is_full(problem):
        try:
            free_bytes = disk_free_bytes(path)
        except OSError:
            free_bytes = 0
        return StorageFull(path=str(path), free_bytes=free_bytes, hint=full_hint)
    return StorageFailed(path=str(path), reason=problem.strerror or str(problem), hint=hint)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise the error of `disk_error` for an OSError of the block."""
    try:
        yield
    except OSError as problem:
        raise disk_error(path, problem) from problem


def home_error(path: Path, problem: OSError) -> HomeUnusable | StorageFull:
    """Return the error for a failed call on a home."""
    if is_full(problem):
        return StorageFull(path=str(path), free_bytes=0, hint="Free some space and start again.")
    return HomeUnusable(home=str(path), reason=problem.strerror or str(problem))
