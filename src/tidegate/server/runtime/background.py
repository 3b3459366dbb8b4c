"""Chores: what the server does by itself, again and again, while it serves."""

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
from tidegate.ingest.idempotency import old_answers, stage_forget
from tidegate.model.ids import tick_time_us
from tidegate.server.api.staged_batches import remove_old_parts
from tidegate.server.runtime.runtime import Running
from tidegate.storage.group_commit import Staging
from tidegate.storage.high_water import KEEP_SECONDS, stage_high_water
from tidegate.topics.definitions import Topic
from tidegate.topics.groups.groups import Groups

SAMPLE_SECONDS = 1.0
# Leases that ran out are found by whoever consumes next; this is for groups in which nobody does.
LEASE_SECONDS = 1.0
# An index is filled where it is made; this is for those that a crash left.
INDEX_SECONDS = 60.0
# Old rows go once an hour: nothing waits for it.
PRUNE_SECONDS = 3600.0
# A server that is restarted often comes to its chores, too.
FIRST_SECONDS_MAX = 60.0
_DAY_US = 86_400 * 1_000_000
# Answers to requests with a key are kept in the catalog for as long as in the engine.
ANSWER_DAYS = 1

log = logging.getLogger(__name__)


def start_chores(running: Running) -> list[asyncio.Task[None]]:
    """Begin all of them; the caller cancels what is given back."""
    settings = running.settings
    refresh_seconds = settings.auth.refresh_seconds
    chores: list[tuple[str, float, Callable[[], Awaitable[None]]]] = [
        ("tokens", refresh_seconds, lambda: running.identities.refresh(required=False)),
        ("prune", PRUNE_SECONDS, lambda: prune(running)),
        ("topics: parts", PRUNE_SECONDS, lambda: remove_old_parts(running)),
        ("streams: flush", settings.streams.flush_interval_seconds / 2, lambda: flush_streams(running)),
        ("streams: evict", settings.streams.eviction_interval_seconds, lambda: evict_streams(running)),
        ("topics: retention", settings.topics.retention_interval_seconds, lambda: keep_retention(running)),
        ("topics: leases", LEASE_SECONDS, lambda: end_leases(running)),
        ("indexes", INDEX_SECONDS, lambda: fill_indexes(running)),
        ("clock", KEEP_SECONDS, _high_water(running)),
    ]
    tasks = [asyncio.ensure_future(_repeat(name, seconds, chore)) for name, seconds, chore in chores]
    return [*tasks, asyncio.ensure_future(_sample(running))]


