"""The watch over one statement: why it was stopped, and whether it has to be.

A statement is stopped at its time limit, by `Watch.stop`, or by the stopper of its caller's context. To stop
it, its process is asked to interrupt it; a process that does not answer within `KILL_AFTER_SECONDS` is
killed (`ChildPool`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar

from tidegate.errors import TidegateError


class Stopper:
    """Stops what one caller runs, now and from now on; any thread may call it.

    It belongs to a context (`contextvars`): all statements that are run in it are stopped, however deep they
    are called.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: set[Watch] = set()
        self._error: TidegateError | None = None

    def enter(self) -> None:
        """Set this as the stopper of the current context."""
        _stopper.set(self)

    def stop(self, error: TidegateError) -> None:
        """Cancel the statements that run; they, and all that begin later, raise this error."""
        with self._lock:
            self._error = self._error or error
            watches = list(self._watches)
        for watch in watches:
            watch.stop(error)

    def add(self, watch: Watch) -> None:
        """Add a statement; it is cancelled at once where the stopper has stopped."""
        with self._lock:
            self._watches.add(watch)
            error = self._error
        if error is not None:
            watch.stop(error)

    def discard(self, watch: Watch) -> None:
        """Remove a statement that ended."""
        with self._lock:
            self._watches.discard(watch)


_stopper: ContextVar[Stopper | None] = ContextVar("stopper", default=None)


class Watch:
    """One statement, from its begin to its end; `interrupt` is called once, when it is stopped."""

    def __init__(self, seconds: Callable[[], float], limit_seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._error: TidegateError | None = None
        self._interrupt: Callable[[], None] | None = None
        self._stopper = _stopper.get()
        self.limit_seconds = limit_seconds
        self.ends_at_seconds = seconds() + limit_seconds
        self.stopped_at_seconds: float | None = None

    def begin(self, interrupt: Callable[[], None]) -> None:
        """Begin: from now on the statement can be stopped."""
        self._interrupt = interrupt
        if self._stopper is not None:
            self._stopper.add(self)

    def end(self) -> None:
        """End: `stop` does nothing any more."""
        if self._stopper is not None:
            self._stopper.discard(self)
        with self._lock:
            self._interrupt = None

    @property
    def is_stopped(self) -> bool:
        """Whether the statement was stopped."""
        return self._error is not None

    def stop(self, error: TidegateError) -> None:
        """Stop the statement; `check` raises this error. Later calls and those after the end do nothing."""
        with self._lock:
            interrupt, self._interrupt = self._interrupt, None
            if interrupt is None:
                return
            self._error = error
            self.stopped_at_seconds = self._seconds()
        interrupt()

    def check(self) -> None:
        """Raise the error with which the statement was stopped, if it was."""
        if self._error is not None:
            raise self._error
