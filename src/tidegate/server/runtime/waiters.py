"""Arrivals: wakes long polls when messages become readable.

Waits of consumer groups: long polls of one group stand in a line, and a message wakes the first of it.

Whoever is woken takes what it may have and passes the wake on while there is more: a thousand polls of one
group cost one of them a look when one message comes. Polls of different partitions stand in lines of their
own. Everything but `notify` belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

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
        """Return a future that is done at the next notice; arm it, then look, and no message is missed."""
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


@dataclass(frozen=True, slots=True)
class WaitKey:
    """A line: one group of one topic, and the partition that its polls name, if they do."""

    topic_id: int
    group: str
    partition: int | None


@dataclass(slots=True)
class _Line:
    waiters: OrderedDict[asyncio.Future[None], None] = field(default_factory=OrderedDict)
    timer: asyncio.TimerHandle | None = None


class GroupWaits:
    """The lines of all groups that somebody waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[int, dict[WaitKey, _Line]] = {}

    def notify(self, topic_id: int, group: str | None = None) -> None:
        """Say that a topic, or a group of it, has something to give; from any thread."""
        if topic_id in self._lines:
            self._loop.call_soon_threadsafe(self.wake, topic_id, group)

    def wake(self, topic_id: int, group: str | None = None) -> None:
        """Wake the first of every line of a topic, or of one group of it."""
        for key, line in list(self._lines.get(topic_id, {}).items()):
            if group in (None, key.group):
                _wake_first(line)

    def wake_all(self) -> None:
        """Wake everybody: the server stops."""
        for lines in list(self._lines.values()):
            for line in list(lines.values()):
                while _wake_first(line):
                    pass

    def notify_everyone(self, topic_id: int) -> None:
        """Wake all who wait for a topic: it is gone; from any thread."""
        if topic_id in self._lines:
            self._loop.call_soon_threadsafe(self._wake_everyone, topic_id)

    def _wake_everyone(self, topic_id: int) -> None:
        for line in list(self._lines.get(topic_id, {}).values()):
            while _wake_first(line):
                pass

    def arm(self, key: WaitKey) -> asyncio.Future[None]:
        """Stand in line; the future is done at a wake. Arm, then look, and nothing is missed."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        line = self._lines.setdefault(key.topic_id, {}).setdefault(key, _Line())
        line.waiters[waiter] = None
        return waiter

    def wake_in(self, key: WaitKey, seconds: float) -> None:
        """Wake the first of a line after a time, when something becomes due; the soonest time counts."""
        line = self._lines.get(key.topic_id, {}).get(key)
        if line is not None:
            self._set_timer(line, seconds)

    def wake_group_in(self, topic_id: int, group: str, seconds: float) -> None:
        """Wake the first of every line of a group after a time."""
        for key, line in self._lines.get(topic_id, {}).items():
            if key.group == group:
                self._set_timer(line, seconds)

    def _set_timer(self, line: _Line, seconds: float) -> None:
        if line.timer is not None:
            if line.timer.when() <= self._loop.time() + seconds:
                return
            line.timer.cancel()
        line.timer = self._loop.call_later(seconds, _ring, line)

    def disarm(self, key: WaitKey, waiter: asyncio.Future[None]) -> None:
        """Leave the line."""
        lines = self._lines.get(key.topic_id)
        line = lines.get(key) if lines is not None else None
        if lines is None or line is None:
            return
        line.waiters.pop(waiter, None)
        if not line.waiters:
            if line.timer is not None:
                line.timer.cancel()
            del lines[key]
            if not lines:
                del self._lines[key.topic_id]


def _ring(line: _Line) -> None:
    line.timer = None
    _wake_first(line)


def _wake_first(line: _Line) -> bool:
    """Wake the first that is not awake yet; it leaves the line by itself."""
    while line.waiters:
        waiter, _ = line.waiters.popitem(last=False)
        if not waiter.done():
            waiter.set_result(None)
            return True
    return False
