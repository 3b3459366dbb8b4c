"""Consuming: gets messages for a caller, without a group or as a member of one, and waits for the first.

Nothing holds a thread while it waits. A group's messages are leased in one commit and read after it: a
caller that goes away in between leaves leases, which end by themselves.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from starlette.requests import ClientDisconnect

from tidegate.errors import GroupNotFound, InvariantBroken, OffsetOutOfRange, RequestInvalid
from tidegate.query.step import ConsumeAsk
from tidegate.server.runtime.waiters import WaitKey
from tidegate.storage.group_commit import Staging
from tidegate.topics.definitions import Topic
from tidegate.topics.groups.leases import lease_prefix
from tidegate.topics.groups.types import FetchRequest, FetchResult, LeasedRange, Ready
from tidegate.topics.log import reader
from tidegate.topics.log.record_batch import MESSAGE_SCHEMA

if TYPE_CHECKING:
    from tidegate.server.http.request import Call
    from tidegate.server.runtime.runtime import Running

CONSUME_LIMIT = 100
# A wait looks this often whether the caller's token is still good.
ALIVE_STEP_SECONDS = 2.0
# A group whose messages retention takes away between lease and read tries again; each try moves its start.
TRIES_MAX = 5
# A reader that names no offset looks again so often when the log is cut before it has read: cuts are rare.
# What is removed is out of reach some milliseconds before it is durably gone.
CUT_TRIES_MAX = 50
CUT_SECONDS = 0.004
# What becomes due is looked at after this at the earliest: a clock that is set may never bring a spin.
DUE_SECONDS_MIN = 0.005
LEASED_SCHEMA = MESSAGE_SCHEMA.append(pa.field("lease", pa.string())).append(
    pa.field("deliveries", pa.int32())
)


@dataclass(frozen=True, slots=True)
class Consumed:
    """Messages of one answer; of a group with the columns `lease` and `deliveries`."""

    batches: list[pa.RecordBatch]
    next_offsets: dict[int, int]
    missed: dict[int, int] = field(default_factory=dict)
    is_leased: bool = False

    @property
    def count(self) -> int:
        """The number of messages."""
        return sum(batch.num_rows for batch in self.batches)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batches."""
        return LEASED_SCHEMA if self.is_leased else MESSAGE_SCHEMA

    def table(self) -> pa.Table:
        """Return all messages as one table."""
        return pa.Table.from_batches(self.batches, self.schema)


async def consumed(call: Call, ask: ConsumeAsk) -> Consumed:
    """Return messages, waiting for the first as long as asked; counts what it gives."""
    limit = check_ask(call.running, ask)
    deadline = call.running.clock.monotonic_seconds() + ask.wait_ms / 1000
    if ask.group is None:
        found = await _without_group(call, ask, limit, deadline)
    else:
        found = await _Member(call, ask, ask.group, limit).consumed(deadline)
    call.check_alive()
    size_bytes = sum(batch.nbytes for batch in found.batches)
    call.running.metrics.count_consumed(call.tenant, found.count, size_bytes)
    return found


def check_ask(running: Running, ask: ConsumeAsk) -> int:
    """Refuse what is beyond a limit, and give the number of messages that are wanted at most."""
    limits, topics = running.settings.server, running.settings.topics
    limit = min(CONSUME_LIMIT, limits.messages_max) if ask.limit is None else ask.limit
    if not 1 <= limit <= limits.messages_max:
        reason = f"limit is 1 to {limits.messages_max}, not {limit}."
        raise RequestInvalid(reason=reason, hint="Read in pages: go on from nextOffsets.")
    if not 0 <= ask.wait_ms <= limits.wait_ms_max:
        reason = f"waitMs is 0 to {limits.wait_ms_max}, not {ask.wait_ms}."
        raise RequestInvalid(reason=reason, hint="Ask again after an empty answer.")
    if ask.group is None and (ask.member is not None or ask.lease_ms is not None):
        raise RequestInvalid(
            reason="Without a group nothing is leased and nobody is a member.", hint="Name a group."
        )
    check_lease_ms(ask.lease_ms, topics.lease_ms_max)
    if ask.partition is not None:
        ask.topic.check_partition(ask.partition)
    return limit


def check_lease_ms(lease_ms: int | None, most: int) -> None:
    """Refuse a lease that is no time, or longer than the setting allows."""
    if lease_ms is not None and not 1 <= lease_ms <= most:
        reason = f"leaseMs is 1 to {most}, not {lease_ms}."
        raise RequestInvalid(reason=reason, hint="A lease can be extended while the work goes on.")


