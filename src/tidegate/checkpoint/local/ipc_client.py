"""Remote stores: a partition's local store that another worker of this machine has open, used over a socket.

A remote store is read and written where it is open (ipc_server.py). It becomes this worker's own when that is
better or has to be: it is to be rebuilt, the batch makes too many calls, a part of the batch goes into it
before the batch is published, or the server is gone. A server that goes takes what was in its memory with it,
so the store is restored to its batch again. Spark may end a server at any moment, which it takes for idle: no
batch fails for that.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tidegate.checkpoint.backend import Backend, Sizes, StateChanges, Version
from tidegate.checkpoint.local.ipc import Connection, ConnectionLost, connect
from tidegate.checkpoint.local.ipc_server import CALLS, KEEP_OPEN, PROTOCOL, RELEASE
from tidegate.checkpoint.local.lock import LOCK_NAME, FolderLock, holder_address, lock_folder
from tidegate.checkpoint.local.store import LocalDirectory, LocalStore, StoreMoved, lock_beside
from tidegate.errors import StorageFailed, from_wire

log = logging.getLogger(__name__)

# A call takes seconds where a server's disk is slow. One that takes longer is of a worker that hangs.
ANSWER_SECONDS_MAX = 60.0
# A batch with more calls reads key by key: its store is closed at the server and opened here.
CALLS_MAX = 256
# Entries of a range that one call asks for: few at first, since most readers stop early.
PAGE_ENTRIES_MIN = 16
PAGE_ENTRIES_MAX = 4_096

# The folders of operators that made too many calls; this worker uses no remote store for them again.
_TOO_MANY_CALLS: set[Path] = set()


def connect_remote(directory: LocalDirectory, folder: Path) -> LocalStore | None:
    """Return the store of a folder that another worker has open and idle; None when none serves it."""
    address = None if folder.parent in _TOO_MANY_CALLS else holder_address(folder)
    connection = None if address is None else connect(address, wait_seconds_max=ANSWER_SECONDS_MAX)
    if connection is None:
        return None
    try:
        connection.send((PROTOCOL, str(folder), repr(directory.factory)))
        is_served = connection.receive()[0]
    except ConnectionLost as lost:
        log.info("store not served folder=%s error=%s", folder, lost)
        is_served = False
    if not is_served:
        connection.close()
        return None
    now_ns = directory.clock.now_us() * 1_000
    os.utime(folder / LOCK_NAME, ns=(now_ns, now_ns))
    return RemoteStore(folder, directory, connection)


class _NoLock(FolderLock):
    """The lock of a remote store: the server holds the real one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, -1, -1)

    def release(self) -> None:
        """Nothing is held."""

    def forget(self) -> None:
        """Nothing is held."""


