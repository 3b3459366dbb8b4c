"""Everything that a running server holds open, opened in order and closed in reverse order."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import psutil

from tidegate.catalog.audit import Actor
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import address_of
from tidegate.errors import (
    CatalogUnavailable,
    HomeUnusable,
    StorageFull,
    TenantNotFound,
    TidegateError,
)
from tidegate.model.clock import Clock
from tidegate.model.ids import SnowflakeSource, snowflake_at
from tidegate.model.wire.status import WorkerReport
from tidegate.server.access.admission import Admission, HeldResponses
from tidegate.server.access.audit_notes import AuditNotes
from tidegate.server.access.auth import TokenCache
from tidegate.server.access.quotas import Quotas
from tidegate.server.runtime.row_owners import RowOwners
from tidegate.server.runtime.statement_queue import StatementShares
from tidegate.server.runtime.tables import StorageContext, TableRuntime, new_hub, open_tables
from tidegate.server.runtime.tenant_disk import TenantDisks
from tidegate.server.runtime.tenant_lakes import TenantLakes
from tidegate.server.runtime.thread_pools import Threads
from tidegate.server.runtime.topics import MessageRate, TopicContext, TopicRuntime, open_topics
from tidegate.settings import Settings
from tidegate.storage.group_commit import GroupCommitter
from tidegate.storage.high_water import read_high_water_us, stage_high_water
from tidegate.storage.home.home import CATALOG_PART, ENGINE_PART, Home
from tidegate.storage.rocksdb.engine import RocksEngine
from tidegate.storage.rocksdb.options import EngineOptions
from tidegate.telemetry.metrics import Metrics
from tidegate.upkeep.backup.coordinator import BackupCoordinator, BackupObserver, remove_stale_backups

STATEMENT_GRACE_PART = 0.7

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReceivedReport:
    """The worker's last report, and when it arrived."""

    report: WorkerReport
    at_seconds: float


