"""The running parts of a server: opened in order, closed in the opposite one."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psutil

from tidegate.ingest.publish import Publisher
from tidegate.model.clock import Clock
from tidegate.model.ids import SnowflakeSource
from tidegate.query.lake_sql import LakeQuery, QueryLimits
from tidegate.settings import Settings
from tidegate.storage.commit import GroupCommitter
from tidegate.storage.home import Home
from tidegate.storage.lake import Lake
from tidegate.storage.rocks import RocksEngine, RocksSettings
from tidegate.topics.definitions import Topic, TopicDirectory
from tidegate.topics.log import TopicLog

# Rates are taken over this window: long enough to be steady, short enough to show a stop.
RATE_WINDOW_SECONDS = 5.0
# Reads are short and mostly wait for Python's lock: more threads would only take turns.
READ_THREADS = 8
STATEMENT_GRACE_PART = 0.7

T = TypeVar("T")


@dataclass
class WorkerReport:
    """What the worker said last, and when."""

    content: dict[str, Any]
    at_seconds: float


@dataclass
class Running:
    """Everything that the endpoints use."""

    settings: Settings
    home: Home
    clock: Clock
    token: str
    engine: RocksEngine
    committer: GroupCommitter
    topics: TopicDirectory
    log: TopicLog
    publisher: Publisher
    lake: Lake
    query: LakeQuery
    arrivals: Arrivals
    threads: Threads
    started_seconds: float
    messages_total: int = 0
    worker: WorkerReport | None = None
    stopping: bool = False
    rate_samples: deque[tuple[float, int]] = field(default_factory=deque)

    def begin_stop(self) -> None:
        """Stop taking work that waits: long polls answer with what they have."""
        self.stopping = True
        self.arrivals.wake_all()
        # Statements get most of the grace; what is left of it is for telling their callers.
        patience = self.settings.server.grace_seconds * STATEMENT_GRACE_PART
        asyncio.get_running_loop().call_later(patience, self.query.interrupt)

    def close(self) -> None:
        """Finish accepted writes, then let go of the disk."""
        self.committer.close()
        self.query.interrupt()
        self.threads.close()
        self.query.close()
        self.engine.close()

    def sample_rate(self) -> None:
        """Note how many messages there are now; called about once a second."""
        now = self.clock.monotonic_seconds()
        self.rate_samples.append((now, self.messages_total))
        while now - self.rate_samples[0][0] > RATE_WINDOW_SECONDS:
            self.rate_samples.popleft()

    def messages_per_second(self) -> float:
        """Give the rate at which messages were stored lately."""
        if len(self.rate_samples) < 2:
            return 0.0
        (first_at, first), (last_at, last) = self.rate_samples[0], self.rate_samples[-1]
        return (last - first) / max(last_at - first_at, 1e-9)

    def memory_bytes(self) -> int:
        """Give the memory of this process."""
        return int(psutil.Process(os.getpid()).memory_info().rss)

    def disk_free_bytes(self) -> int:
        """Give the room left for the home folder."""
        usage = os.statvfs(self.home.path)
        return usage.f_bavail * usage.f_frsize


class Threads:
    """Where blocking work runs: reads and SQL apart, so that slow statements never hold up a read."""

    def __init__(self, statements_max: int) -> None:
        self._reads = ThreadPoolExecutor(READ_THREADS, "tidegate-read")
        self._statements = ThreadPoolExecutor(statements_max, "tidegate-sql")

    async def read(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run a short read of the engine or of a file."""
        return await asyncio.get_running_loop().run_in_executor(self._reads, call, *arguments)

    async def statement(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run a statement, when its turn has come."""
        return await asyncio.get_running_loop().run_in_executor(self._statements, call, *arguments)

    def close(self) -> None:
        """Wait for what runs."""
        self._reads.shutdown()
        self._statements.shutdown()


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


def new_token() -> str:
    """Give a token that cannot be guessed."""
    return secrets.token_urlsafe(32)


def open_running(settings: Settings, home: Home, clock: Clock, loop: asyncio.AbstractEventLoop) -> Running:
    """Open the engine and what stands on it; nothing stays open when a step fails."""
    storage = settings.storage
    token = home.read_token()
    engine = RocksEngine(
        home.engine_path,
        RocksSettings(
            block_cache_bytes=storage.block_cache_bytes,
            write_buffer_bytes=storage.write_buffer_bytes,
            free_bytes_min=storage.free_bytes_min,
        ),
    )
    try:
        arrivals = Arrivals(loop)
        topics = TopicDirectory(engine, settings.topics.partitions_max)
        log = TopicLog(engine, SnowflakeSource(clock), clock, arrivals.notify)
        for topic in topics:
            log.recover(topic)
    except BaseException:
        engine.close()
        raise
    committer = GroupCommitter(engine, sync=storage.sync_writes)
    committer.when_reopened(topics.reload)
    committer.when_reopened(log.reload)
    lake = Lake(home.lake_path)
    return Running(
        settings=settings,
        home=home,
        clock=clock,
        token=token,
        engine=engine,
        committer=committer,
        topics=topics,
        log=log,
        publisher=Publisher(committer, log),
        lake=lake,
        query=LakeQuery(lake, _query_limits(settings, home)),
        arrivals=arrivals,
        threads=Threads(settings.query.statements_max),
        started_seconds=clock.monotonic_seconds(),
    )


def _query_limits(settings: Settings, home: Home) -> QueryLimits:
    limits = settings.query
    return QueryLimits(
        timeout_seconds=limits.timeout_seconds,
        rows_max=limits.rows_max,
        memory_mb=limits.memory_mb,
        threads=limits.threads,
        spill_path=home.run_path / "spill",
    )
