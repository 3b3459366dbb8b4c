"""How this client waits and takes turns. Its twin, synchronous/waiting.py, is written by hand as well."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from asyncio import Event, Lock, sleep, timeout
from collections.abc import Callable, Coroutine
from typing import Any

from tidegate.errors import RequestInvalid

__all__ = ["BackgroundTask", "Lock", "StopEvent", "WakeSignal", "called", "check_function", "sleep"]

NO_WORK = (
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

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until it is over."""
        with contextlib.suppress(TimeoutError):
            async with timeout(seconds):
                await self._event.wait()


class WakeSignal:
    """Wakes whoever waits for it, at least one; a ring that nobody waits for wakes the next who does.

    Threads and signal handlers may ring it as well.
    """

    def __init__(self) -> None:
        self._event = Event()
        self._loop = asyncio.get_running_loop()
        self._is_rung = False

    def ring(self) -> None:
        """Wake whoever waits, or comes to wait."""
        if self._is_rung:  # and nobody has been there since
            return
        self._is_rung = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for a ring, or so long; it may be woken for nothing, so look whether there is something."""
        with contextlib.suppress(TimeoutError):
            async with timeout(seconds):
                await self._event.wait()
        self._is_rung = False
        self._event.clear()


class BackgroundTask:
    """Work that goes on beside its caller."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._task = asyncio.create_task(work(), name=name)

    async def join(self) -> None:
        """Wait until it has ended by itself; what it raised is raised here."""
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def cancel(self) -> None:
        """Break it off, and wait until it is."""
        self._task.cancel()
        await asyncio.wait([self._task])


def check_function(function: Callable[..., Any]) -> None:
    """Refuse a function whose call does not do its work: the message would be acknowledged undone."""
    for test, what, hint in NO_WORK:
        if test(function):
            raise RequestInvalid(reason=f"The function of an agent is {what}.", hint=hint)


async def called(function: Callable[..., Any], argument: object) -> Any:
    """Call a function, and wait for what it gives if that is to be waited for."""
    result = function(argument)
    return await result if inspect.isawaitable(result) else result
