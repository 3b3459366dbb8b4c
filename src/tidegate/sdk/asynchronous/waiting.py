"""How this client waits and takes turns. Its twin, synchronous/waiting.py, is written by hand as well."""

from __future__ import annotations

import contextlib
from asyncio import Event, Lock, sleep, timeout

__all__ = ["Ending", "Lock", "sleep"]


class Ending:
    """Whether something is over; whoever pauses meanwhile is woken by it."""

    def __init__(self) -> None:
        self._event = Event()

    def is_set(self) -> bool:
        """Say whether it is over."""
        return self._event.is_set()

    def set(self) -> None:
        """End it."""
        self._event.set()

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until it is over."""
        with contextlib.suppress(TimeoutError):
            async with timeout(seconds):
                await self._event.wait()