class RemoteStore(LocalStore):
    """A partition's store that another worker has open; after a move it is this worker's own."""

    def __init__(self, folder: Path, directory: LocalDirectory, connection: Connection) -> None:
        super().__init__(_NoLock(folder), directory, is_private=False)
        self.connection: Connection | None = connection
        # Restores the store to the batch that it was at; whoever works with it sets this.
        self.restore_again: Callable[[], object] | None = None
        self._remote = RemoteBackend(self)

    @property
    def backend(self) -> Backend:
        return self._remote if self.connection is not None else super().backend

    @property
    def is_open(self) -> bool:
        return self.connection is not None or super().is_open

    def open(self) -> Backend | None:
        return self._remote if self.connection is not None else super().open()

    def wipe(self) -> Path:
        self._take_over()
        return super().wipe()

    def close(self) -> None:
        if self.connection is None:
            super().close()

    def release(self) -> None:
        if self.connection is not None:
            self._end_session(RELEASE)
        super().release()

    def keep_open(self) -> None:
        if isinstance(self.lock, _NoLock):
            self._end_session(KEEP_OPEN)
        else:
            super().keep_open()

    def move(self) -> StoreMoved:
        """Take the store over during recovery; return StoreMoved.

        A server that is lost leaves it at an older batch than it said: the next changelog file does not fit.
        """
        self._take_over()
        return StoreMoved(str(self.folder))

    def open_here(self) -> Backend:
        """Open the store in this worker, at the batch at which the server had it."""
        self._take_over()
        if self.restore_again is not None:
            self.restore_again()
            return self.backend
        # Nothing has been read from it yet: the recovery looks at its version, and rebuilds it without one.
        backend = self.open()
        if backend is None:
            self.wipe().mkdir()
            backend = self.adopt()
        return backend

    def recover(self, lost: ConnectionLost) -> Backend:
        """Continue without the server, from what it left on the disk."""
        log.warning("store server lost folder=%s error=%s", self.folder, lost)
        self.disconnect()
        return self.open_here()

    def disconnect(self) -> None:
        """Close the connection without a word: a late answer would be taken for that of another call."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def _take_over(self) -> None:
        """Make the folder this worker's own, or use a private one in its place when that takes too long."""
        if not isinstance(self.lock, _NoLock):
            return
        self._end_session(RELEASE)
        folder = self.folder
        lock = lock_folder(folder, wait_ms_max=self._directory.wait_ms_max)
        if lock is None:
            log.warning("store in use for too long, using a private one folder=%s", folder)
            lock, self.is_private = lock_beside(folder, "private"), True
        self.lock = lock

    def _end_session(self, last: str) -> None:
        """End the session; the server has put the store back into its pool, or is gone, on return."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        try:
            connection.send((last,))
            connection.receive()
        except ConnectionLost as lost:
            log.info("server gone before its session ended folder=%s error=%s", self.folder, lost)
        connection.close()


class RemoteBackend:
    """The entries of a remote store, wherever they are open by now."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        self._calls = 0

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._read("get", key)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = self._read("get_many", keys if isinstance(keys, list) else list(keys))
        return values

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        size = PAGE_ENTRIES_MIN
        while True:
            page = self._read("page", start, stop, size)
            yield from ((key, value) for key, value in page)
            if len(page) < size:
                return
            start = page[-1][0] + b"\x00"
            size = min(size * 4, PAGE_ENTRIES_MAX)

    def pages(self, ranges: Sequence[tuple[bytes, bytes]], count_max: int) -> list[list[tuple[bytes, bytes]]]:
        pages = self._read("pages", ranges if isinstance(ranges, list) else list(ranges), count_max)
        return [[(key, value) for key, value in page] for page in pages]

    def version(self) -> Version | None:
        found = self._read("version")
        return None if found is None else Version(*found)

    def apply(self, changes: StateChanges, version: Version) -> None:
        named = (version.epoch, version.batch, version.commit_id)
        keys, values = list(changes.entries), list(changes.entries.values())  # decoded faster than a dict
        self._write("apply", changes.ranges, keys, values, named)

    def write_partly(self, changes: StateChanges) -> None:
        # From now on the store holds a part of this batch, so it is opened here first.
        store = self._store
        if store.connection is not None and store.restore_again is None:
            raise store.move()
        backend = store.backend if store.connection is None else store.open_here()
        backend.write_partly(changes)

    def snapshot(self, folder: Path) -> list[Path]:
        return [Path(path) for path in self._write("snapshot", str(folder))]

    def sizes(self) -> Sizes:
        return Sizes(*self._read("sizes"))

    def close(self) -> None:
        self._store.close()

    def _read(self, name: str, *arguments: Any) -> Any:
        """Read from the store, also when its server is lost meanwhile."""
        store = self._store
        if store.connection is None:
            return CALLS[name](store.backend, *arguments)
        self._calls += 1
        if self._calls > CALLS_MAX:
            _TOO_MANY_CALLS.add(store.folder.parent)
            return CALLS[name](store.open_here(), *arguments)
        try:
            return self._call(store.connection, name, arguments)
        except ConnectionLost as lost:
            return CALLS[name](store.recover(lost), *arguments)

    def _write(self, name: str, *arguments: Any) -> Any:
        """Write to the store; one whose server is lost meanwhile is behind, and the call fails."""
        store = self._store
        if store.connection is None:
            return CALLS[name](store.backend, *arguments)
        try:
            return self._call(store.connection, name, arguments)
        except ConnectionLost as lost:
            store.disconnect()
            if store.restore_again is None:
                raise store.move() from lost
            reason = "the worker that serves the store ended"
            raise StorageFailed(path=str(store.folder), reason=reason) from lost

    def _call(self, connection: Connection, name: str, arguments: tuple[Any, ...]) -> Any:
        connection.send((name, *arguments))
        is_done, answer = connection.receive()
        if not is_done:
            raise from_wire(answer)
        return answer