async def _without_group(call: Call, ask: ConsumeAsk, limit: int, deadline: float) -> Consumed:
    """Read from where the caller says; one who names no offset is not told that the log was cut meanwhile."""
    for _ in range(CUT_TRIES_MAX):
        try:
            return await _from_start(call, ask, limit, deadline)
        except OffsetOutOfRange:
            if ask.start.kind not in ("earliest", "latest", "timestamp"):
                raise
            await asyncio.sleep(CUT_SECONDS)
    return await _from_start(call, ask, limit, deadline)


async def _from_start(call: Call, ask: ConsumeAsk, limit: int, deadline: float) -> Consumed:
    running, topic = call.running, ask.topic
    begin = await running.threads.read(reader.start_offsets, running.log, topic, ask.start, ask.partition)
    with _watched(call) as watch:
        while True:
            waiter = running.arrivals.arm(topic)
            try:
                topic = _same(running, topic)
                if ask.partition is None:
                    # Partitions that were added since begin at their beginning.
                    begin.update(dict.fromkeys(range(len(begin), topic.partitions), 0))
                if any(running.log.counters(topic, number).end > at for number, at in begin.items()):
                    taken = await running.threads.read(reader.take, running.log, topic, begin, limit)
                    return Consumed(taken.batches, taken.next_offsets)
                if not await watch.wait(waiter, deadline):
                    return Consumed([], dict(begin))
            finally:
                running.arrivals.disarm(topic, waiter)


def _same(running: Running, topic: Topic) -> Topic:
    """Return a topic as it is now, perhaps with more partitions.

    One that was deleted while this waited is refused, rather than one of the same name made since read.
    """
    now = running.topics.get(topic.tenant, topic.name)
    now.check_id(topic.id)
    return now


class _Member:
    """One consume of a member of a group."""

    def __init__(self, call: Call, ask: ConsumeAsk, group: str, limit: int) -> None:
        self._call = call
        self._running = call.running
        self._topic = ask.topic
        self._group = group
        self._member = ask.member if ask.member is not None else call.principal.full_name
        self._partition = ask.partition
        self._key = WaitKey(ask.topic.id, group, ask.partition)
        self._take = FetchRequest(group, self._member, ask.start, ask.partition, limit, ask.lease_ms)

    async def consumed(self, deadline: float) -> Consumed:
        """Lease messages and give them; what is too much for one answer is given back at once."""
        missed: Counter[int] = Counter()
        for _ in range(TRIES_MAX):
            given = await self._given(deadline)
            # What was missed is told once: what an earlier try was told counts as well.
            missed.update(given.missed)
            given = replace(given, missed=dict(missed))
            try:
                return await self._read(given)
            except OffsetOutOfRange:
                # Retention was quicker than the read: these count as missed at the next try.
                await self._release(given.grants)
        return Consumed([], given.next_offsets, given.missed, is_leased=True)

    async def _given(self, deadline: float) -> FetchResult:
        """Take what there is; wait where there is nothing. The first take also fixes where a group begins."""
        groups = self._running.topic.groups
        groups.seen(self._topic, self._group, self._member, 1)
        try:
            given = await self._taken()
            if given.grants or given.missed or not self._is_before(deadline):
                return given
            with _watched(self._call) as watch:
                return await self._waited(given, watch, deadline)
        finally:
            groups.seen(self._topic, self._group, self._member, -1)
            self._pass_on()

    async def _waited(self, given: FetchResult, watch: _Watch, deadline: float) -> FetchResult:
        running, waits = self._running, self._running.topic.waits
        while True:
            waiter = waits.arm(self._key)
            try:
                self._topic = _same(running, self._topic)
                ready = self._ready()
                # A group that was deleted meanwhile begins anew, as with any other consume.
                if ready.count or ready.missed or not ready.is_known:
                    given = await self._taken()
                    if given.grants or given.missed:
                        return given
                    ready = self._ready()
                if ready.due_us is not None:
                    waits.wake_in(self._key, self._seconds_until(ready.due_us))
                if not await watch.wait(waiter, deadline):
                    return given
            finally:
                waits.disarm(self._key, waiter)

    async def _taken(self) -> FetchResult:
        return await self._running.committer.commit(self._stage_take)

    def _stage_take(self, staging: Staging) -> FetchResult:
        # The newest definition: a first take fixes where the group begins in all partitions there are.
        topic = self._running.topics.by_id(self._topic.id) or self._topic
        return self._running.topic.groups.stage_take(staging, topic, self._take)

    def _ready(self) -> Ready:
        return self._running.topic.groups.ready(self._topic, self._group, self._partition)

    def _is_before(self, deadline: float) -> bool:
        return not self._running.stopping and self._running.clock.monotonic_seconds() < deadline

    def _pass_on(self) -> None:
        """Wake the next of the group while there is something to give."""
        topic, waits = self._running.topics.by_id(self._topic.id), self._running.topic.waits
        if topic is None:
            return
        ready = self._running.topic.groups.ready(topic, self._group, None)
        if ready.count or ready.missed:
            waits.wake(topic.id, self._group)
        if ready.due_us is not None:
            # This one may have been the one whose timer it was.
            waits.wake_group_in(topic.id, self._group, self._seconds_until(ready.due_us))

    def _seconds_until(self, due_us: int) -> float:
        return max(DUE_SECONDS_MIN, (due_us - self._running.clock.now_us()) / 1_000_000)

    async def _read(self, given: FetchResult) -> Consumed:
        ranges = [(grant.partition, grant.start, grant.stop) for grant in given.grants]
        log, threads = self._running.log, self._running.threads
        batches, count = await threads.read(
            reader.of_ranges, log, self._topic, ranges, reader.TAKEN_BYTES_MAX
        )
        left = _behind(given.grants, count)
        if left:
            await self._release(left)
        leased = _leased(batches, given.grants)
        return Consumed(leased, given.next_offsets, given.missed, is_leased=True)

    async def _release(self, grants: Sequence[LeasedRange]) -> None:
        stage = self._running.topic.groups.stage_release
        with suppress(GroupNotFound):  # deleted since: there is nothing to be given back
            await self._running.committer.commit(
                lambda staging: stage(staging, self._topic, self._group, self._member, grants)
            )


