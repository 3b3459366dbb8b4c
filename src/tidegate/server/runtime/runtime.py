"""The running parts of a server: opened in order, closed in the opposite one."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import psutil

from tidegate.catalog.audit import Actor
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import CatalogPlace, place_of
from tidegate.errors import (
    CatalogUnavailable,
    HomeUnusable,
    StorageFull,
    TenantNotFound,
    TidegateError,
)
from tidegate.ingest.publish import Publisher
from tidegate.live.hub import LiveHub
from tidegate.model.clock import Clock
from tidegate.model.ids import SnowflakeSource, snowflake_at
from tidegate.query.live import LiveSource
from tidegate.server.http.admission import Load
from tidegate.server.http.auth import Identities
from tidegate.server.http.responses import AnswersHeld
from tidegate.server.runtime.tables import Ground, TableParts, new_hub, open_tables
from tidegate.server.runtime.tenant_lakes import TenantLakes
from tidegate.server.runtime.thread_pools import Threads
from tidegate.server.runtime.topics import TopicParts, open_topics
from tidegate.server.runtime.waiters import Arrivals
from tidegate.settings import Settings
from tidegate.storage.group_commit import GroupCommitter
from tidegate.storage.high_water import read_high_water_us, stage_high_water
from tidegate.storage.home.home import CATALOG_PART, ENGINE_PART, Home
from tidegate.storage.rocksdb.engine import RocksEngine
from tidegate.storage.rocksdb.options import RocksSettings
from tidegate.telemetry.metrics import Metrics
from tidegate.topics.definitions import TopicDirectory
from tidegate.topics.log.log import TopicLog
from tidegate.upkeep.backup.coordinator import BackupCoordinator, remove_stale_backups

# Rates are taken over this window: long enough to be steady, short enough to show a stop.
RATE_WINDOW_SECONDS = 5.0
STATEMENT_GRACE_PART = 0.7

log = logging.getLogger(__name__)


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
    engine: RocksEngine
    committer: GroupCommitter
    topic: TopicParts
    tenants: TenantLakes
    catalog: Catalog
    identities: Identities
    metrics: Metrics
    threads: Threads
    backups: BackupCoordinator
    tables: TableParts
    ids: SnowflakeSource
    started_seconds: float
    load: Load = field(default_factory=Load)
    answers: AnswersHeld = field(default_factory=AnswersHeld)
    worker: WorkerReport | None = None
    stopping: bool = False
    url: str = ""
    rate_samples: deque[tuple[float, dict[str, int]]] = field(default_factory=deque)

    def begin_stop(self) -> None:
        """Stop taking work that waits: long polls answer with what they have."""
        self.stopping = True
        self.arrivals.wake_all()
        self.topic.waits.wake_all()
        # Statements get most of the grace; what is left of it is for telling their callers.
        patience = self.settings.server.grace_seconds * STATEMENT_GRACE_PART
        asyncio.get_running_loop().call_later(patience, self.tenants.interrupt)

    def close(self) -> None:
        """Finish accepted writes, then let go of the disk; what cannot be closed keeps nothing else open."""
        with ExitStack() as closing:
            # The last one is closed first.
            parts = (self.engine, self.catalog, self.tenants, self.backups, self.tables, self.threads)
            for part in parts:
                closing.callback(part.close)
            closing.callback(self.tenants.interrupt)
            closing.callback(self.committer.close)

    @property
    def topics(self) -> TopicDirectory:
        """The topics of all tenants."""
        return self.topic.directory

    @property
    def log(self) -> TopicLog:
        """The messages of all topics."""
        return self.topic.log

    @property
    def publisher(self) -> Publisher:
        """What stores messages."""
        return self.topic.publisher

    @property
    def arrivals(self) -> Arrivals:
        """Who waits for messages without a group."""
        return self.topic.arrivals

    @property
    def live_hub(self) -> LiveHub:
        """Where changes of tables go to live subscriptions."""
        return self.tables.hub

    @property
    def live_source(self) -> LiveSource:
        """What opens live subscriptions."""
        return self.tables.live

    async def tenant_exists(self, tenant: str) -> bool:
        """Return whether there is such a tenant."""
        try:
            await self.threads.catalog(self.catalog.people.get_tenant, tenant)
        except TenantNotFound:
            return False
        return True

    @asynccontextmanager
    async def audited(
        self, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None
    ) -> AsyncIterator[None]:
        """Write down who does what before it is done, and how it ended after; a crash between leaves both."""
        audit = self.catalog.audit
        event = await self.threads.catalog(audit.begin, actor, action, subject, details or {})
        try:
            yield
        except TidegateError as problem:
            await self._finish_event(event, "failed", {"error": problem.code})
            raise
        except asyncio.CancelledError:
            # Cut off by a stop: whether the deed was done is not known here. It stays 'started'.
            log.warning("audit event %d stays 'started': %s %s was cut off", event, action, subject)
            raise
        await self._finish_event(event, "done", {})

    async def _finish_event(
        self, event: int, outcome: Literal["done", "failed"], details: dict[str, Any]
    ) -> None:
        """Write down how it ended; the deed is done, so a catalog that is away now does not undo it."""
        try:
            await self.threads.catalog(self.catalog.audit.finish, event, outcome, details)
        except CatalogUnavailable as problem:
            log.warning("audit event %d stays 'started', it was %s: %s", event, outcome, problem)

    def count_published(self, tenant: str, count: int) -> None:
        """Note that messages were published."""
        self.metrics.count_published(tenant, count)

    def sample_rate(self) -> None:
        """Note how many messages there are now; called about once a second."""
        now = self.clock.monotonic_seconds()
        self.rate_samples.append((now, self.topic.appended.by_tenant(self.topics)))
        while now - self.rate_samples[0][0] > RATE_WINDOW_SECONDS:
            self.rate_samples.popleft()

    def messages_per_second(self, tenant: str) -> float:
        """Return the rate at which messages of a tenant were stored lately."""
        if len(self.rate_samples) < 2:
            return 0.0
        (first_at, first), (last_at, last) = self.rate_samples[0], self.rate_samples[-1]
        return (last.get(tenant, 0) - first.get(tenant, 0)) / max(last_at - first_at, 1e-9)

    def memory_bytes(self) -> int:
        """Return the memory of this process."""
        return int(psutil.Process(os.getpid()).memory_info().rss)

    def disk_free_bytes(self) -> int:
        """Return the room left for the home folder."""
        usage = os.statvfs(self.home.path)
        return usage.f_bavail * usage.f_frsize


def open_running(settings: Settings, home: Home, clock: Clock, loop: asyncio.AbstractEventLoop) -> Running:
    """Open the catalog, the engine and what stands on them; nothing stays open when a step fails."""
    _refuse_lost_parts(settings, home)
    catalog = Catalog.open(catalog_place(settings, home), clock, random_bytes=secrets.token_bytes)
    try:
        catalog.people.ensure_admin(home.read_token(), home.home_id)
        remove_stale_backups(home)
        running = _open_engine(settings, home, clock, loop, catalog)
        home.note_parts(frozenset({ENGINE_PART} if settings.catalog.url else {ENGINE_PART, CATALOG_PART}))
        return running
    except BaseException:
        catalog.close()
        raise


def _refuse_lost_parts(settings: Settings, home: Home) -> None:
    """Refuse to start on an empty engine or catalog where there was a full one."""
    lost = [name for name in home.lost_parts() if name != CATALOG_PART or not settings.catalog.url]
    if lost:
        raise HomeUnusable(
            home=str(home.path),
            reason=f"what was in its folder {' and '.join(lost)} is gone",
            hint="Is a disk not mounted? Else restore a backup: tidegate restore FILE --home DIR.",
        )


class _BackupCount:
    """Counts backups as the desk tells of them."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock

    def began(self) -> None:
        self._metrics.begin_job()

    def finished(self, took_seconds: float, size_bytes: int) -> None:
        self._metrics.end_job(done=True)
        self._metrics.observe_backup(self._clock.now_us() / 1_000_000, took_seconds, size_bytes)

    def failed(self) -> None:
        self._metrics.end_job(done=False)
        self._metrics.count_backup_failure()


