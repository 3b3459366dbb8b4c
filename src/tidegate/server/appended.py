"""What topics took since the server started: worked out from their counters when somebody asks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from tidegate.topics.definitions import Topic
from tidegate.topics.log import TopicLog


class Appended:
    """Adds up how far partitions went; what a deleted topic took stays counted. Threads: any."""

    def __init__(self, log: TopicLog, topics: Iterable[Topic]) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}
        self._messages: Counter[str] = Counter()
        self._size_bytes = 0
        self._look(topics)
        # What was there at the start was taken before.
        self._messages.clear()
        self._size_bytes = 0

    def totals(self, topics: Iterable[Topic]) -> tuple[int, int]:
        """Give the messages and the bytes of all tenants."""
        with self._lock:
            self._look(topics)
            return self._messages.total(), self._size_bytes

    def by_tenant(self, topics: Iterable[Topic]) -> dict[str, int]:
        """Give the messages of each tenant."""
        with self._lock:
            self._look(topics)
            return dict(self._messages)

    def _look(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            for number in range(topic.partitions):
                held = self._log.counters(topic, number)
                count, size_bytes = self._seen.get((topic.id, number), (0, 0))
                if held.end == count:
                    continue
                self._messages[topic.tenant] += held.end - count
                self._size_bytes += held.appended_bytes - size_bytes
                self._seen[topic.id, number] = (held.end, held.appended_bytes)
