"""One log: takes frames in order, gives them to its file in pieces, keeps what waits in memory.

A `Log` stands for the file of one user in one window, open or not. It remembers how far the file is good, so
that opening it again costs no look at its bytes. A write that fails is cut off again: what was acknowledged
before stays in memory and is tried again, and the frame that met the failure is refused.

Before each write it looks whether the file is still the one that it wrote. One that was removed or cut by
something else is opened anew: what it held is lost and told, what waits in memory is written behind its end.
A file whose sync failed is opened anew too, and nobody who wrote to it before is told that it is synced.

Threads: `lock` guards everything; nobody holds the locks of two logs. Whoever may append holds the lock of
the table too, and whoever closes a log for want of slots does not.
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
from tidegate.streams.frames import HEAD_BYTES, Batch, FrameKind, Head, check_known, last_seq, make_frame

LOST = "the file was removed or cut while it was in use"
UNSYNCED = "a sync of the file failed"


@dataclass(frozen=True, slots=True)
class LogGround:
    """What the logs of a table stand on.

    Those lie below `top`. `claim` runs before a folder is made for a log. `tell` gets damage, `tell_loss`
    what a file lost under us.
    """

    disk: StreamDisk
    folders: Folders
    top: str
    claim: Callable[[], None]
    tell: Callable[[Damage], None]
    tell_loss: Callable[[Damage], None]


@dataclass(frozen=True, slots=True)
class View:
    """What a reader sees of a log: its file up to a position, and what could not be written yet.

    `lost` says where rows were that the file has no more.
    """

    path: str
    file_bytes: int
    unwritten: bytes
    lost: Damage | None = None


@dataclass(frozen=True, slots=True)
class _End:
    """Where the last whole frame of a file ends, its header, and the damage met on the way."""

    file_bytes: int
    last: Head | None
    damages: list[Damage]


class Log:
    """The log of one user in one window."""

    def __init__(self, path: str, ground: LogGround) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.last_time_us = 0
        self.last_seq = 0
        # When the oldest byte in memory came there; None while there is none.
        self.waits_since_seconds: float | None = None
        self.fault: OSError | None = None
        # How often the file was found to be another one than what was written, or could not be synced.
        self.life = 0
        self._life_end = LOST  # why the life before this one is over
        self._lost: Damage | None = None
        self._ground = ground
        self._disk = ground.disk
        self._sync_lock = threading.Lock()
        self._fd: int | None = None
        self._is_known = False  # not, of a file that is open: a sync failed, and its bytes are doubtful
        self._is_gone = False
        self._is_named = False  # its name in its folder is on the disk
        self._file_bytes = 0  # whole frames in the file
        self._synced_bytes = 0
        self._owed_bytes = 0  # someone waits for a sync up to here
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

    def look(self) -> list[Damage]:
        """Learn from a file that is not open; one that is not there has no frames."""
        if self._is_known or self._fd is not None:
            return []
        end = self._end_on_disk()
        return [] if end is None else self._go_on_behind(end)

    def open(self) -> list[Damage]:
        """Open the file for appends and cut a torn end off; gives the damage that was met."""
        fd, end = self._open_end(anew=not self._is_known)
        self._fd = fd
        return [] if end is None else self._go_on_behind(end)

    def append(
        self,
        batch: Batch,
        time_us: int,
        seqs: Sequence[int],
        *,
        limit_bytes: int,
        now_seconds: float,
        syncs: bool = False,
    ) -> int:
        """Add a frame and give its length; with `limit_bytes` or more in memory, all goes to the file.

        With `syncs` it goes there at once, and is not closed without a sync: the caller calls `sync`.
        Raises OSError when the file does not take it: then the frame is not there, and what came before is.
        """
        kept = len(self._buffer)
        frame = make_frame(self._file_bytes + kept, batch, time_us, seqs[0])
        self._buffer += frame
        if syncs or len(self._buffer) >= limit_bytes or self.fault is not None:
            try:
                self.flush()
            except OSError:
                del self._buffer[kept:]
                raise
        if self._buffer and self.waits_since_seconds is None:
            self.waits_since_seconds = now_seconds
        self.last_time_us = time_us
        self.last_seq = seqs[-1]
        if syncs:
            self._owed_bytes = self._file_bytes
        return len(frame)

    def flush(self) -> None:
        """Write what waits; when that fails, all of it goes on waiting."""
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
        if self._synced_bytes < self._owed_bytes:
            life = self.life
            try:
                self._put_on_disk(self._fd, is_named=self._is_named)
            except OSError:
                self._doubt()
                raise
            self._check()  # who waits for a sync is not told that it is done when the file went away
            if self.life == life:
                self._synced_bytes, self._is_named = self._file_bytes, True
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
        """Return what a reader sees now, in the file where it can be written."""
        with self.lock:
            # The fault is remembered, and told to the next append; a reader gets the rows either way.
            with contextlib.suppress(OSError):
                if self._buffer:
                    self.flush()
                else:
                    self._check()
            return View(self.path, self._file_bytes, bytes(self._buffer), self._lost)

    def sync(self, stop: int, life: int) -> None:
        """Put the file on the disk up to a position, without keeping appends from it meanwhile.

        `life` is that of the log when the position was written; OSError when those bytes are gone since, or a
        sync failed that was to cover them: the system says so once, and may have dropped them.
        """
        with self._sync_lock:
            with self.lock:
                if self._is_gone:
                    return
                if self.life != life:
                    raise OSError(errno.EIO, self._life_end)
                if self._synced_bytes >= stop:
                    return
                if self._fd is None:
                    raise InvariantBroken(reason=f"{self.path} was closed and not synced")
                fd, written = self._disk.duplicate(self._fd), self._file_bytes
                is_named = self._is_named
            try:
                try:
                    self._put_on_disk(fd, is_named=is_named)
                except OSError:
                    with self.lock:
                        self._doubt()
                    raise
                self._note_synced(fd, written, stop, life)
            finally:
                self._disk.close(fd)

    def _note_synced(self, fd: int, written: int, stop: int, life: int) -> None:
        """Remember what is on the disk; OSError where the file is not there any more up to `stop`."""
        with self.lock:
            if self._is_gone:
                return
            # Looked at afterwards: what is there now was there when it was synced.
            size = self._disk.size_at(self.path, fd)
            if self.life != life:
                raise OSError(errno.EIO, self._life_end)
            if size is None or size < stop:
                raise OSError(errno.EIO, LOST)
            self._synced_bytes = max(self._synced_bytes, written)
            self._is_named = True

    def _put_on_disk(self, fd: int, *, is_named: bool) -> None:
        """Sync the file, its name unless that is there, and the names of its folders; raises OSError."""
        self._disk.fsync(fd)
        folder = posixpath.dirname(self.path)
        if not is_named:
            self._disk.sync_folder(folder)
        self._ground.folders.sync(folder, self._ground.top)

    def _doubt(self) -> None:
        """Refuse all who wait for a sync, as one failed; the next write opens the file anew.

        A later sync that works says nothing of those bytes: the system may have dropped them.
        """
        self._is_known = False
        self.life += 1
        self._life_end = UNSYNCED
        self._owed_bytes = 0

    # The file, and what became of it

    def _check(self) -> None:
        """Look whether the file has what was written to it; where not, go on with what is there."""
        if self._fd is None and not (self._is_known and self._file_bytes):
            return
        if self._is_known:
            size = self._disk.size_at(self.path, self._fd)
            if size is not None and size >= self._file_bytes:
                return
        try:
            damages = self._regain()
        except StorageCorrupt as problem:
            # Something else put a file there that we cannot go on with: for us, the disk is broken.
            raise OSError(errno.EIO, str(problem)) from problem
        for damage in damages:
            self._ground.tell(damage)

    def _regain(self) -> list[Damage]:
        if self._fd is None:
            end = self._end_on_disk()
            damages = self._go_on_behind(end or _End(0, None, []))
            self._is_known = end is not None
            return damages
        fd, end = self._open_end(anew=True)
        old, self._fd = self._fd, fd
        # Nothing of ours is to be had from it any more.
        with contextlib.suppress(OSError):
            self._disk.close(old)
        return [] if end is None else self._go_on_behind(end)

    def _go_on_behind(self, end: _End) -> list[Damage]:
        """Take an end that was found for that of the file; tells what was there before and is not now."""
        was_bytes = self._file_bytes
        if self._buffer and end.file_bytes != was_bytes:
            self._buffer = _moved(bytes(self._buffer), was_bytes, end.file_bytes)
        self._file_bytes = self._synced_bytes = end.file_bytes
        self._owed_bytes = 0
        if end.last is not None:
            self.last_time_us = max(self.last_time_us, end.last.time_us)
            self.last_seq = max(self.last_seq, last_seq(end.last))
        if was_bytes:
            self.life += 1
            self._life_end = LOST if self._is_known else UNSYNCED
        self._is_known = True
        if end.file_bytes < was_bytes:
            self._lost = Damage(self.path, end.file_bytes, LOST)
            self._ground.tell_loss(self._lost)
        return end.damages

    def _find_end(self, size: int, fd: int) -> _End:
        """Find where the last whole frame ends.

        Cheap where that frame is whole: reads its two ends. Otherwise walks through the file.
        """
        head = head_before(FileSource(self._disk, fd, self.path, size, chunk_bytes=0), size)
        if head is not None:
            check_known(head, self.path)
            return _End(size, head, [])
        walk = Walk(FileSource(self._disk, fd, self.path, size))
        damages = [found for found in walk if isinstance(found, Damage)]
        return _End(walk.clean_stop, walk.last, damages)

    def _end_on_disk(self) -> _End | None:
        """Find the end of a file that is not open; None where there is no file."""
        try:
            fd = self._disk.open_read(self.path)
        except FileNotFoundError:
            return None
        try:
            return self._find_end(self._disk.size(fd), fd)
        finally:
            self._disk.close(fd)

    def _open_end(self, *, anew: bool) -> tuple[int, _End | None]:
        """Open the file and cut it where its frames end; gives the end where it was looked for."""
        fd = self._open_file()
        try:
            size = self._disk.size(fd)
            end = self._find_end(size, fd) if anew or size < self._file_bytes else None
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
            self._ground.claim()
            self._ground.folders.make(posixpath.dirname(self.path), self._ground.top)
            return self._disk.open_append(self.path)


def _moved(frames: bytes, start: int, target: int) -> bytearray:
    """Return frames that were made for one position anew for another: their checksums cover it."""
    source = BytesSource(frames, "memory", start)
    moved = bytearray()
    for head in Walk(source):
        if isinstance(head, Damage):
            raise InvariantBroken(reason=f"a frame in memory is damaged: {head}")
        payload = source.take(head.position + HEAD_BYTES, head.position + HEAD_BYTES + head.payload_bytes)
        batch = Batch(FrameKind(head.kind), head.schema_id, head.entries, payload)
        moved += make_frame(target + len(moved), batch, head.time_us, head.first_seq)
    return moved
