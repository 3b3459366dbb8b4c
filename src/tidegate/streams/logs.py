"""One log: takes frames in order, gives them to its file in pieces, keeps what waits in memory.

A `Log` stands for the file of one user in one window, open or not. It remembers how far the file is good, so
that opening it again costs no look at its bytes. A write that fails is cut off again: what was acknowledged
before stays in memory and is tried again, and the frame that met the failure is refused.

Threads: `lock` guards everything; nobody holds the locks of two logs. Whoever may append holds the lock of
the table too, and whoever closes a log for want of slots does not.
"""

from __future__ import annotations

import contextlib
import posixpath
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.errors import StorageFailed, StorageFull
from tidegate.storage.files import is_full
from tidegate.streams.disk import Disk, FileSource
from tidegate.streams.frames import Batch, check_known, last_seq, make_frame
from tidegate.streams.walking import Damage, Walk, head_before

_RETRY_HINT = (
    "Nothing of this append was stored. Rows that were acknowledged before are kept in memory and written "
    "again once the disk takes them; reads go on."
)


@dataclass(frozen=True, slots=True)
class View:
    """What a reader sees of a log: its file up to a position, and what could not be written yet."""

    path: str
    file_bytes: int
    unwritten: bytes


class Log:
    """The log of one user in one window."""

    def __init__(self, path: str, disk: Disk, *, syncs: bool) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.last_time_us = 0
        self.last_seq = 0
        # When the oldest byte in memory came there; None while there is none.
        self.waits_since_seconds: float | None = None
        self.fault: OSError | None = None
        self._disk = disk
        self._syncs = syncs
        self._sync_lock = threading.Lock()
        self._fd: int | None = None
        self._is_known = False
        self._is_gone = False
        self._file_bytes = 0  # whole frames in the file
        self._synced_bytes = 0
        self._buffer = bytearray()

    @property
    def is_open(self) -> bool:
        """Whether it has a file open."""
        return self._fd is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost when it is forgotten."""
        return self._fd is None and not self._buffer

    @property
    def stop(self) -> int:
        """The position of the next frame."""
        return self._file_bytes + len(self._buffer)

    def learn(self, size: int, fd: int) -> list[Damage]:
        """Find out where the file's last whole frame ends; gives the damage that was met on the way.

        Cheap where the last frame is whole: reads its two ends. Otherwise walks through the file.
        """
        head = head_before(FileSource(self._disk, fd, self.path, size, chunk_bytes=0), size)
        damages: list[Damage] = []
        if head is not None:
            check_known(head, self.path)
            self._file_bytes = size
        else:
            walk = Walk(FileSource(self._disk, fd, self.path, size))
            damages = [found for found in walk if isinstance(found, Damage)]
            self._file_bytes, head = walk.clean_stop, walk.last
        if head is not None:
            self.last_time_us, self.last_seq = head.time_us, last_seq(head)
        self._synced_bytes = self._file_bytes
        self._is_known = True
        return damages

    def look(self) -> list[Damage]:
        """Learn from a file that is not open; one that is not there has no frames."""
        if self._is_known or self._fd is not None:
            return []
        try:
            fd = self._disk.open_read(self.path)
        except FileNotFoundError:
            return []
        try:
            return self.learn(self._disk.size(fd), fd)
        finally:
            self._disk.close(fd)

    def open(self) -> list[Damage]:
        """Open the file for appends and cut a torn end off; gives the damage that was met."""
        fd = self._open_file()
        try:
            size = self._disk.size(fd)
            damages: list[Damage] = []
            if not self._is_known or size < self._file_bytes:
                damages = self.learn(size, fd)
            if size > self._file_bytes:
                self._disk.truncate(fd, self._file_bytes)
            if size == 0 and self._syncs:
                self._disk.sync_folder(posixpath.dirname(self.path))
        except BaseException:
            self._disk.close(fd)
            raise
        self._fd = fd
        return damages

    def append(
        self, batch: Batch, time_us: int, seqs: Sequence[int], *, limit_bytes: int, now_seconds: float
    ) -> None:
        """Add a frame; with `limit_bytes` or more in memory, all of it goes to the file.

        Raises OSError when the file does not take it: then the frame is not there, and what came before is.
        """
        kept = len(self._buffer)
        self._buffer += make_frame(self._file_bytes + kept, batch, time_us, seqs[0])
        if len(self._buffer) >= limit_bytes or self.fault is not None:
            try:
                self.flush()
            except OSError:
                del self._buffer[kept:]
                raise
        if self._buffer and self.waits_since_seconds is None:
            self.waits_since_seconds = now_seconds
        self.last_time_us = time_us
        self.last_seq = seqs[-1]

    def flush(self) -> None:
        """Write what waits; when that fails, all of it goes on waiting."""
        if not self._buffer or self._fd is None:
            return
        try:
            self._disk.write_at(self._fd, self._buffer, self._file_bytes)
        except OSError as problem:
            self.fault = problem
            # If even this fails, the next write begins at the same position and covers what is there.
            with contextlib.suppress(OSError):
                self._disk.truncate(self._fd, self._file_bytes)
            raise
        self._file_bytes += len(self._buffer)
        self._buffer = bytearray()
        self.waits_since_seconds = None
        self.fault = None

    def close(self) -> None:
        """Write what waits and close the file; when that fails, it stays open."""
        self.flush()
        if self._fd is None:
            return
        if self._syncs and self._synced_bytes < self._file_bytes:
            self._disk.fsync(self._fd)
            self._synced_bytes = self._file_bytes
        fd, self._fd = self._fd, None
        self._disk.close(fd)

    def abandon(self) -> None:
        """Drop what waits and close the file: its window is over, or its table is."""
        self._is_gone = True
        self._buffer = bytearray()
        self.waits_since_seconds = None
        self.fault = None
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._disk.close(fd)

    def view(self) -> View:
        """Give what a reader sees now, in the file where it can be written."""
        with self.lock:
            # The fault is remembered, and told to the next append; a reader gets the rows either way.
            with contextlib.suppress(OSError):
                self.flush()
            return View(self.path, self._file_bytes, bytes(self._buffer))

    def sync(self, stop: int) -> None:
        """Put the file on the disk up to a position, without keeping appends from it meanwhile."""
        with self._sync_lock:
            with self.lock:
                if self._synced_bytes >= stop or self._is_gone or self._fd is None:
                    return
                fd, written = self._disk.duplicate(self._fd), self._file_bytes
            try:
                self._disk.fsync(fd)
            except OSError:
                # After a failed sync the system may drop what it could not write: look at the bytes again.
                with self.lock:
                    self._is_known = False
                raise
            finally:
                self._disk.close(fd)
            with self.lock:
                self._synced_bytes = max(self._synced_bytes, written)

    def _open_file(self) -> int:
        try:
            return self._disk.open_append(self.path)
        except FileNotFoundError:
            self._disk.make_folder(posixpath.dirname(self.path), sync=self._syncs)
            return self._disk.open_append(self.path)


def fault_of(problem: OSError, path: str, free_bytes: int) -> StorageFull | StorageFailed:
    """Give our error for a write that the disk refused."""
    if is_full(problem):
        return StorageFull(path=path, free_bytes=free_bytes)
    return StorageFailed(path=path, reason=problem.strerror or str(problem), hint=_RETRY_HINT)
