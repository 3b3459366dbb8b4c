"""The disk under the streams: takes paths and bytes, gives what the file system says. Tests replace it.

Paths are text: millions of them are made. Every method raises OSError as the operating system does.
"""
# Each call here is one call of the system, on text.
# ruff: noqa: PTH102, PTH104, PTH106, PTH108, PTH116, PTH120

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tidegate.storage.files import sync_folder, write_file_atomically
from tidegate.streams.walking import CHUNK_BYTES

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700


class Disk(Protocol):
    """Everything that streams ask of a file system; from any thread."""

    def open_append(self, path: str) -> int:
        """Open a file for writing, made if need be; FileNotFoundError where its folder is not there."""
        ...

    def open_read(self, path: str) -> int:
        """Open a file for reading."""
        ...

    def close(self, fd: int) -> None:
        """Close a file."""
        ...

    def duplicate(self, fd: int) -> int:
        """Give another number for an open file, which outlives the first."""
        ...

    def size(self, fd: int) -> int:
        """Give the length of an open file."""
        ...

    def size_at(self, path: str, fd: int | None) -> int | None:
        """Give the length of the file at a path; None where there is none, or not the one open as `fd`."""
        ...

    def write_at(self, fd: int, content: bytes | bytearray, position: int) -> None:
        """Write all bytes at a position; when it fails, any part of them may be there."""
        ...

    def read_at(self, fd: int, count: int, position: int) -> bytes:
        """Give the bytes at a position, fewer only at the end of the file."""
        ...

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file."""
        ...

    def fsync(self, fd: int) -> None:
        """Put what was written on the disk."""
        ...

    def sync_folder(self, path: str) -> None:
        """Put the names in a folder on the disk."""
        ...

    def make_folder(self, path: str, *, sync: bool) -> None:
        """Make a folder and those above it that are missing; with `sync`, their names are on the disk."""
        ...

    def write_whole(self, path: str, content: bytes) -> None:
        """Replace a small file at once; it is on the disk on return."""
        ...

    def read_whole(self, path: str) -> bytes:
        """Give the bytes of a small file."""
        ...

    def exists(self, path: str) -> bool:
        """Say whether there is something at a path."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file or a folder another name."""
        ...

    def names(self, folder: str) -> Iterator[str]:
        """Give the names in a folder one by one, in no order; nothing where the folder is not there."""
        ...

    def entries(self, folder: str) -> list[tuple[str, int | None]]:
        """Give what lies in a folder with its size, None for a folder; nothing where it is not there."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file."""
        ...

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""
        ...

    def free_bytes(self, path: str) -> int:
        """Give how many bytes may still be written below a folder, also one that is still to be made."""
        ...


class RealDisk:
    """The file system of this machine."""

    def open_append(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)

    def open_read(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def duplicate(self, fd: int) -> int:
        return os.dup(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def size_at(self, path: str, fd: int | None) -> int | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if fd is not None and not os.path.samestat(found, os.fstat(fd)):
            return None
        return found.st_size

    def write_at(self, fd: int, content: bytes | bytearray, position: int) -> None:
        written = os.pwrite(fd, content, position)
        if written < len(content):
            with memoryview(content) as view:
                while written < len(view):
                    written += os.pwrite(fd, view[written:], position + written)

    def read_at(self, fd: int, count: int, position: int) -> bytes:
        content = os.pread(fd, count, position)
        while 0 < len(content) < count:
            more = os.pread(fd, count - len(content), position + len(content))
            if not more:
                break
            content += more
        return content

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def sync_folder(self, path: str) -> None:
        sync_folder(Path(path))

    def make_folder(self, path: str, *, sync: bool) -> None:
        try:
            os.mkdir(path, _FOLDER_MODE)
        except FileExistsError:
            return
        except FileNotFoundError:
            above = os.path.dirname(path)
            self.make_folder(above, sync=sync)
            self.make_folder(path, sync=sync)
            return
        if sync:
            try:
                self.sync_folder(os.path.dirname(path))
            except OSError:
                # Found there, it would not be synced the next time.
                with contextlib.suppress(OSError):
                    os.rmdir(path)
                raise

    def write_whole(self, path: str, content: bytes) -> None:
        write_file_atomically(Path(path), content)

    def read_whole(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def names(self, folder: str) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                yield entry.name

    def entries(self, folder: str) -> list[tuple[str, int | None]]:
        found: list[tuple[str, int | None]] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    is_folder = entry.is_dir(follow_symlinks=False)
                    size = None if is_folder else entry.stat(follow_symlinks=False).st_size
                    found.append((entry.name, size))
        return found

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_folder(self, path: str) -> None:
        os.rmdir(path)

    def free_bytes(self, path: str) -> int:
        try:
            usage = os.statvfs(path)
        except FileNotFoundError:
            return self.free_bytes(os.path.dirname(path) or ".")
        return usage.f_bavail * usage.f_frsize


class FileSource:
    """The bytes of an open file up to a position, read in chunks; for one thread at a time.

    The first look at a file to be read backwards is at its end, and what lies before is wanted next: so a
    chunk ends with the bytes that were asked for whenever they lie before the last chunk.
    """

    def __init__(self, disk: Disk, fd: int, place: str, stop: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.place = place
        self.start = 0
        self.stop = stop
        self._disk = disk
        self._fd = fd
        self._chunk_bytes = chunk_bytes
        self._chunk = b""
        self._chunk_start = stop

    def take(self, start: int, stop: int) -> bytes:
        first = self._chunk_start
        if not first <= start <= stop <= first + len(self._chunk):
            begin, end = start, stop
            if start < first and stop >= first - self._chunk_bytes:
                begin = max(0, min(start, stop - self._chunk_bytes))
            elif self._chunk_bytes:
                end = max(stop, min(start + self._chunk_bytes, self.stop))
            self._chunk = self._disk.read_at(self._fd, end - begin, begin)
            self._chunk_start = first = begin
        return self._chunk[start - first : stop - first]
