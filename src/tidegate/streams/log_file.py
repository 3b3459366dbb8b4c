"""The log file of one user in one window: frames in order, buffered in memory and appended.

A `LogFile` represents the file, open or not. It remembers the valid length of the file, so that opening it
again does not read it. A write that fails is truncated: what was acknowledged before stays in memory and is
retried, and the frame of the failed append is refused.

Before each write it checks whether the file is still the one that it wrote. One that was removed or truncated
by something else is reopened: what it held is lost and reported, what is in memory is written after its end.
A file whose sync failed is reopened, too, and no append before that is acknowledged as synced.

Threads: `lock` guards everything; no thread holds the locks of two logs. A thread that may append also holds
the lock of the table; one that closes a log to free its slot does not.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidegate.errors import InvariantBroken, StorageCorrupt
from tidegate.streams.disk import FileSource, StreamDisk
from tidegate.streams.folders import Folders
from tidegate.streams.frame_reader import BytesSource, Damage, Walk, head_before
from tidegate.streams.frames import (
    HEAD_BYTES,
    FrameContent,
    FrameHeader,
    FrameKind,
    check_version,
    last_seq,
    make_frame,
)

LOST = "the file was removed or cut while it was in use"
UNSYNCED = "a sync of the file failed"


@dataclass(frozen=True, slots=True)
class LogContext:
    """What the logs of a table share.

    They lie below `top`. `claim` is called before a folder is created for a log, `report` with damage, and
    `report_loss` with what a file lost while it was in use.
    """

    disk: StreamDisk
    folders: Folders
    top: str
    claim: Callable[[], None]
    report: Callable[[Damage], None]
    report_loss: Callable[[Damage], None]


@dataclass(frozen=True, slots=True)
class LogView:
    """The view of a reader on a log: its file up to a position, and bytes that could not be written yet.

    `lost` is the position of rows that the file has lost.
    """

    path: str
    file_bytes: int
    unwritten: bytes
    lost: Damage | None = None


@dataclass(frozen=True, slots=True)
class _End:
    """The end of the last whole frame of a file, its header, and the damage found before it."""

    file_bytes: int
    last: FrameHeader | None
    damages: list[Damage]


class LogFile:
    """The log of one user in one window."""

    def __init__(self, path: str, context: LogContext) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.last_time_us = 0
        self.last_seq = 0
        # When the oldest byte in memory was appended; None without any.
        self.waits_since_seconds: float | None = None
        self.fault: OSError | None = None
        # Increased when the file is found to be another one than what was written, or a sync fails.
        self.generation = 0
        self._generation_end = LOST  # why the last generation ended
        self._lost: Damage | None = None
        self._context = context
        self._disk = context.disk
        self._sync_lock = threading.Lock()
        self._fd: int | None = None
        self._is_known = False  # False for an open file after a failed sync: its bytes are unknown
        self._is_gone = False
        self._is_named = False  # its name in its folder is synced
        self._file_bytes = 0  # whole frames in the file
        self._synced_bytes = 0
        self._sync_target_bytes = 0  # an append waits for a sync up to here
        self._buffer = bytearray()

    @property
    def is_open(self) -> bool:
        """True if its file is open."""
        return self._fd is not None

    @property
    def is_idle(self) -> bool:
        """True if it can be forgotten without loss."""
        return self._fd is None and not self._buffer

    @property
    def stop(self) -> int:
        """The position of the next frame."""
        return self._file_bytes + len(self._buffer)

    def read_end(self) -> list[Damage]:
        """Find the end of a file that is not open, and return damage; a missing file has no frames."""
        if self._is_known or self._fd is not None:
            return []
        end = self._end_on_disk()
        return [] if end is None else self._continue_after(end)

    def open(self) -> list[Damage]:
        """Open the file for appends and truncate a torn end; return the damage found."""
        fd, end = self._open_end(recheck=not self._is_known)
        self._fd = fd
        return [] if end is None else self._continue_after(end)

    def append(
        self,
        content: FrameContent,
        time_us: int,
        seqs: Sequence[int],
        *,
        limit_bytes: int,
        now_seconds: float,
        syncs: bool = False,
    ) -> int:
        """Append a frame and return its length; with `limit_bytes` or more in memory, all is written.

        With `syncs` it is written at once, and the file is not closed without a sync: the caller calls
        `sync`. Raises OSError if the write fails: then the frame is discarded, and earlier ones are kept.
        """
        before = len(self._buffer)
        frame = make_frame(self._file_bytes + before, content, time_us, seqs[0])
        self._buffer += frame
        if syncs or len(self._buffer) >= limit_bytes or self.fault is not None:
            try:
                self.flush()
            except OSError:
                del self._buffer[before:]
                raise
        if self._buffer and self.waits_since_seconds is None:
            self.waits_since_seconds = now_seconds
        self.last_time_us = time_us
        self.last_seq = seqs[-1]
        if syncs:
            self._sync_target_bytes = self._file_bytes
        return len(frame)

    def flush(self) -> None:
        """Write the buffer; after an error all of it stays in memory."""
        if not self._buffer or self._fd is None:
            return
        try:
            self._check()
        except OSError as problem:
            self.fault = problem
            raise
        try:
            self._disk.write_at(self._fd, self._buffer, self._file_bytes)
        except OSError as problem:
            self.fault = problem
            # If even this fails, the next write begins at the same position and overwrites the bytes.
            with contextlib.suppress(OSError):
                self._disk.truncate(self._fd, self._file_bytes)
            raise
        self._file_bytes += len(self._buffer)
        self._buffer = bytearray()
        self.waits_since_seconds = None
        self.fault = None

    def close(self) -> None:
        """Write the buffer and close the file; after an error it stays open."""
        self.flush()
        if self._fd is None:
            return
        if self._synced_bytes < self._sync_target_bytes:
            generation = self.generation
            try:
                self._sync_file(self._fd, is_named=self._is_named)
            except OSError:
                self._invalidate()
                raise
            self._check()  # a waiting sync must not succeed if the file was removed
            if self.generation == generation:
                self._synced_bytes, self._is_named = self._file_bytes, True
        fd, self._fd = self._fd, None
        self._disk.close(fd)

    def abandon(self) -> None:
        """Discard the buffer and close the file: its window expired, or its table was dropped."""
        self._is_gone = True
        self._buffer = bytearray()
        self.waits_since_seconds = None
        self.fault = None
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._disk.close(fd)

    def view(self) -> LogView:
        """Return the view of a reader now, after a flush if the disk takes it."""
        with self.lock:
            # The fault is remembered and raised by the next append; a reader gets the rows either way.
            with contextlib.suppress(OSError):
                if self._buffer:
                    self.flush()
                else:
                    self._check()
            return LogView(self.path, self._file_bytes, bytes(self._buffer), self._lost)

    def sync(self, stop: int, generation: int) -> None:
        """Sync the file up to a position, without blocking appends meanwhile.

        `generation` is that of the log when the position was written; OSError if those bytes were lost since,
        or a sync failed that covered them: the system reports that once, and may have dropped them.
        """
        with self._sync_lock:
            with self.lock:
                if self._is_gone:
                    return
                if self.generation != generation:
                    raise OSError(errno.EIO, self._generation_end)
                if self._synced_bytes >= stop:
                    return
                if self._fd is None:
                    raise InvariantBroken(reason=f"{self.path} was closed and not synced")
                fd, written = self._disk.duplicate(self._fd), self._file_bytes
                is_named = self._is_named
            try:
                try:
                    self._sync_file(fd, is_named=is_named)
                except OSError:
                    with self.lock:
                        self._invalidate()
                    raise
                self._note_synced(fd, written, stop, generation)
            finally:
                self._disk.close(fd)

    def _note_synced(self, fd: int, written: int, stop: int, generation: int) -> None:
        """Record what is synced; OSError if the file no longer exists up to `stop`."""
        with self.lock:
            if self._is_gone:
                return
            # Checked after the sync: what exists now existed when it was synced.
            size = self._disk.size_at(self.path, fd)
            if self.generation != generation:
                raise OSError(errno.EIO, self._generation_end)
            if size is None or size < stop:
                raise OSError(errno.EIO, LOST)
            self._synced_bytes = max(self._synced_bytes, written)
            self._is_named = True

    def _sync_file(self, fd: int, *, is_named: bool) -> None:
        """Sync the file, its name unless that is synced, and the names of its folders; raises OSError."""
        self._disk.fsync(fd)
        folder = posixpath.dirname(self.path)
        if not is_named:
            self._disk.sync_folder(folder)
        self._context.folders.sync(folder, self._context.top)

    def _invalidate(self) -> None:
        """End the generation after a failed sync: waiting syncs fail, and the next write reopens the file.

        A later sync that succeeds says nothing about those bytes: the system may have dropped them.
        """
        self._is_known = False
        self.generation += 1
        self._generation_end = UNSYNCED
        self._sync_target_bytes = 0

    # The state of the file

    def _check(self) -> None:
        """Check that the file has what was written to it; if not, continue after what it has."""
        if self._fd is None and not (self._is_known and self._file_bytes):
            return
        if self._is_known:
            size = self._disk.size_at(self.path, self._fd)
            if size is not None and size >= self._file_bytes:
                return
        try:
            damages = self._reopen()
        except StorageCorrupt as problem:
            # Another process put a file there that cannot be continued: treated as a broken disk.
            raise OSError(errno.EIO, str(problem)) from problem
        for damage in damages:
            self._context.report(damage)

    def _reopen(self) -> list[Damage]:
        if self._fd is None:
            end = self._end_on_disk()
            damages = self._continue_after(end or _End(0, None, []))
            self._is_known = end is not None
            return damages
        fd, end = self._open_end(recheck=True)
        old, self._fd = self._fd, fd
        # The old file is of no use any more.
        with contextlib.suppress(OSError):
            self._disk.close(old)
        return [] if end is None else self._continue_after(end)

    def _continue_after(self, end: _End) -> list[Damage]:
        """Set the end of the file to one that was found, and report what was lost; return the damage."""
        was_bytes = self._file_bytes
        if self._buffer and end.file_bytes != was_bytes:
            self._buffer = _shifted(bytes(self._buffer), was_bytes, end.file_bytes)
        self._file_bytes = self._synced_bytes = end.file_bytes
        self._sync_target_bytes = 0
        if end.last is not None:
            self.last_time_us = max(self.last_time_us, end.last.time_us)
            self.last_seq = max(self.last_seq, last_seq(end.last))
        if was_bytes:
            self.generation += 1
            self._generation_end = LOST if self._is_known else UNSYNCED
        self._is_known = True
        if end.file_bytes < was_bytes:
            self._lost = Damage(self.path, end.file_bytes, LOST)
            self._context.report_loss(self._lost)
        return end.damages

    def _find_end(self, size: int, fd: int) -> _End:
        """Return the end of the last whole frame.

        Cheap if the file ends with a whole frame: reads its two ends. Otherwise reads the whole file.
        """
        head = head_before(FileSource(self._disk, fd, self.path, size, chunk_bytes=0), size)
        if head is not None:
            check_version(head, self.path)
            return _End(size, head, [])
        walk = Walk(FileSource(self._disk, fd, self.path, size))
        damages = [found for found in walk if isinstance(found, Damage)]
        return _End(walk.clean_stop, walk.last, damages)

    def _end_on_disk(self) -> _End | None:
        """Return the end of a file that is not open; None if there is no file."""
        try:
            fd = self._disk.open_read(self.path)
        except FileNotFoundError:
            return None
        try:
            return self._find_end(self._disk.size(fd), fd)
        finally:
            self._disk.close(fd)

    def _open_end(self, *, recheck: bool) -> tuple[int, _End | None]:
        """Open the file and truncate it after its last frame; return the end if it was searched."""
        fd = self._open_file()
        try:
            size = self._disk.size(fd)
            end = self._find_end(size, fd) if recheck or size < self._file_bytes else None
            file_bytes = self._file_bytes if end is None else end.file_bytes
            if size > file_bytes:
                self._disk.truncate(fd, file_bytes)
            if end is not None or size == 0:
                self._is_named = False  # it may be a new file
        except BaseException:
            self._disk.close(fd)
            raise
        return fd, end

    def _open_file(self) -> int:
        try:
            return self._disk.open_append(self.path)
        except FileNotFoundError:
            self._context.claim()
            self._context.folders.make(posixpath.dirname(self.path), self._context.top)
            return self._disk.open_append(self.path)


def _shifted(frames: bytes, start: int, target: int) -> bytearray:
    """Return frames of one position encoded for another: their checksums cover the position."""
    source = BytesSource(frames, "memory", start)
    moved = bytearray()
    for head in Walk(source):
        if isinstance(head, Damage):
            raise InvariantBroken(reason=f"a frame in memory is damaged: {head}")
        payload = source.take(head.position + HEAD_BYTES, head.position + HEAD_BYTES + head.payload_bytes)
        content = FrameContent(FrameKind(head.kind), head.schema_id, head.entries, payload)
        moved += make_frame(target + len(moved), content, head.time_us, head.first_seq)
    return moved
