"""The pool of local stores that a worker holds open while no task uses them.

Another worker of this machine that needs one uses it over a connection (ipc_server.py), or requests its lock
(lock.py) and gets it closed.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.checkpoint.local.ipc import Connection, ConnectionLost, accept, address_of, listen
from tidegate.checkpoint.local.ipc_server import PROTOCOL, end_session, serve
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.checkpoint.local.store import LocalStore

log = logging.getLogger(__name__)

# Stores that one worker holds open without using them; each has file descriptors and a memtable.
IDLE_STORES_MAX = 16
# A worker that serves runs a task of its own at the same time: a client waits so long for its turn, at most.
TURN_SECONDS_MAX = 0.001


class LocalStorePool:
    """The stores that this worker holds open while no task uses them; safe for any thread.

    One thread listens for other workers' requests, and each session has one. They start with the first store
    that is put in, never at import: workers are forked, and threads are not.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._idle: OrderedDict[Path, LocalStore] = OrderedDict()
        self._wake: tuple[int, int] | None = None
        self._listening: socket.socket | None = None
        self._address = b""

    def take(self, folder: Path) -> LocalStore | None:
        """Remove an open store from the pool and return it, to one task alone."""
        with self._mutex:
            local = self._idle.pop(folder, None)
        if local is not None and local.lock.is_lost():
            log.warning("store removed under this worker folder=%s", folder)
            _release(local)
            return None
        return local

    def put(self, local: LocalStore) -> None:
        """Hold a store open, unless its lock is requested; of too many, the least recently used is closed."""
        if local.lock.is_requested():
            local.release()
            return
        extra = None
        with self._mutex:
            self._idle[local.folder] = local
            if len(self._idle) > IDLE_STORES_MAX:
                _, extra = self._idle.popitem(last=False)
            wake = self._start()
            local.lock.write_address(self._address if local.is_served else b"")
        try:
            os.write(wake, b"!")
        except BlockingIOError:  # the listener has enough to wake it
            pass
        if extra is not None:
            _release(extra)

    def close(self) -> None:
        """Close all stores of the pool."""
        with self._mutex:
            idle = list(self._idle.values())
            self._idle.clear()
        for local in idle:
            _release(local)

    def abandon(self) -> None:
        """Drop what a fork copied, without closing it: the parent has it open.

        The stores stay referenced for the life of this worker, so that no destructor writes to their files.
        """
        self._mutex = threading.Lock()
        if self._listening is not None:
            self._listening.close()
        for local in self._idle.values():
            local.lock.forget()
        _ABANDONED.append(self)

    def _start(self) -> int:
        """Start listening, once, and return the descriptor that wakes the listener."""
        if self._wake is None:
            self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self._listening = listen()
            if self._listening is not None:
                self._address = address_of(self._listening)
            threading.Thread(target=self._listen, name="state-stores", daemon=True).start()
        return self._wake[1]

    def _listen(self) -> None:
        while True:
            for folder in self._wait():
                local = self.take(folder)
                if local is not None:
                    _release(local)

    def _wait(self) -> list[Path]:
        """Wait for requests or a change of the set of idle stores, and return the requested ones."""
        with self._mutex:
            folders = {local.lock.request_fd: folder for folder, local in self._idle.items()}
            wake = self._wake[0] if self._wake else -1
        poll = select.poll()
        for fd in (wake, *folders):
            poll.register(fd, select.POLLIN)
        calls = self._listening.fileno() if self._listening is not None else None
        if calls is not None:
            poll.register(calls, select.POLLIN)
        ready = [fd for fd, _ in poll.poll()]
        if wake in ready:
            os.read(wake, 4096)
        if calls in ready and self._listening is not None:
            connection = accept(self._listening)
            if connection is not None:
                arguments = (connection,)
                threading.Thread(
                    target=self._serve, args=arguments, name="state-session", daemon=True
                ).start()
        return [folders[fd] for fd in ready if fd in folders]

    def _serve(self, connection: Connection) -> None:
        """Serve a store to another worker, if it is idle, until that one is done or gone."""
        local: LocalStore | None = None
        stays_open = is_done = False
        try:
            protocol, folder, open_options = connection.receive()
            local = self.take(Path(folder)) if protocol == PROTOCOL else None
            if local is not None and local.open_options != open_options:
                self.put(local)
                local = None
            connection.send((local is not None,))
            if local is not None:
                sys.setswitchinterval(min(sys.getswitchinterval(), TURN_SECONDS_MAX))
                stays_open = serve(local.backend, connection)
                is_done = True
        except ConnectionLost as lost:
            log.info("store client lost error=%s", lost)
        finally:
            if local is not None and stays_open:
                self.put(local)
            elif local is not None:
                _release(local)
            # Sent to a client that waits for something else, it would be taken for that answer.
            end_session(connection, is_awaited=is_done)


def _release(local: LocalStore) -> None:
    try:
        local.release()
    except TidegateError as problem:
        log.warning("store not closed cleanly folder=%s error=%s", local.folder, problem)


_ABANDONED: list[LocalStorePool] = []
_POOLS: list[LocalStorePool] = []
_POOLS_MUTEX = threading.Lock()


def pool() -> LocalStorePool:
    """Return this worker's pool of open stores."""
    with _POOLS_MUTEX:
        if not _POOLS:
            _POOLS.append(LocalStorePool())
        return _POOLS[0]


def _after_fork() -> None:
    for old in _POOLS:
        old.abandon()
    _POOLS.clear()


os.register_at_fork(after_in_child=_after_fork)