@dataclass
class Runtime:
    """Everything that the endpoints use."""

    settings: Settings
    home: Home
    clock: Clock
    engine: RocksEngine
    committer: GroupCommitter
    catalog: Catalog
    topics: TopicRuntime
    tables: TableRuntime
    lakes: TenantLakes
    ids: SnowflakeSource
    tokens: TokenCache
    metrics: Metrics
    threads: Threads
    backups: BackupCoordinator
    message_rate: MessageRate
    audit_notes: AuditNotes
    started_seconds: float
    quotas: Quotas
    admission: Admission = field(default_factory=Admission)
    held_responses: HeldResponses = field(default_factory=HeldResponses)
    tenant_disks: TenantDisks = field(default_factory=TenantDisks)
    _quota_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    row_owners: RowOwners = field(default_factory=RowOwners)
    worker: ReceivedReport | None = None
    stopping: bool = False
    # Whether the time for writes is over: nothing is stored any more, and new requests are refused.
    has_ended: bool = False
    url: str = ""

    def begin_stop(self) -> None:
        """Stop accepting work that waits: long polls answer with what they have."""
        self.stopping = True
        self.topics.waiters.wake_all()
        self.topics.group_waiters.wake_all()
        # Statements get most of the grace period; the rest is for answering their clients.
        seconds = self.settings.server.grace_seconds * STATEMENT_GRACE_PART
        asyncio.get_running_loop().call_later(seconds, self.lakes.interrupt)

    def end_writes(self) -> None:
        """Refuse what would be stored from now on; return when what is in work is stored. Blocking."""
        self.tables.streams.refuse_writes()
        self.committer.refuse_waiting()

    def close(self) -> None:
        """Finish accepted writes, then close everything, even where a part fails to close."""
        with ExitStack() as closing:
            # In reverse order: the last one is closed first.
            parts = (self.engine, self.catalog, self.lakes, self.backups, self.tables, self.threads)
            for part in parts:
                closing.callback(part.close)
            closing.callback(self.lakes.interrupt)
            closing.callback(self._write_last_notes)
            closing.callback(self.committer.close)

    def _write_last_notes(self) -> None:
        try:
            self.audit_notes.write_last()
        except CatalogUnavailable as problem:
            log.warning("audit notes lost count=%d error=%r", len(self.audit_notes), str(problem))

    async def tenant_exists(self, tenant: str) -> bool:
        """True if there is such a tenant."""
        try:
            await self.threads.catalog(self.catalog.accounts.get_tenant, tenant)
        except TenantNotFound:
            return False
        return True

    async def refresh_quotas(self) -> None:
        """Read the quotas of single accounts again; what the catalog does not answer stays as it is."""
        async with self._quota_turn:  # a read that began earlier must not end later
            self.quotas.apply(await self.threads.catalog(self.catalog.quotas.all))

    @asynccontextmanager
    async def audited(
        self, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Record in the audit trail who does what, before the work and with its outcome after it.

        Yields details to be added to the outcome. A crash in between leaves the event 'started'.
        """
        audit = self.catalog.audit
        event = await self.threads.catalog(audit.begin, actor, action, subject, details or {})
        more: dict[str, Any] = {}
        try:
            yield more
        except TidegateError as problem:
            await self._finish_event(event, "failed", {"error": problem.code})
            raise
        except asyncio.CancelledError:
            # Cancelled by a stop: whether the work was done is not known here.
            log.warning("audit event stays started event=%d action=%s subject=%s", event, action, subject)
            raise
        await self._finish_event(event, "done", more)

    async def _finish_event(
        self, event: int, outcome: Literal["done", "failed"], details: dict[str, Any]
    ) -> None:
        """Record the outcome; the work is done, so a catalog that is unavailable now does not undo it."""
        try:
            await self.threads.catalog(self.catalog.audit.finish, event, outcome, details)
        except CatalogUnavailable as problem:
            log.warning(
                "audit event stays started event=%d outcome=%s error=%r", event, outcome, str(problem)
            )

    def memory_bytes(self) -> int:
        """Return the resident memory of this process."""
        return int(psutil.Process(os.getpid()).memory_info().rss)

    def disk_free_bytes(self) -> int:
        """Return the free space of the home folder's disk."""
        return shutil.disk_usage(self.home.path).free


def open_runtime(settings: Settings, home: Home, clock: Clock, loop: asyncio.AbstractEventLoop) -> Runtime:
    """Open the catalog, the engine and everything on top of them; nothing stays open when a step fails."""
    _refuse_lost_parts(settings, home)
    address = address_of(settings.catalog, home.catalog_path)
    catalog = Catalog.open(address, clock, random_bytes=secrets.token_bytes)
    try:
        catalog.accounts.ensure_admin(home.read_token(), home.home_id)
        remove_stale_backups(home)
        runtime = _open_engine(settings, home, clock, loop, catalog)
        home.note_parts(frozenset({ENGINE_PART} if settings.catalog.url else {ENGINE_PART, CATALOG_PART}))
        return runtime
    except BaseException:
        catalog.close()
        raise


def _refuse_lost_parts(settings: Settings, home: Home) -> None:
    """Refuse to start on an empty engine or catalog where there was one with data."""
    lost = [name for name in home.lost_parts() if name != CATALOG_PART or not settings.catalog.url]
    if lost:
        raise HomeUnusable(
            home=str(home.path),
            reason=f"what was in its folder {' and '.join(lost)} is gone",
            hint="Is a disk not mounted? Else restore a backup: tidegate restore FILE --home DIR.",
        )


class _BackupMetrics(BackupObserver):
    """Counts backups as the coordinator reports them."""

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
        self._metrics.backup_failures.inc()


def _open_engine(
    settings: Settings, home: Home, clock: Clock, loop: asyncio.AbstractEventLoop, catalog: Catalog
) -> Runtime:
    storage = settings.storage
    engine = RocksEngine(
        home.engine_path,
        EngineOptions(
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


def _open_committer(
    settings: Settings, engine: RocksEngine, clock: Clock, metrics: Metrics
) -> GroupCommitter:
    committer = GroupCommitter(engine, sync=settings.storage.sync_writes)
    committer.watch(clock.monotonic_seconds, metrics.observe_commit)
    return committer


def _build(
    settings: Settings,
    home: Home,
    engine: RocksEngine,
    clock: Clock,
    loop: asyncio.AbstractEventLoop,
    catalog: Catalog,
) -> Runtime:
    metrics, ids = Metrics(clock.monotonic_seconds), SnowflakeSource(clock)
    start_us = read_high_water_us(engine, clock.now_us())
    ids.advance_past(snowflake_at(start_us))
    quotas = Quotas(settings.quotas, clock, catalog.quotas.all())
    committer = _open_committer(settings, engine, clock, metrics)
    shared = TopicContext(settings, ids, clock, secrets.token_bytes, quotas)
    try:
        topics = open_topics(shared, engine, committer, loop)
    except BaseException:
        committer.close()
        raise
    _write_high_water(committer, start_us)
    threads = Threads(StatementShares.of(settings.query), metrics, clock)
    lakes = TenantLakes(home, settings)
    storage = StorageContext(settings, clock, engine, committer, catalog, lakes, ids, quotas)
    try:
        hub = new_hub(settings, clock, start_us, loop)
        tables = open_tables(storage, topics, hub, home, secrets.token_bytes, metrics)
    except BaseException:
        committer.close()
        raise
    observer = _BackupMetrics(metrics, clock)
    return Runtime(
        settings=settings,
        home=home,
        clock=clock,
        engine=engine,
        committer=committer,
        catalog=catalog,
        topics=topics,
        tables=tables,
        lakes=lakes,
        ids=ids,
        tokens=TokenCache(catalog.tokens, settings.auth, clock, threads.catalog),
        metrics=metrics,
        threads=threads,
        backups=BackupCoordinator(home, engine, catalog, clock, observer, tables.streams.flush_all),
        message_rate=MessageRate(clock, topics),
        audit_notes=AuditNotes(catalog.audit, clock, metrics.audit_dropped.inc),
        started_seconds=clock.monotonic_seconds(),
        quotas=quotas,
    )


def _write_high_water(committer: GroupCommitter, start_us: int) -> None:
    """Write the high-water mark of ids before this server issues any.

    On a full disk nothing with an id can be written either, so the server starts without it.
    """
    try:
        committer.submit(lambda staging: stage_high_water(staging, start_us)).result()
    except StorageFull as problem:
        log.warning("high-water mark not written error=%r", str(problem))
