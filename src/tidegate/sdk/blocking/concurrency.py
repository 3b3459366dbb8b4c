"""Events, background threads and calls of user functions, for a client without asyncio.

The module of the same name in `sdk/_async` offers the same for asyncio; both are written by hand.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from time import sleep
from typing import Any

from tidegate.errors import RequestInvalid

# Signal handlers run in the main thread, and only when it wakes: a signal may reach another thread.
WAKE_SECONDS = 1.0

__all__ = ["BackgroundTask", "Lock", "StopEvent", "WakeSignal", "call_function", "check_function", "sleep"]

UNSUITABLE_FUNCTIONS = (
    (inspect.iscoroutinefunction, "an `async def`", "Take connect_async() for it, or write a plain `def`."),
    (inspect.isgeneratorfunction, "a generator", "Return one answer instead of yielding."),
    (inspect.isasyncgenfunction, "a generator", "Return one answer instead of yielding."),
)


class StopEvent:
    """A flag that something has ended; it interrupts pauses."""

    def __init__(self) -> None:
        self._event = Event()

    def is_set(self) -> bool:
        """True if it was set."""
        return self._event.is_set()

    def set(self) -> None:
        """Set the flag, and wake all who pause."""
        self._event.set()

    def pause(self, seconds: float) -> None:
        """Wait that long, or until the flag is set."""
        self._event.wait(seconds)


class WakeSignal:
    """Wakes at least one waiter; set while nobody waits, it wakes the next who does.

    Threads and signal handlers may set it as well. That is why it is a queue: a handler that sets an Event
    waits endlessly when it interrupted a thread that holds the lock of the same Event.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wake whoever waits, or the next who does."""
        if self._queue.empty():
            self._queue.put(None)

    def wait(self, seconds: float | None = None) -> None:
        """Wait until it is set, or that long; spurious wakeups happen, so check the condition again."""
        with contextlib.suppress(Empty):
            self._queue.get(timeout=WAKE_SECONDS if seconds is None else seconds)


class BackgroundTask:
    """A thread beside its caller."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._problem: BaseException | None = None
        self._work = work
        # A daemon: it does not keep a program alive that ends without closing the client.
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until it has ended by itself; what it raised is raised here."""
        while self._thread.is_alive():
            self._thread.join(WAKE_SECONDS)
        if self._problem is not None:
            raise self._problem

    def cancel(self) -> None:
        """Do nothing: a thread cannot be cancelled, and ends with the program."""

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as problem:  # noqa: BLE001 - raised where it is waited for
            self._problem = problem


def check_function(function: Callable[..., Any]) -> None:
    """Refuse a function whose call does not run its body: the message would be acknowledged all the same."""
    for test, what, hint in UNSUITABLE_FUNCTIONS:
        if test(function):
            raise RequestInvalid(reason=f"The function of an agent is {what}.", hint=hint)


def call_function(function: Callable[..., Any], argument: object) -> Any:
    """Return what a function returns; an awaitable is refused, because its work is not done."""
    result = function(argument)
    if inspect.isawaitable(result):
        raise RequestInvalid(reason="The function gave something to await.", hint="Take connect_async().")
    return result
