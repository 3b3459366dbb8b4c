"""The file system calls of streams, which tests replace, and the hints of their errors.

Paths are text: millions of them are created. Every method raises OSError as the operating system does.
"""

# Each method is one system call on a text path.
# ruff: noqa: PTH102, PTH104, PTH106, PTH108, PTH116, PTH120

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tidegate.storage.files import disk_free_bytes, sync_folder, write_file_atomically
from tidegate.streams.frame_reader import CHUNK_BYTES

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700


class StreamDisk:
    """The file system calls of streams, from any thread; tests inject one that fails."""

    def open_append(self, path: str) -> int:
        """Open a file for writing, created if missing; FileNotFoundError if its folder does not exist."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)

    def open_read(self, path: str) -> int:
        """Open a file for reading."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        """Close a file."""
        os.close(fd)

    def duplicate(self, fd: int) -> int:
        """Return a duplicate of a file descriptor, which stays open when the first is closed."""
        return os.dup(fd)

    def size(self, fd: int) -> int:
        """Return the length of an open file."""
        return os.fstat(fd).st_size

    def size_at(self, path: str, fd: int | None) -> int | None:
        """Return the length of the file at a path; None if missing, or not the one open as `fd`."""
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if fd is not None and not os.path.samestat(found, os.fstat(fd)):
            return None
        return found.st_size

    def write_at(self, fd: int, content: bytes | bytearray, position: int) -> None:
        """Write all bytes at a position; after an error any part of them may be written."""
        written = os.pwrite(fd, content, position)
        if written < len(content):
            with memoryview(content) as view:
                while written < len(view):
                    written += os.pwrite(fd, view[written:], position + written)

    def read_at(self, fd: int, count: int, position: int) -> bytes:
        """Return the bytes at a position, fewer only at the end of the file."""
        content = os.pread(fd, count, position)
        while 0 < len(content) < count:
            more = os.pread(fd, count - len(content), position + len(content))
            if not more:
                break
            content += more
        return content

    def truncate(self, fd: int, size: int) -> None:
        """Truncate a file."""
        os.ftruncate(fd, size)

    def fsync(self, fd: int) -> None:
        """Sync a file."""
        os.fsync(fd)

    def sync_folder(self, path: str) -> None:
        """Sync the names in a folder."""
        sync_folder(Path(path))

    def make_folder(self, path: str, *, sync: bool) -> None:
        """Create a folder and its missing parents; with `sync`, their names are durable on return."""
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
                # An existing folder would not be synced the next time.
                with contextlib.suppress(OSError):
                    os.rmdir(path)
                raise

    def write_whole(self, path: str, content: bytes) -> None:
        """Replace a small file atomically; durable on return."""
        write_file_atomically(Path(path), content)

    def read_whole(self, path: str) -> bytes:
        """Return the bytes of a small file."""
        return Path(path).read_bytes()

    def exists(self, path: str) -> bool:
        """True if there is something at a path."""
        return os.path.lexists(path)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a folder."""
        os.rename(old, new)

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names in a folder, in no order; none if the folder does not exist."""
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                yield entry.name

    def entries(self, folder: str) -> list[tuple[str, int | None]]:
        """Return the names in a folder with their sizes, None for a folder; none if it does not exist."""
        found: list[tuple[str, int | None]] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    is_folder = entry.is_dir(follow_symlinks=False)
                    size = None if is_folder else entry.stat(follow_symlinks=False).st_size
                    found.append((entry.name, size))
        return found

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def free_bytes(self, path: str) -> int:
        """Return the bytes that may still be written below a folder, which need not exist yet."""
        return disk_free_bytes(Path(path))


class FileSource:
    """The bytes of an open file up to a position, read in chunks; for one thread at a time.

    A file that is read backwards is read at its end first, then before that: so a chunk ends with the
    requested bytes whenever these lie before the last chunk.
    """

    def __init__(
        self, disk: StreamDisk, fd: int, place: str, stop: int, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
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


WRITE_HINT = (
    "Nothing of this write was stored. Rows that were acknowledged before are kept in memory and written "
    "again once the disk takes them; reads continue."
)
BUFFERED_HINT = "Rows that were acknowledged are kept in memory and written again once the disk takes them."
CLOSE_HINT = "Rows that were acknowledged within the last flush interval may not be in their files."
LOOK_HINT = "Nothing was changed. Look at what lies at this place, and at the disk."
EVICT_HINT = "Nothing is lost, and expired rows are not returned. It is tried again in the next round."
ERASE_HINT = "Some of the rows may be gone; the same call removes the rest."
DROP_HINT = "The table is gone all the same; what it left is taken away at the next start."
