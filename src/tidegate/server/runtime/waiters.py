"""The long polls that wait for messages, and what wakes them.

Without a group, a new message wakes every waiter of its topic. Waiters of one group queue, and a message
wakes the first one. It fetches what it may have and wakes the next one while there is more: when one message
arrives, only one of a thousand polls of a group has work. Polls of different partitions have queues of their
own. Everything but `notify` belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from tidegate.topics.definitions import Topic


class TopicWaiters:
    """Long polls without a group, by topic. `notify` may be called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiters: dict[int, set[asyncio.Future[None]]] = {}

    def notify(self, topic: Topic) -> None:
        """Wake the waiters of a topic with new messages; costs nothing without waiters."""
        if topic.id in self._waiters:
            self._loop.call_soon_threadsafe(self._wake, topic.id)

    def wake(self, topic: Topic) -> None:
        """Wake the waiters of one topic; on the event loop."""
        self._wake(topic.id)

    def wake_all(self) -> None:
        """Wake every waiter; on the event loop."""
        for topic_id in list(self._waiters):
            self._wake(topic_id)

    def arm(self, topic: Topic) -> asyncio.Future[None]:
        """Return a future that is done at the next message. Arm it, then check, and none is missed."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.setdefault(topic.id, set()).add(waiter)
        return waiter

    def disarm(self, topic: Topic, waiter: asyncio.Future[None]) -> None:
        """Remove a waiter."""
        waiters = self._waiters.get(topic.id)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[topic.id]

    def _wake(self, topic_id: int) -> None:
        for waiter in self._waiters.pop(topic_id, ()):
            if not waiter.done():
                waiter.set_result(None)


@dataclass(frozen=True, slots=True)
class WaitKey:
    """The key of a queue: a group of a topic, and the partition that the polls name, if they do."""

    topic_id: int
    group: str
    partition: int | None


@dataclass(slots=True)
class _Queue:
    waiters: OrderedDict[asyncio.Future[None], None] = field(default_factory=OrderedDict)
    timer: asyncio.TimerHandle | None = None


class GroupWaiters:
    """The queues of long polls of all groups."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues: dict[int, dict[WaitKey, _Queue]] = {}

    def notify(self, topic_id: int, group: str | None = None) -> None:
        """Wake the first waiter of each queue of a topic, or of one of its groups; any thread."""
        if topic_id in self._queues:
            self._loop.call_soon_threadsafe(self.wake, topic_id, group)

    def wake(self, topic_id: int, group: str | None = None) -> None:
        """Wake the first waiter of each queue of a topic, or of one of its groups."""
        for key, queue in list(self._queues.get(topic_id, {}).items()):
            if group in (None, key.group):
                _wake_first(queue)

    def wake_all(self) -> None:
        """Wake all waiters: the server stops."""
        for queues in list(self._queues.values()):
            for queue in list(queues.values()):
                while _wake_first(queue):
                    pass

    def notify_everyone(self, topic_id: int) -> None:
        """Wake all waiters of a topic that was deleted; any thread."""
        if topic_id in self._queues:
            self._loop.call_soon_threadsafe(self._wake_everyone, topic_id)

    def _wake_everyone(self, topic_id: int) -> None:
        for queue in list(self._queues.get(topic_id, {}).values()):
            while _wake_first(queue):
                pass

    def arm(self, key: WaitKey) -> asyncio.Future[None]:
        """Queue a future that is done when it is woken. Arm it, then check, and nothing is missed."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        queue = self._queues.setdefault(key.topic_id, {}).setdefault(key, _Queue())
        queue.waiters[waiter] = None
        return waiter

    def wake_in(self, key: WaitKey, seconds: float) -> None:
        """Wake the first waiter of a queue after a time; the earliest time counts."""
        queue = self._queues.get(key.topic_id, {}).get(key)
        if queue is not None:
            self._set_timer(queue, seconds)

    def wake_group_in(self, topic_id: int, group: str, seconds: float) -> None:
        """Wake the first waiter of each queue of a group after a time."""
        for key, queue in self._queues.get(topic_id, {}).items():
            if key.group == group:
                self._set_timer(queue, seconds)

    def _set_timer(self, queue: _Queue, seconds: float) -> None:
        if queue.timer is not None:
            if queue.timer.when() <= self._loop.time() + seconds:
                return
            queue.timer.cancel()
        queue.timer = self._loop.call_later(seconds, _fire, queue)

    def disarm(self, key: WaitKey, waiter: asyncio.Future[None]) -> None:
        """Leave the queue."""
        queues = self._queues.get(key.topic_id)
        queue = queues.get(key) if queues is not None else None
        if queues is None or queue is None:
            return
        queue.waiters.pop(waiter, None)
        if not queue.waiters:
            if queue.timer is not None:
                queue.timer.cancel()
            del queues[key]
            if not queues:
                del self._queues[key.topic_id]


def _fire(queue: _Queue) -> None:
    queue.timer = None
    _wake_first(queue)


def _wake_first(queue: _Queue) -> bool:
    """Wake the first waiter that is not awake yet, and remove it; False if there is none."""
    while queue.waiters:
        waiter, _ = queue.waiters.popitem(last=False)
        if not waiter.done():
            waiter.set_result(None)
            return True
    return False
