"""The store of all STREAM tables of a home: takes rows of users, gives them back while they live.

Threads: any; calls block on files, so they do not belong on an event loop. It starts no thread: someone calls
`flush` more often than the flush interval, and `evict` and `sweep` now and then.
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
from tidegate.streams import disk as faults
from tidegate.streams.corruption import DamageDesk, loss_warning_of, warning_of
from tidegate.streams.disk import StreamDisk
from tidegate.streams.folders import Folders
from tidegate.streams.frame_reader import Damage
from tidegate.streams.payload_codec import PayloadReader, deletes_batch, rows_batch
from tidegate.streams.reader import LogReader, Wanted
from tidegate.streams.shards import check_stream_user
from tidegate.streams.table_log import (
    Appended,
    Evicted,
    StreamRows,
    Surroundings,
    TableLogs,
    WindowShape,
    Written,
)
from tidegate.streams.trash import TRASH, Swept, Trash
from tidegate.streams.windows import parse_window
from tidegate.streams.writer_pool import WriterSlots

Notify = Callable[[list[Row]], None] | None
Before = Callable[[], None] | None


class StreamStore:
    """Appends, reads and expires the rows of streams; `root_of` gives the folder of a tenant's streams."""

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
        self._desk = DamageDesk()
        self._slots = WriterSlots(settings.writers_max)
        self._trash = Trash(self._disk, ids)
        self._around = Surroundings(
            *(self._disk, clock, ids, self._slots, self._trash, Folders(self._disk)),
            *(settings.buffer_bytes, self._desk.tell, self._desk.tell_loss),
        )
        self._tables: dict[tuple[str, str, str], TableLogs] = {}
        self._readers: dict[int, tuple[Table, PayloadReader]] = {}
        self._lock = threading.Lock()  # guards the two above and the opening of tables; never held on reads
        self._roots: set[str] = set()
        self._is_closed = threading.Event()

    @property
    def on_damage(self) -> Callable[[Damage], None]:
        """Who is told of damage; each is told once in the life of the store."""
        return self._desk.listener

    @on_damage.setter
    def on_damage(self, listener: Callable[[Damage], None]) -> None:
        self._desk.listener = listener

    def open_writers(self) -> int:
        """Return how many logs are open for writing."""
        return len(self._slots.opened())

    # Rows

    def append(
        self, table: Table, user: str, rows: Sequence[Row], notify: Notify = None, before: Before = None
    ) -> Appended:
        """Add rows of a user, all or none, under one time; answered as the table's durability says.

        `notify` gets the whole rows under the table's lock, so appends are notified in their order. `before`
        runs under the same lock ahead of the append, and may read; what it raises refuses the append.
        StorageFull and StorageFailed: nothing of it is stored.
        """
        check_stream_user(user)
        if not rows:
            return Appended(0, ())
        batch = rows_batch(table, rows)
        logs = self._opened(table)
        self._check_room(logs)
        with self._locked(logs, faults.WRITE_HINT):
            if before is not None:
                before()
            written = logs.append(table, user, batch)
            if notify is not None:
                notify([(*row, seq, written.time_us) for row, seq in zip(rows, written.seqs, strict=True)])
        self._sync(table, written)
        return Appended(len(rows), written.seqs, written.size_bytes)

    def delete(
        self, table: Table, user: str, rows: Sequence[Row], notify: Notify = None, before: Before = None
    ) -> int:
        """Hide rows, given whole as they were read; gives how many were there still.

        A row of the same key that was added since stays. `notify` gets the hidden rows, `before` as above.
        """
        check_stream_user(user)
        if not table.primary_key:
            raise RequestInvalid(
                reason=f"Rows of '{table.full_name}' cannot be deleted one by one: it has no primary key.",
                hint="Rows of a stream go by themselves after their time to live.",
            )
        if not rows:
            return 0
        reader = self._reader(table)
        logs = self._opened(table)
        self._check_room(logs)
        with self._locked(logs, faults.WRITE_HINT):
            keys = [reader.key(row) for row in rows]
            seqs = [_number(row[-2]) for row in rows]
            places = logs.not_deleted(user, keys, seqs)
            if not places:
                return 0
            if before is not None:
                before()
            times = [_number(rows[place][-1]) for place in places]
            hidden = [(keys[place], seqs[place]) for place in places]
            batch = deletes_batch(table, hidden)
            written = logs.delete(table, user, batch, (min(times), max(times)), max(seqs))
            logs.note_deleted(user, hidden)
            if notify is not None:
                notify([rows[place] for place in places])
        self._sync(table, written)
        return len(places)

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
        """Return a user's rows that are alive, the oldest first; with `last`, that many newest, newest first.

        Row times from `start_us`, before `stop_us`. `barrier` runs under the table's lock at the moment that
        decides what is read: every append that was notified before is in, none after.
        """
        check_stream_user(user)
        logs = self._opened(table)
        reader = self._reader(table)
        with self._locked(logs, faults.LOOK_HINT):
            now_us, ttl_us = self._clock.now_us(), _ttl_seconds(table) * 1_000_000
            alive_us = max(now_us - ttl_us + 1, table.expired_before_us)
            start_us = alive_us if start_us is None else max(start_us, alive_us)
            views = logs.views(user, start_us, None if reader.is_keyed else stop_us)
            if barrier is not None:
                barrier()
        with self._telling(logs.folder, faults.LOOK_HINT):
            found = LogReader(self._disk, reader, Wanted(start_us, stop_us, last)).read(views)
        for damage in found.damages:
            self._desk.tell(damage)
        warnings = [warning_of(damage, logs.root) for damage in found.damages]
        warnings += [loss_warning_of(view.lost, logs.root) for _, view in views if view.lost is not None]
        return StreamRows(found.rows, warnings)

    # Writing out

    def flush(self, older_than_seconds: float = 0.0) -> None:
        """Write what waits in memory for that long or longer.

        Called every half flush interval with half the interval, no row waits longer than the interval. Tries
        every log, then raises StorageFull or StorageFailed for the first that could not be written.
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
            raise self._fault(*first, faults.KEPT_HINT) from first[0]

    def flush_all(self) -> None:
        """Write everything that waits in memory."""
        self.flush(0.0)

    def close(self) -> None:
        """Write everything and close every file; raises what `flush` raises, with the rest closed."""
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
            raise self._fault(*first, faults.CLOSE_HINT) from first[0]

    # Expiry

    def has_logs_before(self, table: Table, cutoff_ms: int) -> bool:
        """Return whether a window ends at or before a moment; stops at the first, and opens no file."""
        logs = self._opened(table)
        found = (parse_window(name) for name in self._disk.names(logs.folder))
        with self._telling(logs.folder, faults.LOOK_HINT):
            return any(window is not None and window.stop_ms <= cutoff_ms for window in found)

    def evict(self, table: Table) -> Evicted:
        """Move every window that is over out of sight, by the names of folders alone.

        Rows that wait in memory for such a window go with it. Appends go on: none can bring one back.
        """
        logs = self._opened(table)
        cutoff_ms = self._clock.now_us() // 1_000 - _ttl_seconds(table) * 1_000
        with self._telling(logs.folder, faults.EVICT_HINT):
            with logs.lock:
                writers = logs.close_windows(cutoff_ms)
            return Evicted(logs.remove_windows(logs.expired(cutoff_ms)), writers)

    def sweep(self, files_max: int | None = None) -> Swept:
        """Unlink what went out of sight, file by file, without a lock; at most `files_max` of them.

        Tries all of it, then raises StorageFailed for the first that could not be removed.
        """
        files = 0
        first: tuple[OSError, str] | None = None
        for root in sorted(self._roots):
            try:
                for _ in self._trash.sweep(root):
                    files += 1
                    if self._is_closed.is_set() or files == files_max:
                        return Swept(files, is_done=False)
            except OSError as problem:
                first = first or (problem, root)
        if first is not None:
            raise self._fault(*first, faults.EVICT_HINT) from first[0]
        return Swept(files, is_done=True)

    # Tables

    def open_table(self, table: Table) -> None:
        """Make the table's folder unless it is there; that of an older table of this name goes away."""
        self._opened(table)

    def drop(self, table: Table) -> None:
        """Move the table's folder out of sight; later calls with this table raise TableChanged."""
        with self._lock:
            known = self._tables.get((table.tenant, table.namespace, table.name))
            if known is not None and known.id > table.id:
                return  # it was made again, and its folder taken over, before this came
            logs = self._logs_of(table)
            with logs.lock:
                logs.retire()
                with self._telling(logs.folder, faults.DROP_HINT):
                    if logs.owns_folder():
                        self._trash.take(logs.root, logs.folder)

    def drop_others(self, tenant: str, tables: Iterable[Table]) -> int:
        """Move folders out of sight that belong to none of the tenant's streams; gives how many.

        For the start, before anything is appended: a kill can come between the end of a table and the end of
        its folder.
        """
        root = str(self._root_of(tenant))
        kept = {f"{root}/{table.namespace}/{table.name}" for table in tables}
        self._roots.add(root)
        with self._telling(root, faults.LOOK_HINT):
            spaces = [f"{root}/{name}" for name, size in self._disk.entries(root) if size is None]
            found = [f"{space}/{name}" for space in spaces for name in self._disk.names(space)]
            others = [folder for folder in found if folder not in kept and f"/{TRASH}/" not in folder]
            return sum(self._trash.take(root, folder) for folder in others)

    def describe(self, table: Table) -> list[WindowShape]:
        """List the table's windows with their files and bytes on the disk, the oldest first."""
        logs = self._opened(table)
        with self._telling(logs.folder, faults.LOOK_HINT):
            return logs.describe()

    def _opened(self, table: Table) -> TableLogs:
        """Return the logs of a table; TableChanged when it was dropped or a later one has its name."""
        logs = self._tables.get((table.tenant, table.namespace, table.name))
        if logs is not None and logs.id == table.id and logs.is_open:
            return logs
        _ttl_seconds(table)
        with self._lock:
            logs = self._logs_of(table)
            with self._telling(logs.folder, faults.LOOK_HINT), logs.lock:
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
            logs = self._tables[name] = TableLogs(table, str(self._root_of(table.tenant)), self._around)
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
    def _telling(self, path: str, hint: str) -> Iterator[None]:
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
            raise self._fault(problem, logs.root, faults.WRITE_HINT) from problem

    def _sync(self, table: Table, written: Written) -> None:
        if table.durability is not Durability.FSYNC:
            return
        try:
            written.log.sync(written.stop, written.life)
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
