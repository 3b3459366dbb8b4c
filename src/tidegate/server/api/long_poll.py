"""Long polls: fetch messages, with or without a consumer group, and wait for the first.

A waiting request holds no thread. The messages of a group are leased in one commit and read after it: a
client that disconnects in between leaves leases, which expire.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from starlette.requests import ClientDisconnect

from tidegate.errors import (
    GroupNotFound,
    InvariantBroken,
    OffsetOutOfRange,
    RequestInvalid,
    StorageCorrupt,
)
from tidegate.model.messages import MESSAGE_SCHEMA
from tidegate.query.step import ConsumeRequest
from tidegate.server.http.request import HttpRequest
from tidegate.server.runtime.runtime import Runtime
from tidegate.server.runtime.waiters import WaitKey
from tidegate.storage.group_commit import Staging
from tidegate.topics.definitions import Topic
from tidegate.topics.groups.leases import lease_prefix
from tidegate.topics.groups.types import FetchEstimate, FetchRequest, FetchResult, LeasedRange
from tidegate.topics.log import reader

CONSUME_LIMIT = 100
# How often a waiting request checks its token.
ALIVE_STEP_SECONDS = 2.0
# Tries of a group whose messages retention removes between lease and read; each try moves its start.
TRIES_MAX = 5
# Tries of a reader that names no offset, when the log is trimmed before it has read; trims are rare. Removed
# messages are out of reach some milliseconds before their removal is durable.
TRIM_TRIES_MAX = 50
TRIM_SECONDS = 0.004
# The shortest timer for due messages: a clock that is set must not cause a busy loop.
DUE_SECONDS_MIN = 0.005
LEASED_SCHEMA = MESSAGE_SCHEMA.append(pa.field("lease", pa.string())).append(
    pa.field("deliveries", pa.int32())
)


@dataclass(frozen=True, slots=True)
class FetchedMessages:
    """The messages of one answer; those of a group have the columns `lease` and `deliveries`."""

    batches: list[pa.RecordBatch]
    next_offsets: dict[int, int]
    missed: dict[int, int] = field(default_factory=dict)
    is_leased: bool = False
    # Why the only message has the payload null: it is damaged in the log.
    damage: StorageCorrupt | None = None

    @property
    def count(self) -> int:
        """The number of messages."""
        return sum(batch.num_rows for batch in self.batches)

    def table(self) -> pa.Table:
        """Return all messages as one table; StorageCorrupt for a damaged one, which a table cannot mark."""
        if self.damage is not None:
            raise self.damage
        return pa.Table.from_batches(self.batches, LEASED_SCHEMA if self.is_leased else MESSAGE_SCHEMA)


async def fetch_messages(request: HttpRequest, consume: ConsumeRequest) -> FetchedMessages:
    """Return messages, waiting for the first up to `wait_ms`, and count them in the metrics."""
    limit = check_consume(request.runtime, consume)
    deadline = request.runtime.clock.monotonic_seconds() + consume.wait_ms / 1000
    if consume.group is None:
        found = await _without_group(request, consume, limit, deadline)
    else:
        found = await _GroupFetch(request, consume, consume.group, limit).fetch(deadline)
    request.check_alive()
    size_bytes = sum(batch.nbytes for batch in found.batches)
    request.runtime.metrics.count_consumed(request.tenant, found.count, size_bytes)
    return found


def check_consume(runtime: Runtime, consume: ConsumeRequest) -> int:
    """Raise RequestInvalid for a request beyond a limit; return the maximum number of messages."""
    limits, topics = runtime.settings.server, runtime.settings.topics
    limit = min(CONSUME_LIMIT, limits.messages_max) if consume.limit is None else consume.limit
    if not 1 <= limit <= limits.messages_max:
        reason = f"limit is 1 to {limits.messages_max}, not {limit}."
        raise RequestInvalid(reason=reason, hint="Read in pages: continue from nextOffsets.")
    if not 0 <= consume.wait_ms <= limits.wait_ms_max:
        reason = f"waitMs is 0 to {limits.wait_ms_max}, not {consume.wait_ms}."
        raise RequestInvalid(reason=reason, hint="Ask again after an empty answer.")
    if consume.group is None and (consume.member is not None or consume.lease_ms is not None):
        raise RequestInvalid(
            reason="Without a group nothing is leased and nobody is a member.", hint="Name a group."
        )
    check_lease_ms(consume.lease_ms, topics.lease_ms_max)
    if consume.partition is not None:
        consume.topic.check_partition(consume.partition)
    return limit


def check_lease_ms(lease_ms: int | None, most: int) -> None:
    """Raise RequestInvalid for a lease that is not positive or longer than the setting allows."""
    if lease_ms is not None and not 1 <= lease_ms <= most:
        reason = f"leaseMs is 1 to {most}, not {lease_ms}."
        raise RequestInvalid(reason=reason, hint="A lease can be extended during the work.")


async def _without_group(
    request: HttpRequest, consume: ConsumeRequest, limit: int, deadline: float
) -> FetchedMessages:
    """Read from a position; if it names no offset, a trim meanwhile starts the read again."""
    for _ in range(TRIM_TRIES_MAX):
        try:
            return await _from_start(request, consume, limit, deadline)
        except OffsetOutOfRange:
            if consume.start.kind not in ("earliest", "latest", "timestamp"):
                raise
            await asyncio.sleep(TRIM_SECONDS)
    return await _from_start(request, consume, limit, deadline)


async def _from_start(
    request: HttpRequest, consume: ConsumeRequest, limit: int, deadline: float
) -> FetchedMessages:
    runtime, topic = request.runtime, consume.topic
    begin = await runtime.threads.read(
        reader.start_offsets, runtime.topics.log, topic, consume.start, consume.partition
    )
    with _watch_disconnect(request) as watch:
        while True:
            waiter = runtime.topics.waiters.arm(topic)
            try:
                topic = _current(runtime, topic)
                if consume.partition is None:
                    # Partitions that were added meanwhile are read from their beginning.
                    begin.update(dict.fromkeys(range(len(begin), topic.partitions), 0))
                if any(runtime.topics.log.counters(topic, number).end > at for number, at in begin.items()):
                    taken = await runtime.threads.read(
                        reader.read_messages, runtime.topics.log, topic, begin, limit
                    )
                    return FetchedMessages(taken.batches, taken.next_offsets, damage=taken.damage)
                if not await watch.wait(waiter, deadline):
                    return FetchedMessages([], dict(begin))
            finally:
                runtime.topics.waiters.disarm(topic, waiter)


def _current(runtime: Runtime, topic: Topic) -> Topic:
    """Return the current definition of a topic, perhaps with more partitions.

    Raises for a topic that was deleted meanwhile, also if there is a new one of the same name.
    """
    now = runtime.topics.directory.get(topic.tenant, topic.name)
    now.check_id(topic.id)
    return now


class _GroupFetch:
    """One fetch of a member of a group."""

    def __init__(self, request: HttpRequest, consume: ConsumeRequest, group: str, limit: int) -> None:
        self._request = request
        self._runtime = request.runtime
        self._topic = consume.topic
        self._group = group
        self._member = consume.member if consume.member is not None else request.principal.full_name
        self._partition = consume.partition
        self._key = WaitKey(consume.topic.id, group, consume.partition)
        self._fetch = FetchRequest(
            group,
            self._member,
            request.principal.qualified_name,
            consume.start,
            consume.partition,
            limit,
            consume.lease_ms,
        )

    async def fetch(self, deadline: float) -> FetchedMessages:
        """Lease messages and return them; those that do not fit into one answer are released at once."""
        missed: Counter[int] = Counter()
        for _ in range(TRIES_MAX):
            result = await self._lease_or_wait(deadline)
            # Missed messages are reported once: those of an earlier try belong into this answer, too.
            missed.update(result.missed)
            result = replace(result, missed=dict(missed))
            try:
                return await self._read(result)
            except OffsetOutOfRange:
                # Retention removed them before the read: they count as missed at the next try.
                await self._release(result.ranges)
            except StorageCorrupt:
                # A whole record batch is damaged. Its first message alone stays leased: others are fetched
                # meanwhile, and it becomes a dead letter when its deliveries are exhausted.
                await self._release(_behind(result.ranges, 1))
                raise
        return FetchedMessages([], result.next_offsets, result.missed, is_leased=True)

    async def _lease_or_wait(self, deadline: float) -> FetchResult:
        """Lease what there is; wait where there is nothing. The first lease also sets the group's start."""
        groups = self._runtime.topics.groups
        groups.record_activity(self._topic, self._group, self._member, 1)
        try:
            result = await self._lease()
            if result.ranges or result.missed or not self._is_before(deadline):
                return result
            with _watch_disconnect(self._request) as watch:
                return await self._wait(result, watch, deadline)
        finally:
            groups.record_activity(self._topic, self._group, self._member, -1)
            self._wake_next()

    async def _wait(self, result: FetchResult, watch: _DisconnectWatch, deadline: float) -> FetchResult:
        runtime, waiters = self._runtime, self._runtime.topics.group_waiters
        while True:
            waiter = waiters.arm(self._key)
            try:
                self._topic = _current(runtime, self._topic)
                estimate = self._estimate()
                # A group that was deleted meanwhile starts again, as with any other fetch.
                if estimate.count or estimate.missed or not estimate.is_known:
                    result = await self._lease()
                    if result.ranges or result.missed:
                        return result
                    estimate = self._estimate()
                if estimate.due_us is not None:
                    waiters.wake_in(self._key, self._seconds_until(estimate.due_us))
                if not await watch.wait(waiter, deadline):
                    return result
            finally:
                waiters.disarm(self._key, waiter)

    async def _lease(self) -> FetchResult:
        return await self._runtime.committer.commit(self._stage_fetch)

    def _stage_fetch(self, staging: Staging) -> FetchResult:
        # The current definition: a first fetch sets the group's position in all partitions there are.
        topic = self._runtime.topics.directory.by_id(self._topic.id) or self._topic
        return self._runtime.topics.groups.stage_fetch(staging, topic, self._fetch)

    def _estimate(self) -> FetchEstimate:
        return self._runtime.topics.groups.estimate_fetch(self._topic, self._group, self._partition)

    def _is_before(self, deadline: float) -> bool:
        return not self._runtime.stopping and self._runtime.clock.monotonic_seconds() < deadline

    def _wake_next(self) -> None:
        """Wake the next waiter of the group while there are messages for it."""
        topics, waiters = self._runtime.topics, self._runtime.topics.group_waiters
        topic = topics.directory.by_id(self._topic.id)
        if topic is None:
            return
        estimate = topics.groups.estimate_fetch(topic, self._group, None)
        if estimate.count or estimate.missed:
            waiters.wake(topic.id, self._group)
        if estimate.due_us is not None:
            # The timer may have been that of this request.
            waiters.wake_group_in(topic.id, self._group, self._seconds_until(estimate.due_us))

    def _seconds_until(self, due_us: int) -> float:
        return max(DUE_SECONDS_MIN, (due_us - self._runtime.clock.now_us()) / 1_000_000)

    async def _read(self, result: FetchResult) -> FetchedMessages:
        ranges = [(leased.partition, leased.start, leased.stop) for leased in result.ranges]
        log, threads = self._runtime.topics.log, self._runtime.threads
        batches, damage = await threads.read(
            reader.read_ranges, log, self._topic, ranges, reader.RESULT_BYTES_MAX
        )
        unread = _behind(result.ranges, sum(batch.num_rows for batch in batches))
        if unread:
            await self._release(unread)
        leased_batches = _with_leases(batches, result.ranges)
        return FetchedMessages(
            leased_batches, result.next_offsets, result.missed, is_leased=True, damage=damage
        )

    async def _release(self, ranges: Sequence[LeasedRange]) -> None:
        stage = self._runtime.topics.groups.stage_release
        with suppress(GroupNotFound):  # deleted meanwhile: nothing is leased any more
            await self._runtime.committer.commit(
                lambda staging: stage(staging, self._topic, self._group, self._member, ranges)
            )


