"""How this client waits and takes turns. Its twin, asynchronous/waiting.py, is written by hand as well."""

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

__all__ = ["BackgroundTask", "Lock", "StopEvent", "WakeSignal", "called", "check_function", "sleep"]

NO_WORK = (
    (inspect.iscoroutinefunction, "an `async def`", "Take connect_async() for it, or write a plain `def`."),
    (inspect.isgeneratorfunction, "a generator", "Return one answer instead of yielding."),
    (inspect.isasyncgenfunction, "a generator", "Return one answer instead of yielding."),
)


class StopEvent:
    """Whether something is over; whoever pauses meanwhile is woken by it."""

    def __init__(self) -> None:
        self._event = Event()

    def is_set(self) -> bool:
        """Return whether it is over."""
        return self._event.is_set()

    def set(self) -> None:
        """End it."""
        self._event.set()

    def pause(self, seconds: float) -> None:
        """Wait so long, or until it is over."""
        self._event.wait(seconds)


class WakeSignal:
    """Wakes whoever waits for it, at least one; a ring that nobody waits for wakes the next who does.

    Threads and signal handlers may ring it as well. That is why it is a queue: a handler that sets an Event
    waits for ever when it interrupted someone who is just looking at the same Event.
    """

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake whoever waits, or comes to wait."""
        if self._rings.empty():
            self._rings.put(None)

    def wait(self, seconds: float | None = None) -> None:
        """Wait for a ring, or so long; it may be woken for nothing, so look whether there is something."""
        with contextlib.suppress(Empty):
            self._rings.get(timeout=WAKE_SECONDS if seconds is None else seconds)


class BackgroundTask:
    """Work that goes on beside its caller."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._problem: BaseException | None = None
        self._work = work
        # A program that ends without a word is not held up by it.
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until it has ended by itself; what it raised is raised here."""
        while self._thread.is_alive():
            self._thread.join(WAKE_SECONDS)
        if self._problem is not None:
            raise self._problem

    def cancel(self) -> None:
        """Do nothing: a thread cannot be broken off, and ends with the program."""

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as problem:  # noqa: BLE001 - raised where it is waited for
            self._problem = problem


def check_function(function: Callable[..., Any]) -> None:
    """Refuse a function whose call does not do its work: the message would be acknowledged undone."""
    for test, what, hint in NO_WORK:
        if test(function):
            raise RequestInvalid(reason=f"The function of an agent is {what}.", hint=hint)


def called(function: Callable[..., Any], argument: object) -> Any:
    """Call a function; one that gives something to await has not done its work."""
    result = function(argument)
    if inspect.isawaitable(result):
        raise RequestInvalid(reason="The function gave something to await.", hint="Take connect_async().")
    return result