async def stop_chores(tasks: list[asyncio.Task[None]]) -> None:
    """End all of them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def flush_streams(running: Running) -> None:
    """Bring rows of streams to their files before they have waited for the whole interval."""
    began = running.clock.monotonic_seconds()
    interval_seconds = running.settings.streams.flush_interval_seconds
    await running.threads.upkeep(running.tables.streams.flush, interval_seconds / 2)
    running.metrics.observe_stream_flush(running.clock.monotonic_seconds() - began)


async def evict_streams(running: Running) -> None:
    """Take windows that are over their time out of sight, then remove their files.

    A table whose folder is broken is named in the log, and keeps no other from its turn.
    """
    streams = running.tables.streams
    for table in running.tables.stream_tables():
        try:
            evicted = await running.threads.upkeep(streams.evict, table)
        except TableChanged:
            continue  # dropped since the list was made
        except TidegateError as problem:
            log.error("streams: evict: '%s': %s: %s", table.full_name, problem.code, problem)
            continue
        running.metrics.count_stream_evicted(evicted.windows)
    await running.threads.upkeep(streams.sweep)


async def keep_retention(running: Running) -> None:
    """Remove what topics need not keep any more, whole ranges at a time, and give the disk back its room.

    A topic that cannot be read is named in the log, and keeps no other from its turn.
    """
    for topic in list(running.topics):
        for partition in range(topic.partitions):
            try:
                if not topic.retention.is_endless:
                    await _trim(running, topic, partition)
                await running.threads.upkeep(running.log.tidy, topic, partition)
            except TopicNotFound:
                break  # deleted since the list was made
            except TidegateError as problem:
                place = f"'{topic.name}', partition {partition}"
                log.error("topics: retention: %s: %s: %s", place, problem.code, problem)
        if topic.dedup_seconds is not None:
            await _expire_dedup_keys(running, topic)
    await running.threads.upkeep(running.log.tidy_gone)


async def _trim(running: Running, topic: Topic, partition: int) -> None:
    before = running.log.counters(topic, partition)
    now_us = running.clock.now_us()
    start = await running.threads.upkeep(running.log.retained_start, topic, partition, now_us)
    if start <= before.start:
        return

    def stage(staging: Staging) -> int:
        now = running.topics.by_id(topic.id)
        if now is None or now.retention != topic.retention:
            return 0  # changed since the list was made: the next round goes by what holds now
        return running.log.stage_trim(staging, topic, partition, start)

    removed = await running.committer.commit(stage)
    running.metrics.count_trimmed(removed)


async def _expire_dedup_keys(running: Running, topic: Topic) -> None:
    """Remove the dedup keys that a topic need not remember any more, whole segments at a time."""
    dedup = running.topic.dedup
    try:
        if await running.threads.upkeep(dedup.has_expired, running.engine, topic):
            await running.committer.commit(functools.partial(dedup.stage_expire, topic=topic))
            await running.threads.upkeep(dedup.tidy, running.engine, topic)
    except TopicNotFound:
        return  # deleted since the list was made
    except TidegateError as problem:
        log.error("topics: dedup keys: '%s': %s: %s", topic.name, problem.code, problem)


async def end_leases(running: Running) -> None:
    """Let messages come again whose leases ran out, or make them dead letters."""
    groups = running.topic.groups
    for topic_id, group in groups.overdue(running.clock.now_us()):
        topic = running.topics.by_id(topic_id)
        if topic is not None:
            try:
                await running.committer.commit(functools.partial(_end_leases, groups, topic, group))
            except (GroupNotFound, TopicNotFound):
                continue  # gone since the list was made
            except TidegateError as problem:
                log.error(
                    "topics: leases: '%s', group '%s': %s: %s", topic.name, group, problem.code, problem
                )


def _end_leases(groups: Groups, topic: Topic, group: str, staging: Staging) -> None:
    groups.stage_expire(staging, topic, group)


async def fill_indexes(running: Running) -> None:
    """Go on with indexes that were being filled when the server stopped."""
    for table in running.tables.directory:
        if not all(index.ready for index in table.indexes):
            await running.threads.upkeep(running.tables.defining.fill_indexes, table)


def _high_water(running: Running) -> Callable[[], Awaitable[None]]:
    """Keep the newest time that was given out, where anything was given out since the last look."""
    seen = [(-1, -1)]

    async def keep() -> None:
        given = (running.ids.newest, running.live_hub.seq)
        if given != seen[0]:
            # A clock that went ahead and came back is still ahead in what was given out.
            newest_us = max(running.clock.now_us(), *(tick_time_us(tick) for tick in given))
            await running.committer.commit(functools.partial(stage_high_water, now_us=newest_us))
            seen[0] = given

    return keep


async def prune(running: Running) -> None:
    """Remove what is kept long enough: answers by key, ended tokens, old audit events and jobs."""
    now_us = running.clock.now_us()
    await _forget_answers(running, now_us)
    catalog = running.catalog
    horizon_us = now_us - running.settings.catalog.audit_days_max * _DAY_US
    await running.threads.catalog(catalog.tokens.end_expired, now_us)
    await running.threads.catalog(catalog.answers.prune, now_us - ANSWER_DAYS * _DAY_US)
    await running.threads.catalog(catalog.tokens.prune, horizon_us)
    await running.threads.catalog(catalog.audit.prune, horizon_us)
    await running.threads.catalog(catalog.jobs.prune, horizon_us)


async def _forget_answers(running: Running, now_us: int) -> None:
    """Remove old answers a part at a time, each behind the last: what was removed is not read again."""
    old = await running.threads.read(old_answers, running.engine, now_us)
    while old:
        await running.committer.commit(functools.partial(stage_forget, old=old))
        old = await running.threads.read(old_answers, running.engine, now_us, old[-1])


async def _repeat(name: str, seconds: float, chore: Callable[[], Awaitable[None]]) -> None:
    wait_seconds = min(seconds, FIRST_SECONDS_MAX)
    while True:
        try:
            await asyncio.sleep(wait_seconds)
            wait_seconds = seconds
            await chore()
        except CatalogUnavailable as problem:
            log.warning("%s: %s", name, problem)
        except TidegateError as problem:
            log.error("%s: %s: %s", name, problem.code, problem)
        except Exception:
            # A chore that ends for good would let tokens live on: it is said, and tried again.
            log.exception("%s failed", name)


async def _sample(running: Running) -> None:
    """Note rates, and how late the event loop is: what it is late, every request is late."""
    clock = running.clock
    while True:
        running.sample_rate()
        asked = clock.monotonic_seconds()
        await asyncio.sleep(SAMPLE_SECONDS)
        running.metrics.observe_loop_lag(max(0.0, clock.monotonic_seconds() - asked - SAMPLE_SECONDS))
