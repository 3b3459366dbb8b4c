"""The depot: takes names and bytes, gives them back, keeps one operator's files in the checkpoint.

Everything that the checkpoint promises rests on three acts of this module:

    put_new   a whole file appears under a name that nobody had, or not at all. The bytes go to a spare name
              and are synced, the spare is linked to the name (the file system lets one link win), the
              folder is synced.
              A kill leaves a spare behind, which pruning removes, or the whole file.
    writer    a file of its own name is streamed and synced; only the writer knows the name, until a head or a
              manifest names it. A kill leaves a file that nothing names.
    read      gives what is there, or None.

A name is a path relative to the depot. Sharing works by the file system alone: the folder must be one that
the driver and all executors see, with hard links.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import xxhash

from tidegate.errors import CheckpointUnusable, TidegateError
from tidegate.storage.files import disk_error

_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)
_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*):")
# Attempts that fight for one spare name; each killed one leaves at most one behind.
SPARES_MAX = 10_000
SPARE_SUFFIX = ".new"
_RUNS_PREFIX = "runs."
_FULL_HINT = "Free some space: the next attempt of the batch goes on from the state before it."
_FAILED_HINT = "The next attempt of the batch finds out."


class CheckpointDisk:
    """The calls by which a depot changes the disk; a test gives one that fails."""

    def create(self, path: Path) -> BinaryIO:
        """Make a new file and give it for writing; FileExistsError when the name is taken."""
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb", 0)

    def write(self, file: BinaryIO, content: bytes | memoryview) -> None:
        """Write all of the bytes."""
        rest = memoryview(content).cast("B")
        while rest:
            rest = rest[file.write(rest) :]

    def sync(self, file: BinaryIO) -> None:
        """Put a file's bytes on the disk."""
        os.fsync(file.fileno())

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; FileExistsError when the name is taken."""
        os.link(source, target)

    def sync_folder(self, path: Path) -> None:
        """Put the names in a folder on the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class StoreWriter:
    """A file being streamed into a depot: on the disk when `close` returns, gone when an error ends it."""

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
        """Return the digest of what was written so far."""
        return self._digest.hexdigest()

    def write(self, content: bytes | memoryview) -> int:
        """Add bytes to the file and to its digest."""
        try:
            self._disk.write(self._file, content)
        except OSError as problem:
            raise checkpoint_error(self.path, problem) from problem
        self._digest.update(content)
        size_bytes = memoryview(content).nbytes
        self.size_bytes += size_bytes
        return size_bytes

    def close(self) -> None:
        """Put the bytes on the disk; its name is there for good once the folder is synced."""
        if self._closed:
            return
        try:
            self._disk.sync(self._file)
        except OSError as problem:
            raise checkpoint_error(self.path, problem) from problem
        self._closed = True
        self._file.close()

    def discard(self) -> None:
        """Remove the file: nothing names it."""
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


