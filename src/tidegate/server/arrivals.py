"""Arrivals: wakes long polls when messages become readable."""

from __future__ import annotations

import asyncio

from tidegate.topics.definitions import Topic


class Arrivals:
    """Wakes long polls when messages become readable; waiters are on one loop, notices from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiters: dict[int, set[asyncio.Future[None]]] = {}

    def notify(self, topic: Topic) -> None:
        """Say that a topic has new messages; costs nothing while nobody waits."""
        if topic.id in self._waiters:
            self._loop.call_soon_threadsafe(self._wake, topic.id)

    def wake(self, topic: Topic) -> None:
        """Wake the waiters of one topic; on the loop's thread."""
        self._wake(topic.id)

    def wake_all(self) -> None:
        """Wake every waiter; on the loop's thread."""
        for topic_id in list(self._waiters):
            self._wake(topic_id)

    def arm(self, topic: Topic) -> asyncio.Future[None]:
        """Give a future that is done at the next notice; arm it, then look, and no message is missed."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.setdefault(topic.id, set()).add(waiter)
        return waiter

    def disarm(self, topic: Topic, waiter: asyncio.Future[None]) -> None:
        """Take a waiter back."""
        waiters = self._waiters.get(topic.id)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[topic.id]

    def _wake(self, topic_id: int) -> None:
        for waiter in self._waiters.pop(topic_id, ()):
            if not waiter.done():
                waiter.set_result(None)
