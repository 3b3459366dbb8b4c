"""The checkpoint store: the files of one operator in the query's checkpoint, by name.

Everything that the checkpoint promises depends on three operations of this module:

    put_new   a whole file appears under a name that was free, or not at all. The bytes go to a spare name
              and are synced, the spare is linked to the name (the file system lets one link win), the
              folder is synced.
              A kill leaves a spare behind, which pruning removes, or the whole file.
    writer    a file of its own name is streamed and synced; only the writer knows the name, until a commit
              record or a manifest names it. A kill leaves a file that nothing names.
    read      returns the file's bytes, or None.

A name is a path relative to the store's root. Hosts share the store by the file system alone: the folder must
be one that the driver and all executors see, with hard links.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import xxhash

from tidegate.errors import CheckpointUnusable, TidegateError
from tidegate.storage.files import disk_error, sync_folder

_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)
_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*):")
# Attempts that compete for one spare name; each killed one leaves at most one behind.
SPARES_MAX = 10_000
SPARE_SUFFIX = ".new"
_RUNS_PREFIX = "runs."
_FULL_HINT = "Free some space: the next attempt of the batch continues from the state before it."
_FAILED_HINT = "The next attempt of the batch finds out."


class CheckpointDisk:
    """The calls by which a checkpoint store changes the disk; tests pass one that fails."""

    def create(self, path: Path) -> BinaryIO:
        """Create a file and return it open for writing; FileExistsError when the name is taken."""
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb", 0)

    def write(self, file: BinaryIO, content: bytes | memoryview) -> None:
        """Write all of the bytes."""
        rest = memoryview(content).cast("B")
        while rest:
            rest = rest[file.write(rest) :]

    def sync(self, file: BinaryIO) -> None:
        """Sync a file's bytes to the disk."""
        os.fsync(file.fileno())

    def link(self, source: Path, target: Path) -> None:
        """Link a file under a second name; FileExistsError when the name is taken."""
        os.link(source, target)

    def sync_folder(self, path: Path) -> None:
        """Sync the names in a folder to the disk."""
        sync_folder(path)


class StoreWriter:
    """A file streamed into a checkpoint store: synced when `close` returns, removed when an error ends it."""

    def __init__(self, disk: CheckpointDisk, path: Path, name: str) -> None:
        self.name = name
        self.path = path
        self.size_bytes = 0
        self._disk = disk
        self._digest = xxhash.xxh3_128()
        self._closed = False
        try:
            self._file = disk.create(path)
        except FileExistsError:
            raise
        except OSError as problem:
            raise checkpoint_error(path, problem) from problem

    @property
    def digest(self) -> str:
        """Return the digest of the bytes written so far."""
        return self._digest.hexdigest()

    def write(self, content: bytes | memoryview) -> int:
        """Add bytes to the file and to its digest."""
        with checkpoint_errors(self.path):
            self._disk.write(self._file, content)
        self._digest.update(content)
        size_bytes = memoryview(content).nbytes
        self.size_bytes += size_bytes
        return size_bytes

    def close(self) -> None:
        """Sync the bytes; the name is there for good once the folder is synced."""
        if self._closed:
            return
        with checkpoint_errors(self.path):
            self._disk.sync(self._file)
        self._closed = True
        self._file.close()

    def discard(self) -> None:
        """Remove the file, which nothing names."""
        self._closed = True
        self._file.close()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class CheckpointStore:
    """The files of one operator in a checkpoint, by name; used from any number of hosts at once."""

    def __init__(self, root: Path, disk: CheckpointDisk | None = None) -> None:
        self.root = root
        self.disk = disk or CheckpointDisk()

    def path(self, name: str) -> Path:
        """Return the path of a name."""
        return self.root / name

    def put_new(self, name: str, content: bytes) -> bool:
        """Put a whole file under a free name: synced on return; False when the name is taken.

        Before the link only a spare file is there; after it the file is whole and synced. When the folder
        could not be synced (StorageFailed), the file is there now and may be gone after a power loss: the
        caller must treat the result as undecided. A file system that reports "taken" for this very link (a
        lost answer on a network) is recognised by comparing the two files.
        """
        return self.link_new(self.prepare(name, content), name)

    def prepare(self, name: str, content: bytes) -> StoreWriter:
        """Write a spare file for a name, synced; the name itself is not touched, also after an error."""
        spare = self._spare(self.path(name))
        try:
            spare.write(content)
            spare.close()
        except BaseException:
            spare.discard()
            raise
        return spare

    def link_new(self, spare: StoreWriter, name: str) -> bool:
        """Link what `prepare` wrote to its name: only an error here leaves the result undecided."""
        target = self.path(name)
        try:
            self.disk.link(spare.path, target)
            is_ours = True
        except FileExistsError:
            is_ours = spare.path.samefile(target)
        except OSError as problem:
            raise checkpoint_error(target, problem) from problem
        finally:
            spare.discard()
        self.sync(name)
        return is_ours

    def writer(self, name: str) -> StoreWriter:
        """Return the writer of a new file; FileExistsError when the name is taken."""
        path = self.path(name)
        self._make_folder(path.parent)
        return StoreWriter(self.disk, path, name)

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes; None when there is no such file."""
        try:
            return self.path(name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as problem:
            raise checkpoint_error(self.path(name), problem) from problem

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return self.path(name).exists()

    def names(self, folder: str = "") -> list[str]:
        """Return the names (files and folders) in a folder, sorted; none when there is no such folder."""
        try:
            return sorted(os.listdir(self.path(folder)))  # noqa: PTH208 - names, not paths
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as problem:
            raise checkpoint_error(self.path(folder), problem) from problem

    def remove(self, name: str) -> None:
        """Remove a file; nothing happens when it is missing."""
        with checkpoint_errors(self.path(name)):
            self.path(name).unlink(missing_ok=True)

    def remove_folder(self, name: str) -> None:
        """Remove a folder and all in it; nothing happens when it is missing."""
        shutil.rmtree(self.path(name), ignore_errors=True)

    def sync(self, name: str) -> None:
        """Sync the folder of a file, and with it the file's name."""
        folder = self.path(name).parent
        with checkpoint_errors(folder):
            self.disk.sync_folder(folder)

    def _spare(self, target: Path) -> StoreWriter:
        self._make_folder(target.parent)
        for number in range(SPARES_MAX):
            spare = target.with_name(f"{target.name}.{number}{SPARE_SUFFIX}")
            try:
                return StoreWriter(self.disk, spare, spare.name)
            except FileExistsError:
                continue
        raise CheckpointUnusable(path=str(target), reason=f"{SPARES_MAX} spare files lie there")

    def _make_folder(self, folder: Path) -> None:
        """Create a folder and sync its name; the folders above it too."""
        if folder.is_dir():
            return
        with checkpoint_errors(folder):
            self._make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            self.disk.sync_folder(folder.parent)

    def sync_above(self, name: str) -> None:
        """Sync the names of all folders above a file, up to the checkpoint's own.

        Another attempt may have created them and have been killed before its sync.
        """
        top = self.root.parent.parent
        for folder in self.path(name).parents:
            with checkpoint_errors(folder):
                self.disk.sync_folder(folder)
            if folder == top:
                return


