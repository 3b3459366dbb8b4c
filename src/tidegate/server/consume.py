"""Endpoints of reading topics: consume, and what Spark reads (plan, read), in JSON and in Arrow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from tidegate.errors import InvariantBroken, RequestInvalid
from tidegate.model.timeranges import format_time, parse_time
from tidegate.server.arrow_bodies import arrow_answer
from tidegate.server.bodies import json_answer, ready_answer
from tidegate.server.call import ARROW_STREAM, JSON, Call
from tidegate.server.running import Running
from tidegate.server.sending import StreamResponse
from tidegate.topics import reading
from tidegate.topics.batches import MESSAGE_SCHEMA
from tidegate.topics.definitions import Topic
from tidegate.topics.reading import Start, Taken

CONSUME_LIMIT = 100
# Where an Arrow answer carries the offsets to go on from.
NEXT_OFFSETS = "tidegate.nextOffsets"
# What a stream that is not taken holds: a chunk, and the page of record batches that the next is made from.
STREAM_BYTES = 4 * reading.CHUNK_BYTES
# A wait looks this often whether the caller's token is still good.
ALIVE_STEP_SECONDS = 2.0


class FromBody(msgspec.Struct, forbid_unknown_fields=True):
    """The object form of `from`; exactly one field is given."""

    offset: int | None = None
    after: int | None = None
    timestamp: str | None = None
    offsets: dict[int, int] | None = None


class ConsumeBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of consume."""

    from_: str | FromBody = msgspec.field(name="from", default="earliest")
    partition: int | None = None
    limit: int | UnsetType = UNSET
    wait_ms: int = 0


class PlanBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of plan."""

    start: str | dict[int, int]
    messages_max: int | None = None
    topic_id: int | None = None


class ReadBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of read."""

    partition: int
    from_: int = msgspec.field(name="from")
    to: int
    topic_id: int | None = None


_consume = msgspec.json.Decoder(ConsumeBody)
_plan = msgspec.json.Decoder(PlanBody)
_read = msgspec.json.Decoder(ReadBody)


async def consume(call: Call) -> Response:
    """Messages from a position on, without a group: nothing is remembered. Waits for the first if asked."""
    running = call.running
    topic = running.topics.get(call.tenant, call.params["topic"])
    body = await call.json(_consume)
    limit = _check_consume(running, body)
    start = _start(body.from_)
    running.answers.check_room()
    begin = await running.threads.read(reading.start_offsets, running.log, topic, start, body.partition)
    taken = await _take_or_wait(call, topic, begin, limit, body.wait_ms)
    call.check_alive()
    write, kind = (_arrow, ARROW_STREAM) if call.wants_arrow() else (_json, JSON)
    content = await running.threads.read(write, topic, taken)
    answer = ready_answer(content, kind, held=running.answers)
    running.metrics.count_consumed(call.tenant, taken.count)
    return answer


def _check_consume(running: Running, body: ConsumeBody) -> int:
    """Refuse what is beyond a limit, and give the number of messages that are wanted at most."""
    limits = running.settings.server
    limit = min(CONSUME_LIMIT, limits.messages_max) if isinstance(body.limit, UnsetType) else body.limit
    if not 1 <= limit <= limits.messages_max:
        reason = f"limit is 1 to {limits.messages_max}, not {limit}."
        raise RequestInvalid(reason=reason, hint="Read in pages: go on from nextOffsets.")
    if not 0 <= body.wait_ms <= limits.wait_ms_max:
        reason = f"waitMs is 0 to {limits.wait_ms_max}, not {body.wait_ms}."
        raise RequestInvalid(reason=reason, hint="Ask again after an empty answer.")
    return limit


async def _take_or_wait(call: Call, topic: Topic, begin: dict[int, int], limit: int, wait_ms: int) -> Taken:
    running, clock = call.running, call.running.clock
    deadline = clock.monotonic_seconds() + wait_ms / 1000
    leaving: asyncio.Future[None] | None = None
    try:
        while True:
            waiter = running.arrivals.arm(topic)
            try:
                # Deleted while this waited: say so, rather than read a topic of the same name made since.
                running.topics.get(topic.tenant, topic.name).check_id(topic.id)
                taken = await running.threads.read(reading.take, running.log, topic, begin, limit)
                left_seconds = deadline - clock.monotonic_seconds()
                if taken.batches or left_seconds <= 0 or running.stopping:
                    return taken
                leaving = leaving or asyncio.ensure_future(call.left())
                await _wait(call, waiter, leaving, left_seconds)
            finally:
                running.arrivals.disarm(topic, waiter)
    finally:
        if leaving is not None:
            leaving.cancel()


