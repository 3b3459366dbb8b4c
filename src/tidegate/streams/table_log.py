"""The windows and logs of one stream table on the disk.

Threads: every method but those that say otherwise is called with `lock` held. File work under it is what an
append needs; reads take their views under it and open files without it.
"""

from __future__ import annotations

import contextlib
import posixpath
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tidegate.errors import StorageCorrupt, TableChanged
from tidegate.model.clock import Clock
from tidegate.model.ids import SnowflakeSource
from tidegate.model.tables import Durability, Row, Table
from tidegate.streams.disk import StreamDisk
from tidegate.streams.folders import Folders
from tidegate.streams.frame_reader import Damage
from tidegate.streams.frames import FrameContent, seqs_from
from tidegate.streams.log_file import LogContext, LogFile, LogView
from tidegate.streams.shards import log_name, shard_of
from tidegate.streams.trash import Trash
from tidegate.streams.windows import Window, parse_window, window_at
from tidegate.streams.writer_pool import WriterPool

ID_FILE = "table.id"
LOGS_KNOWN_MAX = 100_000  # closed logs of a table whose ends are remembered; some 40 MB
# A clock that is set back by at most this, as time services do, does not set row times back.
CLOCK_STEP_US_MAX = 60_000_000
DELETES_KNOWN_MAX = 10_000  # newest deletes of a table, so that two at once do not both report a row
RENAMES_AT_ONCE = 64  # windows moved to the trash under the lock at a time


@dataclass(frozen=True, slots=True)
class TableContext:
    """What all tables of a store share: the disk, the clock, the pool of writers, and reports of damage."""

    disk: StreamDisk
    clock: Clock
    ids: SnowflakeSource
    slots: WriterPool
    trash: Trash
    folders: Folders
    buffer_bytes: int
    report: Callable[[Damage], None]
    report_loss: Callable[[Damage], None]


@dataclass(frozen=True, slots=True)
class AppendedFrame:
    """The frame of an append, and what its sync needs: `log`, `stop` and `generation`."""

    seqs: Sequence[int]
    time_us: int
    log: LogFile
    stop: int
    generation: int
    size_bytes: int


@dataclass(slots=True)
class _WindowLogs:
    logs: dict[str, LogFile] = field(default_factory=dict)