def checkpoint_error(path: Path, problem: OSError) -> TidegateError:
    """Return the error for an OSError of a checkpoint's disk."""
    reason = problem.strerror or str(problem)
    if problem.errno in _NO_LINK:
        return CheckpointUnusable(path=str(path), reason=f"its file system has no hard links ({reason})")
    if problem.errno in (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.ENOENT):
        return CheckpointUnusable(path=str(path), reason=reason)
    return disk_error(path, problem, hint=_FAILED_HINT, full_hint=_FULL_HINT)


@contextmanager
def checkpoint_errors(path: Path) -> Iterator[None]:
    """Raise the error of `checkpoint_error` for an OSError of the block."""
    try:
        yield
    except OSError as problem:
        raise checkpoint_error(path, problem) from problem


def checkpoint_path(checkpoint: str) -> Path:
    """Return the folder of a checkpoint's address; the only scheme allowed is "file:"."""
    scheme = _SCHEME.match(checkpoint)
    if scheme is None:
        return Path(checkpoint)
    if scheme[1].lower() != "file":
        raise CheckpointUnusable(
            path=checkpoint, reason=f"state needs a folder on a shared file system, not '{scheme[1]}:'"
        )
    rest = checkpoint[len("file:") :]
    return Path("/" + rest.lstrip("/")) if rest.startswith("/") else Path(rest)


def operator_store(checkpoint: str, operator: str, disk: CheckpointDisk | None = None) -> CheckpointStore:
    """Return the checkpoint store of an operator; nothing is created yet."""
    return CheckpointStore(checkpoint_path(checkpoint) / "state" / operator, disk)


def schema_name(number: int) -> str:
    """Return the name of an operator's schema; they are numbered from 1, written once, and never changed."""
    return f"schema.{number}.json"


def runs_name(batch: int) -> str:
    """Return the name of the file that has the completed runs of a batch job up to a batch."""
    return f"{_RUNS_PREFIX}{batch}.json"


def description_names(store: CheckpointStore) -> list[str]:
    """Return the names of the files that describe an operator: they go into its savepoints.

    These are all JSON files directly in its folder, without the runs of a batch job: those belong to batches
    of this checkpoint, and a checkpoint that begins from a savepoint has none of them.
    """
    names = [name for name in store.names() if name.endswith(".json")]
    return [name for name in names if not name.startswith(_RUNS_PREFIX)]


def partition_folder(epoch: int, partition: int) -> str:
    """Return the name of the folder of a partition's files."""
    return f"e{epoch}/{partition}"