class Depot:
    """One operator's files in a checkpoint, by name; used from any number of hosts at once."""

    def __init__(self, root: Path, disk: CheckpointDisk | None = None) -> None:
        self.root = root
        self.disk = disk or CheckpointDisk()

    def path(self, name: str) -> Path:
        """Return where a name lies."""
        return self.root / name

    def put_new(self, name: str, content: bytes) -> bool:
        """Put a whole file under a name that nobody has: on the disk on return; False when the name is taken.

        Before the link only a spare file is there; after it the file is whole and synced. When the folder
        could not be synced (StorageFailed), the file is there now and may be gone after a loss of power:
        the caller must take the act as undecided. A file system that says "taken" about our own link (a
        lost answer on a network) is found out by comparing the two files.
        """
        return self.link_new(self.prepare(name, content), name)

    def prepare(self, name: str, content: bytes) -> StoreWriter:
        """Write a spare file for a name, synced; nothing has happened to the name, also after an error."""
        spare = self._spare(self.path(name))
        try:
            spare.write(content)
            spare.close()
        except BaseException:
            spare.discard()
            raise
        return spare

    def link_new(self, spare: StoreWriter, name: str) -> bool:
        """Link what `prepare` wrote to its name: only an error here leaves it open whether it is there."""
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
        """Return a new file to stream into; FileExistsError when the name is taken."""
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
        """Remove a file; nothing happens when it is gone already."""
        try:
            self.path(name).unlink(missing_ok=True)
        except OSError as problem:
            raise checkpoint_error(self.path(name), problem) from problem

    def remove_folder(self, name: str) -> None:
        """Remove a folder and all in it; nothing happens when it is gone already."""
        shutil.rmtree(self.path(name), ignore_errors=True)

    def sync(self, name: str) -> None:
        """Put the names in the folder of a file on the disk."""
        folder = self.path(name).parent
        try:
            self.disk.sync_folder(folder)
        except OSError as problem:
            raise checkpoint_error(folder, problem) from problem

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
        """Make a folder and put its name on the disk; the folders above it too."""
        if folder.is_dir():
            return
        try:
            self._make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            self.disk.sync_folder(folder.parent)
        except OSError as problem:
            raise checkpoint_error(folder, problem) from problem

    def sync_above(self, name: str) -> None:
        """Put the names of all folders above a file on the disk, up to the checkpoint's own.

        Another attempt may have made them and have been killed before it came to that.
        """
        top = self.root.parent.parent
        for folder in self.path(name).parents:
            try:
                self.disk.sync_folder(folder)
            except OSError as problem:
                raise checkpoint_error(folder, problem) from problem
            if folder == top:
                return


def checkpoint_error(path: Path, problem: OSError) -> TidegateError:
    """Return the error for what the disk of a checkpoint refused."""
    reason = problem.strerror or str(problem)
    if problem.errno in _NO_LINK:
        return CheckpointUnusable(path=str(path), reason=f"its file system has no hard links ({reason})")
    if problem.errno in (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.ENOENT):
        return CheckpointUnusable(path=str(path), reason=reason)
    return disk_error(path, problem, hint=_FAILED_HINT, full_hint=_FULL_HINT)


def checkpoint_path(checkpoint: str) -> Path:
    """Return the folder that a checkpoint's address means; "file:" is allowed, no other scheme is."""
    scheme = _SCHEME.match(checkpoint)
    if scheme is None:
        return Path(checkpoint)
    if scheme[1].lower() != "file":
        raise CheckpointUnusable(
            path=checkpoint, reason=f"state needs a folder on a shared file system, not '{scheme[1]}:'"
        )
    rest = checkpoint[len("file:") :]
    return Path("/" + rest.lstrip("/")) if rest.startswith("/") else Path(rest)


def operator_depot(checkpoint: str, operator: str, disk: CheckpointDisk | None = None) -> Depot:
    """Return the depot of an operator in a checkpoint; nothing is made yet."""
    return Depot(checkpoint_path(checkpoint) / "state" / operator, disk)


def schema_name(number: int) -> str:
    """Return the name of an operator's schema; they are numbered from 1, written once, and never changed."""
    return f"schema.{number}.json"


def runs_name(batch: int) -> str:
    """Return the name of the file that says which runs of a batch job were done up to a batch."""
    return f"{_RUNS_PREFIX}{batch}.json"


def description_names(store: Depot) -> list[str]:
    """Return the names of the files that describe an operator: they go into its savepoints.

    That is every JSON file directly in its folder, but for the runs of a batch job: those belong to batches
    of this checkpoint, and a checkpoint that begins from a savepoint has none of them.
    """
    names = [name for name in store.names() if name.endswith(".json")]
    return [name for name in names if not name.startswith(_RUNS_PREFIX)]


def partition_folder(epoch: int, partition: int) -> str:
    """Return the name of the folder that holds a partition's files."""
    return f"e{epoch}/{partition}"
