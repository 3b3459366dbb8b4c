"""One stream table on the disk: takes appends and deletes, gives what a reader may see, keeps its windows.

Threads: every method but those that say otherwise is called with `lock` held. File work under it is what an
append needs; reads take their views under it and open files without it.

What the store answers with: frozen.
"""

from __future__ import annotations

import contextlib
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
from tidegate.streams.frames import Batch, seqs_from
from tidegate.streams.log_file import Log, LogGround, View
from tidegate.streams.shards import log_name, shard_of
from tidegate.streams.trash import Trash
from tidegate.streams.windows import Window, parse_window, window_at
from tidegate.streams.writer_pool import WriterSlots

ID_FILE = "table.id"
LOGS_KNOWN_MAX = 100_000  # closed logs of a table whose ends are remembered; some 40 MB
# A clock that is set back by no more than this, as time services do, does not take row times back with it.
CLOCK_STEP_US_MAX = 60_000_000
DELETES_KNOWN_MAX = 10_000  # newest deletes of a table, so that two at once do not both report a row
RENAMES_AT_ONCE = 64  # windows taken away in one go under the lock


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all tables of a store share."""

    disk: StreamDisk
    clock: Clock
    ids: SnowflakeSource
    slots: WriterSlots
    trash: Trash
    folders: Folders
    buffer_bytes: int
    tell: Callable[[Damage], None]
    tell_loss: Callable[[Damage], None]


@dataclass(frozen=True, slots=True)
class Written:
    """Where an append went; `log`, `stop` and `life` are for whoever syncs it."""

    seqs: Sequence[int]
    time_us: int
    log: Log
    stop: int
    life: int
    size_bytes: int


@dataclass(slots=True)
class _Window:
    logs: dict[str, Log] = field(default_factory=dict)


class TableLogs:
    """The windows and logs of one table."""

    def __init__(self, table: Table, root: str, around: Surroundings) -> None:
        self.id = table.id
        self.name = table.full_name
        self.root = root
        self.folder = f"{root}/{table.namespace}/{table.name}"
        self.lock = threading.RLock()
        self.is_gone = False
        self._around = around
        self._ground = LogGround(
            around.disk, around.folders, root, self._claim, around.tell, around.tell_loss
        )
        self._claim_lock = threading.Lock()  # taken under the lock of a log
        self.is_open = False
        self._ignores_case = False
        self._windows: dict[Window, _Window] = {}
        self._logs_count = 0
        # No row gets a time before this: windows that end by then may have been taken away.
        self._horizon_us = 0
        self._last_time_us = 0
        self._deleted: dict[tuple[str, Row], int] = {}

    # Opening and ending

    def open(self) -> None:
        """Look for the table's windows, once; moves away what an older table of the same name left."""
        if self.is_gone:
            raise TableChanged(table=self.name)
        if self.is_open:
            return
        disk = self._around.disk
        found = self._stored_id()
        if found is not None and found > self.id:
            raise TableChanged(table=self.name)
        if found != self.id:
            self._around.trash.take(self.root, self.folder)
            self._claim()
        # Found under another case as well: then so would be the files of two users.
        self._ignores_case = disk.exists(f"{self.folder}/{ID_FILE.upper()}")
        windows = (parse_window(name) for name in disk.names(self.folder))
        self._windows = {window: _Window() for window in windows if window is not None}
        self.is_open = True

    def retire(self) -> None:
        """Close everything without writing it: the table is dropped."""
        self.is_gone = True
        self.is_open = False
        for window in self._windows.values():
            self._abandon(window)
        self._windows.clear()

    def owns_folder(self) -> bool:
        """Return whether the folder is this table's, and not that of one made later under its name.

        One that was broken from outside, or is no folder at all, counts as ours: nobody else can use it.
        """
        try:
            return self._stored_id() == self.id
        except (StorageCorrupt, NotADirectoryError, IsADirectoryError):
            return True

    def _claim(self) -> None:
        """Put the table's number into its folder unless it is there: a folder without one goes at the start.

        Without the table's lock as well: something may remove the folder while a log is open.
        """
        disk, path = self._around.disk, f"{self.folder}/{ID_FILE}"
        with self._claim_lock:
            if not disk.exists(path):
                self._around.folders.forget(self.folder, self.root)
                disk.make_folder(self.folder, sync=True)
                disk.write_whole(path, f"{self.id}\n".encode())

    def _stored_id(self) -> int | None:
        path = f"{self.folder}/{ID_FILE}"
        try:
            return int(self._around.disk.read_whole(path))
        except FileNotFoundError:
            # Made, and not named before a crash: nothing was appended to it yet.
            return None
        except ValueError as problem:
            raise StorageCorrupt(place=path, reason="it does not hold the number of a table") from problem

    # Writing

    def append(self, table: Table, user: str, batch: Batch) -> Written:
        """Add one frame for a user; raises OSError when the disk does not take it."""
        time_us = self._time(0)
        window = window_at(time_us, table.ttl_seconds or 0)
        return self._append(table, user, window, batch, time_us)

    def delete(
        self, table: Table, user: str, batch: Batch, times_us: tuple[int, int], last_seq: int
    ) -> Written:
        """Add one frame that hides rows, whose first and last time and last number are given; raises OSError.

        It lies in a window that does not end before any that can hold those rows, so that it never goes
        before they do.
        """
        first_us, last_us = times_us
        self._around.ids.advance_past(last_seq)
        time_us = self._time(last_us)
        window = window_at(time_us, table.ttl_seconds or 0)
        holders = (held for held in self._windows if held.start_us <= last_us and first_us < held.stop_us)
        window = max([window, *holders], key=lambda held: held.stop_ms)
        return self._append(table, user, window, batch, time_us)

    def not_deleted(self, user: str, keys: Sequence[Row], seqs: Sequence[int]) -> list[int]:
        """Return the places of those rows that no recent delete hides."""
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
        now_us = self._around.clock.now_us()
        if now_us < self._last_time_us <= now_us + CLOCK_STEP_US_MAX:
            now_us = self._last_time_us
        return max(now_us, self._horizon_us, not_before_us)

    def _append(self, table: Table, user: str, window: Window, batch: Batch, time_us: int) -> Written:
        around = self._around
        log = self._log(window, user)
        while True:
            self._open_log(log)
            with log.lock:
                if not log.is_open:
                    continue  # another table took its slot in between
                time_us = max(time_us, log.last_time_us)
                seqs = seqs_from(_first_of(around.ids, batch.entries), batch.entries)
                try:
                    size_bytes = log.append(
                        batch,
                        time_us,
                        seqs,
                        limit_bytes=around.buffer_bytes,
                        now_seconds=around.clock.monotonic_seconds(),
                        syncs=table.durability is Durability.FSYNC,
                    )
                except OSError as problem:
                    around.slots.note(log, problem)
                    raise
                self._last_time_us = time_us
                return Written(seqs, time_us, log, log.stop, log.life, size_bytes)

    def _open_log(self, log: Log) -> None:
        was_open = log.is_open
        for damage in self._around.slots.open(log):
            self._around.tell(damage)
        if not was_open and log.last_seq:
            # Numbers go on behind those in the file, also when the clock was set back before a restart.
            self._around.ids.advance_past(log.last_seq)

    def _log(self, window: Window, user: str) -> Log:
        held = self._windows.setdefault(window, _Window())
        log = held.logs.get(user)
        if log is None:
            if self._logs_count >= LOGS_KNOWN_MAX:
                self._forget_idle()
            log = held.logs[user] = Log(self._path(window, user), self._ground)
            self._logs_count += 1
        return log

    def _path(self, window: Window, user: str) -> str:
        name = log_name(user, ignores_case=self._ignores_case)
        return f"{self.folder}/{window.name}/shard-{shard_of(user)}/{name}"

    def _forget_idle(self) -> None:
        for held in self._windows.values():
            held.logs = {user: log for user, log in held.logs.items() if not log.is_idle}
        self._logs_count = sum(len(held.logs) for held in self._windows.values())

    # Reading

    def views(self, user: str, start_us: int, stop_us: int | None) -> list[tuple[Window, View]]:
        """Return what a reader of a user sees of each window that overlaps, the oldest first.

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

    def _view(self, window: Window, user: str) -> View | None:
        log = self._windows[window].logs.get(user)
        if log is None:
            if not self._around.disk.exists(self._path(window, user)):
                return None
            log = self._log(window, user)
        with log.lock:
            damages = log.look()
        for damage in damages:
            self._around.tell(damage)
        view = log.view()
        return view if view.file_bytes or view.unwritten or view.lost else None

    # Ending windows

    def expired(self, cutoff_ms: int) -> list[Window]:
        """Return the windows that are over, by the names of their folders; without the lock."""
        found = (parse_window(name) for name in self._around.disk.names(self.folder))
        return sorted(window for window in found if window is not None and window.stop_ms <= cutoff_ms)

    def close_windows(self, cutoff_ms: int) -> int:
        """Forget windows that are over, and what waits to be written to them; gives the writers closed.

        From now on no append goes into a window that ends by `cutoff_ms`.
        """
        self._horizon_us = max(self._horizon_us, cutoff_ms * 1_000)
        over = [window for window in self._windows if window.stop_ms <= cutoff_ms]
        return sum(self._abandon(self._windows.pop(window)) for window in over)

    def remove_windows(self, windows: Sequence[Window]) -> int:
        """Move folders out of sight, some at a time; gives how many were there. Takes the lock itself."""
        moved = 0
        for start in range(0, len(windows), RENAMES_AT_ONCE):
            with self.lock:
                if self.is_gone:
                    break
                for window in windows[start : start + RENAMES_AT_ONCE]:
                    moved += self._around.trash.take(self.root, f"{self.folder}/{window.name}")
        return moved

    def describe(self) -> list[WindowShape]:
        """List the windows on the disk, the oldest first. Takes the lock itself; raises OSError."""
        disk, shapes = self._around.disk, []
        for name in disk.names(self.folder):
            window = parse_window(name)
            if window is None:
                continue
            folder = f"{self.folder}/{name}"
            shards = [shard for shard, size in disk.entries(folder) if size is None]
            sizes = [size or 0 for shard in shards for _, size in disk.entries(f"{folder}/{shard}")]
            with self.lock:
                writers = self._writers(window)
            shapes.append(WindowShape(name, *window, len(sizes), sum(sizes), writers))
        return sorted(shapes, key=lambda shape: (shape.start_ms, shape.duration_ms))

    def _writers(self, window: Window) -> int:
        held = self._windows.get(window)
        return sum(1 for log in held.logs.values() if log.is_open) if held else 0

    def _abandon(self, held: _Window) -> int:
        closed = 0
        for log in held.logs.values():
            if log.is_idle:
                continue  # and stays so: only who holds the table's lock opens a log
            with log.lock:
                closed += log.is_open
                # What could not even be closed is gone for us; the folder goes away under it.
                with contextlib.suppress(OSError):
                    log.abandon()
            self._around.slots.forget(log)
        self._logs_count -= len(held.logs)
        return closed


def _first_of(ids: SnowflakeSource, count: int) -> int:
    return ids.take() if count == 1 else int(ids.take_many(count)[0])


@dataclass(frozen=True, slots=True)
class Appended:
    """How many rows were added, their numbers, and the bytes of their frame."""

    count: int
    seqs: Sequence[int]
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StreamRows:
    """Whole rows: own columns, `_seq`, `_time`. A warning names a damaged frame that was left out."""

    rows: list[Row]
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Evicted:
    """How many windows went out of sight, and how many open logs were closed for that."""

    windows: int
    writers: int


@dataclass(frozen=True, slots=True)
class WindowShape:
    """A window of a table on the disk."""

    name: str
    start_ms: int
    duration_ms: int
    files: int
    size_bytes: int
    writers: int