def _behind(ranges: Sequence[LeasedRange], count: int) -> list[LeasedRange]:
    """Return what remains of ranges after their first `count` messages."""
    rest: list[LeasedRange] = []
    for leased in ranges:
        done = min(count, leased.stop - leased.start)
        count -= done
        if leased.start + done < leased.stop:
            rest.append(replace(leased, start=leased.start + done))
    return rest


def _with_leases(batches: Sequence[pa.RecordBatch], ranges: Sequence[LeasedRange]) -> list[pa.RecordBatch]:
    """Return batches with the columns `lease` and `deliveries`; batches and ranges have the same order."""
    found: list[pa.RecordBatch] = []
    following = iter(ranges)
    leased = next(following, None)
    for batch in batches:
        first = batch.column("offset")[0].as_py()
        partition = batch.column("partition")[0].as_py()
        while leased is not None and not (
            leased.partition == partition and leased.start <= first < leased.stop
        ):
            leased = next(following, None)
        if leased is None:
            raise InvariantBroken(reason=f"offset {first} of partition {partition} was read and not leased")
        prefix = pa.scalar(lease_prefix(leased.partition, leased.fetch_id, leased.token))
        leases = pc.binary_join_element_wise(prefix, batch.column("offset").cast(pa.string()), "")
        deliveries = pa.repeat(pa.scalar(leased.deliveries, pa.int32()), batch.num_rows)
        found.append(pa.RecordBatch.from_arrays([*batch.columns, leases, deliveries], schema=LEASED_SCHEMA))
    return found


