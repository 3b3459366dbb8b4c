"""Everything of a running server that serves topics: definitions, logs, consumer groups, routes, waiters.

Messages appended since the start are not counted one by one: they follow from the partitions' counters.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tidegate.ingest.batch_commit import BatchParts
from tidegate.ingest.change_feed import TopicRouter
from tidegate.ingest.publish import Publisher
from tidegate.model.clock import Clock
from tidegate.model.ids import SnowflakeSource
from tidegate.model.quotas import TenantQuotas, Unlimited
from tidegate.query.topic_access import TopicAccess
from tidegate.server.runtime.waiters import GroupWaiters, TopicWaiters
from tidegate.settings import Settings
from tidegate.storage.engine import Engine
from tidegate.storage.group_commit import GroupCommitter
from tidegate.topics.dedup import DedupKeys
from tidegate.topics.definitions import Topic, TopicDirectory
from tidegate.topics.groups.groups import Groups
from tidegate.topics.groups.leases import FetchIdSource
from tidegate.topics.log.log import TopicLog
from tidegate.topics.payload_schemas import PayloadSchemas
from tidegate.topics.routes import RouteDirectory

# Rates are taken over this window: long enough to be steady, short enough to show a stop.
RATE_WINDOW_SECONDS = 5.0


class AppendTotals:
    """Messages and bytes appended since the start; those of deleted topics stay counted. Any thread."""

    def __init__(self, log: TopicLog, topics: Iterable[Topic]) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}
        self._messages: Counter[str] = Counter()
        self._size_bytes = 0
        self._update(topics)
        # What was there at the start does not count.
        self._messages.clear()
        self._size_bytes = 0

    def totals(self, topics: Iterable[Topic]) -> tuple[int, int]:
        """Return the number of messages and of bytes of all tenants."""
        with self._lock:
            self._update(topics)
            return self._messages.total(), self._size_bytes

    def by_tenant(self, topics: Iterable[Topic]) -> dict[str, int]:
        """Return the number of messages of each tenant."""
        with self._lock:
            self._update(topics)
            return dict(self._messages)

    def _update(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            for number in range(topic.partitions):
                held = self._log.counters(topic, number)
                count, size_bytes = self._seen.get((topic.id, number), (0, 0))
                if held.end == count:
                    continue
                self._messages[topic.tenant] += held.end - count
                self._size_bytes += held.appended_bytes - size_bytes
                self._seen[topic.id, number] = (held.end, held.appended_bytes)


@dataclass(frozen=True)
class TopicRuntime(TopicAccess):
    """Everything that endpoints and statements use of topics."""

    router: TopicRouter
    waiters: TopicWaiters
    group_waiters: GroupWaiters
    append_totals: AppendTotals
    batches: BatchParts

    def forget(self, topic: Topic) -> None:
        """Drop everything cached about a deleted topic and wake its waiters; any thread."""
        super().forget(topic)
        self.waiters.notify(topic)
        self.group_waiters.notify_everyone(topic.id)


class MessageRate:
    """Messages per second of each tenant, over a short window. Belongs to the event loop."""

    def __init__(self, clock: Clock, topics: TopicRuntime) -> None:
        self._clock = clock
        self._topics = topics
        self._samples: deque[tuple[float, dict[str, int]]] = deque()

    def sample(self) -> None:
        """Record the number of messages now; called about once a second."""
        now = self._clock.monotonic_seconds()
        self._samples.append((now, self._topics.append_totals.by_tenant(self._topics.directory)))
        while now - self._samples[0][0] > RATE_WINDOW_SECONDS:
            self._samples.popleft()

    def per_second(self, tenant: str) -> float:
        """Return the rate at which messages of a tenant were stored lately."""
        if len(self._samples) < 2:
            return 0.0
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return (last.get(tenant, 0) - first.get(tenant, 0)) / max(last_at - first_at, 1e-9)


@dataclass(frozen=True, slots=True)
class TopicContext:
    """What topics share with the rest of the server."""

    settings: Settings
    ids: SnowflakeSource
    clock: Clock
    random_bytes: Callable[[int], bytes]
    quotas: TenantQuotas = field(default_factory=Unlimited)


def open_topics(
    context: TopicContext, engine: Engine, committer: GroupCommitter, loop: asyncio.AbstractEventLoop
) -> TopicRuntime:
    """Open everything that serves topics; ids issued later are above all ids in the logs."""
    settings, clock, ids, quotas = context.settings, context.clock, context.ids, context.quotas
    waiters, group_waiters = TopicWaiters(loop), GroupWaiters(loop)

    def arrived(topic: Topic) -> None:
        waiters.notify(topic)
        group_waiters.notify(topic.id)

    directory = TopicDirectory(engine, settings.topics.partitions_max, quotas)
    schemas, routes = PayloadSchemas(engine), RouteDirectory(engine)
    log = TopicLog(engine, ids, clock, schemas, arrived)
    for topic in directory:
        log.recover(topic)
    fetch_ids = FetchIdSource(ids, context.random_bytes)

    def due(topic: Topic, group: str) -> None:
        group_waiters.notify(topic.id, group)

    groups = Groups(engine, log, directory, fetch_ids, clock, settings.topics, due)
    dedup = DedupKeys(clock)
    # After a failed write the memory may be ahead of the disk.
    for reload in (directory.reload, log.reload, schemas.reload, routes.reload, groups.reload):
        committer.when_reopened(reload)
    committer.when_failed(groups.reload)
    return TopicRuntime(
        directory=directory,
        log=log,
        groups=groups,
        routes=routes,
        schemas=schemas,
        router=TopicRouter(routes, schemas, directory, log, clock),
        publisher=Publisher(committer, log, dedup, quotas),
        waiters=waiters,
        group_waiters=group_waiters,
        append_totals=AppendTotals(log, directory),
        batches=BatchParts(engine, log, ids, clock, dedup),
        dedup=dedup,
        committer=committer,
        clock=clock,
        settings=settings,
    )
