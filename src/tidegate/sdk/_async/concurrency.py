"""Events, background tasks and calls of user functions, for asyncio.

The module of the same name in `sdk/blocking` offers the same for threads; both are written by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from asyncio import Event, Lock, sleep, timeout
from collections.abc import Callable, Coroutine
from typing import Any

from tidegate.errors import RequestInvalid

__all__ = ["BackgroundTask", "Lock", "StopEvent", "WakeSignal", "call_function", "check_function", "sleep"]

UNSUITABLE_FUNCTIONS = (
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

    async def pause(self, seconds: float) -> None:
        """Wait that long, or until the flag is set."""
        with contextlib.suppress(TimeoutError):
            async with timeout(seconds):
                await self._event.wait()


class WakeSignal:
    """Wakes at least one waiter; set while nobody waits, it wakes the next who does.

    Threads and signal handlers may set it as well.
    """

    def __init__(self) -> None:
        self._event = Event()
        self._loop = asyncio.get_running_loop()
        self._is_set = False

    def set(self) -> None:
        """Wake whoever waits, or the next who does."""
        if self._is_set:  # and nobody has waited since
            return
        self._is_set = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until it is set, or that long; spurious wakeups happen, so check the condition again."""
        with contextlib.suppress(TimeoutError):
            async with timeout(seconds):
                await self._event.wait()
        self._is_set = False
        self._event.clear()


class BackgroundTask:
    """A task beside its caller."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._task = asyncio.create_task(work(), name=name)

    async def join(self) -> None:
        """Wait until it has ended by itself; what it raised is raised here."""
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def cancel(self) -> None:
        """Cancel it, and wait until it has ended."""
        self._task.cancel()
        await asyncio.wait([self._task])


def check_function(function: Callable[..., Any]) -> None:
    """Refuse a function whose call does not run its body: the message would be acknowledged all the same."""
    for test, what, hint in UNSUITABLE_FUNCTIONS:
        if test(function):
            raise RequestInvalid(reason=f"The function of an agent is {what}.", hint=hint)


async def call_function(function: Callable[..., Any], argument: object) -> Any:
    """Return what a function returns, or what its awaitable does."""
    result = function(argument)
    return await result if inspect.isawaitable(result) else result
