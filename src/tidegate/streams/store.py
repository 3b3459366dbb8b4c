"""The store of all STREAM tables of a home.

Threads: any; calls block on files, so they must not run on an event loop. It starts no thread: the caller
calls `flush` more often than the flush interval, and `evict` and `sweep` periodically.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidegate.errors import NotReady, RequestInvalid, StorageFailed, StorageFull, TableChanged
from tidegate.model.clock import Clock
from tidegate.model.ids import SnowflakeSource
from tidegate.model.tables import Durability, Row, Table
from tidegate.settings.sections import StreamSettings
from tidegate.storage.files import disk_error
from tidegate.streams import disk as hints
from tidegate.streams.corruption import DamageReporter, loss_warning_of, warning_of
from tidegate.streams.disk import StreamDisk
from tidegate.streams.folders import Folders
from tidegate.streams.frame_reader import Damage
from tidegate.streams.payload_codec import PayloadReader, deletes_content, rows_content
from tidegate.streams.reader import LogReader, RowSelection
from tidegate.streams.shards import check_stream_user
from tidegate.streams.table_log import (
    AppendedFrame,
    AppendedRows,
    EvictionResult,
    StreamRows,
    TableContext,
    TableLogs,
    WindowStats,
)
from tidegate.streams.trash import TRASH, SweepResult, Trash
from tidegate.streams.write_gate import WriteGate
from tidegate.streams.writer_pool import WriterPool

Notify = Callable[[list[Row]], None] | None
Before = Callable[[], None] | None


class StreamStore:
    """Appends, reads and expires the rows of streams; `root_of` returns the folder of a tenant's streams."""

    def __init__(
        self,
        root_of: Callable[[str], Path],
        clock: Clock,
        ids: SnowflakeSource,
        settings: StreamSettings,
        *,
        free_bytes_min: int,
        disk: StreamDisk | None = None,
    ) -> None:
        self._root_of = root_of
        self._clock = clock
        self._free_bytes_min = free_bytes_min
        self._disk = disk or StreamDisk()
        self._reporter = DamageReporter()
        self._slots = WriterPool(settings.writers_max)
        self._trash = Trash(self._disk, ids)
        self._table_context = TableContext(
            *(self._disk, clock, ids, self._slots, self._trash, Folders(self._disk)),
            *(settings.buffer_bytes, self._reporter.report, self._reporter.report_loss),
        )
        self._tables: dict[tuple[str, str, str], TableLogs] = {}
        self._readers: dict[int, tuple[Table, PayloadReader]] = {}
        self._lock = threading.Lock()  # guards the two above and the opening of tables; never held by reads
        self._roots: set[str] = set()
        self._is_closed = threading.Event()
        self._gate = WriteGate()

    @property
    def on_damage(self) -> Callable[[Damage], None]:
        """The listener of damage; each damage is reported once by a store."""
        return self._reporter.listener

    @on_damage.setter
    def on_damage(self, listener: Callable[[Damage], None]) -> None:
        self._reporter.listener = listener

    def open_writers(self) -> int:
        """Return the number of logs that are open for writing."""
        return len(self._slots.open_logs())

    # Rows

    def append(
        self, table: Table, user: str, rows: Sequence[Row], notify: Notify = None, before: Before = None
    ) -> AppendedRows:
        """Append rows of a user, all or none, with one time; returns after the table's durability is met.

        `notify` is called with the rows under the table's lock, so appends are notified in their order.
        `before` runs under the same lock before the append, and may read; if it raises, nothing is appended.
        After StorageFull and StorageFailed nothing of it is stored.
        """
        check_stream_user(user)
        if not rows:
            return AppendedRows(0, ())
        with self._gate.passing():
            return self._append(table, user, rows, notify, before)

    def _append(
        self, table: Table, user: str, rows: Sequence[Row], notify: Notify, before: Before
    ) -> AppendedRows:
        content = rows_content(table, rows)
        logs = self._open_logs(table)
        self._check_room(logs)
        with self._locked(logs, hints.WRITE_HINT):
            if before is not None:
                before()
            written = logs.append(table, user, content)
            if notify is not None:
                notify([(*row, seq, written.time_us) for row, seq in zip(rows, written.seqs, strict=True)])
        self._sync(table, written)
        return AppendedRows(len(rows), written.seqs, written.size_bytes)

    def delete(
        self, table: Table, user: str, rows: Sequence[Row], notify: Notify = None, before: Before = None
    ) -> int:
        """Delete rows, passed with all columns as they were read; return how many still existed.

        A row of the same key that was added since stays. `notify` gets the deleted rows, `before` as above.
        """
        check_stream_user(user)
        if not table.primary_key:
            raise RequestInvalid(
                reason=f"Rows of '{table.full_name}' cannot be deleted one by one: it has no primary key.",
                hint="Rows of a stream go by themselves after their time to live.",
            )
        if not rows:
            return 0
        with self._gate.passing():
            return self._delete(table, user, rows, notify, before)

    def _delete(self, table: Table, user: str, rows: Sequence[Row], notify: Notify, before: Before) -> int:
        reader = self._reader(table)
        logs = self._open_logs(table)
        self._check_room(logs)
        with self._locked(logs, hints.WRITE_HINT):
            keys = [reader.key(row) for row in rows]
            seqs = [_number(row[-2]) for row in rows]
            places = logs.not_deleted(user, keys, seqs)
            if not places:
                return 0
            if before is not None:
                before()
            times = [_number(rows[place][-1]) for place in places]
            hidden = [(keys[place], seqs[place]) for place in places]
            content = deletes_content(table, hidden)
            written = logs.delete(table, user, content, (min(times), max(times)), max(seqs))
            logs.note_deleted(user, hidden)
            if notify is not None:
                notify([rows[place] for place in places])
        self._sync(table, written)
        return len(places)

    def remove_user(self, table: Table, user: str, before: Before = None, after: Before = None) -> int:
        """Remove the logs of a user, durably; return the number of files.

        `before` runs under the table's lock and may read; `after` runs under it when all of them are gone.
        After StorageFailed some may be gone, the oldest first.
        """
        check_stream_user(user)
        logs = self._open_logs(table)
        with self._locked(logs, hints.ERASE_HINT):
            if before is not None:
                before()
            removed = logs.remove_user(user)
            if after is not None:
                after()
        return removed

    def read(
        self,
        table: Table,
        user: str,
        *,
        start_us: int | None = None,
        stop_us: int | None = None,
        last: int | None = None,
        barrier: Callable[[], None] | None = None,
    ) -> StreamRows:
        """Return a user's live rows, the oldest first; with `last`, that many of the newest, newest first.

        Row times from `start_us`, before `stop_us`. `barrier` runs under the table's lock at the moment that
        fixes what is read: it includes every append that was notified before, and none after.
        """
        check_stream_user(user)
        logs = self._open_logs(table)
        reader = self._reader(table)
        with self._locked(logs, hints.LOOK_HINT):
            now_us, ttl_us = self._clock.now_us(), _ttl_seconds(table) * 1_000_000
            alive_us = max(now_us - ttl_us + 1, table.expired_before_us)
            start_us = alive_us if start_us is None else max(start_us, alive_us)
            views = logs.views(user, start_us, None if reader.is_keyed else stop_us)
            if barrier is not None:
                barrier()
        with self._disk_errors(logs.folder, hints.LOOK_HINT):
            found = LogReader(self._disk, reader, RowSelection(start_us, stop_us, last)).read(views)
        for damage in found.damages:
            self._reporter.report(damage)
        warnings = [warning_of(damage, logs.root) for damage in found.damages]
        warnings += [loss_warning_of(view.lost, logs.root) for _, view in views if view.lost is not None]
        return StreamRows(found.rows, warnings)

    # Flushing

    def flush(self, older_than_seconds: float = 0.0) -> None:
        """Write what has been in memory for that long or longer.

        Called every half flush interval with half the interval, no row stays in memory longer than the
        interval. Tries every log, then raises StorageFull or StorageFailed for the first that failed.
        """
        before = self._clock.monotonic_seconds() - older_than_seconds
        first: tuple[OSError, str] | None = None
        for log in self._slots.unwritten():
            since = log.waits_since_seconds
            if since is None or since > before:
                continue
            try:
                with log.lock:
                    log.flush()
            except OSError as problem:
                self._slots.note(log, problem)
                first = first or (problem, log.path)
        if first is not None:
            raise self._fault(*first, hints.BUFFERED_HINT) from first[0]

    def flush_all(self) -> None:
        """Write everything that is in memory."""
        self.flush(0.0)

    def refuse_writes(self) -> None:
        """Refuse appends and deletes from now on; return when those that have begun are finished."""
        self._gate.close()

    def close(self) -> None:
        """Write everything and close every file; raises as `flush` does, after the others are closed."""
        self._is_closed.set()
        first: tuple[OSError, str] | None = None
        for log in self._slots.unwritten():
            try:
                with log.lock:
                    log.close()
            except OSError as problem:
                first = first or (problem, log.path)
            else:
                self._slots.forget(log)
        if first is not None:
            raise self._fault(*first, hints.CLOSE_HINT) from first[0]

    # Expiry

    def evict(self, table: Table) -> EvictionResult:
        """Move every expired window into the trash, by the names of folders alone.

        Rows of such a window in memory are discarded. Appends continue: none can create such a window again.
        """
        logs = self._open_logs(table)
        cutoff_ms = self._clock.now_us() // 1_000 - _ttl_seconds(table) * 1_000
        with self._disk_errors(logs.folder, hints.EVICT_HINT):
            with logs.lock:
                writers = logs.close_windows(cutoff_ms)
            return EvictionResult(logs.remove_windows(logs.expired(cutoff_ms)), writers)

    def sweep(self, files_max: int | None = None) -> SweepResult:
        """Unlink the files in the trash one by one, without a lock; at most `files_max` of them.

        Tries all of it, then raises StorageFailed for the first that could not be removed.
        """
        files = 0
        first: tuple[OSError, str] | None = None
        for root in sorted(self._roots):
            try:
                for _ in self._trash.sweep(root):
                    files += 1
                    if self._is_closed.is_set() or files == files_max:
                        return SweepResult(files, is_done=False)
            except OSError as problem:
                first = first or (problem, root)
        if first is not None:
            raise self._fault(*first, hints.EVICT_HINT) from first[0]
        return SweepResult(files, is_done=True)

    # Tables

    def open_table(self, table: Table) -> None:
        """Create the table's folder unless it exists; that of an older table of this name is removed."""
        self._open_logs(table)

    def drop(self, table: Table) -> None:
        """Move the table's folder into the trash; later calls with this table raise TableChanged."""
        with self._lock:
            known = self._tables.get((table.tenant, table.namespace, table.name))
            if known is not None and known.id > table.id:
                return  # it was created again and has taken over the folder
            logs = self._logs_of(table)
            with logs.lock:
                logs.retire()
                with self._disk_errors(logs.folder, hints.DROP_HINT):
                    if logs.owns_folder():
                        self._trash.take(logs.root, logs.folder)

    def drop_others(self, tenant: str, tables: Iterable[Table]) -> int:
        """Move folders that belong to none of the tenant's streams into the trash; return how many.

        Called at the start, before any append: a kill can leave the folder of a table that was dropped.
        """
        root = str(self._root_of(tenant))
        own_folders = {f"{root}/{table.namespace}/{table.name}" for table in tables}
        self._roots.add(root)
        with self._disk_errors(root, hints.LOOK_HINT):
            spaces = [f"{root}/{name}" for name, size in self._disk.entries(root) if size is None]
            found = [f"{space}/{name}" for space in spaces for name in self._disk.names(space)]
            others = [folder for folder in found if folder not in own_folders and f"/{TRASH}/" not in folder]
            return sum(self._trash.take(root, folder) for folder in others)

    def describe(self, table: Table) -> list[WindowStats]:
        """Return the table's windows with their files and bytes on the disk, the oldest first."""
        logs = self._open_logs(table)
        with self._disk_errors(logs.folder, hints.LOOK_HINT):
            return logs.describe()

    def _open_logs(self, table: Table) -> TableLogs:
        """Return the logs of a table; TableChanged if it was dropped or a later one has its name."""
        logs = self._tables.get((table.tenant, table.namespace, table.name))
        if logs is not None and logs.id == table.id and logs.is_open:
            return logs
        _ttl_seconds(table)
        with self._lock:
            logs = self._logs_of(table)
            with self._disk_errors(logs.folder, hints.LOOK_HINT), logs.lock:
                logs.open()
            return logs

    def _logs_of(self, table: Table) -> TableLogs:
        name = (table.tenant, table.namespace, table.name)
        logs = self._tables.get(name)
        if logs is not None and logs.id > table.id:
            raise TableChanged(table=table.full_name)
        if logs is None or logs.id < table.id:
            if logs is not None:
                with logs.lock:
                    logs.retire()
            logs = self._tables[name] = TableLogs(
                table, str(self._root_of(table.tenant)), self._table_context
            )
            self._roots.add(logs.root)
        return logs

    def _reader(self, table: Table) -> PayloadReader:
        known = self._readers.get(table.id)
        if known is None or known[0] != table:
            known = self._readers[table.id] = (table, PayloadReader(table))
        return known[1]

    # The disk

    @contextmanager
    def _locked(self, logs: TableLogs, hint: str) -> Iterator[None]:
        with logs.lock:
            if logs.is_gone:
                raise TableChanged(table=logs.name)
            try:
                yield
            except OSError as problem:
                raise self._fault(problem, logs.folder, hint) from problem

    @contextmanager
    def _disk_errors(self, path: str, hint: str) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise self._fault(problem, path, hint) from problem

    def _check_room(self, logs: TableLogs) -> None:
        if self._is_closed.is_set():
            raise NotReady(reason="the streams are closed")
        try:
            if self._free_bytes_min:
                free_bytes = self._disk.free_bytes(logs.root)
                if free_bytes < self._free_bytes_min:
                    raise StorageFull(path=logs.root, free_bytes=free_bytes)
            self._slots.retry_full()
        except OSError as problem:
            raise self._fault(problem, logs.root, hints.WRITE_HINT) from problem

    def _sync(self, table: Table, written: AppendedFrame) -> None:
        if table.durability is not Durability.FSYNC:
            return
        try:
            written.log.sync(written.stop, written.generation)
        except OSError as problem:
            raise StorageFailed(
                path=written.log.path,
                reason=problem.strerror or str(problem),
                hint="Read whether it is there.",
            ) from problem

    def _fault(self, problem: OSError, path: str, hint: str) -> StorageFull | StorageFailed:
        return disk_error(Path(path), problem, hint=hint)


def _ttl_seconds(table: Table) -> int:
    if not table.ttl_seconds or table.ttl_seconds < 0:
        raise RequestInvalid(reason=f"'{table.full_name}' has no time to live, and a stream needs one.")
    return table.ttl_seconds


def _number(value: object) -> int:
    if isinstance(value, int):
        return value
    raise RequestInvalid(reason="A row to delete must be given whole, with its number and its time.")
