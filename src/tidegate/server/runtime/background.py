"""The background tasks of a server: retention, eviction, expiry of leases, and other periodic work."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable

from tidegate.errors import (
    CatalogUnavailable,
    GroupNotFound,
    TableChanged,
    TidegateError,
    TopicNotFound,
)
from tidegate.ingest.batch_commit import stage_old
from tidegate.ingest.idempotency import old_answers, stage_forget
from tidegate.model.epoch import DAY_US
from tidegate.model.ids import tick_time_us
from tidegate.server.runtime.runtime import Runtime
from tidegate.server.runtime.tenant_disk import tenants_with_storage
from tidegate.storage.group_commit import Staging
from tidegate.storage.high_water import KEEP_SECONDS, stage_high_water
from tidegate.topics.definitions import Topic
from tidegate.topics.groups.groups import Groups

SAMPLE_SECONDS = 1.0
# A consume finds the expired leases of its group; this is for groups without consumers.
LEASE_SECONDS = 1.0
# An index is built when it is created; this is for those that a crash left incomplete.
INDEX_SECONDS = 60.0
# How long notes for the audit trail stay in memory.
AUDIT_SECONDS = 1.0
# Old rows are removed once an hour: nothing waits for it.
PRUNE_SECONDS = 3600.0
# A server that is restarted often runs its background tasks, too.
FIRST_SECONDS_MAX = 60.0
# Answers by idempotency key are stored in the catalog for as long as in the engine.
ANSWER_DAYS = 1

log = logging.getLogger(__name__)


def start_background_tasks(runtime: Runtime) -> list[asyncio.Task[None]]:
    """Start all background tasks and return them; `stop_background_tasks` ends them."""
    settings = runtime.settings
    refresh_seconds = settings.auth.refresh_seconds
    periodic: list[tuple[str, float, Callable[[], Awaitable[None]]]] = [
        ("tokens", refresh_seconds, lambda: runtime.tokens.refresh(required=False)),
        ("prune", PRUNE_SECONDS, lambda: prune(runtime)),
        ("topics: parts", PRUNE_SECONDS, lambda: _remove_old_batches(runtime)),
        ("streams: flush", settings.streams.flush_interval_seconds / 2, lambda: flush_streams(runtime)),
        ("streams: evict", settings.streams.eviction_interval_seconds, lambda: evict_streams(runtime)),
        ("topics: retention", settings.topics.retention_interval_seconds, lambda: apply_retention(runtime)),
        ("topics: leases", LEASE_SECONDS, lambda: expire_leases(runtime)),
        ("indexes", INDEX_SECONDS, lambda: fill_indexes(runtime)),
        ("audit", AUDIT_SECONDS, lambda: runtime.audit_notes.write(runtime.threads.catalog)),
        ("clock", KEEP_SECONDS, _high_water(runtime)),
        ("quotas", refresh_seconds, runtime.refresh_quotas),
        ("quotas: disk", settings.quotas.disk_interval_seconds, lambda: measure_tenants(runtime)),
    ]
    tasks = [asyncio.ensure_future(_repeat(name, seconds, work)) for name, seconds, work in periodic]
    return [*tasks, asyncio.ensure_future(_sample(runtime))]


async def stop_background_tasks(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def flush_streams(runtime: Runtime) -> None:
    """Write buffered rows of streams to their files, before the flush interval ends."""
    began = runtime.clock.monotonic_seconds()
    interval_seconds = runtime.settings.streams.flush_interval_seconds
    await runtime.threads.upkeep(runtime.tables.streams.flush, interval_seconds / 2)
    runtime.metrics.stream_flushes.observe(runtime.clock.monotonic_seconds() - began)


async def evict_streams(runtime: Runtime) -> None:
    """Remove expired windows from view, then delete their files.

    A table whose folder is damaged is named in the log, and the others are evicted all the same.
    """
    streams = runtime.tables.streams
    for table in runtime.tables.stream_tables():
        try:
            evicted = await runtime.threads.upkeep(streams.evict, table)
        except TableChanged:
            continue  # dropped meanwhile
        except TidegateError as problem:
            log.error(
                "stream eviction failed table=%s error_code=%s error=%r",
                table.full_name,
                problem.code,
                str(problem),
            )
            continue
        runtime.metrics.windows_evicted.inc(evicted.windows)
    await runtime.threads.upkeep(streams.sweep)


async def apply_retention(runtime: Runtime) -> None:
    """Delete the messages that the retention of topics does not cover, and free their disk space.

    A topic that cannot be read is named in the log, and the others are trimmed all the same.
    """
    for topic in list(runtime.topics.directory):
        for partition in range(topic.partitions):
            try:
                if not topic.retention.is_endless:
                    await _trim(runtime, topic, partition)
                await runtime.threads.upkeep(runtime.topics.log.compact, topic, partition)
            except TopicNotFound:
                break  # deleted meanwhile
            except TidegateError as problem:
                log.error(
                    "topic retention failed topic=%s partition=%d error_code=%s error=%r",
                    topic.name,
                    partition,
                    problem.code,
                    str(problem),
                )
        if topic.dedup_seconds is not None:
            await _expire_dedup_keys(runtime, topic)
    await runtime.threads.upkeep(runtime.topics.log.compact_deleted)


async def _trim(runtime: Runtime, topic: Topic, partition: int) -> None:
    before = runtime.topics.log.counters(topic, partition)
    now_us = runtime.clock.now_us()
    start = await runtime.threads.upkeep(runtime.topics.log.retained_start, topic, partition, now_us)
    if start <= before.start:
        return

    def stage(staging: Staging) -> int:
        now = runtime.topics.directory.by_id(topic.id)
        if now is None or now.retention != topic.retention:
            return 0  # changed meanwhile: the next round uses the new retention
        return runtime.topics.log.stage_trim(staging, topic, partition, start)

    removed = await runtime.committer.commit(stage)
    runtime.metrics.messages_trimmed.inc(removed)


async def _expire_dedup_keys(runtime: Runtime, topic: Topic) -> None:
    """Delete the expired dedup keys of a topic, whole segments at a time."""
    dedup = runtime.topics.dedup
    try:
        if await runtime.threads.upkeep(dedup.has_expired, runtime.engine, topic):
            await runtime.committer.commit(functools.partial(dedup.stage_expire, topic=topic))
            await runtime.threads.upkeep(dedup.compact, runtime.engine, topic)
    except TopicNotFound:
        return  # deleted meanwhile
    except TidegateError as problem:
        log.error(
            "expiry of dedup keys failed topic=%s error_code=%s error=%r",
            topic.name,
            problem.code,
            str(problem),
        )


async def expire_leases(runtime: Runtime) -> None:
    """Redeliver the messages of expired leases, or make them dead letters."""
    groups = runtime.topics.groups
    for topic_id, group in groups.overdue(runtime.clock.now_us()):
        topic = runtime.topics.directory.by_id(topic_id)
        if topic is not None:
            try:
                await runtime.committer.commit(functools.partial(_expire_leases, groups, topic, group))
            except (GroupNotFound, TopicNotFound):
                continue  # deleted meanwhile
            except TidegateError as problem:
                log.error(
                    "expiry of leases failed topic=%s group=%s error_code=%s error=%r",
                    topic.name,
                    group,
                    problem.code,
                    str(problem),
                )


def _expire_leases(groups: Groups, topic: Topic, group: str, staging: Staging) -> None:
    groups.stage_expire(staging, topic, group)


async def fill_indexes(runtime: Runtime) -> None:
    """Complete indexes whose build was interrupted when the server stopped."""
    for table in runtime.tables.directory:
        if not all(index.ready for index in table.indexes):
            await runtime.threads.upkeep(runtime.tables.defining.fill_indexes, table)


async def measure_tenants(runtime: Runtime) -> None:
    """Measure what the tenants with a quota of disk have; others cost nothing."""
    quotas = runtime.quotas
    if not quotas.limits_disk:
        return
    found = await runtime.threads.upkeep(tenants_with_storage, runtime)
    # One that has nothing any more is measured again, too: else it would stay full.
    for tenant in sorted(found | quotas.measured().keys()):
        if not quotas.of_tenant(tenant).disk_bytes:
            continue
        try:
            await runtime.tenant_disks.measure(runtime, tenant, age_seconds_max=0)
        except (TidegateError, OSError) as problem:
            log.error("measurement of a tenant failed tenant=%s error=%r", tenant, str(problem))


def _high_water(runtime: Runtime) -> Callable[[], Awaitable[None]]:
    """Return a task that writes the high-water mark, if ids were issued since its last run."""
    seen = [(-1, -1)]

    async def write() -> None:
        newest = (runtime.ids.newest, runtime.tables.hub.seq)
        if newest != seen[0]:
            # A clock that was ahead for a while has left its mark in the ids that were issued.
            newest_us = max(runtime.clock.now_us(), *(tick_time_us(tick) for tick in newest))
            await runtime.committer.commit(functools.partial(stage_high_water, now_us=newest_us))
            seen[0] = newest

    return write


async def prune(runtime: Runtime) -> None:
    """Delete what is old enough: answers by idempotency key, ended tokens, audit events and jobs."""
    now_us = runtime.clock.now_us()
    await _forget_answers(runtime, now_us)
    catalog = runtime.catalog
    horizon_us = now_us - runtime.settings.catalog.audit_days_max * DAY_US
    await runtime.threads.catalog(catalog.tokens.end_expired, now_us)
    await runtime.threads.catalog(catalog.idempotency.prune, now_us - ANSWER_DAYS * DAY_US)
    await runtime.threads.catalog(catalog.tokens.prune, horizon_us)
    await runtime.threads.catalog(catalog.audit.prune, horizon_us)
    await runtime.threads.catalog(catalog.jobs.prune, horizon_us)


async def _forget_answers(runtime: Runtime, now_us: int) -> None:
    """Delete old answers in batches, each after the last one: deleted entries are not read again."""
    old = await runtime.threads.read(old_answers, runtime.engine, now_us)
    while old:
        await runtime.committer.commit(functools.partial(stage_forget, old=old))
        old = await runtime.threads.read(old_answers, runtime.engine, now_us, old[-1])


async def _repeat(name: str, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    wait_seconds = min(seconds, FIRST_SECONDS_MAX)
    while True:
        try:
            await asyncio.sleep(wait_seconds)
            wait_seconds = seconds
            await work()
        except CatalogUnavailable as problem:
            log.warning("background task failed task=%s error=%r", name, str(problem))
        except TidegateError as problem:
            log.error(
                "background task failed task=%s error_code=%s error=%r", name, problem.code, str(problem)
            )
        except Exception:
            # If the task ended for good, revoked tokens would stay valid, for one: it is tried again.
            log.exception("background task failed task=%s", name)


async def _sample(runtime: Runtime) -> None:
    """Sample the message rates and the lag of the event loop: all requests are late by it."""
    clock = runtime.clock
    while True:
        runtime.message_rate.sample()
        began = clock.monotonic_seconds()
        await asyncio.sleep(SAMPLE_SECONDS)
        runtime.metrics.loop_lag.observe(max(0.0, clock.monotonic_seconds() - began - SAMPLE_SECONDS))


async def _remove_old_batches(runtime: Runtime) -> None:
    """Delete parts that are a day old, and the records of writers that commit no more batches."""
    for topic in list(runtime.topics.directory):
        try:
            for old in await runtime.threads.upkeep(runtime.topics.batches.old, topic):
                await runtime.committer.commit(functools.partial(stage_old, old=old))
        except TidegateError as problem:
            log.error(
                "removal of old parts failed topic=%s error_code=%s error=%r",
                topic.name,
                problem.code,
                str(problem),
            )
