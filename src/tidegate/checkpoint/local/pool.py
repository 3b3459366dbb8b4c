"""The copies that a worker keeps open while no task uses them: takes and gives copies, lends them to others.

Another worker of this machine that needs a copy borrows it over a line (lending.py), or asks for it through
its pipe (claims.py) and gets it closed.
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

from tidegate.checkpoint.local.ipc import Line, LineLost, accept, address_of, listen
from tidegate.checkpoint.local.ipc_server import LANGUAGE, end_loan, lend
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.checkpoint.local.store import LocalCopy

log = logging.getLogger(__name__)

# Copies that one worker keeps open without using them; each holds file descriptors and a memtable.
IDLE_COPIES_MAX = 16
# A worker that lends has a task of its own at the same time: a borrower waits so long for its turn, at most.
TURN_SECONDS_MAX = 0.001


class CopyPool:
    """The copies that this worker keeps open while no task uses them; safe for any thread.

    One thread listens for other workers' requests, and each loan has one. They start with the first copy that
    is put in, never at import: workers are forked, and threads are not.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._idle: OrderedDict[Path, LocalCopy] = OrderedDict()
        self._wake: tuple[int, int] | None = None
        self._listening: socket.socket | None = None
        self._address = b""

    def take(self, folder: Path) -> LocalCopy | None:
        """Return a copy that is kept open, to one task alone."""
        with self._mutex:
            copy = self._idle.pop(folder, None)
        if copy is not None and copy.held.is_lost():
            log.warning("the copy in %s was removed under this worker", folder)
            _give_up_kept(copy)
            return None
        return copy

    def put(self, copy: LocalCopy) -> None:
        """Keep a copy open, unless somebody asked for it; of too many, the one unused longest goes."""
        if copy.held.is_wanted():
            copy.give_up()
            return
        extra = None
        with self._mutex:
            self._idle[copy.folder] = copy
            if len(self._idle) > IDLE_COPIES_MAX:
                _, extra = self._idle.popitem(last=False)
            wake = self._start()
            copy.held.note(self._address if copy.is_served else b"")
        try:
            os.write(wake, b"!")
        except BlockingIOError:  # the listener has enough to wake it
            pass
        if extra is not None:
            _give_up_kept(extra)

    def close(self) -> None:
        """Close all copies that are kept open."""
        with self._mutex:
            idle = list(self._idle.values())
            self._idle.clear()
        for copy in idle:
            _give_up_kept(copy)

    def abandon(self) -> None:
        """Drop what a fork copied, without closing it: the parent has it open.

        The copies stay referenced for the life of this worker, so that no destructor writes to their files.
        """
        self._mutex = threading.Lock()
        if self._listening is not None:
            self._listening.close()
        for copy in self._idle.values():
            copy.held.forget()
        _ABANDONED.append(self)

    def _start(self) -> int:
        """Start listening, once; give what wakes the listener."""
        if self._wake is None:
            self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self._listening = listen()
            if self._listening is not None:
                self._address = address_of(self._listening)
            threading.Thread(target=self._listen, name="state-copies", daemon=True).start()
        return self._wake[1]

    def _listen(self) -> None:
        while True:
            asked = self._wait()
            for folder in asked:
                copy = self.take(folder)
                if copy is not None:
                    _give_up_kept(copy)

    def _wait(self) -> list[Path]:
        """Wait until a copy that is kept is asked for, or the set of kept ones changed."""
        with self._mutex:
            folders = {copy.held.request_fd: folder for folder, copy in self._idle.items()}
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
            line = accept(self._listening)
            if line is not None:
                threading.Thread(target=self._lend, args=(line,), name="state-loan", daemon=True).start()
        return [folders[fd] for fd in ready if fd in folders]

    def _lend(self, line: Line) -> None:
        """Lend a copy to another worker, if it is idle, until that one is done or gone."""
        copy: LocalCopy | None = None
        is_kept = is_over = False
        try:
            language, folder, opened_as = line.receive()
            copy = self.take(Path(folder)) if language == LANGUAGE else None
            if copy is not None and copy.opened_as != opened_as:
                self.put(copy)
                copy = None
            line.send((copy is not None,))
            if copy is not None:
                sys.setswitchinterval(min(sys.getswitchinterval(), TURN_SECONDS_MAX))
                is_kept = lend(copy.backend, line)
                is_over = True
        except LineLost as lost:
            log.info("a borrower is gone: %s", lost)
        finally:
            if copy is not None and is_kept:
                self.put(copy)
            elif copy is not None:
                _give_up_kept(copy)
            # Said to a borrower that waits for something else, it would be taken for the answer.
            end_loan(line, is_asked=is_over)


def _give_up_kept(copy: LocalCopy) -> None:
    try:
        copy.give_up()
    except TidegateError as problem:
        log.warning("the copy in %s was not closed well: %s", copy.folder, problem)


_ABANDONED: list[CopyPool] = []
_POOLS: list[CopyPool] = []
_POOLS_MUTEX = threading.Lock()


def pool() -> CopyPool:
    """Return this worker's pool of open copies."""
    with _POOLS_MUTEX:
        if not _POOLS:
            _POOLS.append(CopyPool())
        return _POOLS[0]


def _after_fork() -> None:
    for old in _POOLS:
        old.abandon()
    _POOLS.clear()


os.register_at_fork(after_in_child=_after_fork)
