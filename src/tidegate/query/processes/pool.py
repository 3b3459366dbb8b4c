"""The pool of child processes that run statements: warm ones for the next, dead ones replaced.

A child is generic until its first statement and belongs to one owner (the lake of a tenant) from then on:
nothing of one tenant is in the memory of a process that serves another. One thread, the monitor, looks at all
statements that run, every `TICK_SECONDS`:

1. over its time limit: the statement is stopped, which asks the child to interrupt it;
2. stopped, and still no answer after `KILL_AFTER_SECONDS`: the child gets SIGKILL;
3. more private memory than the limit and some slack: SIGKILL, and the caller gets QueryMemory.

A child is used again only after a session that ended in order, was not stopped, and left it small. A killed
child costs nobody a wait: the monitor has a spare one ready.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tidegate.errors import QueryCrashed, QueryMemory, QueryTimeout
from tidegate.model.clock import SystemClock
from tidegate.query.processes.channel import Channel, ChannelClosed, ChannelFrame
from tidegate.query.processes.child import QueryChild
from tidegate.query.processes.fork_server import ForkServer
from tidegate.query.processes.watch import Watch

log = logging.getLogger(__name__)

TICK_SECONDS = 0.05
# From the moment a statement is stopped; most end within milliseconds.
KILL_AFTER_SECONDS = 2.0
# Ticks without a statement before the monitor sleeps: waking it costs more than a few idle ticks.
IDLE_TICKS = 40
# Beyond the limit that the database itself observes: libraries, results on their way, what it does not count.
SLACK_MB = 256
# A child that still has so much memory after a statement is replaced.
RETAINED_MB_MAX = 384
# Before a child is started again that could not be.
RETRY_SECONDS = 1.0
# Idle children that belong to an owner; each has some 30 MB of its own.
IDLE_MAX = 8
BYTES_PER_MB = 1024 * 1024


class ChildSession:
    """A child that runs one statement for one thread; every call raises what stopped the statement."""

    def __init__(self, child: QueryChild, watch: Watch, memory_mb: int) -> None:
        self.watch = watch
        # Whether the child has no owner yet.
        self.is_new = child.owner is None
        self.is_finished = False
        self.killed_for = ""
        self.child = child
        self._memory_mb = memory_mb
        self._is_waiting = False

    def spill_below(self, folder: Path) -> Path:
        """Return a folder of this child alone; it is removed with the child."""
        self.child.spill_path = folder / str(self.child.pid)
        return self.child.spill_path

    def post(self, kind: int, content: bytes | bytearray | memoryview, fd: int | None = None) -> None:
        """Send a frame that has no answer."""
        with self._guarded():
            self.child.channel.send(kind, content, fd)

    def call(self, kind: int, content: bytes | bytearray | memoryview, fd: int | None = None) -> ChannelFrame:
        """Send a frame and return the first frame of its answer."""
        with self._guarded():
            self.child.channel.send(kind, content, fd)
            return self.child.channel.receive()

    def receive(self) -> ChannelFrame:
        """Return the next frame of an answer."""
        with self._guarded():
            return self.child.channel.receive()

    def finish(self, kind: int) -> None:
        """Send that the statement is over; every answer was read, so it can serve another."""
        with suppress(ChannelClosed):
            self.child.channel.send(kind, b"")
            self.is_finished = True

    def look(self, now_seconds: float) -> None:
        """Stop or kill the statement where it is over a limit; called by the monitor."""
        if now_seconds >= self.watch.ends_at_seconds:
            self.watch.stop(QueryTimeout(limit_seconds=self.watch.limit_seconds))
        if not self._is_waiting:
            return
        stopped = self.watch.stopped_at_seconds
        if self.child.private_bytes() > (self._memory_mb + SLACK_MB) * BYTES_PER_MB:
            self.killed_for = "memory"
            self.watch.stop(QueryMemory(memory_mb=self._memory_mb))
            self.child.kill()
        elif stopped is not None and now_seconds >= stopped + KILL_AFTER_SECONDS:
            self.killed_for = "time"
            self.child.kill()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        self.watch.check()
        self._is_waiting = True
        try:
            yield
        except ChannelClosed as error:
            self.watch.check()
            self.killed_for = self.killed_for or "crash"
            raise QueryCrashed(reason="it ended without an answer") from error
        finally:
            self._is_waiting = False


class ChildPool:
    """Children for statements; any thread may use it."""

    def __init__(self, fork_server: ForkServer, seconds: Callable[[], float]) -> None:
        self.seconds = seconds
        # Children that were started, and those that ended, by reason: see `docs/operate/metrics.md`.
        self.counts: Counter[str] = Counter()
        self._fork_server = fork_server
        self._changed = threading.Condition()
        self._spare: QueryChild | None = None
        self._idle: list[QueryChild] = []
        self._running: set[ChildSession] = set()
        self._is_started = self._is_asleep = self._is_closed = False
        self._refill_at_seconds = seconds()

    def warm(self) -> None:
        """Have the fork server and a spare child started; does not wait for them."""
        with self._changed:
            self._wake()

    @property
    def running_count(self) -> int:
        """The number of children that run a statement."""
        return len(self._running)

    @property
    def idle_count(self) -> int:
        """The number of children that wait for one."""
        return len(self._idle) + (self._spare is not None)

    def private_bytes(self) -> int:
        """Return the memory of all children that they do not share."""
        with self._changed:
            children = [*self._idle, *(session.child for session in self._running)]
            if self._spare is not None:
                children.append(self._spare)
        return sum(child.private_bytes() for child in children)

    @contextmanager
    def session(self, owner: Hashable, watch: Watch, memory_mb: int) -> Iterator[ChildSession]:
        """Yield a session with a child of an owner, or with a new one; raise what stopped it."""
        child = self._acquire(owner)
        session = ChildSession(child, watch, memory_mb)
        child.owner = owner
        watch.begin(child.interrupt)
        with self._changed:
            self._running.add(session)
            self._wake()
        try:
            yield session
        finally:
            watch.end()
            with self._changed:
                self._running.discard(session)
            self._release(session, child)

    def drop(self, owner: Hashable) -> None:
        """End the idle children of an owner."""
        with self._changed:
            dropped = [child for child in self._idle if child.owner == owner]
            self._idle = [child for child in self._idle if child.owner != owner]
        for child in dropped:
            self._end(child, "retired")

    def close(self) -> None:
        """End all children, those that run a statement too, and the fork server; no session can begin."""
        with self._changed:
            self._is_closed = True
            children = [*self._idle, *([] if self._spare is None else [self._spare])]
            self._idle, self._spare = [], None
            self._is_asleep = False
            self._changed.notify_all()
        for child in children:
            child.end()
        self._fork_server.close()

    def _acquire(self, owner: Hashable) -> QueryChild:
        child = self._take(owner)
        while child is not None:
            if child.is_alive():
                return child
            self._end(child, "crash")
            child = self._take(owner)
        return self._start()

    def _take(self, owner: Hashable) -> QueryChild | None:
        """Return an idle child of the owner, else the spare one, if there is any."""
        with self._changed:
            # The one that has been idle longest: the newest may still prepare its next session.
            for child in self._idle:
                if child.owner == owner:
                    self._idle.remove(child)
                    return child
            spare, self._spare = self._spare, None
        return spare

    def _start(self) -> QueryChild:
        pid, session, control = self._fork_server.fork()
        child = QueryChild(pid, Channel(session), Channel(control))
        self.counts["started"] += 1
        return child

    def _release(self, session: ChildSession, child: QueryChild) -> None:
        is_used_again = (
            session.is_finished
            and not session.watch.is_stopped
            and child.private_bytes() <= RETAINED_MB_MAX * BYTES_PER_MB
        )
        if not is_used_again:
            if session.killed_for:
                log.warning("query process killed pid=%d reason=%s", child.pid, session.killed_for)
            self._end(child, session.killed_for or ("stopped" if session.watch.is_stopped else "retired"))
            return
        with self._changed:
            self._idle.append(child)
            extra = self._idle.pop(0) if len(self._idle) > IDLE_MAX or self._is_closed else None
        if extra is not None:
            self._end(extra, "retired")

    def _end(self, child: QueryChild, reason: str) -> None:
        self.counts[reason] += 1
        child.close()

    def _wake(self) -> None:
        """Have the monitor run; called with the lock."""
        if not self._is_started:
            self._is_started = True
            threading.Thread(target=self._run_monitor, name="query-monitor", daemon=True).start()
        elif self._is_asleep:
            self._is_asleep = False
            self._changed.notify_all()

    def _run_monitor(self) -> None:
        pause, quiet_ticks = threading.Event(), 0
        while True:
            if self._spare is None and self.seconds() >= self._refill_at_seconds:
                self._refill()
            with self._changed:
                running = list(self._running)
                quiet_ticks = 0 if running else quiet_ticks + 1
                if quiet_ticks > IDLE_TICKS:
                    self._is_asleep, quiet_ticks = True, 0
                    while self._is_asleep:
                        self._changed.wait()
                if self._is_closed:
                    return
            now_seconds = self.seconds()
            for session in running:
                session.look(now_seconds)
            pause.wait(TICK_SECONDS)

    def _refill(self) -> None:
        try:
            child = self._start()
        except (QueryCrashed, OSError) as error:
            if self._is_closed:
                return
            log.warning("no spare query process error=%r", str(error))
            self._refill_at_seconds = self.seconds() + RETRY_SECONDS
            return
        with self._changed:
            if self._spare is None and not self._is_closed:
                self._spare = child
                return
        self._end(child, "retired")


def shared_pool(module: str) -> ChildPool:
    """Return the pool of this process for children of a module; it ends with this process."""
    return _pool(module, os.getpid())


def close_shared_pool(module: str) -> None:
    """End the pool of this process for children of a module; the next call of `shared_pool` opens another."""
    _pool(module, os.getpid()).close()
    _pool.cache_clear()


@functools.cache
def _pool(module: str, of_process: int) -> ChildPool:
    # A fork of this process has neither its monitor nor a right to its children.
    log.debug("query pool opened pid=%d", of_process)
    return ChildPool(ForkServer(module), SystemClock().monotonic_seconds)