class _DisconnectWatch:
    """Waits of one request: each ends with a wake-up, at the deadline, or when the client disconnects."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self._disconnected: asyncio.Future[None] | None = None

    async def wait(self, waiter: asyncio.Future[None], deadline: float) -> bool:
        """Wait to be woken; False at the deadline or when the server stops."""
        request, clock = self._request, self._request.runtime.clock
        while not waiter.done():
            left_seconds = deadline - clock.monotonic_seconds()
            if left_seconds <= 0 or request.runtime.stopping:
                return False
            self._disconnected = self._disconnected or asyncio.ensure_future(request.wait_disconnect())
            request.begin_wait()
            try:
                # In short steps, to notice a token that ended meanwhile.
                step_seconds = min(left_seconds, ALIVE_STEP_SECONDS)
                both = [waiter, self._disconnected]
                await asyncio.wait(both, timeout=step_seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                request.end_wait()
            if self._disconnected.done():
                raise ClientDisconnect
            request.check_alive()
        return True

    def close(self) -> None:
        """Stop watching for a disconnect."""
        if self._disconnected is not None:
            self._disconnected.cancel()


@contextmanager
def _watch_disconnect(request: HttpRequest) -> Iterator[_DisconnectWatch]:
    watch = _DisconnectWatch(request)
    try:
        yield watch
    finally:
        watch.close()