def catalog_place(settings: Settings, home: Home) -> CatalogPlace:
    """Return where the catalog of a home is: where the settings say, else in the home itself."""
    return place_of(settings.catalog, home.catalog_path)


def _open_engine(
    settings: Settings, home: Home, clock: Clock, loop: asyncio.AbstractEventLoop, catalog: Catalog
) -> Running:
    storage = settings.storage
    engine = RocksEngine(
        home.engine_path,
        RocksSettings(
            block_cache_bytes=storage.block_cache_bytes,
            write_buffer_bytes=storage.write_buffer_bytes,
            free_bytes_min=storage.free_bytes_min,
        ),
    )
    try:
        return _build(settings, home, engine, clock, loop, catalog)
    except BaseException:
        engine.close()
        raise


def _build(
    settings: Settings,
    home: Home,
    engine: RocksEngine,
    clock: Clock,
    loop: asyncio.AbstractEventLoop,
    catalog: Catalog,
) -> Running:
    metrics = Metrics(clock.monotonic_seconds)
    start_us = read_high_water_us(engine, clock.now_us())
    ids = SnowflakeSource(clock)
    ids.advance_past(snowflake_at(start_us))
    committer = GroupCommitter(engine, sync=settings.storage.sync_writes)
    committer.watch(clock.monotonic_seconds, metrics.observe_commit)
    try:
        topic = open_topics(settings, engine, committer, ids, clock, loop)
    except BaseException:
        committer.close()
        raise
    _keep_high_water(committer, start_us)
    threads, lakes = Threads(settings.query.statements_max, metrics, clock), TenantLakes(home, settings)
    ground = Ground(settings, clock, engine, committer, catalog, lakes, ids)
    try:
        hub = new_hub(settings, clock, start_us, loop)
        tables = open_tables(ground, topic, hub, home, secrets.token_bytes, metrics)
    except BaseException:
        committer.close()
        raise
    counted = _BackupCount(metrics, clock)
    return Running(
        settings=settings,
        home=home,
        clock=clock,
        engine=engine,
        committer=committer,
        topic=topic,
        tenants=lakes,
        catalog=catalog,
        identities=Identities(catalog.tokens, settings.auth, clock, threads.catalog),
        metrics=metrics,
        threads=threads,
        backups=BackupCoordinator(home, engine, catalog, clock, counted, tables.streams.flush_all),
        tables=tables,
        ids=ids,
        started_seconds=clock.monotonic_seconds(),
    )


def _keep_high_water(committer: GroupCommitter, start_us: int) -> None:
    """Keep from when on this server gives out ids, before it gives out any.

    On a full disk nothing with an id can be written either, so that does not keep it from starting.
    """
    try:
        committer.submit(lambda staging: stage_high_water(staging, start_us)).result()
    except StorageFull as problem:
        log.warning("the start is not kept: %s", problem)