async def _wait(
    call: Call, waiter: asyncio.Future[None], leaving: asyncio.Future[None], left_seconds: float
) -> None:
    """Wait for messages, in steps that are short enough to notice a token that ended meanwhile."""
    call.begin_wait()
    try:
        step_seconds = min(left_seconds, ALIVE_STEP_SECONDS)
        await asyncio.wait([waiter, leaving], timeout=step_seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        call.end_wait()
    if leaving.done():
        raise ClientDisconnect
    call.check_alive()


def _start(given: str | FromBody | dict[int, int]) -> Start:
    if isinstance(given, dict):
        return Start("offsets", offsets=given)
    if given == "earliest":
        return Start("earliest")
    if given == "latest":
        return Start("latest")
    if isinstance(given, str):
        reason = f"'{given}' is not a position."
        raise RequestInvalid(
            reason=reason, hint='Say "earliest", "latest", {"offset": n}, {"after": n} or {"timestamp": "…"}.'
        )
    chosen = [name for name in FromBody.__struct_fields__ if getattr(given, name) is not None]
    if len(chosen) != 1:
        reason = "A position has exactly one of offset, after, timestamp and offsets."
        raise RequestInvalid(reason=reason, hint='For example {"offset": 12}.')
    if given.timestamp is not None:
        return Start("timestamp", parse_time(given.timestamp))
    if given.offsets is not None:
        return Start("offsets", offsets=given.offsets)
    if given.after is not None:
        return Start("after", given.after)
    if given.offset is not None:
        return Start("offset", given.offset)
    raise InvariantBroken(reason="a position without a field passed the check")


def _arrow(_topic: Topic, taken: Taken) -> bytes:
    notes = {NEXT_OFFSETS: msgspec.json.encode(_following(taken)).decode()}
    return arrow_answer(taken.batches, MESSAGE_SCHEMA, notes)


def _json(topic: Topic, taken: Taken) -> bytes:
    return msgspec.json.encode({"messages": _rows(topic, taken), "nextOffsets": _following(taken)})


def _following(taken: Taken) -> dict[str, int]:
    return {str(key): value for key, value in taken.next_offsets.items()}


def _rows(topic: Topic, taken: Taken) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in taken.batches:
        columns = batch.to_pydict()
        times = batch.column("ts").cast("int64").to_pylist()
        for index, payload in enumerate(columns["payload"]):
            rows.append(
                {
                    "topic": topic.name,
                    "partition": columns["partition"][index],
                    "offset": columns["offset"][index],
                    "messageId": str(columns["message_id"][index]),
                    "op": columns["op"][index],
                    "ts": format_time(times[index]),
                    "source": columns["source"][index],
                    "payloadMode": columns["payload_mode"][index],
                    "key": columns["key"][index],
                    "payload": msgspec.Raw(payload.encode()),
                }
            )
    return rows


async def plan(call: Call) -> Response:
    """The next offset range to read, planned here so that every reader plans alike."""
    running = call.running
    topic = running.topics.get(call.tenant, call.params["topic"])
    body = await call.json(_plan)
    topic.check_id(body.topic_id)
    if body.messages_max is not None and body.messages_max < 1:
        raise RequestInvalid(reason="messagesMax is 1 or more.", hint="Leave it out for no limit.")
    planned = await running.threads.read(
        reading.plan, running.log, topic, _start(body.start), body.messages_max
    )
    ends = {"start": planned.start, "end": planned.end, "latest": planned.latest}
    return json_answer({"topicId": topic.id, **ends})


async def read(call: Call) -> Response:
    """Exactly the messages of an offset range, as one Arrow stream."""
    running = call.running
    topic = running.topics.get(call.tenant, call.params["topic"])
    body = await call.json(_read)
    topic.check_id(body.topic_id)
    if body.to < body.from_:
        raise RequestInvalid(
            reason=f"The range ends at {body.to}, before it starts.", hint="Ranges are half-open."
        )
    chunks = reading.arrow_stream(running.log, topic, body.partition, body.from_, body.to)
    running.answers.take(STREAM_BYTES)
    try:
        # The first chunk is made before the answer begins, so that an error in it has a status of its own.
        first = await running.threads.read(next, chunks)
    except BaseException:
        running.answers.release(STREAM_BYTES)
        raise
    running.metrics.count_consumed(call.tenant, body.to - body.from_)
    release = partial(running.answers.release, STREAM_BYTES)
    return StreamResponse(_stream(call, first, chunks), ARROW_STREAM, release)


async def _stream(call: Call, first: bytes, rest: Iterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    while chunk := await call.running.threads.read(next, rest, b""):
        call.check_alive()
        yield chunk