def _behind(grants: Sequence[LeasedRange], count: int) -> list[LeasedRange]:
    """Return what of the grants lies behind their first `count` messages."""
    left: list[LeasedRange] = []
    for grant in grants:
        done = min(count, grant.stop - grant.start)
        count -= done
        if grant.start + done < grant.stop:
            left.append(replace(grant, start=grant.start + done))
    return left


def _leased(batches: Sequence[pa.RecordBatch], grants: Sequence[LeasedRange]) -> list[pa.RecordBatch]:
    """Add to messages their leases and how often they were given; both are in the order of the grants."""
    found: list[pa.RecordBatch] = []
    waiting = iter(grants)
    grant = next(waiting, None)
    for batch in batches:
        first = batch.column("offset")[0].as_py()
        partition = batch.column("partition")[0].as_py()
        while grant is not None and not (grant.partition == partition and grant.start <= first < grant.stop):
            grant = next(waiting, None)
        if grant is None:
            raise InvariantBroken(reason=f"offset {first} of partition {partition} was read and not granted")
        prefix = pa.scalar(lease_prefix(grant.partition, grant.grant))
        leases = pc.binary_join_element_wise(prefix, batch.column("offset").cast(pa.string()), "")
        deliveries = pa.repeat(pa.scalar(grant.deliveries, pa.int32()), batch.num_rows)
        found.append(pa.RecordBatch.from_arrays([*batch.columns, leases, deliveries], schema=LEASED_SCHEMA))
    return found


class _Watch:
    """Waits for one call: until it is woken, its time is over, or its caller is gone."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._leaving: asyncio.Future[None] | None = None

    async def wait(self, waiter: asyncio.Future[None], deadline: float) -> bool:
        """Wait to be woken; False when the time is over or the server stops."""
        call, clock = self._call, self._call.running.clock
        while not waiter.done():
            left_seconds = deadline - clock.monotonic_seconds()
            if left_seconds <= 0 or call.running.stopping:
                return False
            self._leaving = self._leaving or asyncio.ensure_future(call.left())
            call.begin_wait()
            try:
                # In steps that are short enough to notice a token that ended meanwhile.
                step_seconds = min(left_seconds, ALIVE_STEP_SECONDS)
                both = [waiter, self._leaving]
                await asyncio.wait(both, timeout=step_seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                call.end_wait()
            if self._leaving.done():
                raise ClientDisconnect
            call.check_alive()
        return True

    def close(self) -> None:
        """Look no longer whether the caller is there."""
        if self._leaving is not None:
            self._leaving.cancel()


@contextmanager
def _watched(call: Call) -> Iterator[_Watch]:
    watch = _Watch(call)
    try:
        yield watch
    finally:
        watch.close()