class TableLogs:
    """The windows and logs of one table."""

    def __init__(self, table: Table, root: str, context: TableContext) -> None:
        self.id = table.id
        self.name = table.full_name
        self.root = root
        self.folder = f"{root}/{table.namespace}/{table.name}"
        self.lock = threading.RLock()
        self.is_gone = False
        self._context = context
        self._log_context = LogContext(
            context.disk, context.folders, root, self._claim, context.report, context.report_loss
        )
        self._claim_lock = threading.Lock()  # taken under the lock of a log
        self.is_open = False
        self._ignores_case = False
        self._windows: dict[Window, _WindowLogs] = {}
        self._logs_count = 0
        # No row gets a time before this: windows that end by then may have been removed.
        self._horizon_us = 0
        self._last_time_us = 0
        self._deleted: dict[tuple[str, Row], int] = {}

    # Opening and ending

    def open(self) -> None:
        """Find the table's windows, once; the folder of an older table of the same name is removed."""
        if self.is_gone:
            raise TableChanged(table=self.name)
        if self.is_open:
            return
        disk = self._context.disk
        found = self._stored_id()
        if found is not None and found > self.id:
            raise TableChanged(table=self.name)
        if found != self.id:
            self._context.trash.take(self.root, self.folder)
            self._claim()
        # Found in another case as well: then two users could share a file.
        self._ignores_case = disk.exists(f"{self.folder}/{ID_FILE.upper()}")
        windows = (parse_window(name) for name in disk.names(self.folder))
        self._windows = {window: _WindowLogs() for window in windows if window is not None}
        self.is_open = True

    def retire(self) -> None:
        """Close all logs without writing their buffers: the table is dropped."""
        self.is_gone = True
        self.is_open = False
        for window in self._windows.values():
            self._abandon(window)
        self._windows.clear()

    def owns_folder(self) -> bool:
        """True if the folder is this table's, and not that of a later one of the same name.

        A damaged folder, or something that is no folder, counts as this table's: no other can use it.
        """
        try:
            return self._stored_id() == self.id
        except (StorageCorrupt, NotADirectoryError, IsADirectoryError):
            return True

    def _claim(self) -> None:
        """Write the table's id into its folder unless it is there: folders without one are removed at start.

        Also called without the table's lock: something may remove the folder while a log is open.
        """
        disk, path = self._context.disk, f"{self.folder}/{ID_FILE}"
        with self._claim_lock:
            if not disk.exists(path):
                self._context.folders.forget(self.folder, self.root)
                disk.make_folder(self.folder, sync=True)
                disk.write_whole(path, f"{self.id}\n".encode())

    def _stored_id(self) -> int | None:
        path = f"{self.folder}/{ID_FILE}"
        try:
            return int(self._context.disk.read_whole(path))
        except FileNotFoundError:
            # Created before a crash, without an id yet: nothing was appended to it.
            return None
        except ValueError as problem:
            raise StorageCorrupt(place=path, reason="it does not hold the number of a table") from problem

    # Writing

    def append(self, table: Table, user: str, content: FrameContent) -> AppendedFrame:
        """Append one frame for a user; raises OSError if the write fails."""
        time_us = self._time(0)
        window = window_at(time_us, table.ttl_seconds or 0)
        return self._append(table, user, window, content, time_us)

    def delete(
        self, table: Table, user: str, content: FrameContent, times_us: tuple[int, int], last_seq: int
    ) -> AppendedFrame:
        """Append one frame that hides rows with the given times and last number; raises OSError.

        Its window does not end before any window that can hold those rows, so that it never expires before
        they do.
        """
        first_us, last_us = times_us
        self._context.ids.advance_past(last_seq)
        time_us = self._time(last_us)
        window = window_at(time_us, table.ttl_seconds or 0)
        holders = (other for other in self._windows if other.start_us <= last_us and first_us < other.stop_us)
        window = max([window, *holders], key=lambda other: other.stop_ms)
        return self._append(table, user, window, content, time_us)

    def not_deleted(self, user: str, keys: Sequence[Row], seqs: Sequence[int]) -> list[int]:
        """Return the positions of the rows that no recent delete hides."""
        deleted = self._deleted
        return [
            place
            for place, (key, seq) in enumerate(zip(keys, seqs, strict=True))
            if deleted.get((user, key), -1) < seq
        ]

    def note_deleted(self, user: str, hidden: Iterable[tuple[Row, int]]) -> None:
        """Remember rows that a delete hid."""
        for key, seq in hidden:
            self._deleted.pop((user, key), None)
            self._deleted[user, key] = seq
        while len(self._deleted) > DELETES_KNOWN_MAX:
            del self._deleted[next(iter(self._deleted))]

    def _time(self, not_before_us: int) -> int:
        now_us = self._context.clock.now_us()
        if now_us < self._last_time_us <= now_us + CLOCK_STEP_US_MAX:
            now_us = self._last_time_us
        return max(now_us, self._horizon_us, not_before_us)

    def _append(
        self, table: Table, user: str, window: Window, content: FrameContent, time_us: int
    ) -> AppendedFrame:
        context = self._context
        log = self._log(window, user)
        while True:
            self._open_log(log)
            with log.lock:
                if not log.is_open:
                    continue  # another table took its slot meanwhile
                time_us = max(time_us, log.last_time_us)
                seqs = seqs_from(_first_of(context.ids, content.entries), content.entries)
                try:
                    size_bytes = log.append(
                        content,
                        time_us,
                        seqs,
                        limit_bytes=context.buffer_bytes,
                        now_seconds=context.clock.monotonic_seconds(),
                        syncs=table.durability is Durability.FSYNC,
                    )
                except OSError as problem:
                    context.slots.note(log, problem)
                    raise
                self._last_time_us = time_us
                return AppendedFrame(seqs, time_us, log, log.stop, log.generation, size_bytes)

    def _open_log(self, log: LogFile) -> None:
        was_open = log.is_open
        for damage in self._context.slots.open(log):
            self._context.report(damage)
        if not was_open and log.last_seq:
            # Numbers continue after those in the file, also if the clock was set back before a restart.
            self._context.ids.advance_past(log.last_seq)

    def _log(self, window: Window, user: str) -> LogFile:
        window_logs = self._windows.setdefault(window, _WindowLogs())
        log = window_logs.logs.get(user)
        if log is None:
            if self._logs_count >= LOGS_KNOWN_MAX:
                self._forget_idle()
            log = window_logs.logs[user] = LogFile(self._path(window, user), self._log_context)
            self._logs_count += 1
        return log

    def _path(self, window: Window, user: str) -> str:
        name = log_name(user, ignores_case=self._ignores_case)
        return f"{self.folder}/{window.name}/shard-{shard_of(user)}/{name}"

    def _forget_idle(self) -> None:
        for window_logs in self._windows.values():
            window_logs.logs = {user: log for user, log in window_logs.logs.items() if not log.is_idle}
        self._logs_count = sum(len(window_logs.logs) for window_logs in self._windows.values())

    # Reading

    def views(self, user: str, start_us: int, stop_us: int | None) -> list[tuple[Window, LogView]]:
        """Return the view of a user's log in each window that overlaps, the oldest first.

        Row times from `start_us`, before `stop_us`. Bytes in memory are written first. Later appends are
        not in the views.
        """
        found = []
        for window in sorted(self._windows):
            if window.stop_us <= start_us or (stop_us is not None and window.start_us >= stop_us):
                continue
            view = self._view(window, user)
            if view is not None:
                found.append((window, view))
        return found

    def _view(self, window: Window, user: str) -> LogView | None:
        log = self._windows[window].logs.get(user)
        if log is None:
            if not self._context.disk.exists(self._path(window, user)):
                return None
            log = self._log(window, user)
        with log.lock:
            damages = log.read_end()
        for damage in damages:
            self._context.report(damage)
        view = log.view()
        return view if view.file_bytes or view.unwritten or view.lost else None

    # Removing a user

    def remove_user(self, user: str) -> int:
        """Unlink the logs of a user in all windows, and discard what is in memory; return how many files.

        The oldest window first: what is left after a kill hides and replaces the same rows as before. Durable
        on return; raises OSError.
        """
        removed = 0
        on_disk = (parse_window(name) for name in self._context.disk.names(self.folder))
        for window in sorted({*self._windows, *(found for found in on_disk if found is not None)}):
            self._abandon_log(window, user)
            removed += self._unlink(self._path(window, user))
        for key in [key for key in self._deleted if key[0] == user]:
            del self._deleted[key]
        return removed

    def _abandon_log(self, window: Window, user: str) -> None:
        window_logs = self._windows.get(window)
        log = None if window_logs is None else window_logs.logs.pop(user, None)
        if log is None:
            return
        self._logs_count -= 1
        # A file that cannot be closed is given up; it is unlinked.
        with log.lock, contextlib.suppress(OSError):
            log.abandon()
        self._context.slots.forget(log)

    def _unlink(self, path: str) -> bool:
        disk = self._context.disk
        try:
            disk.unlink(path)
        except FileNotFoundError:
            return False
        disk.sync_folder(posixpath.dirname(path))
        return True

    # Ending windows

    def expired(self, cutoff_ms: int) -> list[Window]:
        """Return the expired windows by the names of their folders; called without the lock."""
        found = (parse_window(name) for name in self._context.disk.names(self.folder))
        return sorted(window for window in found if window is not None and window.stop_ms <= cutoff_ms)

    def close_windows(self, cutoff_ms: int) -> int:
        """Forget expired windows and their unwritten bytes; return the number of writers closed.

        From now on no append goes into a window that ends by `cutoff_ms`.
        """
        self._horizon_us = max(self._horizon_us, cutoff_ms * 1_000)
        expired = [window for window in self._windows if window.stop_ms <= cutoff_ms]
        return sum(self._abandon(self._windows.pop(window)) for window in expired)

    def remove_windows(self, windows: Sequence[Window]) -> int:
        """Move folders into the trash in chunks; return how many existed. Takes the lock itself."""
        moved = 0
        for start in range(0, len(windows), RENAMES_AT_ONCE):
            with self.lock:
                if self.is_gone:
                    break
                for window in windows[start : start + RENAMES_AT_ONCE]:
                    moved += self._context.trash.take(self.root, f"{self.folder}/{window.name}")
        return moved

    def describe(self) -> list[WindowStats]:
        """Return the windows on the disk, the oldest first. Takes the lock itself; raises OSError."""
        disk, stats = self._context.disk, []
        for name in disk.names(self.folder):
            window = parse_window(name)
            if window is None:
                continue
            folder = f"{self.folder}/{name}"
            shards = [shard for shard, size in disk.entries(folder) if size is None]
            sizes = [size or 0 for shard in shards for _, size in disk.entries(f"{folder}/{shard}")]
            with self.lock:
                writers = self._writers(window)
            stats.append(WindowStats(name, *window, len(sizes), sum(sizes), writers))
        return sorted(stats, key=lambda window: (window.start_ms, window.duration_ms))

    def _writers(self, window: Window) -> int:
        window_logs = self._windows.get(window)
        return sum(1 for log in window_logs.logs.values() if log.is_open) if window_logs else 0

    def _abandon(self, window_logs: _WindowLogs) -> int:
        closed = 0
        for log in window_logs.logs.values():
            if log.is_idle:
                continue  # and stays idle: logs are opened with the table's lock held
            with log.lock:
                closed += log.is_open
                # A file that cannot be closed is given up; its folder is removed.
                with contextlib.suppress(OSError):
                    log.abandon()
            self._context.slots.forget(log)
        self._logs_count -= len(window_logs.logs)
        return closed


def _first_of(ids: SnowflakeSource, count: int) -> int:
    return ids.take() if count == 1 else int(ids.take_many(count)[0])


@dataclass(frozen=True, slots=True)
class AppendedRows:
    """The result of an append: the number of rows, their numbers, and the bytes of their frame."""

    count: int
    seqs: Sequence[int]
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StreamRows:
    """Rows with all columns, `_seq` and `_time`. A warning names a damaged frame that was left out."""

    rows: list[Row]
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """The number of windows moved into the trash, and of open logs closed for that."""

    windows: int
    writers: int


@dataclass(frozen=True, slots=True)
class WindowStats:
    """A window of a table on the disk."""

    name: str
    start_ms: int
    duration_ms: int
    files: int
    size_bytes: int
    writers: int
